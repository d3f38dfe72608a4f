"""The limits of the collaborative knowledge graph; test_kgat.py compares the graph itself."""

from __future__ import annotations

import pytest

from hasten.errors import DataError
from hasten.ops.graph.collaborative_graph import require_keys


def test_keys_of_edges_fit_an_integer():
    require_keys(2**20, 2**23 - 1)
    with pytest.raises(DataError, match=r"1,048,576 users.* 8,388,607 relations.* has 8,388,608"):
        require_keys(2**20, 2**23)
