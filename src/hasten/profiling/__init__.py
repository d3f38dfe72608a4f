"""Profile a training step, and suggest options that would make it faster."""
