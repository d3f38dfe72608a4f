"""Protocols, the one ranker, metrics."""
