"""Memory-mapped files of events, sorted by user, for data larger than memory (``data prepare``)."""
