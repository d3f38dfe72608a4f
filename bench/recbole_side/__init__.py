"""RecBole 1.2.1 as the other side; runs in the environment ``.venvs/recbole``."""
