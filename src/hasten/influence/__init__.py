"""Training-data influence (TracIn): which training examples support or oppose a prediction."""
