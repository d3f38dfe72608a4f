"""Adam for dense parameters, and row-wise Adam for large embedding tables."""
