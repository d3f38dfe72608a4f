"""What is compared with what. A new comparison is an :class:`bench.harness.Entry` here."""

from bench.entries import cpu_settings, sasrec_beauty, sasrec_ml1m
from bench.harness import Entry

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for module in (sasrec_beauty, sasrec_ml1m, cpu_settings)
    for entry in module.ENTRIES
}
