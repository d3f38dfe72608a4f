"""Memory of a run: what is in use, what a budget allows, and whether a model fits."""
