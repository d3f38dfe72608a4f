"""The training engine: trainer, optimizer step, precision, stopping, what checkpoints hold."""
