"""What hyper-connections cost: the same run with the plain residual and with n = 4 streams."""

from collections.abc import Iterator

from bench.entries.cpu_settings import RUNS
from bench.harness import Entry, Side

VARIANTS = {
    "static-identity": "static maps, no mixing",
    "static-permutation": "static maps, permutations",
    "static-sinkhorn": "static maps, Sinkhorn",
    "dynamic-permutation": "dynamic maps, permutations",
    "dynamic-sinkhorn": "dynamic maps, Sinkhorn, as published",
}


def _entries() -> Iterator[Entry]:
    for run in ("ml-1m-bce", "beauty-ce"):
        data, command = RUNS[run]
        # D 64, as the models' default
        wide = f"{command} --set model.width=64" if "bce" in run else command
        for name, words in VARIANTS.items():
            maps, projection = name.split("-")
            options = (
                f"--set model.residual=mhc --set model.streams=4 --set model.maps={maps} "
                f"--set model.projection={projection}"
            )
            yield Entry(
                name=f"setting-residual-{name}-{run}",
                title=f"hyper-connections ({words}), {data}, D 64",
                work="The same run with the plain residual and with hyper-connections, n = 4.",
                without=Side("plain residual", wide),
                candidate=Side("mhc", f"{wide} {options}"),
            )


ENTRIES = tuple(_entries())
