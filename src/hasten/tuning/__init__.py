"""Hyperparameter search: ``hasten tune``."""
