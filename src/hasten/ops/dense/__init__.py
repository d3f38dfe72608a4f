"""Dense operations."""
