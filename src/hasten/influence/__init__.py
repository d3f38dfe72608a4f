"""Which training examples speak for a prediction, and which against it: TracIn."""
