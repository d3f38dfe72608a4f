"""Plan a run: memory, time and disk from a few real steps, and settings for a memory budget."""
