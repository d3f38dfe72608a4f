"""Models of knowledge graphs."""
