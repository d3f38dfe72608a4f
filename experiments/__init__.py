"""Long runs of several seeds: a resumable queue, one small committed result a run."""
