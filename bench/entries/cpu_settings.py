"""What each CPU setting is worth, one at a time: the same run of hasten with and without it."""

from bench.harness import Entry

ENTRIES: tuple[Entry, ...] = ()
