"""Update a finished run with new data: match old and new ids, keep weights and Adam's moments."""
