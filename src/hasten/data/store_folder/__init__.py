"""The folder of a memory-mapped data set (store): its manifest, its files, how it is written."""
