"""The run folder: checkpoints, logs, summary, environment."""

#: of hasten; runs record it
__version__ = "0.1.0"
