"""Knowledge graphs: locate files, read them (:mod:`..readers`), assemble, check and split."""
