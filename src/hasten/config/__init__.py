"""The typed run configuration: everything a run depends on, in one validated object.

:mod:`hasten.config_loading.build` builds it from defaults < the model's defaults < a YAML file <
``--set`` < flags. The run folder keeps the result as ``config.yaml``.
"""

from hasten.config.data import (
    AnyDataOptions,
    DataOptions,
    FeatureOptions,
    InteractionOptions,
    KnowledgeOptions,
    PairOptions,
    SequenceOptions,
    TripleOptions,
    TypedGraphOptions,
)
from hasten.config.run import (
    CheckpointOptions,
    DistributedOptions,
    EvaluationOptions,
    LoggingOptions,
    ModelOptions,
    Patience,
    RunConfig,
    TrainingOptions,
)
from hasten.config.section import OnlyWith, Section

__all__ = [
    "AnyDataOptions",
    "CheckpointOptions",
    "DataOptions",
    "DistributedOptions",
    "EvaluationOptions",
    "FeatureOptions",
    "InteractionOptions",
    "KnowledgeOptions",
    "LoggingOptions",
    "ModelOptions",
    "OnlyWith",
    "PairOptions",
    "Patience",
    "RunConfig",
    "Section",
    "SequenceOptions",
    "TrainingOptions",
    "TripleOptions",
    "TypedGraphOptions",
]
