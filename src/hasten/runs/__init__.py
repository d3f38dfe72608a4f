"""The run folder: checkpoints, logs, summary, environment."""
