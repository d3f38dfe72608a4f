"""Side-by-side measurements with other implementations."""
