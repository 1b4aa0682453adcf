"""Lowering: a fusion group becomes a kernel of the loop IR, and the list of what its buffers and numbers stand for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace

from jitgrad.compiler.clustering.clusters import Cluster
from jitgrad.compiler.fusing.collapse import collapse_axes
from jitgrad.compiler.fusing.drafts import weight_of
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group, Plan
from jitgrad.compiler.fusing.nodes import REDUCE, SCATTER, SWEEP, Convolution, Factor, Nested, Product, Transform
from jitgrad.compiler.fusing.order import Needs, needs_of
from jitgrad.compiler.loopir.nests import OWN, Kernel, Literal
from jitgrad.compiler.loopir.quantities import Quantity
from jitgrad.compiler.lowering.body import Lowering
from jitgrad.compiler.lowering.in_place import find_overwritable
from jitgrad.compiler.lowering.passes import optimise_loops
from jitgrad.compiler.lowering.rings import RollingLowering
from jitgrad.compiler.lowering.routine_calls import RoutineLowering
from jitgrad.compiler.lowering.sorted_scatter import SortedScatterLowering
from jitgrad.compiler.lowering.strides import write_strides
from jitgrad.compiler.lowering.sweeps import SweepLowering
from jitgrad.program import Instruction
from jitgrad.records import NamedTuple, dataclass

_WEIGHT_OF_ROW = 40
"""What a sum of a row weighs beside its elements: its lanes are combined in 3 ns."""


@dataclass(frozen=True)
class Lowered:
    """A kernel, the value behind each of its buffers (None for scratch), and the quantity behind each int.

    ``constants`` are the numbers behind the kernel's constants; ``extent`` is what the parallel loop runs over.
    ``moves``: an offset depends on extents that are part of no pattern. ``cleared`` are the classes of what a scatter
    begins with zeros.
    """

    kernel: Kernel
    values: tuple[int | None, ...]
    ints: tuple[Quantity, ...]
    constants: tuple[Literal, ...]
    extent: Quantity
    is_serial: bool
    group: Group
    moves: bool
    cleared: tuple[int, ...] | None = None

    @functools.cached_property
    def work(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """What its nodes weigh over each of their domains, which are given by extent classes."""
        weights: dict[tuple[int, ...], int] = {} if self.cleared is None else {self.cleared: 1}
        for placed in self.group.nodes:
            sized = [d for d, c in enumerate(placed.node.classes) if c != ONE]
            classes = tuple([placed.node.classes[d] for d in sized])
            weights[classes] = weights.get(classes, 0) + weight_of(placed.node)
            if placed.node.form == REDUCE and sized and sized[-1] in placed.node.along:
                weights[classes[:-1]] = weights.get(classes[:-1], 0) + _WEIGHT_OF_ROW
        return tuple(weights.items())

    @functools.cached_property
    def overwritable(self) -> tuple[tuple[int, int], ...]:
        """Pairs of an input and an output, by their numbers among the buffers, that may lie in the same memory."""
        return find_overwritable(self.kernel)

    @functools.cached_property
    def writes_rows(self) -> bool:
        """Whether rows of all that it stores, one behind the other, are those of its parallel loop."""
        stored = [p for p in self.group.nodes if p.node.value in self.group.stored]
        return all(next((axis for axis in p.out_axes if axis is not None), None) == 0 for p in stored)


class Touches(NamedTuple):
    """The memory that a kernel touches: values, each behind the value whose memory it is; and the extents of the
    buffers that each worker has of its own.
    """

    values: tuple[tuple[int, int], ...] = ()
    own: tuple[Quantity, ...] = ()


@dataclass(frozen=True)
class CompiledCluster:
    """A cluster with what each stage made of it; ``keys`` are those of its own kernels, in order."""

    cluster: Cluster
    plan: Plan
    lowered: tuple[LoweredStep, ...]
    keys: tuple[str, ...] = ()

    @functools.cached_property
    def dims(self) -> tuple[tuple[int, int, int], ...]:
        """For each extent class, the first value that has it, and the dimension."""
        found: dict[int, tuple[int, int, int]] = {}
        for v in sorted(self.plan.classes):
            for d, c in enumerate(self.plan.classes[v]):
                if c != ONE:
                    found.setdefault(c, (c, v, d))
        return tuple(found.values())

    @functools.cached_property
    def needs(self) -> Needs | None:
        """What the steps read and write of the cluster's own memory; None where they run as they stand."""
        return needs_of(self.plan, (*self.cluster.inputs, *self.cluster.outputs))

    @functools.cached_property
    def words(self) -> dict[int, tuple[Instruction | None, int]]:
        """Constants as words of blocks, by their identity, with the instruction whose number each is: freezing notes
        them.
        """
        return {}

    @functools.cached_property
    def reads(self) -> tuple[frozenset[int], ...]:
        """The memory that each step reads, by the values whose it is."""
        return tuple([
            self._roots([v for p in item.group.nodes for v in p.node.reads]) if isinstance(item, Lowered)
            else self._roots(item.reads)
            for item in self.lowered
        ])  # fmt: skip

    @functools.cached_property
    def writes(self) -> tuple[frozenset[int], ...]:
        """The memory that each step writes."""
        return tuple([
            self._roots(item.group.stored) | set(item.group.partials.values()) if isinstance(item, Lowered)
            else self._roots(item.values)
            for item in self.lowered
        ])  # fmt: skip

    @functools.cached_property
    def touches(self) -> tuple[Touches, ...]:
        """Per kernel, the memory that it touches; nothing for other steps."""
        return tuple([self._touches(item) if isinstance(item, Lowered) else Touches() for item in self.lowered])

    def _touches(self, item: Lowered) -> Touches:
        aliases, kernel = self.plan.aliases, item.kernel
        values = tuple([(aliases.get(v, v), v) for v in item.values if v is not None])
        own = [buffer.extent for buffer in kernel.buffers if buffer.role in OWN and buffer.extent]
        return Touches(values, tuple([item.ints[kernel.ints.index(extent)] for extent in own]))

    def _roots(self, values: Iterable[int]) -> frozenset[int]:
        aliases = self.plan.aliases
        return frozenset([aliases.get(v, v) for v in values])


@dataclass(frozen=True)
class LoweredBodies:
    """A control op, and what the stages made of each of its bodies."""

    step: Nested
    regions: tuple[CompiledCluster, ...]
    fused: FusedScan | None = None

    @property
    def reads(self) -> tuple[int, ...]:
        """Its inputs, each once."""
        return self.step.reads

    @property
    def values(self) -> tuple[int, ...]:
        """Its outputs."""
        return self.step.values


@dataclass(frozen=True)
class FusedScan:
    """A scan as one kernel, made of that of its body.

    ``sources`` tell what its buffers are: ("input", n) or ("output", n) of the op, or ("status", 0). Its ints are those
    of the ``body`` (``codes`` are numbers for the status), then the number of steps, that less one, and the sizes of
    the items ``widths``, values of the body.
    """

    kernel: Kernel
    sources: tuple[tuple[str, int], ...]
    body: Lowered
    codes: frozenset[str]
    widths: tuple[int, ...]


LoweredStep = Lowered | Product | Convolution | Factor | Transform | LoweredBodies


def kernels_of(compiled: CompiledCluster) -> Iterator[Kernel]:
    """All kernels of a cluster in order, those of bodies too."""
    for item in compiled.lowered:
        if isinstance(item, Lowered):
            yield item.kernel
        elif isinstance(item, LoweredBodies) and item.fused is not None:
            yield item.fused.kernel
        elif isinstance(item, LoweredBodies):
            for region in item.regions:
                yield from kernels_of(region)


_ALONE: dict[str, type[Lowering]] = {SCATTER: SortedScatterLowering, SWEEP: SweepLowering}


def lower_group(group: Group, plan: Plan) -> Lowered:
    """The kernel of a group."""
    kind: type[Lowering]
    axis_classes: tuple[tuple[int, ...], ...]
    if group.lead is not None:
        kind, axis_classes = RoutineLowering, (group.axes[: group.lead],)
    else:
        collapsed, axis_classes = collapse_axes(replace(group, nodes=group.own), plan, by_row=bool(group.rolled))
        group = group if group.rolled else collapsed
        kind = RollingLowering if group.rolled else _ALONE.get(group.nodes[0].node.form, Lowering)
    lowering = kind(group if group.lead is not None else collapsed, plan, axis_classes)
    body = lowering.body()
    signature = lowering.signature
    whole = signature.kernel(body)
    quantities = dict(zip(whole.ints, signature.quantities, strict=True))
    kernel = write_strides(optimise_loops(whole), quantities, plan.extents)
    extent = Quantity() if group.is_serial else lowering.parallel_extent
    behind = {b.name: v for b, v in zip(whole.buffers, signature.values, strict=True)}
    values = tuple(behind[b.name] for b in kernel.buffers)
    cleared = tuple(c for c in plan.classes[group.nodes[0].node.value] if c != ONE) if group.is_scatter else None
    return Lowered(
        kernel, values, tuple(quantities[name] for name in kernel.ints), signature.constants, extent, group.is_serial,
        group, signature.moves, cleared,
    )  # fmt: skip
