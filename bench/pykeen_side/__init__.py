"""PyKEEN 1.11.1 as the other side; runs in the environment ``.venvs/pykeen``."""
