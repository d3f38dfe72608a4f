"""Base classes of models with item features: features on the device, BPR phase, scores."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from hasten.config import RunConfig, TrainingOptions
from hasten.data.tables import TRAIN, Dataset, Modality
from hasten.models.collaborative.base import PAIR_DEFAULTS, NodeVectorModel
from hasten.models.data_size import STOPPING, DataSize, stopping, with_graph_batches
from hasten.models.multimodal.modal_data import Constants, features_of
from hasten.models.rows import Rows
from hasten.objectives.base import Phase
from hasten.objectives.multimodal import MultimodalPhase
from hasten.objectives.pairwise import PairwiseExamples

#: metrics and batch size of the published experiments with item features
FEATURE_DEFAULTS: Mapping[str, Any] = {
    **PAIR_DEFAULTS,
    "batch_size": 2048,
}
#: what the rows of weights stand for, by the last word of their names
_ROWS: Mapping[str, Rows] = {
    "items": Rows.of("items"),
    "users": Rows.of("users"),
    "shares": Rows.of("users"),
    "ids": Rows.of("items", "users"),
}


class FeatureModel(NodeVectorModel):
    """A model that trains on pairs and reads the features of items.

    Graphs and features are built at the first use: a loaded run scores with the vectors of its
    checkpoint and needs neither. ``phases`` begins with :meth:`read_features`.
    """

    reads = "features"
    sample = "gallery"
    defaults_from_data = (*STOPPING, "training.batch_size")

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> dict[str, Any]:
        """Early stopping; larger batches for larger graphs, through which each step passes."""
        config = with_graph_batches(size, config)
        batch_size = config.training.batch_size
        return {**stopping(config, size, size.interactions), "training.batch_size": batch_size}

    def rows_of(self) -> Mapping[str, Rows]:
        last = {name: name.rpartition(".")[2] for name in self.state_dict()}
        return {name: _ROWS[word] for name, word in last.items() if word in _ROWS}

    def read_features(self, dataset: Dataset, training: TrainingOptions) -> None:
        """Take the data of the phases, and drop what was built of an earlier dataset."""
        self.recompute = training.recompute
        self._dataset, self._constants = dataset, Constants()
        self.reset_graphs()

    @abstractmethod
    def reset_graphs(self) -> None:
        """Drop the graphs of an earlier dataset."""

    def modality(self, name: str) -> Modality:
        """The item features of this name."""
        return next(each for each in self._dataset.modalities if each.name == name)

    def features(self, name: str, like: Tensor) -> Tensor:
        """[N, d] the features of this name, on the device and in the precision of ``like``."""
        return self._constants(name, like, lambda: features_of(self.modality(name)))


class MultimodalModel(FeatureModel):
    """A model with one set of parameters (a channel) per modality, trained by BPR.

    A subclass defines ``all_vectors``, ``encode_pairs`` and the two regularizers.
    """

    #: factor of the BPR loss
    loss_scale: ClassVar[float] = 1.0
    channels: nn.ModuleList

    @property
    def l2(self) -> float:
        """The weight of the regularizers."""
        weight: float = self.options.l2
        return weight

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase over the training pairs."""
        self.read_features(dataset, training)
        return [
            MultimodalPhase(
                self,
                list(self.parameters()),
                dataset.histories(TRAIN),
                items=self.sizes.items,
                batch_size=training.batch_size,
                l2=self.l2,
                scale=self.loss_scale,
            )
        ]

    @abstractmethod
    def pair_penalty(self, pairs: PairwiseExamples) -> Tensor:
        """The regularizer of these pairs, summed over them."""

    @abstractmethod
    def global_penalty(self) -> Tensor:
        """The regularizer that does not depend on the batch."""
