"""Models of typed graphs."""
