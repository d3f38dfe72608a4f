"""The command line. One file per command: it parses, calls the library, prints the result."""
