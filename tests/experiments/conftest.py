"""A queue whose training command is a script that writes made-up figures."""

import sys

import pytest

from experiments import queue as queue_module
from experiments.queue import Queue

FAKE = """
import json, pathlib, signal, sys, time
arguments = sys.argv[1:]
value = lambda name: arguments[arguments.index(name) + 1]
if arguments[0] == "evaluate":
    part, seed = value("--part"), int(arguments[1].split("seed")[1][0])
    figures = {"valid": {"ndcg@10": 0.2}, "test": {"ndcg@10": 0.1 + seed / 100}}[part]
    print(json.dumps({"protocol": " ".join(arguments[2:-3]), part: figures}))
    sys.exit()
if arguments[0] == "check-embeddings":
    print(json.dumps({"what": arguments[1], "health": None, "random": None, "warning": None,
                      "part": value("--part"),
                      "problems": ["collapsed"], "links": {"auroc": 0.8, "ap": 0.7}}))
    sys.exit(1)
out, seed = pathlib.Path(value("--out")), int(value("--seed"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
resumed = out.exists()
assert value("--resume") == "auto"
assert "evaluation.test=false" in arguments
out.mkdir(parents=True, exist_ok=True)
if "--fail" in arguments:
    sys.exit(1)
(out / "started").touch()
if "--slow" in arguments and not resumed:
    time.sleep(60)
data = arguments[2]
(out / "environment.json").write_text(json.dumps({"versions": {"torch": "0"}}))
(out / "config.yaml").write_text(
    f"data: {{path: {data}}}\\nout: {out}\\nseed: {seed}\\nevaluation: {{metrics: [ndcg@10]}}\\n"
)
records = []
for epoch in (1, 2):
    loss = {} if "--counts" in arguments else {"loss": 1 / epoch}
    records.append({"kind": "train", "epoch": epoch, **loss, "seconds": 2.0})
    records.append({"kind": "valid", "epoch": epoch, "ndcg@10": 0.1 * epoch, "seconds": 0.1})
(out / "metrics.jsonl").write_text("\\n".join(map(json.dumps, records)))
print("a line before")
print(json.dumps({
    "run": str(out), "epochs": 2, "test": {},
    "valid": {"ndcg@10": round((0.4 if "--better" in arguments else 0.2) + seed / 100, 2)},
    "protocol": "full ranking", "seconds": {"train": 4.0}, "examples_per_second": 10.0,
    "peak_memory_bytes": 1048576, "effective": {}}))
"""


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module, "plain_file", lambda name: tmp_path / f"{name}.csv")
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    docs = tmp_path / "docs"
    docs.mkdir()
    command = (sys.executable, str(script))
    return Queue(tmp_path / "runs", tmp_path / "results", docs, command)
