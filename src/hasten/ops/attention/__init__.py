"""Attention operations."""
