"""Use a trained model: recommend, predict, explain, embed, export."""
