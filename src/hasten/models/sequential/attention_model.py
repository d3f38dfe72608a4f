"""Base class of models with self-attention blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.models.data_size import LENGTH_AND_AVERAGE, DataSize, run_length, with_weight_average
from hasten.models.search_space import Choice, Range
from hasten.models.sequential.attention_options import AttentionOptions, residuals_of
from hasten.models.sequential.base import SequentialModel
from hasten.models.sequential.ligr_block import LiGRBlock
from hasten.models.sequential.self_attention import Attention, Block
from hasten.models.supports import Supports
from hasten.objectives.sequence_batch import SequenceBatch
from hasten.ops.buckets import Bucket
from hasten.ops.dense.layer_norm import LayerNorm

#: the default loss is sampled-softmax for more items than this, with short histories and long ones
MANY_ITEMS, MANY_ITEMS_OF_LONG = 20_000, 100_000


class AttentionModel(SequentialModel):
    """Embeddings, blocks of self-attention, and a final layer norm.

    A subclass creates its embeddings, calls :meth:`build_blocks`, and defines :meth:`hidden`, which
    passes its attention to :meth:`apply_blocks`.
    """

    defaults = {"lr": 2e-3, "schedule": "cosine", "betas": (0.9, 0.98), "clip_norm": 5.0}
    defaults_from_data = (
        *LENGTH_AND_AVERAGE,
        *("model.max_length", "model.dropout"),
        *("training.lr", "model.loss", "model.negatives", "model.mask_known"),
    )
    supports = Supports(recompute=True, compile=True, shard_tables=True)
    search = {
        "training.lr": Range(5e-4, 5e-3, log=True),
        "training.batch_size": Choice(64, 128, 256, 512),
        "model.width": Choice(32, 64, 128),
        "model.blocks": Choice(1, 2, 3),
        "model.dropout": Range(0.1, 0.6),
        "model.loss": Choice("ce", "sampled-softmax"),
        "model.negatives": Choice(256, 512, 1024, 2048),
    }
    reads_event_features = True
    options: AttentionOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> Mapping[str, Any]:
        """About 4,200 steps; longer sequences and less dropout for long histories.

        The cost of ``ce`` grows with the number of items, so large catalogs use sampled-softmax,
        and 24 epochs at least.
        """
        short = size.mean_length < 30
        many = size.items > (MANY_ITEMS if short else MANY_ITEMS_OF_LONG)
        loss = config.given("model.loss", "sampled-softmax" if many else "ce")
        samples = many and loss == "sampled-softmax"
        length = run_length(config, size.users, 4200, (24 if samples else 20, 100))
        return {
            **with_weight_average(length, max_average_epochs=2),
            "model.max_length": 50 if size.long_length <= 60 else 200,
            "model.dropout": 0.5 if short else 0.2,
            "training.lr": 3e-3 if samples else 2e-3,
            "model.loss": loss,
            **({"model.negatives": 2048, "model.mask_known": True} if samples else {}),
        }

    def build_blocks(self) -> None:
        """Create the blocks and the final layer norm."""
        options = self.options
        self.residuals = residuals_of(options)
        kind = LiGRBlock if options.block == "ligr" else Block
        self.blocks = nn.ModuleList(
            kind(options, self.residuals, number) for number in range(options.blocks)
        )
        self.final_norm = LayerNorm(options.width, options.norm_eps)
        self._compiled: Callable[..., Tensor] = self.hidden

    @abstractmethod
    def hidden(
        self,
        items_TD: Tensor,
        positions_T: Tensor,
        times_T: Tensor | None,
        buckets: Sequence[Bucket],
        features_TD: Tensor | None = None,
    ) -> Tensor:
        """[T, D] hidden states of the tokens.

        items_TD: their item embeddings. positions_T: distances to the end of the sequence.
        """

    def apply_blocks(self, x_TD: Tensor, attention: Attention) -> Tensor:
        """[T, D] output of all blocks and the final layer norm for the embedded tokens."""
        x: Any = self.residuals.expand(x_TD)
        for block in self.blocks:
            x = self.checkpointed(block, x, attention)
        out: Tensor = self.final_norm(self.residuals.reduce(x))
        return out

    def encode(self, items_TD: Tensor, batch: SequenceBatch) -> Tensor:
        # compiled for training only: other batch shapes would compile it again
        hidden = self._compiled if self.training else self.hidden
        features = self.features_of(batch)
        return hidden(items_TD, batch.positions, batch.times, batch.buckets, features)

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile the encoder of the flat tokens."""
        self._compiled = wrap(self.hidden)
        return True
