"""Models, one main file each: options, layers, training phases, scores of candidates."""
