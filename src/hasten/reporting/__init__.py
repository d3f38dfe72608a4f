"""Reports of runs: one HTML page that works offline, or Markdown."""
