"""Search for settings of a model: ``hasten tune``."""
