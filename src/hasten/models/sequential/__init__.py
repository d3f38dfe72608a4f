"""Sequential recommenders."""
