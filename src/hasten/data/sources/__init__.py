"""Data sources: names, files, downloads, archives."""
