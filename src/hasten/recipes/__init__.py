"""Recipes: measured settings by model and data set, for ``hasten train --recipe``."""
