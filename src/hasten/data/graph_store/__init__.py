"""Typed graphs in memory-mapped files: prepare and open a store."""
