"""The folder of a store, whatever it holds: its manifest, its files, how it is written."""
