"""Models, one file each: options, modules, phases, scorer."""
