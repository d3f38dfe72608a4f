"""One file for each architecture: which weights it has, and what they are called here."""
