"""Plan a run: predict memory, time and disk from a few real steps, and fit a memory budget."""
