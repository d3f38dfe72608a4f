"""Two machines, as two network namespaces of this one: each with an address of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pytest

from hasten import api
from hasten.testing import training_log
from tests.contract.cases import sequences
from tests.distributed.test_processes import ROOT

ADDRESSES = ("10.77.31.1", "10.77.31.2")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    """Two namespaces joined by a cable, with nothing else to reach each other by."""
    names = tuple(f"hasten-{os.getpid()}-{side}" for side in "ab")
    cable = [f"ht{os.getpid() % 10_000}{side}" for side in "ab"]
    made = []
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                made.append(name)
            ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
            for name, end, address in zip(names, cable, ADDRESSES, strict=True):
                ip("link", "set", end, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
                ip("-n", name, "link", "set", end, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except FileNotFoundError:
            pytest.skip("network namespaces need the program ip (iproute2)")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield names[0], names[1]
    finally:
        for name in made:
            ip("netns", "del", name)


@pytest.mark.slow
def test_two_nodes_train_together_over_their_own_addresses(nodes, tmp_path):
    data = tmp_path / "events.csv"
    pyarrow.csv.write_csv(pa.table(sequences(users=50)), data)
    common = ["train", "sasrec", str(data), "--epochs", "2", "--batch-size", "8", "--device", "cpu"]
    settings = ("model.width=16", "model.max_length=12", "model.dropout=0", "evaluation.every=2")
    for each in settings:
        common += ["--set", each]
    started = []
    for rank, name in enumerate(nodes):
        launcher = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run"]
        launcher += ["--nnodes", "2", "--node_rank", str(rank), "--nproc-per-node", "1"]
        launcher += ["--master_addr", ADDRESSES[0], "--master_port", "29500", "-m", "hasten"]
        own = [*common, "--out", str(tmp_path / "two"), "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started.append(
            subprocess.Popen(
                [*launcher, *own],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        (out, first), (_, second) = [process.communicate(timeout=150) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], first + second
    result = json.loads(out.splitlines()[-1])
    assert result["effective"]["devices"] == 2
    values = {"training.epochs": 2, "training.batch_size": 8, "device": "cpu", "threads": 1}
    values |= {name: value for name, _, value in (each.partition("=") for each in settings)}
    api.train("sasrec", str(data), settings=values, out=str(tmp_path / "one"), quiet=True)
    for ours, theirs in zip(
        training_log(tmp_path / "two"), training_log(tmp_path / "one"), strict=True
    ):
        assert ours.pop("kind") == theirs.pop("kind")
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert Path(tmp_path / "two" / "train-rank1.log").is_file()
