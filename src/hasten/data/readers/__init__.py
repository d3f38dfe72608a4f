"""One file per format; each turns files into raw columns."""
