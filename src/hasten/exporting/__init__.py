"""Export a trained model to files that other programs read, and check that they rank the same."""
