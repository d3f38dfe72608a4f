"""Models of users and items with item features."""
