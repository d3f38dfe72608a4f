"""Built-in samples: synthetic data with known regularities."""
