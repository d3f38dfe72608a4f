"""Update a finished run with new data: joined vocabularies, warm weights and moments, a check."""
