"""How good SASRec's published recipe is on Beauty, by a second implementation of it.

    python -m bench.quality_sasrec --seed 0
    python -m bench.quality_sasrec --folder S3REC --name beauty-s3rec

The second is for S3Rec's file, whose order within a day is another one: a folder with its events
and the times of Beauty's, under the names of Beauty's files.

The settings published for SASRec on Beauty with eSASRec (Tikhonovich et al. 2025): one block of one
head, width 64, dropout 0.2, the last 50 items, batches of 128 users, Adam at 1e-3 with betas 0.9
and 0.98, and for each position 256 negatives drawn uniformly from the catalog, without a
correction. In plain PyTorch: nothing of hasten is imported, neither to read the file nor to
evaluate. Attention reads normalized queries and plain keys and values, and both residuals start at
the normalized input, as in the implementation of the published figures.

The last item of a user is the test part, the one before it the validation part. The epoch with the
highest validation NDCG@10 is selected, and its weights are evaluated on the test part once, at the
end. Every other item that the user does not have competes; tied scores count half.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import data_folder
from bench.results import RESULTS, circumstances, page, write_result

LENGTH, BATCH, NEGATIVES = 50, 128, 256
METRICS = ("ndcg@10", "hr@10")
#: items and times: a line a user, whose number is first
FILES = ("Beauty_item_org_rank.txt", "Beauty_time_org_rank.txt")


def read(folder: Path) -> list[Tensor]:
    """The items of each user, counted from 1, oldest first; ties keep the order of the file."""
    found = []
    files = ((folder / name).read_text().splitlines() for name in FILES)
    for items, times in zip(*files, strict=True):
        item, time_ = (np.array(line.split()[1:], np.int64) for line in (items, times))
        found.append(torch.from_numpy(item[np.argsort(time_, kind="stable")]))
    return found


class Network(nn.Module):
    """One block of SASRec over sequences that are padded on the right with item 0."""

    def __init__(self, items: int, width: int, dropout: float = 0.2) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.attention = nn.MultiheadAttention(width, 1, dropout, batch_first=True)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_normal_(parameter)

    def forward(self, sequences: Sequence[Tensor]) -> Tensor:
        """[T, D] states after all T items, sequence by sequence."""
        tokens = nn.utils.rnn.pad_sequence(list(sequences), batch_first=True)
        real, length = tokens > 0, tokens.shape[1]
        ages = (real.sum(1, keepdim=True) - 1 - torch.arange(length)).clamp(min=0)
        x = self.dropout(self.items(tokens) + self.positions(ages))
        query = self.norms[0](x)
        # the padding is after the last item: what hides later items hides it too
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = query + self.attention(query, x, x, attn_mask=future, need_weights=False)[0]
        x = self.norms[1](x[real])
        x = x + self.dropout(self.outer(self.dropout(F.relu(self.inner(x)))))
        out: Tensor = self.norms[2](x)
        return out


def states(model: nn.Module, sequences: list[Tensor]) -> Tensor:
    """[T, D] states of sequences in any order, padded in groups of similar length."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    groups = [order[first : first + 32] for first in range(0, len(order), 32)]
    parts: list[Tensor | None] = [None] * len(sequences)
    for group in groups:
        some = [sequences[i] for i in group]
        for i, part in zip(group, model(some).split([len(s) for s in some]), strict=True):
            parts[i] = part
    return torch.cat([part for part in parts if part is not None])


class Scores(torch.autograd.Function):
    """``(states[:, None] * table[items]).sum(2)`` without the [T, K, D] rows of [T, K] items."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, table: Tensor, items: Tensor) -> Tensor:
        ctx.save_for_backward(states, table, items)
        parts = zip(torch.split(states, 32), torch.split(items, 32), strict=True)
        return torch.cat([(F.embedding(i, table) @ s[:, :, None])[:, :, 0] for s, i in parts])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        states, table, items = ctx.saved_tensors
        to_states = F.embedding_bag(items, table, mode="sum", per_sample_weights=grad)
        order, counts = items.flatten().argsort(), items.flatten().bincount(minlength=len(table))
        first, weights = counts.cumsum(0) - counts, grad.flatten()[order]
        rows = order // items.shape[1]
        to_table = F.embedding_bag(rows, states, first, mode="sum", per_sample_weights=weights)
        return to_states, to_table, None


def loss(model: Network, histories: list[Tensor]) -> Tensor:
    """Mean cross-entropy of each next item against its own negatives."""
    recent = [history[-LENGTH - 1 :] for history in histories]
    found = states(model, [history[:-1] for history in recent])
    targets = torch.cat([history[1:] for history in recent])
    drawn = torch.randint(1, model.items.num_embeddings, (len(targets), NEGATIVES))
    items = torch.cat([targets[:, None], drawn], 1)
    scores: Tensor = Scores.apply(  # type: ignore[no-untyped-call]
        found, model.items.weight, items
    )
    return F.cross_entropy(scores, torch.zeros_like(targets))


def batches(histories: list[Tensor]) -> Iterator[list[Tensor]]:
    """All users in a new order."""
    for rows in torch.split(torch.randperm(len(histories)), BATCH):
        yield [histories[row] for row in rows.tolist()]


def metrics(scores: Tensor, targets: Tensor, histories: Sequence[Tensor]) -> Tensor:
    """[B, 2] NDCG@10 and HR@10 of one target each; column 0 and the histories do not compete.

    scores: [B, 1 + items], overwritten. A repeated item, being the target, stays.
    """
    own = scores.gather(1, targets[:, None])
    row = torch.repeat_interleave(torch.tensor([len(history) for history in histories]))
    scores[row, torch.cat(list(histories))] = -torch.inf
    scores[:, 0] = -torch.inf
    scores.scatter_(1, targets[:, None], own)
    tied = (scores == own).sum(1) - 1
    rank = 1 + (scores > own).sum(1) + tied.double() / 2
    hit = (rank <= 10).double()
    return torch.stack([hit / torch.log2(1 + rank), hit], 1)


@torch.no_grad()
def evaluate(model: Network, histories: list[Tensor], held_out: int) -> dict[str, float]:
    """The metrics of the ``held_out``-th item from the end, given all items before it."""
    model.eval()
    found = []
    for first in range(0, len(histories), 512):
        known = [history[:-held_out] for history in histories[first : first + 512]]
        targets = torch.stack([history[-held_out] for history in histories[first : first + 512]])
        ends = torch.tensor([min(len(history), LENGTH) for history in known]).cumsum(0) - 1
        last = states(model, [history[-LENGTH:] for history in known])[ends]
        found.append(metrics(last @ model.items.weight.T, targets, known))
    model.train()
    return dict(zip(METRICS, torch.cat(found).mean(0).tolist(), strict=True))


def train(options: argparse.Namespace, histories: list[Tensor]) -> dict[str, Any]:
    """Train until validation stops it; the test figures of the selected epoch."""
    torch.manual_seed(options.seed)
    model = Network(int(max(history.max() for history in histories)), options.width)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, betas=(0.9, 0.98), fused=True)
    training = [history[:-2] for history in histories]
    curve: list[dict[str, float]] = []
    best, weights, begin = 0, copy.deepcopy(model.state_dict()), time.perf_counter()
    while len(curve) < options.epochs and len(curve) - best < options.patience:
        total = 0.0
        for batch in batches(training):
            optimizer.zero_grad()
            value = loss(model, batch)
            torch.autograd.backward(value)
            optimizer.step()
            total += value.item()
        curve.append({"loss": total, **evaluate(model, histories, 2)})
        print(f"epoch {len(curve)}, {time.perf_counter() - begin:.0f} s: {curve[-1]}", flush=True)
        if curve[-1][METRICS[0]] >= max(each[METRICS[0]] for each in curve):
            best, weights = len(curve), copy.deepcopy(model.state_dict())
    seconds = time.perf_counter() - begin
    model.load_state_dict(weights)
    return {
        "epochs": len(curve),
        "best_epoch": best,
        "seconds": seconds,
        "valid": {name: curve[best - 1][name] for name in METRICS},
        "test": evaluate(model, histories, 1),
        "curve": curve,
    }


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="with the two files; default: the shared ones")
    parser.add_argument("--name", default="beauty", help="of the data in the record")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=60, help="at most")
    parser.add_argument("--patience", type=int, default=10, help="epochs without improvement")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    folder = options.folder or data_folder() / "seq_beauty"
    found = train(options, read(folder))
    given = {name: value for name, value in vars(options).items() if name != "folder"}
    result = {
        "name": f"sasrec-{options.name}-second-implementation-seed-{options.seed}",
        **circumstances(None, provisional=found["epochs"] == options.epochs),
        "versions": {"torch": torch.__version__},
        "settings": given,
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES
        },
        **found,
        "repeat": "python -m bench.quality_sasrec "
        + " ".join("DIR" if each == str(options.folder) else each for each in sys.argv[1:]),
    }
    lines = [
        "| part | NDCG@10 | HR@10 |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {result[part]['ndcg@10']:.4f} | {result[part]['hr@10']:.4f} |"
            for name, part in (("validation", "valid"), ("test", "test"))
        ),
    ]
    about = (
        f"SASRec with sampled softmax in plain PyTorch, epoch {found['best_epoch']} of "
        f"{found['epochs']}, {found['seconds']:.0f} s, history masked."
    )
    print(write_result(result, page(result, about, lines), results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
