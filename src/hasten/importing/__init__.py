"""Import weights and configurations of other libraries and training scripts."""
