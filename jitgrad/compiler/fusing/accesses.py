"""Operands: what an op reads, with every move of elements (slice, transpose, pad, broadcast) folded into the index."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np

from jitgrad.compiler.loopir.nests import Literal
from jitgrad.opdef import AxisIndex, Fill, Guard, IndexMap, Reindex, View
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass

MOST_LEAVES = 32
"""Pieces that an operand may be put together from: every element looks for its own among all of them."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value read at one index per dimension, where all guards hold; or a literal. Axes are those of the
    reader's domain.

    A dimension of extent 1 has the index AxisIndex(None); a fixed place in a longer one has scale 0.
    """

    source: int | Literal
    dims: tuple[AxisIndex, ...] = ()
    guards: tuple[Guard, ...] = ()

    @property
    def is_selection(self) -> bool:
        """Whether it only picks, orders or repeats whole axes, so that it can be passed on in a register."""
        return not self.guards and all((i.scale, i.offset, i.divisor) == (1, 0, 1) for i in self.dims)


@dataclass(frozen=True, slots=True)
class Operand:
    """The first leaf whose guards hold, else ``fill``."""

    leaves: tuple[Leaf, ...]
    fill: Literal | None = None

    @property
    def values(self) -> tuple[int, ...]:
        """The values that it reads."""
        return tuple(leaf.source for leaf in self.leaves if isinstance(leaf.source, int))


class Accesses:
    """Resolves operands of a cluster's instructions through the instructions that only move elements."""

    def __init__(self, program: Program, members: set[int]) -> None:
        self.program = program
        self.members = members
        self.unresolved: set[int] = set()  # moves that an index does not express: to be made in memory
        self.made: dict[int, Operand] = {}  # moves that are made in memory though an index expresses them: how
        self._memo: dict[int, Operand] = {}

    def producer(self, v: int) -> Instruction | None:
        """The instruction of this cluster that makes ``v``; None when it comes from outside."""
        number = self.program.producers().get(v)
        return self.program.instructions[number] if number in self.members else None

    def operand(self, v: int) -> Operand:
        """How to read ``v`` at an index of its own shape."""
        pending = [v]
        while pending:  # depth first without recursion: moves may be chained thousands deep
            u = pending.pop()
            if u in self._memo:
                continue
            ins = self.producer(u)
            sources = (
                [x for x in ins.inputs if x not in self._memo] if ins is not None and is_move(self.program, ins) else []
            )
            if sources:
                pending += [u, *sources]
            else:
                self._memo[u] = self._resolve(u, ins)
        return self._memo[v]

    def table(self, v: int, form: str) -> tuple[int, tuple[AxisIndex, ...]]:
        """What a gather from ``v`` reads, and the axis of ``v`` or the place for each of its dimensions: a column of a
        matrix is read where it lies.
        """
        leaves, shape = self.operand(v).leaves, self.program.specs[v].known_shape
        own = tuple([AxisIndex(d) for d in range(len(shape))])
        if form != "take" or len(leaves) != 1 or leaves[0].guards or not isinstance(leaves[0].source, int):
            return v, own
        source, dims = leaves[0].source, leaves[0].dims
        extents = self.program.specs[source].known_shape
        kept = [(index.axis, extents[d]) for d, index in enumerate(dims) if index.axis is not None]
        is_whole = all((i.scale, i.offset) == (1, 0) or i.axis is None for i in dims)
        is_column = is_whole and all(i.divisor == 1 for i in dims) and kept == list(enumerate(shape))
        return (source, dims) if is_column else (v, own)

    def make(self, v: int, reader: int) -> None:
        """Have a move made in memory, and read there from now on, as by the move that makes ``reader`` of it."""
        self.made[v] = self.operand(v)
        self._memo[v] = self.identity(v)
        del self._memo[reader]
        self.operand(reader)

    def _resolve(self, v: int, ins: Instruction | None) -> Operand:
        literal = splat_literal(ins)
        if literal is not None:
            return Operand((Leaf(literal),))
        if ins is None or not is_move(self.program, ins):
            return self.identity(v)
        shape = self.program.specs[v].known_shape
        maps = move_maps(self.program, ins)[ins.outputs.index(v)]
        fill = Literal(self.program.specs[v].dtype.type(ins.params.get("fill", 0)), self.program.specs[v].dtype)
        leaves: list[Leaf] = []
        pieces = sum(len(self._memo[x].leaves) for x, m in zip(ins.inputs, maps, strict=True) if m is not None)
        for x, index_map in zip(ins.inputs, maps, strict=True):
            if index_map is None:
                continue
            inner = self._memo[x]
            if (pieces > MOST_LEAVES and len(inner.leaves) > 1) or not can_compose(inner, index_map):
                inner = self.identity(x)
                self.unresolved.add(x)
            if inner.fill is not None and index_map.guards and inner.fill != fill:
                inner = self.identity(x)
                self.unresolved.add(x)
            if inner.fill is not None:
                fill = inner.fill
            leaves += [c for leaf in inner.leaves if (c := compose(leaf, index_map, shape)) is not None]
        always = [leaf for leaf in leaves if not leaf.guards]
        if always:
            return Operand((always[0],))
        is_partial = not leaves or not _is_covered(leaves, shape)
        return Operand(tuple(leaves), fill if is_partial else None) if leaves else Operand((Leaf(fill),))

    def identity(self, v: int) -> Operand:
        """``v`` read as it is."""
        axes = [d if n != 1 else None for d, n in enumerate(self.program.specs[v].known_shape)]
        return Operand((Leaf(v, tuple(map(_along, axes))),))


@functools.lru_cache(maxsize=64)
def _along(axis: int | None) -> AxisIndex:
    return AxisIndex(axis)


def is_move(program: Program, ins: Instruction) -> bool:
    """Whether an instruction only moves elements in a way that an index can express."""
    return isinstance(ins.op.kind, Reindex) or (isinstance(ins.op.kind, View) and unit_view(program, ins) is not None)


def move_maps(program: Program, ins: Instruction) -> tuple[tuple[IndexMap | None, ...], ...]:
    """The index maps of an instruction that only moves elements."""
    if isinstance(ins.op.kind, Reindex):
        return ins.op.kind.maps(tuple(program.specs[x] for x in ins.inputs), ins.params)
    found = unit_view(program, ins)
    assert found is not None
    return ((found, *[None] * (len(ins.inputs) - 1)),)


def unit_view(program: Program, ins: Instruction) -> IndexMap | None:
    """The map of a reshape that only adds or drops extents of 1; None for any other."""
    before, after = program.specs[ins.inputs[0]].known_shape, program.specs[ins.outputs[0]].known_shape
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return None
    sized = iter([d for d, n in enumerate(after) if n != 1])
    return IndexMap(tuple(AxisIndex(None) if n == 1 else AxisIndex(next(sized)) for n in before))


def splat_literal(ins: Instruction | None) -> Literal | None:
    """The single value of a constant that is the same everywhere; None for anything else."""
    if ins is None or not isinstance(ins.op.kind, Fill) or ins.op.kind.scalar != "constant":
        return None
    array = np.asarray(ins.params["value"])
    if array.size == 0 or (array.size > 1 and any(s for s, n in zip(array.strides, array.shape, strict=True) if n > 1)):
        return None
    number = array.reshape(-1)[0] if array.size == 1 else array[(0,) * array.ndim]
    return Literal(number, array.dtype, ins.outputs[0])


def can_compose(operand: Operand, index_map: IndexMap) -> bool:
    """Whether there is one index for each of an operand's: what is divided is multiplied neither before nor after."""
    pairs = ((i, index_map.dims[i.axis]) for leaf in operand.leaves for i in leaf.dims if i.axis is not None)
    return all(
        outer.axis is None or (i.divisor, outer.divisor) == (1, 1) or (i.scale, outer.scale) == (1, 1)
        for i, outer in pairs
    )


def compose(leaf: Leaf, index_map: IndexMap, shape: tuple[int, ...]) -> Leaf | None:
    """The leaf read through an index map of outputs of ``shape``; None when its guards can never hold."""
    dims = tuple(substitute(index, index_map.dims) for index in leaf.dims)
    guards: dict[int, Guard] = {}
    for guard in (*index_map.guards, *(_pull_back(g, index_map.dims[g.axis]) for g in leaf.guards)):
        if isinstance(guard, bool):
            if not guard:
                return None
            continue
        known = guards.get(guard.axis)
        guards[guard.axis] = (
            guard if known is None else Guard(guard.axis, max(known.lo, guard.lo), min(known.hi, guard.hi))
        )
    kept = tuple(g for _, g in sorted(guards.items()) if g.lo > 0 or g.hi < shape[g.axis])
    if any(max(g.lo, 0) >= min(g.hi, shape[g.axis]) for g in kept):
        return None
    return replace(leaf, dims=dims, guards=kept)


def substitute(index: AxisIndex, dims: tuple[AxisIndex, ...]) -> AxisIndex:
    """An index into something read at ``dims``, as one of what reads that."""
    if index.axis is None:
        return index
    outer = dims[index.axis]
    scale = 0 if outer.axis is None else index.scale * outer.scale
    offset = index.scale * outer.offset + index.offset * outer.divisor
    if outer.axis is None:
        return AxisIndex(None, scale, offset // index.divisor)
    return AxisIndex(outer.axis, scale, offset, outer.divisor * index.divisor)


def _pull_back(guard: Guard, index: AxisIndex) -> Guard | bool:
    """``lo <= (scale*i + offset) // divisor < hi`` as a condition on ``i``."""
    if index.axis is None:
        return guard.lo <= index.offset < guard.hi
    lo, hi = guard.lo * index.divisor - index.offset, guard.hi * index.divisor - index.offset
    if index.scale < 0:
        lo, hi = -hi + 1, -lo + 1
    scale = abs(index.scale)
    return Guard(index.axis, -(-lo // scale), -(-hi // scale))


def _is_covered(leaves: list[Leaf], shape: tuple[int, ...]) -> bool:
    """Whether guards along one axis together cover all of it: the pieces of a concatenation."""
    axes = {tuple(g.axis for g in leaf.guards) for leaf in leaves}
    if len(axes) != 1 or len(next(iter(axes))) != 1:
        return False
    axis = next(iter(axes))[0]
    inside = (min(leaf.guards[0].hi, shape[axis]) - max(leaf.guards[0].lo, 0) for leaf in leaves)
    return sum(inside) >= shape[axis]
