"""Interactions: read files into histories, with side information and item features."""
