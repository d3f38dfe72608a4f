"""One short file per model: options, modules, phases, scorer."""
