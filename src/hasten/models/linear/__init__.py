"""Linear and neighborhood models of items, fitted without gradient steps."""
