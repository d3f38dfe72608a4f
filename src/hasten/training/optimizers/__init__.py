"""Adam of all parameters of a phase, and of the rows of a table that a batch reads."""
