"""Random graphs of sparse, dense, integer, Python and gated parts: equal uncompiled, merged and separate."""

from __future__ import annotations

import pytest

from tests.random_graphs import check_random_graph

BLOCK = 10


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_give_the_same_in_every_scope(block: int) -> None:
    types = {name for seed in range(block * BLOCK, (block + 1) * BLOCK) for name in check_random_graph(seed)}
    assert {"scatter_take", "py_func", "custom_gradient", "no_op", "take"} <= types
