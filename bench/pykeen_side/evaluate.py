"""PyKEEN's own evaluation of given scores: its filter, ranks and metrics.

Run by the Python of ``.venvs/pykeen``. IN holds the triples [n, 3] ``train``, ``valid`` and
``test``, and ``scores`` [E, 2R, E]: of the tails of (h, r), and of the heads of (t, R + r).

    .venvs/pykeen/bin/python -m bench.pykeen_side.evaluate IN.npz OUT.json
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np

METRICS = {
    "mrr": "inverse_harmonic_mean_rank",
    "mr": "arithmetic_mean_rank",
    "amri": "adjusted_arithmetic_mean_rank_index",
    **{f"hits@{k}": f"hits_at_{k}" for k in (1, 3, 5, 10)},
}


def main() -> None:
    source, target = sys.argv[1:]
    data = np.load(source)

    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import Model
    from pykeen.triples import CoreTriplesFactory

    logging.disable(logging.WARNING)
    scores = torch.from_numpy(data["scores"])
    entities, relations = len(scores), scores.shape[1] // 2
    parts = {name: torch.from_numpy(data[name]) for name in ("train", "valid", "test")}

    class Fixed(Model):  # type: ignore[misc]
        """Returns the given scores."""

        def score_t(self, hr_batch: Any, **_: Any) -> Any:
            return scores[hr_batch[:, 0], hr_batch[:, 1]]

        def score_h(self, rt_batch: Any, **_: Any) -> Any:
            return scores[rt_batch[:, 1], relations + rt_batch[:, 0]]

        def score_hrt(self, hrt_batch: Any, **_: Any) -> Any:
            return scores[hrt_batch[:, 0], hrt_batch[:, 1], hrt_batch[:, 2], None]

        def score_r(self, ht_batch: Any, **_: Any) -> Any:
            raise NotImplementedError

        def collect_regularization_term(self) -> Any:
            return 0.0

        def _reset_parameters_(self) -> None:
            pass

        def _get_entity_len(self, *, mode: Any) -> int:
            return entities

    factory = CoreTriplesFactory(parts["train"], num_entities=entities, num_relations=relations)
    model = Fixed(triples_factory=factory, random_seed=0)
    model.register_buffer("scores", scores)  # it tells PyKEEN the device
    found = {}
    for part, known in (("valid", ["train"]), ("test", ["train", "valid"])):
        result = RankBasedEvaluator().evaluate(
            model=model,
            mapped_triples=parts[part],
            additional_filter_triples=[parts[name] for name in known],
            batch_size=16,
            use_tqdm=False,
        )
        found[part] = {
            ours: float(result.get_metric(f"both.realistic.{name}"))
            for ours, name in METRICS.items()
        }
    Path(target).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
