"""ConvE: two-dimensional convolutions over head and relation (Dettmers et al. 2018).

Head and relation, D = H·W numbers each, form an image of 2H×W; batch norm, dropout; C filters of
k×k without padding, batch norm, ReLU, dropout of whole channels; a linear map to D, dropout, batch
norm, ReLU. The score of entity t is the inner product with e_t, plus a bias (equation 1 and figure
1 of the paper). Differences: no biases before a batch norm; the first batch norm has no gain and
shift, because the second normalizes again; batch norm is over groups of ``group`` queries,
independent of the batch size.

Shapes: B queries, D width, H×W the shape of a vector, C channels, P = (2H-k+1)(W-k+1) positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import RunConfig, TrainingOptions
from hasten.data.tables import KnowledgeGraph
from hasten.models.data_size import (
    LENGTH_AND_AVERAGE,
    SMALL_GRAPH,
    DataSize,
    run_length,
    triple_loss,
    with_weight_average,
)
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.batch_norm_groups import check_groups, group_sizes
from hasten.models.knowledge_graph.conve_options import ConvEOptions, image_shape
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.knowledge_graph.linear_of_relu import ImageGroup, linear_of_relu
from hasten.models.knowledge_graph.patch_convolution import (
    channel_moments,
    folded_filters,
    patches_of,
    tap_moments,
)
from hasten.models.search_space import Choice, Range
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.ops.dense.dropout import dropout
from hasten.ops.dense.group_moments import GroupMoments, batch_norm, normalize
from hasten.ops.dtypes import autocast_dtype, upcast

EPS = 1e-5


class ConvE(FactorizedTripleModel):
    """The model."""

    name = "conve"
    summary = "2-D convolutions over knowledge graphs (Dettmers et al. 2018)"
    Options = ConvEOptions
    supports = Supports(recompute=True, compile=True, shard_tables=True)
    search = {
        "training.lr": Range(5e-4, 1e-2, log=True),
        "training.batch_size": Choice(64, 128, 256, 512),
        "model.width": Choice(100, 200, 400),
        "model.input_dropout": Range(0.0, 0.5),
        "model.feature_dropout": Range(0.0, 0.5),
        "model.hidden_dropout": Range(0.0, 0.5),
    }
    defaults = {**FactorizedTripleModel.defaults, "lr": 3e-3, "batch_size": 128}
    defaults_from_data = (
        *LENGTH_AND_AVERAGE,
        "model.loss",
        "training.batch_size",
        "model.channels",
        "model.group",
        "model.input_dropout",
        "model.feature_dropout",
        "model.hidden_dropout",
        "model.label_smoothing",
        "model.exclude_self",
    )

    options: ConvEOptions

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """The defaults by the size of the data: ``loss=1-n-softmax`` and averaged weights.

        A small graph gets small batches, fewer channels, less dropout and no label smoothing. A
        graph with many entities gets ``loss=sampled``.
        """
        small = size.triples < SMALL_GRAPH
        length = run_length(config, size.queries, 0 if small else 12_000, epoch_bounds=(40, 200))
        loss = triple_loss(size, config, "1-n-softmax")
        # tables cannot be sharded with the smoothed softmax
        smooths = not small and loss != "sampled" and config.training.shard_tables != "always"
        return {
            **with_weight_average(length, max_average_epochs=5),
            "model.loss": loss,
            "training.batch_size": 32 if small else 128,
            "model.channels": 16 if small else 32,
            "model.group": 32 if small else 128,
            "model.input_dropout": 0.0 if small else 0.2,
            "model.feature_dropout": 0.1 if small else 0.4,
            "model.hidden_dropout": 0.3 if small else 0.5,
            "model.label_smoothing": 0.1 if smooths else None,
            "model.exclude_self": True,
        }

    def __init__(self, options: ConvEOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.group = options.group
        self.height, self.columns = image_shape(options.width, options.kernel, options.height)
        kernel, channels = options.kernel, options.channels
        self.places = (2 * self.height - kernel + 1) * (self.columns - kernel + 1)
        self.filters = nn.Parameter(torch.empty(channels, kernel**2))
        nn.init.kaiming_uniform_(self.filters, math.sqrt(5))
        self.feature_gain = nn.Parameter(torch.ones(channels))
        self.feature_shift = nn.Parameter(torch.zeros(channels))
        self.hidden = nn.Linear(self.places * channels, options.width, bias=False)
        self.hidden_gain = nn.Parameter(torch.ones(options.width))
        self.hidden_shift = nn.Parameter(torch.zeros(options.width))
        self.image_moments = GroupMoments(1)
        self.feature_moments = GroupMoments(channels)
        self.hidden_moments = GroupMoments(options.width)
        #: _encode and _encode_together, or their compiled forms
        self.encode: Callable[[Tensor, Tensor, list[int]], tuple[Tensor, ...]] = self._encode
        self.encode_together: Callable[[Tensor, Tensor, int], tuple[Tensor, ...]] = (
            self._encode_together
        )

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase, see :meth:`TripleModel.phases`.

        Raises:
            ConfigurationError: the batch or micro-batch does not fit the BatchNorm groups.
        """
        check_groups(training, self.group)
        self.recompute = training.recompute
        return super().phases(dataset, training)

    def vectors(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        """The query vectors q [B, D], float32; in training, BatchNorm statistics are per group."""
        if not self.training:
            return self._infer(entity_BD, relation)
        sizes = group_sizes(len(relation), self.group)
        if entity_BD.device.type != "cpu":
            return self._vectors_of_equal_groups(entity_BD, relation, sizes)
        vectors, *stats = self.encode(entity_BD, relation, sizes)
        stats_of_groups = zip(sizes, *(each.detach() for each in stats), strict=True)
        for size, image_stats, feature_stats, hidden_stats in stats_of_groups:
            self._add_moments(size, image_stats, feature_stats, hidden_stats)
        return vectors

    def _add_moments(self, count: int, *stats: Tensor) -> None:
        """Add the mean and variance of a group, [2, channels], to the sums of the step."""
        for (moments, value_count), (mean, variance) in zip(
            self._moments_with_counts(count), stats, strict=True
        ):
            moments.add(mean, variance, value_count)

    def _moments_with_counts(self, count: int) -> Sequence[tuple[GroupMoments, int]]:
        """The sums of each batch norm, and its values per channel in ``count`` queries."""
        cells = count * 2 * self.height * self.columns
        return (
            (self.image_moments, cells),
            (self.feature_moments, count * self.places),
            (self.hidden_moments, count),
        )

    def _vectors_of_equal_groups(
        self, entity_BD: Tensor, relation: Tensor, sizes: list[int]
    ) -> Tensor:
        """The vectors in training on a GPU: groups of the same size are encoded together."""
        runs = [(size, len(list(equal))) for size, equal in groupby(sizes)]
        rows = [size * groups for size, groups in runs]
        parts = zip(runs, torch.split(entity_BD, rows), torch.split(relation, rows), strict=True)
        outputs = []
        for (size, groups), entities, relations in parts:
            vectors, *stats = self.encode_together(entities, relations, groups)
            outputs.append(vectors)
            for (moments, count), each in zip(self._moments_with_counts(size), stats, strict=True):
                moments.add_equal_groups(each, count)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _encode_together(
        self, entity_BD: Tensor, relation: Tensor, groups: int
    ) -> tuple[Tensor, ...]:
        """The vectors of equal groups, and their moments [2, G·channels], by PyTorch's layers.

        On a GPU, launching the many small operations of :meth:`_encode` would take longer than
        computing all features at once. Batch norm computes statistics per channel. To get them per
        group, the G groups of b queries each are viewed as b samples with G·C channels (the input
        image: with G channels).
        """
        options, size = self.options, len(relation) // groups
        shape = (groups, size, self.height, self.columns)
        above_below = (entity_BD, self.relations.rows(relation))
        image = torch.cat([part.view(shape).transpose(0, 1) for part in above_below], dim=2)
        image, image_stats = batch_norm(image, EPS)
        image = dropout(image, options.input_dropout, True).flatten(0, 1)[:, None]
        keep = None
        if options.feature_dropout:
            keep = image.new_ones(len(image), options.channels, 1, 1)
            keep = dropout(keep, options.feature_dropout, True)
        features, feature_stats = self.checkpointed(self._convolved, image, keep, groups)
        hidden = upcast(F.linear(features, self.hidden.weight))
        hidden = dropout(hidden, options.hidden_dropout, True).view(size, -1)
        gain, shift = (_repeated(each, groups) for each in (self.hidden_gain, self.hidden_shift))
        hidden, hidden_stats = batch_norm(hidden, EPS, gain, shift)
        vectors = torch.relu(hidden).view(size, groups, -1).transpose(0, 1)
        return vectors.reshape(len(relation), -1), image_stats, feature_stats, hidden_stats

    def _convolved(self, image: Tensor, keep: Tensor | None, groups: int) -> tuple[Tensor, Tensor]:
        """[B, C·P] features of images [B, 1, 2H, W], and the moments of batch norm.

        Image i is of group i mod G, because the queries were transposed to [b, G].
        """
        kernel = self.options.kernel
        features = F.conv2d(image, self.filters.view(-1, 1, kernel, kernel))
        gain, shift = (_repeated(each, groups) for each in (self.feature_gain, self.feature_shift))
        of_groups = features.view(len(image) // groups, -1, *features.shape[2:])
        normal, stats = batch_norm(of_groups, EPS, gain, shift)
        features = torch.relu(normal).view_as(features)
        if keep is not None:
            features = features * keep.to(features.dtype)
        return features.flatten(1), stats

    def image(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        """[B, 2H, W] the head above the relation."""
        shape = (-1, self.height, self.columns)
        below = self.relations.rows(relation)
        return torch.cat([entity_BD.view(shape), below.view(shape)], dim=1)

    def _encode(self, entity_BD: Tensor, relation: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        """The vectors in training, and the BatchNorm moments of each group [G, 2, ...]."""
        pairs = zip(torch.split(entity_BD, sizes), torch.split(relation, sizes), strict=True)
        parts = [self._patches_and_filters(*pair) for pair in pairs]
        inputs, image_stats, feature_stats = zip(*parts, strict=True)
        # convolution and second batch norm (both in the folded filters), ReLU, dropout of channels,
        # linear map
        hidden = linear_of_relu(inputs, self.hidden.weight, self.recompute)
        hidden = dropout(upcast(hidden), self.options.hidden_dropout, True)
        vectors, hidden_stats = [], []
        for part in torch.split(hidden, sizes):
            variance, mean = torch.var_mean(part, 0, correction=0)
            part = normalize(part, mean, variance, EPS)  # noqa: PLW2901
            vectors.append(torch.relu(part * self.hidden_gain + self.hidden_shift))
            hidden_stats.append(torch.stack([mean, variance]))
        stats = [torch.stack(each) for each in (image_stats, feature_stats, hidden_stats)]
        return torch.cat(vectors), *stats

    def _patches_and_filters(
        self, entity_BD: Tensor, relation: Tensor
    ) -> tuple[ImageGroup, Tensor, Tensor]:
        """Patches and filters of a group in training; moments of the first two batch norms."""
        options = self.options
        image = self.image(entity_BD, relation)
        image_mean = image.mean()
        image_var = (image - image_mean).square().mean()
        image = dropout(normalize(image, image_mean, image_var, EPS), options.input_dropout, True)
        patches = patches_of(image.to(autocast_dtype(image)), options.kernel)
        # mean and variance of each filter's output follow from the moments of the k² pixels of a
        # patch, without a convolution
        mean, var = channel_moments(tap_moments(patches), self.filters)
        keep = None
        if options.feature_dropout:
            ones = torch.ones(len(relation), options.channels, device=image.device)
            keep = dropout(ones, options.feature_dropout, True)
        group = ImageGroup(patches, self.folded(mean, var), keep)
        return group, torch.stack([image_mean, image_var])[:, None], torch.stack([mean, var])

    def folded(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The filters with the batch norm of these moments folded in."""
        gain, shift = self.feature_gain, self.feature_shift
        return folded_filters(self.filters, mean, variance, gain, shift, EPS)

    def _infer(self, entity_BD: Tensor, relation: Tensor) -> Tensor:
        """The vectors with running BatchNorm statistics, without dropout."""
        image = self.image(entity_BD, relation)
        moments = self.image_moments
        image = normalize(image, moments.mean, moments.variance, EPS)
        filters = self.folded(self.feature_moments.mean, self.feature_moments.variance)
        group = ImageGroup(patches_of(image, self.options.kernel), filters, None)
        # recompute: keep no features in memory for a backward pass
        hidden = upcast(linear_of_relu([group], self.hidden.weight, recompute=True))
        moments = self.hidden_moments
        hidden = normalize(hidden, moments.mean, moments.variance, EPS)
        return torch.relu(hidden * self.hidden_gain + self.hidden_shift)

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile the encoder of a batch."""
        self.encode, self.encode_together = wrap(self._encode), wrap(self._encode_together)
        return True


def _repeated(values: Tensor, groups: int) -> Tensor:
    """[G·C]: the values [C] of the channels of one group, for each group."""
    return values.expand(groups, -1).reshape(-1)
