"""Collaborative filtering models."""
