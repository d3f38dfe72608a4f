"""The demonstration, and what writes the generated parts of the documentation."""
