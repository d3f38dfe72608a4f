"""Multimodal recommenders."""
