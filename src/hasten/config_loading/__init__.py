"""Merge files, ``--set`` overrides and flags into one validated configuration."""
