"""TracIn of a plain ConvE over whole batches: gradients of all triples, and matrix products.

Per-example gradients by ``torch.func``, ``vmap`` of ``grad``, for a chunk of triples at a time. The
gradients of the network are flat rows, and their inner products one matrix product. A triple reads
two rows of each table, so those gradients are kept as rows and multiplied where the rows are the
same: a dense gradient of the tables would be four fifths zeros. The convolution is a product with
the image's patches, whose gradients by example are products too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

from bench.plain_conve import HEIGHT, WIDTH, PlainConvE

Tensors = dict[str, Tensor]
#: the rows of tables that a triple reads: two entities with their biases, a relation both ways
TABLES = ("entities", "relations", "bias")


class PlainTracIn:
    """Scores of test and training triples under a model in evaluation mode.

    relations: their number, without the reciprocal ones; label: of the true answers.
    """

    def __init__(self, model: PlainConvE, relations: int, label: float) -> None:
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        self.tables = {
            "entities": weights.pop("entities.weight"),
            "relations": weights.pop("relations.weight"),
            "bias": weights.pop("bias")[:, None],
        }
        self.network, self.statistics = weights, dict(model.named_buffers())
        self.relations, self.label = relations, label

    @torch.no_grad()
    def scores(self, tests: Tensor, train: Tensor, chunk: int) -> Tensor:
        """[m, n] inner products of the gradients of int64 triples [m, 3] and [n, 3]."""
        test_rows, test_ids = self.rows_of(tests)
        parts = [self.gradients(part, test_rows, n) for n, part in _chunks(tests, chunk)]
        given = {name: torch.cat([part.pop(name) for part in parts]) for name in list(parts[0])}
        found = []
        train_rows, train_ids = self.rows_of(train)
        for start, part in _chunks(train, chunk):
            own = self.gradients(part, train_rows, start)
            total = torch.zeros(len(tests), len(part))
            for name, left in given.items():
                if name not in TABLES:
                    total.addmm_(left.flatten(1), own[name].flatten(1).T)
                    continue
                products = left.flatten(0, 1) @ own[name].flatten(0, 1).T
                ids = train_ids[name][start : start + len(part)]
                products *= test_ids[name].view(-1, 1) == ids.view(1, -1)
                total += products.view(len(tests), 2, len(part), 2).sum((1, 3))
            found.append(total)
        return torch.cat(found, 1)

    def rows_of(self, triples: Tensor) -> tuple[Tensors, Tensors]:
        """The rows [n, 2, ...] of each table that the triples read, and their numbers [n, 2]."""
        entities = triples[:, [0, 2]]
        relations = torch.stack([triples[:, 1], triples[:, 1] + self.relations], 1)
        ids = {"entities": entities, "relations": relations, "bias": entities}
        return {name: self.tables[name][each] for name, each in ids.items()}, ids

    def gradients(self, part: Tensor, rows: Tensors, start: int) -> Tensors:
        """Of each triple of a chunk: [c, ...] by the network's weights, [c, 2, ...] by its rows."""
        mine = {name: each[start : start + len(part)] for name, each in rows.items()}
        by_network: Any
        by_network, by_rows = vmap(grad(self.loss, (0, 1)), (None, 0))(self.network, mine)
        return {**by_network, **by_rows}

    def loss(self, network: Tensors, rows: Tensors) -> Tensor:
        """Of one triple: the cells of its answers to both questions, tail and then head."""
        answers = rows["entities"].flip(0)
        scores = (self.vectors(network, rows["entities"], rows["relations"]) * answers).sum(1)
        scores = scores + rows["bias"].flip(0).squeeze(1)
        labels = torch.full_like(scores, self.label)
        return F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")

    def vectors(self, network: Tensors, entities: Tensor, relations: Tensor) -> Tensor:
        """[2, D] as ``PlainConvE.vectors`` in evaluation mode."""
        shape = (2, HEIGHT, WIDTH)
        image = torch.cat([entities.view(shape), relations.view(shape)], 1)[:, None]
        image = self.norm(network, "input_norm", image)
        patches = F.unfold(image, 3)  # [2, 9, (2 HEIGHT - 2) (WIDTH - 2)]
        filters = network["convolution.weight"].flatten(1)
        x = filters @ patches + network["convolution.bias"][:, None]
        x = torch.relu(self.norm(network, "feature_norm", x)).flatten(1)
        x = F.linear(x, network["linear.weight"], network["linear.bias"])
        return torch.relu(self.norm(network, "hidden_norm", x))

    def norm(self, network: Tensors, name: str, x: Tensor) -> Tensor:
        """Batch norm with the running statistics."""
        mean, variance = (self.statistics[f"{name}.running_{each}"] for each in ("mean", "var"))
        return F.batch_norm(x, mean, variance, network[f"{name}.weight"], network[f"{name}.bias"])


def _chunks(triples: Tensor, chunk: int) -> list[tuple[int, Tensor]]:
    return [(start, triples[start : start + chunk]) for start in range(0, len(triples), chunk)]
