"""The engine: trainer, phases, precision, checkpoints, run folder, progress."""
