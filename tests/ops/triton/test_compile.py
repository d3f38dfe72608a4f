"""The kernels compile for GPUs, and fit: a compiler needs no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton has no package for this system")

#: the shared memory that a block may have on every GPU of compute capability 8.0 or later
SHARED_BYTES = 99 << 10
#: registers written to memory by each thread: a few outside of the loops
SPILLED_BYTES = 256


@pytest.mark.slow
def test_kernels_fit_into_shared_memory_and_registers():
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.triton.compiled"],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 144
    large = [one for one in found if one["shared"] > SHARED_BYTES or one["spilled"] > SPILLED_BYTES]
    assert not large
