"""Models of item sequences."""
