"""Where the time of a training step goes, and which options would change it."""
