"""Embedding tables sharded over processes, and checkpoints that hold them whole."""
