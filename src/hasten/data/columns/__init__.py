"""Columns of tables: ids, names, times, text, and their checks."""
