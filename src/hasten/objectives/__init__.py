"""Training objectives: batches and loss terms."""
