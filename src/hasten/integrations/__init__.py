"""Integrations with optional packages: Dagster, PyTorch Geometric."""
