"""What fusion gives: groups of nodes over common axes, in running order with the matrix products, and what was
refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from jitgrad.compiler.fusing.nodes import SCATTER, SWEEP, Convolution, Factor, Nested, Node, Product, Transform
from jitgrad.records import dataclass
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
    chunk. In a group with a matrix per lane, the first ``lead`` axes count matrices; None in others. ``nodes`` begin
    with those of the groups that are ``rolled`` into it, whose axes are their own.
    """

    number: int
    axes: tuple[int, ...]
    extents: tuple[int, ...]
    nodes: tuple[Placed, ...]
    is_serial: bool
    stored: frozenset[int]
    partials: Mapping[int, int]
    lead: int | None = None
    rolled: tuple[Rolled, ...] = ()

    @property
    def own(self) -> tuple[Placed, ...]:
        """The nodes that run over its axes."""
        return self.nodes[sum(len(rolled.group.nodes) for rolled in self.rolled) :]

    @property
    def parts(self) -> tuple[Group, ...]:
        """The group, and all that are rolled into it."""
        return (self, *(part for rolled in self.rolled for part in rolled.group.parts))

    @property
    def depth(self) -> int:
        """How many groups are rolled into one another below it."""
        return max((1 + rolled.group.depth for rolled in self.rolled), default=0)

    @property
    def halo(self) -> int:
        """The most rows of another group that a chunk makes before its first row."""
        return max((rolled.rows - 1 + rolled.group.halo for rolled in self.rolled), default=0)

    @property
    def is_scatter(self) -> bool:
        """Whether this is the kernel of a scatter, which has no other node."""
        return self.nodes[0].node.form == SCATTER

    @property
    def is_alone(self) -> bool:
        """Whether this is the kernel of a node that no other joins."""
        return self.nodes[0].node.form in (SCATTER, SWEEP)


@dataclass(frozen=True, slots=True)
class Rolled:
    """A group that runs inside another, over the rows that this one reads: at row i those from i + lo to i + hi.

    ``values`` are what is read of it so; a ring of rows keeps each.
    """

    group: Group
    values: tuple[int, ...]
    lo: int
    hi: int

    @property
    def rows(self) -> int:
        """How many rows are kept."""
        return self.hi - self.lo + 1


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a value goes through memory: who makes it, who reads it, and a sentence."""

    producer: int
    consumer: int
    reason: str

    def __str__(self) -> str:
        return f"%{self.producer} → %{self.consumer}: {self.reason}"


Step = Group | Product | Convolution | Factor | Transform | Nested


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

    @functools.cached_property
    def extents(self) -> Mapping[int, int]:
        """The extents of classes, which may be symbols."""
        return {
            c: n for v, classes in self.classes.items() for c, n in zip(classes, self.specs[v].known_shape, strict=True)
        }  # fmt: skip
