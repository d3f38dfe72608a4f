"""Knowledge graph embedding models."""
