"""What each CPU setting is worth: the same run of hasten without it and with it, one at a time."""

from collections.abc import Iterator

from bench.entries.sasrec_beauty import BCE, CE
from bench.entries.sasrec_beauty import HASTEN as BEAUTY
from bench.entries.sasrec_ml1m import HASTEN as ML1M
from bench.harness import Entry, Side

RUNS = {
    "beauty-bce": ("Beauty, BCE", f"{BEAUTY} {BCE}"),
    "beauty-ce": ("Beauty, CE", f"{BEAUTY} {CE}"),
    "ml-1m-bce": ("ml-1m, BCE", f"{ML1M} {BCE}"),
}
TAKEN_AWAY = {
    "fused-adam": ("fused Adam", "loop over parameters"),
    "dropout": ("dropout by random bytes", "torch's dropout"),
    "packing": ("buckets of similar length", "padding to the longest of the batch"),
    "chunked-loss": ("cross-entropy in chunks", "all logits at once"),
}


def _entries() -> Iterator[Entry]:
    for run, (data, command) in RUNS.items():
        yield Entry(
            name=f"setting-allocator-{run}",
            title=f"allocator settings, {data}",
            work="glibc's defaults against glibc that keeps freed pages and asks for huge ones.",
            without=Side(
                "default allocator",
                command,
                {"HASTEN_ALLOCATOR": "off", "THP_MEM_ALLOC_ENABLE": "0"},
            ),
            candidate=Side("pages kept, huge pages", command, {"HASTEN_ALLOCATOR": "on"}),
            keep_pages=False,
        )
        yield Entry(
            name=f"setting-huge-pages-{run}",
            title=f"huge pages, {data}",
            work="Pages kept on both sides, huge ones on one.",
            without=Side(
                "small pages kept",
                command,
                {"HASTEN_ALLOCATOR": "on", "THP_MEM_ALLOC_ENABLE": "0"},
            ),
            candidate=Side("huge pages kept", command, {"HASTEN_ALLOCATOR": "on"}),
            keep_pages=False,
        )
        for name, (fast, plain) in TAKEN_AWAY.items():
            if name == "chunked-loss" and run != "beauty-ce":
                continue  # the other losses have no logits over the catalog
            yield Entry(
                name=f"setting-{name}-{run}",
                title=f"{fast}, {data}",
                work=f"The same run with {plain} and with {fast}.",
                without=Side(plain, f"{command} --without {name}"),
                candidate=Side(fast, command),
            )


ENTRIES = tuple(_entries())
