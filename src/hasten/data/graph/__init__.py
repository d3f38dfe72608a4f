"""Knowledge graphs: files into triples, dictionaries, splits."""
