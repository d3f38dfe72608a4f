"""Update a finished run with new data: join ids, keep weights and moments, check the quality."""
