"""Built-in samples with planted structure."""
