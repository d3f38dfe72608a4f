"""A process of ``hasten`` on a simulated CUDA device of its own: its arguments in OUT/run.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hasten.cli.main import main
from tests.device.recorder import recording
from tests.device.simulation import simulated

if __name__ == "__main__":
    out = Path(sys.argv[1])
    with simulated("cuda", int(os.environ["RANK"])), recording() as found:
        code = main(json.loads((out / "run.json").read_text()))
    told = {"code": code, "mistakes": list(found.mistakes), "kernels": found.kernels.total()}
    (out / f"{os.environ['RANK']}.json").write_text(json.dumps(told))
