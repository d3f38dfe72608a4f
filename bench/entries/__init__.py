"""What is compared with what. A new comparison is an :class:`bench.harness.Entry` here."""

from bench.entries.complex import ENTRIES as COMPLEX
from bench.entries.conve import ENTRIES as CONVE
from bench.entries.cpu_settings import ENTRIES as CPU_SETTINGS
from bench.entries.hgt import ENTRIES as HGT
from bench.entries.influence import ENTRIES as INFLUENCE
from bench.entries.kgat import ENTRIES as KGAT
from bench.entries.modal import ENTRIES as MODAL
from bench.entries.residuals import ENTRIES as RESIDUALS
from bench.entries.sasrec_beauty import ENTRIES as SASREC_BEAUTY
from bench.entries.sasrec_ml1m import ENTRIES as SASREC_ML1M
from bench.entries.tisasrec import ENTRIES as TISASREC
from bench.harness import Entry

ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *SASREC_BEAUTY,
        *SASREC_ML1M,
        *TISASREC,
        *COMPLEX,
        *CONVE,
        *INFLUENCE,
        *KGAT,
        *MODAL,
        *HGT,
        *CPU_SETTINGS,
        *RESIDUALS,
    )
}
