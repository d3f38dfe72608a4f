"""Where data come from: names, files, downloads, archives."""
