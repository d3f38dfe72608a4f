"""The process of a probe: ``python -m hasten.planning CONFIG FOLDER`` prints a plan as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hasten.errors import HastenError, is_out_of_memory
from hasten.runs.allocator import configure_process


def main(config: str, folder: str) -> int:
    """Probe a configuration in a new run folder; the last line on stdout is JSON."""
    configure_process()  # before torch is imported
    from hasten.config_loading.build import load_config  # noqa: PLC0415
    from hasten.planning.probe import probe  # noqa: PLC0415 - brings torch

    try:
        result = probe(load_config(Path(config)), Path(folder))
    except HastenError as error:
        result = {"error": {"code": error.code, "message": str(error), "exit": error.exit_code}}
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        result = {"error": {"code": "memory", "message": f"out of memory: {error}", "exit": 1}}
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
