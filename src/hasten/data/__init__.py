"""Files -> typed tables -> splits -> batches."""
