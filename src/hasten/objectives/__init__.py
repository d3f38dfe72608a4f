"""What a model is trained on: batches and loss terms."""
