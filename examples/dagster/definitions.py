"""A Dagster project: embeddings of the built-in typed graph, whole and without its pathways.

    pip install 'hasten[dagster]'
    dagster dev -f examples/dagster/definitions.py

Every partition of the three assets is a graph. Files go to ``$HASTEN_DAGSTER`` (``./embeddings``).
"""

import os
from pathlib import Path

from hasten.data.samples.files import write_sample
from hasten.integrations.dagster_assets import GraphSource, hgt_definitions

FOLDER = Path(os.environ.get("HASTEN_DAGSTER", "embeddings")).absolute()
GRAPH = FOLDER / "medicine.csv"

if not GRAPH.exists():
    write_sample("medicine", GRAPH)

defs = hgt_definitions(
    {
        "whole": GraphSource(str(GRAPH)),
        "without-pathways": GraphSource(
            str(GRAPH), {"data.node_types": ["gene/protein", "disease", "drug"]}
        ),
    },
    FOLDER,
)
