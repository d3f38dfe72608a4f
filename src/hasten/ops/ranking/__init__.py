"""Exact ranking and top-k over the catalog."""
