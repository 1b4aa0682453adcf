"""What fusion gives: groups of nodes over common axes, in running order with the matrix products, and what was
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jitgrad.compiler.nodes import SCATTER, Convolution, Nested, Node, Product
from jitgrad.spec import TensorSpec

Axes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """A node in a group; ``axes`` gives the group axis of each domain dimension (None for an extent of 1)."""

    node: Node
    axes: Axes

    @property
    def out_axes(self) -> Axes:
        """The group axis of each output dimension."""
        return tuple(None if d is None else self.axes[d] for d in self.node.out_dims)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that one kernel runs.

    ``axes`` are extent classes, outermost first, with their ``extents``; ``stored`` are the values that leave the
    group through memory; ``partials`` gives, for a value reduced over the parallel axis, the value with one part per
    chunk. In a group with a matrix per lane, the first ``lead`` axes count matrices; None in others.
    """

    number: int
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    nodes: tuple[Placed, ...]
    is_serial: bool
    stored: frozenset[int]
    partials: Mapping[int, int]
    lead: int | None = None

    @property
    def is_scatter(self) -> bool:
        """Whether this is the kernel of a scatter, which has no other node."""
        return self.nodes[0].node.form == SCATTER


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value goes through memory: who makes it, who reads it, and a sentence."""

    producer: int
    consumer: int
    reason: str

    def __str__(self) -> str:
        return f"%{self.producer} → %{self.consumer}: {self.reason}"


Step = Group | Product | Convolution | Nested


@dataclass(frozen=True)
class Plan:
    """Groups, products and control ops in running order.

    ``specs`` and ``classes`` describe all values, partial results too, whose first extent is the number of chunks of
    the group that ``chunked`` gives. ``aliases`` are values that share the memory of another.
    """

    steps: tuple[Step, ...]
    specs: Mapping[int, TensorSpec]
    classes: Mapping[int, tuple[int, ...]]
    chunked: Mapping[int, int]
    refusals: tuple[Refusal, ...]
    aliases: Mapping[int, int]
