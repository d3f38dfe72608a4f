"""MLflow: an experiment for each project, in ``MLFLOW_TRACKING_URI`` or a local database."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.runs.trackers.tracker import Status

#: the most parameters of one request, and characters of a value
_BATCH, _LONGEST = 100, 500
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflowTracker:
    """A run of MLflow. known: its id, if it continues.

    MLflow allows no ``@`` in names, and its file store no name below another: ``ndcg@10/kept`` is
    ``ndcg_at_10_kept``.
    """

    name = "mlflow"

    def __init__(self, project: str, run: str, known: str | None) -> None:
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        from mlflow import MlflowClient  # noqa: PLC0415 - optional

        self.client = MlflowClient()
        if known is None:
            experiment = self.client.get_experiment_by_name(project)
            number = experiment.experiment_id if experiment else None
            number = number or self.client.create_experiment(project)
            known = str(self.client.create_run(number, run_name=run).info.run_id)
        else:
            self.client.update_run(known, status="RUNNING")
        self.id = known

    def record_settings(self, settings: Mapping[str, Any], about: Mapping[str, str]) -> None:
        """Options are parameters, the rest tags."""
        from mlflow.entities import Param, RunTag  # noqa: PLC0415 - optional

        parameters = [Param(key, str(value)[:_LONGEST]) for key, value in settings.items()]
        for number in range(0, len(parameters), _BATCH):
            self.client.log_batch(self.id, params=parameters[number : number + _BATCH])
        tags = [RunTag(f"hasten.{key}", value) for key, value in about.items()]
        self.client.log_batch(self.id, tags=tags)

    def record(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 - optional

        now = int(time.time() * 1000)
        metrics = [Metric(_plain(name), value, now, step) for name, value in values.items()]
        self.client.log_batch(self.id, metrics=metrics)

    def keep(self, files: Sequence[Path]) -> None:
        for path in files:
            if path.is_dir():
                self.client.log_artifacts(self.id, str(path), path.name)
            else:
                self.client.log_artifact(self.id, str(path))

    def finish(self, status: Status) -> None:
        self.client.set_terminated(self.id, _STATUS[status])


def _plain(name: str) -> str:
    kind, _, rest = name.partition("/")
    return f"{kind}/{rest.replace('@', '_at_').replace('/', '_')}"
