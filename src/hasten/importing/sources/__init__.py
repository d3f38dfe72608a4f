"""One file per architecture: how the names of its weights translate to hasten's."""
