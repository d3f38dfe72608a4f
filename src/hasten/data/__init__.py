"""Data: files become typed tables, which are checked and split."""
