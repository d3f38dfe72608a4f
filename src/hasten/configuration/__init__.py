"""Files, ``--set`` texts and flags into one checked configuration (see :mod:`hasten.config`)."""
