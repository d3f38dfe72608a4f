"""Use a trained model: recommend, predict, explain, embed, and write the results."""
