"""Embedding tables divided over processes, and checkpoints that hold them whole."""
