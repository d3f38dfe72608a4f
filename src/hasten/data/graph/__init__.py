"""Knowledge graphs: read files into triples, dictionaries and splits."""
