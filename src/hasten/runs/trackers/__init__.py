"""Experiment trackers beside the run folder and TensorBoard: MLflow and Weights & Biases."""
