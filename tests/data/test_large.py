"""Ten million rows: within the time and the memory that are promised."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hasten.data.samples.files import write_sample

_MEASURE = """
import json, sys, time
from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset

started = time.perf_counter()
cpu = time.process_time()
dataset = load_dataset(InteractionOptions(path=sys.argv[1]), seed=0)
seconds = time.perf_counter() - started
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "cpu": time.process_time() - cpu, "peak": peak * 1024,
                  "events": len(dataset.interactions)}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
def test_ten_million_rows(tmp_path):
    path = tmp_path / "large.csv"
    write_sample("sequences", path, users=100_000, items=20_000, events=10_000_000)
    size = path.stat().st_size
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(path)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print({**found, "file": size})
    assert found["events"] == 10_000_000
    assert found["peak"] <= 6 * size
    # processor seconds, so that a busy machine does not fail it
    assert found["cpu"] <= 20
