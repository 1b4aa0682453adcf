"""Steps of loops that are too short to be shared out: their kernels are serial, so that sums are complete where they
are read, and a step of a filter or of a hidden Markov model is one or two kernels in place of five.

Two serial kernels in place of four, and in the steps back: 500 steps of a model of five states, value and gradient,
118 us to 73 by probabilities, 124 to 110 by their logarithms; 200 Runge-Kutta steps of 40 numbers that read their
neighbours 120 to 85 (Zen 4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jitgrad.compiler.fusing.nodes import MAP, ClusterNodes, Item, Node
from jitgrad.compiler.likeness import EXACT
from jitgrad.program import Program

FEWEST_ROWS = 16
"""Of a state whose rows may be independent, which two threads then share, each through all steps."""

_MOST_ELEMENTS = 1024  # a function of analysis of as many takes a microsecond, as waking a thread does


def is_short_step(body: Program, items: Iterable[Item]) -> bool:
    """Whether all nodes of a loop's body are short, and its state is none of rows that may be independent: a recurrent
    network of 32 x 32 takes 1.4 times as long where two threads do not share its rows.
    """
    return all(_is_short(item) for item in items if isinstance(item, Node)) and not _has_rows(body)


def copies_last(cluster: ClusterNodes) -> list[Item]:
    """Copies that no other node reads stand behind all else, and there join a kernel: between two products, and in
    front of one, they would have one of their own.
    """
    read = {cluster.aliases.get(v, v) for item in cluster.items for v in item.reads}
    return sorted(cluster.items, key=lambda item: _is_copy(item) and read.isdisjoint(item.values))


def _is_copy(item: Item) -> bool:
    return isinstance(item, Node) and (item.form, item.op) == (MAP, "identity")


def _is_short(node: Node) -> bool:
    return max(node.shape, default=1) <= EXACT and math.prod(node.shape) <= _MOST_ELEMENTS


def _has_rows(body: Program) -> bool:
    shapes = [body.specs[v].known_shape for v in body.outputs]
    return all(len(shape) > 1 for shape in shapes) and common_rows(shapes) >= FEWEST_ROWS


def common_rows(shapes: Iterable[Sequence[int]]) -> int:
    """How many rows all have; 0 where some have others, or there are none."""
    rows = {shape[0] if shape else 1 for shape in shapes}
    return rows.pop() if len(rows) == 1 else 0
