"""Data: read files into typed tables, check and split them.

Rows that cannot be used raise :class:`~hasten.errors.DataError` with file, line and text. Functions
that read rows do not repeat this in their docstrings.
"""
