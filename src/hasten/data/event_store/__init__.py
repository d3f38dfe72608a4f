"""Events on disk: sequences of users in files that are mapped into memory (``data prepare``)."""
