"""What is held beside the weights follows the budget, and not the number of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json
import numpy as np, torch
from hasten.config_loading.build import build_config
from hasten.data.tables import Triples
from hasten.data.graph.load import load_graph
from hasten.influence.factored import FactoredSource
from hasten.influence.factors import Arithmetic
from hasten.influence.support import encoder_of
from hasten.influence.trace import Checkpoint, Limits, trace
from hasten.influence.triples import Answers, FactoredTriples, TripleFactors
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.conve_options import ConvEOptions
from hasten.models.interface import Sizes
from hasten.runs.environment import peak_memory_bytes as peak
from hasten.distributed.processes import Processes

generator = np.random.default_rng(0)
columns = {n: generator.integers(0, m, 300) for n, m in
           (("head", 60), ("relation", 3), ("tail", 60))}
settings = {"data.duplicates": "drop", "data.unknown": "keep"}
graph = load_graph(build_config("conve", None, flags=settings).data, 0, columns)
model = ConvE(ConvEOptions(), Sizes.of(graph)).eval()
tests = Triples(*(generator.integers(0, m, 1200) for m in (55, 3, 55)))
arithmetic = Arithmetic()
factors = TripleFactors(model, encoder_of(model, arithmetic), Answers.build(graph), "training",
                        "all", arithmetic)
kept = np.arange(int((graph.part == 0).sum()))
def run(memory, count):
    some = tests.take(np.arange(count))
    source = FactoredSource(FactoredTriples(graph, factors, some, kept), arithmetic)
    found = trace(source, [Checkpoint("w", 1.0, lambda: None)],
                  topk=3, limits=Limits(memory, 256),
                  processes=Processes(torch.device("cpu")))
    return found[0].scores
run(8 << 20, 2)
before = peak()
small = run(16 << 20, len(tests))
between = peak()
large = run(1 << 30, len(tests))
torch.testing.assert_close(small, large)
print(json.dumps([between - before, peak() - before]))
"""


def test_memory_follows_the_budget():
    root = Path(__file__).parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root / "src")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    small, large = json.loads(done.stdout)
    assert small < 48 << 20
    assert large > 100 << 20
