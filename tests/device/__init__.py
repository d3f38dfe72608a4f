"""A simulated CUDA or MPS device over CPU data, and what the models do on it."""
