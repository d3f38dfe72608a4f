"""Evaluation: protocols, ranking, metrics, embedding diagnostics."""
