"""Several processes: launch, rendezvous, collectives, failures."""
