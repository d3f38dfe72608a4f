"""Plots and tables of finished runs."""
