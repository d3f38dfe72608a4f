"""Adam for dense parameters, and row-wise Adam for tables of which a batch reads few rows."""
