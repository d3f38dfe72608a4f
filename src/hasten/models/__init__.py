"""Models, one file each: options, layers, training objectives (phases), scores of candidates."""
