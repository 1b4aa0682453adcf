"""Scatters: zeros, then one addition per update, in order, so that duplicates add up in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Placed
from jitgrad.compiler.fusing.looptree import TreeLoop
from jitgrad.compiler.fusing.nodes import Node
from jitgrad.compiler.fusing.packing import places_of_rows
from jitgrad.compiler.fusing.scatters import axes_of_rows, axes_of_updates, has_long_rows, has_own_rows
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Accumulator,
    Argument,
    Bound,
    Index,
    Keep,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)
from jitgrad.compiler.loopir.quantities import Quantity, product
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.body import Lowering
from jitgrad.compiler.lowering.reading import Body

INT32 = np.dtype(np.int32)
BLOCK_BITS, SLOT_BITS = 5, 2
BLOCK, SLOTS = 1 << BLOCK_BITS, 1 << SLOT_BITS
"""Blocks of so many rows are dealt out to so many slots, which chunks divide: words that are often looked up stand side
by side in many tables, and would be one chunk's. Four chunks of the gradient of 20000 x 64 floats fit in the second
cache, each with what is added to it.
"""
COPIES = 4
"""Of a small table, to which updates go in turn: one that follows another to the same place would wait for what it has
stored. 400,000 updates of 40 places take 0.8 ns each where positions are sorted, 3.2 with one copy; 0.7 otherwise.
"""


class ScatterLowering(Lowering):
    """Lowers a group that is one scatter."""

    copy = ""
    """How large a copy of the table is, where there are some."""

    def body(self) -> list[Statement]:
        """The loops that clear the output, and those that add the updates."""
        placed = self.group.nodes[0]
        node = placed.node
        classes = self.plan.classes[node.value]
        self.sized = tuple(c for c in classes if c != ONE)
        is_part = node.value in self.group.partials
        self.out = "" if is_part else self.signature.buffer("out", node.value, node.dtype)
        self.zero = Literal(node.dtype.type(0), node.dtype)
        if is_part:
            return self._in_parts(placed)
        if self._is_shared:
            return self._shared(placed)
        return self._cleared(has_own_rows(node, classes)) + self._nest(placed)

    @property
    def parallel_extent(self) -> Quantity:
        """What chunks divide, where that is not the outermost loop's extent."""
        return Quantity((), SLOTS) if self._is_shared else super().parallel_extent

    @property
    def _is_shared(self) -> bool:
        """Whether chunks divide the rows of the table, not the updates."""
        node = self.group.nodes[0].node
        return has_long_rows(node, self.plan.classes[node.value], self.plan.specs[node.value].known_shape)

    def _cleared(self, has_rows: bool) -> list[Statement]:
        """Zeros in all places; in the rows of a chunk, where each has its own."""
        if not has_rows:
            return [self._zeros("j", self._product(self.sized), Term("j"))]
        row = self._product(self.sized[1:])
        inner = self._zeros("j", row, Term(self.var(0), row), Term("j"))
        return [Loop(self.var(0), self.extent((0,)), PARALLEL, (inner,))]

    def _zeros(self, var: str, extent: str, *terms: Term) -> Loop:
        return Loop(var, extent, VECTOR, (Store(self.out, Index(terms), self.zero, self.zero.dtype),))

    def _product(self, classes: Sequence[int], number: int = 1) -> str:
        return self.signature.product(product(tuple(classes), number))

    # -- one update after the other ----------------------------------------------------------------------------------

    def _nest(self, placed: Placed) -> list[Statement]:
        """The loops over all updates."""
        axes = [a for a in placed.axes if a is not None]
        bodies = self._chain(axes)
        self._add(placed, bodies[-1], is_inside=False)
        rows = {placed.axes[d] for d in axes_of_rows(placed.node)}
        statements = statements_of(bodies[-1])
        for axis, around in zip(reversed(axes), bodies[-2::-1], strict=True):
            is_parallel = axis == 0 and not self.group.is_serial  # not of vectors: a chunk has the rows that it cleared
            kind = PARALLEL if is_parallel else VECTOR if axis == axes[-1] and axis in rows else SERIAL
            statements = [*statements_of(around), Loop(self.var(axis), self.extent((axis,)), kind, tuple(statements))]
        return statements

    def _chain(self, axes: Sequence[int]) -> list[Body]:
        """Bodies of loops in one another, that of the kernel first."""
        trees = [self.tree.root]
        for axis in axes:
            trees.append(TreeLoop(axis, trees[-1]))
        return [self.bodies.setdefault(tree, Body(tree)) for tree in trees]

    def _add(self, placed: Placed, body: Body, is_inside: bool) -> None:
        """One update, or one for each place of a short row, turn by turn; where it is not known that its position
        ``is_inside``, that is checked.
        """
        node = placed.node
        offsets = places_of_rows(node, self.plan.specs[node.value].known_shape)
        arguments = [self.read(operand, placed, body) for operand in node.operands]
        count, rows = len(offsets), range(node.turns)
        each = (len(arguments) - node.turns * count) // node.turns
        positions = [arguments[node.turns * count + k * each :][:each] for k in rows]
        found = [self.table_index(placed, node.value, given, body) for given in positions]
        copy = (self._copy_of_turn(placed, body),) if self.copy else ()
        for k, (index, bounds) in zip(rows, found, strict=True):
            if not is_inside:
                self.check(bounds, node.value, body)
            at = replace(index, terms=(*index.terms, *copy))
            places = [replace(at, place=offset) for offset in offsets]
            self._add_at(node, places, arguments[k * count :][:count], () if is_inside else bounds, body)

    def _add_at(
        self, node: Node, places: Sequence[Index], updates: Sequence[Argument], bounds: tuple[Bound, ...], body: Body
    ) -> None:
        """Updates added at places, all of which lie inside or none."""
        before, after = ([self.name() for _ in places] for _ in range(2))
        fill = self.zero if bounds else None
        body.rest += [Load(v, node.dtype, self.out, at, bounds, fill) for v, at in zip(before, places, strict=True)]
        body.rest += [Let(v, node.dtype, "add", (x, y)) for v, x, y in zip(after, before, updates, strict=True)]
        body.rest += [Store(self.out, at, v, node.dtype, bounds) for v, at in zip(after, places, strict=True)]

    # -- a small table per chunk ---------------------------------------------------------------------------------------

    def _in_parts(self, placed: Placed) -> list[Statement]:
        """The updates of a chunk, summed in copies of the table and then in its part."""
        node, self.copy = placed.node, self._product(self.sized)
        part = self.signature.buffer("partial", self.group.partials[node.value], node.dtype, self.copy)
        whole = self._product(self.sized, COPIES)
        self.out = self.signature.buffer("scratch", node.value, node.dtype, whole)
        names = [self.name() for _ in range(COPIES)]
        offsets = [None, *(self.signature.product(product(self.sized, k)) for k in range(1, COPIES))]
        body: list[Statement] = [
            Load(name, node.dtype, self.out, Index((Term("j"),), at)) for name, at in zip(names, offsets, strict=True)
        ]
        while len(names) > 1:
            pairs, names = zip(names[::2], names[1::2], strict=True), [self.name() for _ in names[::2]]
            body += [Let(name, node.dtype, "add", pair) for name, pair in zip(names, pairs, strict=True)]
        body.append(Store(part, Index((Term("j"),)), names[0], node.dtype))
        return [self._zeros("j", whole, Term("j")), *self._nest(placed), Loop("j", self.copy, VECTOR, tuple(body))]

    def _copy_of_turn(self, placed: Placed, body: Body) -> Term:
        """The copy of a turn of the innermost loop."""
        axis, name = max(a for a in placed.axes if a is not None), self.name()
        body.rest.append(Let(name, INT64, "bitwise_and", (self.var(axis), int64(COPIES - 1))))
        return Term(name, self.copy)

    # -- rows of the table shared out ----------------------------------------------------------------------------------

    def _shared(self, placed: Placed) -> list[Statement]:
        """Each chunk clears its rows, finds the updates for these, in their order, and adds them."""
        along = [a for d in axes_of_updates(placed.node) if (a := placed.axes[d]) is not None]
        kept = {axis: self._list(~axis, self._updates(along)) for axis in along}
        number = f"acc{self.signature.fresh()}"
        finding = self._finding(placed, along, kept, number)
        adding = self._adding(placed, kept, number)
        root = statements_of(self.bodies[self.tree.root])
        clearing = self._by_blocks(self._cleared_rows)
        return [*root, *clearing, Accumulator(number, INT64, "add", int64(0)), finding, adding]

    def _list(self, key: int, extent: str) -> str:
        """A list of numbers that each worker has for itself."""
        return self.signature.buffer("kept", key, INT32, extent)

    def _updates(self, along: Sequence[int]) -> str:
        """How many updates there are."""
        return self._product([c for a in along for c in self.axis_classes[a]])

    def _by_blocks(self, work: Callable[[str, str], list[Statement]], rounds: str = "") -> list[Statement]:
        """The ``work`` on the blocks of a chunk's slots, round by round, each given by its first row and how many."""
        base, number, start, left, count = (self.name() for _ in range(5))
        inside = (
            Let(base, INT64, "multiply", ("j0", int64(SLOTS))),
            Let(number, INT64, "add", (base, "j1")),
            Let(start, INT64, "multiply", (number, int64(BLOCK))),
            Let(left, INT64, "subtract", (self._product(self.sized[:1]), start)),
            Let(count, INT64, "minimum", (left, int64(BLOCK))),
            *work(start, count),
        )
        before = [] if rounds else self._rounds(rounds := self.name())
        return [*before, Loop("j0", rounds, SERIAL, (Loop("j1", self._slots, PARALLEL, inside),))]

    def _rounds(self, rounds: str) -> list[Statement]:
        """How many rounds deal out all blocks."""
        up = self.name()
        return [
            Let(up, INT64, "add", (self._product(self.sized[:1]), int64(BLOCK * SLOTS - 1))),
            Let(rounds, INT64, "right_shift", (up, int64(BLOCK_BITS + SLOT_BITS))),
        ]

    def _cleared_rows(self, start: str, count: str) -> list[Statement]:
        """Zeros in so many rows."""
        row, place, size = self._product(self.sized[1:]), self.name(), self.name()
        return [
            Let(place, INT64, "multiply", (start, row)),
            Let(size, INT64, "multiply", (count, row)),
            self._zeros("j2", size, Term(place), Term("j2")),
        ]

    @property
    def _slots(self) -> str:
        return self.signature.number("slots", SLOTS)

    def _finding(
        self, placed: Placed, along: Sequence[int], kept: Mapping[int, str], number: str, rows: str | None = None
    ) -> Loop:
        """Which updates are for the chunk's rows: the numbers of their loops are kept, and which ``rows`` they are."""
        node = placed.node
        bodies = self._chain(along)
        body = bodies[-1]
        positions = [self.read(operand, placed, body) for operand in node.operands[1:]]
        _, bounds = self.table_index(placed, node.value, positions, body)
        self.check(bounds, node.value, body)
        row = self._bound_of_row(placed, bounds).var
        block, slot = self.name(), self.name()
        body.rest.append(Let(block, INT64, "right_shift", (row, int64(BLOCK_BITS))))
        body.rest.append(Let(slot, INT64, "bitwise_and", (block, int64(SLOTS - 1))))
        lists = {**{self.var(axis): buffer for axis, buffer in kept.items()}, **({row: rows} if rows else {})}
        body.rest.append(Keep(number, tuple(lists.values()), tuple(lists), bounds, slot, self._slots))
        return self._loops(along, bodies)

    def _bound_of_row(self, placed: Placed, bounds: Sequence[Bound]) -> Bound:
        """That of the table's first dimension of more than one."""
        classes = self.plan.classes[placed.node.value]
        entries = [c for entry, c in zip(placed.node.table_dims, classes, strict=True) if isinstance(entry, int)]
        return next(bound for bound, c in zip(bounds, entries, strict=True) if c != ONE)

    def _adding(self, placed: Placed, kept: Mapping[int, str], number: str) -> Loop:
        """The loop over the updates that were kept."""
        along = list(kept)
        across = [a for d in axes_of_rows(placed.node) if (a := placed.axes[d]) is not None]
        bodies = self._chain([*along, *across])
        self._add(placed, bodies[-1], is_inside=True)
        found = self._found(kept, "k")
        for body in bodies[1 : len(along)]:
            found += statements_of(body)
        inside = bodies[len(along) :]
        return Loop("k", number, SERIAL, (*found, *statements_of(inside[0]), self._loops(across, inside)))

    def _found(self, kept: Mapping[int, str], at: str) -> list[Statement]:
        """The numbers of the loops of an update, out of lists."""
        found: list[Statement] = []
        for axis, buffer in kept.items():
            found += self._taken(self.var(axis), buffer, Term(at))
        return found

    def _taken(self, name: str, buffer: str, *at: Term) -> list[Statement]:
        """A number out of a list."""
        narrow = self.name()
        return [Load(narrow, INT32, buffer, Index(at)), Let(name, INT64, "cast", (narrow,))]

    def _loops(self, axes: Sequence[int], bodies: Sequence[Body]) -> Loop:
        """Loops in one another, the innermost one on vectors; ``bodies`` begin with the one around them."""
        loop: Loop | None = None
        for axis, body in zip(reversed(axes), reversed(bodies), strict=False):
            inner = statements_of(body) + ([loop] if loop else [])
            loop = Loop(self.var(axis), self.extent((axis,)), SERIAL if loop else VECTOR, tuple(inner))
        assert loop is not None
        return loop


def statements_of(body: Body) -> list[Statement]:
    """All that stands in a body."""
    return body.loads + body.rest


def int64(number: int) -> Literal:
    """A number of loops and places."""
    return Literal(np.int64(number), INT64)
