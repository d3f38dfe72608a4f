"""The training engine: trainer, optimizer step, precision, early stopping, training state."""
