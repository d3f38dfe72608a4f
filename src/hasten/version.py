"""The version of hasten."""

__version__ = "0.1.0"
