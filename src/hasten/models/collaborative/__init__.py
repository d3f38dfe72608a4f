"""Models of users and items without order."""
