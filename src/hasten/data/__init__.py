"""Data: files become typed tables, which are checked and split.

Rows that cannot be used raise :class:`~hasten.errors.DataError` with file, line and text. Functions
that read rows do not repeat this in their docstrings.
"""
