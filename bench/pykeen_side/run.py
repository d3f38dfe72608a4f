"""PyKEEN's ConvE on the same triples, timed from outside: nothing of PyKEEN is changed.

Run by the Python of ``.venvs/pykeen`` (``make bench-env``). LCWA training with inverse triples is
1-N training with reciprocal relations. The clock runs from the end of the first epochs, or with
``--steps`` over as many batches, after which training ends; with ``--evaluate`` the filtered test
MRR of the last epoch is reported, judged after the clock stopped.

    .venvs/pykeen/bin/python -m bench.pykeen_side.run --data fb15k-237 --steps 60
    .venvs/pykeen/bin/python -m bench.pykeen_side.run --data umls --epochs 150 --evaluate
"""

from __future__ import annotations

import argparse
import logging
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.data import GRAPHS, data_folder
from bench.report import Stopwatch, print_report


class EnoughError(Exception):
    """Ends a training after some of its batches."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="umls", choices=("fb15k-237", "umls", "kinship"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="batches, in place of epochs")
    parser.add_argument("--warm-up", type=int, default=1, help="epochs (batches) before the clock")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()

    import torch
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.models import ConvE
    from pykeen.training import LCWATrainingLoop, TrainingCallback
    from pykeen.triples import TriplesFactory

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    clock = Stopwatch()

    class Clock(TrainingCallback):  # type: ignore[misc]
        batches = 0

        def post_epoch(self, epoch: int, epoch_loss: float, **kwargs: Any) -> None:
            if epoch == options.warm_up and not options.steps:
                clock.restart()

        def post_batch(self, epoch: int, batch: Any, **kwargs: Any) -> None:
            self.batches += 1
            if options.steps and self.batches == options.warm_up:
                clock.restart()
            elif options.steps and self.batches == options.warm_up + options.steps:
                raise EnoughError

    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(data_folder() / GRAPHS[options.data]) as archive:
            archive.extractall(scratch, filter="data")
        train, valid, test = (
            next(Path(scratch).rglob(f"{part}.txt")) for part in ("train", "valid", "test")
        )
        training = TriplesFactory.from_path(train, create_inverse_triples=True)
        held = {
            "entity_to_id": training.entity_to_id,
            "relation_to_id": training.relation_to_id,
        }
        validation, testing = (TriplesFactory.from_path(part, **held) for part in (valid, test))
    model = ConvE(
        triples_factory=training,
        embedding_dim=200,
        output_channels=32,
        embedding_height=20,
        embedding_width=10,
        input_dropout=0.2,
        feature_map_dropout=0.2,
        output_dropout=0.3,
        random_seed=options.seed,
    )
    loop = LCWATrainingLoop(
        model=model,
        triples_factory=training,
        optimizer="adam",
        optimizer_kwargs={"lr": options.lr},
    )
    losses = None
    with suppress(EnoughError):
        losses = loop.train(
            training,
            num_epochs=options.warm_up + options.epochs,
            batch_size=options.batch_size,
            label_smoothing=0.1,
            callbacks=[Clock()],
            use_tqdm=False,
        )
    wall, cpu = clock.seconds()
    metric = None
    if options.evaluate:
        found = RankBasedEvaluator(filtered=True).evaluate(
            model,
            testing.mapped_triples,
            additional_filter_triples=[training.mapped_triples, validation.mapped_triples],
            batch_size=256,
            use_tqdm=False,
        )
        metric = {
            "mrr": found.get_metric("both.realistic.inverse_harmonic_mean_rank"),
            "hits@10": found.get_metric("both.realistic.hits_at_10"),
        }
    triples = training.mapped_triples.tolist()
    questions = {(h, r, "tail") for h, r, _ in triples} | {(t, r, "head") for _, r, t in triples}
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps or options.epochs,
        # it drops the last batch where it is smaller
        steps_per_epoch=len(questions) // options.batch_size if options.steps else 1,
        examples_per_epoch=len(questions),
        versions={"torch": torch.__version__, "pykeen": "1.11.1"},
        threads=options.threads,
        loss=float(losses[-1]) if losses else None,
        metric=metric,
    )


if __name__ == "__main__":
    main()
