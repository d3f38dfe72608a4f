"""Other packages, each optional."""
