"""Short axes: values with a last axis of a few elements, points and quaternions, as one value for each place along it;
it makes no kernel.

A loop over three elements fills a part of a register, sums along it are sums of lanes, and a stack of three vectors
is a choice at each element. Where operations that combine, join or take apart what lies along such axes stand together
with others, they form islands. The operations of an island become those of places (place_rules.py), over the long axes
alone. What they read of other operations is sliced, which is an offset in the kernel that reads it; what others read of
them is stacked, which kernels write place by place (fusing/packing.py).

Which axes are short is asked of extents that are part of what programs have in common (likeness.py), so that programs
of one pattern are treated alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jitgrad.compiler.identity import instruction_key
from jitgrad.compiler.likeness import PLAIN_EXACT, exact_in
from jitgrad.compiler.place_rules import MOST_PLACES, Make, Parts, Shape, Shapes, rule_for
from jitgrad.compiler.remaking import Splitting
from jitgrad.opdef import Contract, Elementwise, Fill, Gather, Library, OpDef, Reduce, Reindex, Scan, Scatter, View
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec, normalize_axes

_MOST = 7
"""A row of eight fills a register. Softmax of 100000 rows of 3 in float32 takes 0.19 ms apart and 1.30 whole, of 7 0.43
and 1.40."""
_FEW = 4
"""So many elements along an axis fill a part of a register; where there are more, repeating what is the same for all
rows is no reason to take values apart."""
_MOST_OPERATIONS = 3000
"""Operations that an island may become: kernels take longer to compile than such programs run. Value and gradient of
100 products of quaternions in a row, 20000 of each: first call 2.9 s and others 28 ms apart, 0.7 s and 27 ms whole; of
40 products 1.1 s and 10 ms apart, 1.2 s and 39 ms whole (two of Intel's cores with AVX-512, float64)."""
_MOST_FOR_EACH = 100
"""Operations that it may become for each of those that loops over short axes do badly: long chains of others run well
along whole arrays, and are so many times less to compile. 60 times tanh(r p + c) of normed rows of 4, likewise: first
call 0.62 s and others 26 ms apart, 0.08 s and 27 ms whole."""
_MOST_OF_SEED = 16
"""Products of a matrix and a vector, or of two, that are better apart than with a matrix per lane: 1e5 of 3 x 3 with
gradients take 0.45 ms and 1.24 (float64). Two of 3 x 3 are 27, take 0.8 of the time and ten times as long to compile.
"""


def short_axes_apart(program: Program) -> Program:
    """An equal program, in which values with short last axes are one value for each place, where that pays; the same
    object where there are none. Nothing is simplified.
    """
    if not any(_may_be_short(spec) for spec in program.specs) or any(ins.after for ins in program.instructions):
        return program
    islands = _Islands(program)
    chosen = islands.chosen()
    return _Splitter(program, chosen, islands.shape).split() if chosen else program


def _may_be_short(spec: TensorSpec) -> bool:
    """Whether a value is one of many points with a short last axis."""
    shape = spec.known_shape
    return len(shape) > 1 and 1 < shape[-1] <= _MOST and max(shape) > PLAIN_EXACT


def shape_of(extents: tuple[int, ...], exact: int) -> Shape:
    """A shape, where extents up to ``exact`` are known: those up to `PLAIN_EXACT` are short, that of a last axis up to
    `MOST_PLACES`. Not so axes before the first long one, which count arrays, unless the shape is that of a transposed
    array of points; and where others have too many places, those before the last long one.
    """
    last = min(MOST_PLACES, exact) if len(extents) > 1 else PLAIN_EXACT
    limits = [PLAIN_EXACT] * (len(extents) - 1) + [last]
    long = [d for d, n in enumerate(extents) if n > limits[d] or n == 0]
    sized = [d for d, n in enumerate(extents) if n != 1]
    if long and len(sized) > 2:
        long = [d for d in sized if d <= long[0] or d in long]
    if long and math.prod(extents[d] for d in sized if d not in long) > MOST_PLACES:
        long = [d for d in sized if d <= long[-1]]
    return Shape(extents, tuple([d for d in sized if d not in long]), tuple(long))


# -- islands -----------------------------------------------------------------------------------------------------------


class _Islands:
    """Which instructions become those of places: sets of them that are joined by values that are taken apart."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.exact = exact_in(program)
        self._shapes: dict[tuple[int, ...], Shape] = {}
        self._rules: dict[int, Make | None] = {}

    def shape(self, v: int) -> Shape:
        """The shape of a value."""
        extents = self.program.specs[v].known_shape
        if extents not in self._shapes:
            self._shapes[extents] = shape_of(extents, self.exact)
        return self._shapes[extents]

    def chosen(self) -> dict[int, Make]:
        """By the number of an instruction what it becomes."""
        found: dict[int, Make] = {}
        seen: set[int] = set()
        for number, ins in enumerate(self.program.instructions):
            if number not in seen and self._is_seed(ins) and self._rule(number) is not None:
                island, is_good = self._around(number)
                seen.update(island)
                if is_good and self._is_worth(island):
                    found.update(island)
        return found

    def _is_worth(self, island: Iterable[int]) -> bool:
        """Whether an island does not become too many operations, and does more along short axes than to turn them:
        200000 x 5 turned and subtracted take 0.43 ms, and 0.81 apart. A column that is repeated and joined to others,
        as the edge of a padded array is, would be as many pieces.
        """
        members = [self.program.instructions[n] for n in island]
        moves = [ins for ins in members if isinstance(ins.op.kind, Reindex) or self._is_seed(ins)]
        if all(ins.op.name == "transpose" for ins in moves) or all(ins.op.name == "broadcast_to" for ins in members):
            return False
        most = min(_MOST_OPERATIONS, _MOST_FOR_EACH * sum(map(self._is_seed, members)))
        return sum(map(self._size, members)) <= most

    def _around(self, seed: int) -> tuple[dict[int, Make], bool]:
        """The island of an instruction, and whether nothing beside it forbids it."""
        producers, uses = self.program.producers(), self.program.uses()
        island: dict[int, Make] = {}
        pending, is_good = [seed], True
        while pending:
            number = pending.pop()
            if number in island:
                continue
            ins, make = self.program.instructions[number], self._rule(number)
            if make is None:
                is_good = is_good and not self._hinders(ins)
                continue
            island[number] = make
            for v in self._apart(ins):
                pending += uses.get(v, ())
                pending += [producers[v]] if v in producers else []
        return island, is_good

    def _hinders(self, ins: Instruction) -> bool:
        """Whether an instruction reads or makes what had better stay whole: many small matrices, for which there are
        kernels whose lanes count them, and rows of which one element each is looked up.
        """
        extents = self.program.specs[ins.inputs[0]].known_shape if ins.inputs else ()
        if isinstance(ins.op.kind, Gather | Scatter):
            return ins.op.kind.form == "take_along" and extents[-1] > _FEW
        return isinstance(ins.op.kind, Library | Contract) and len(extents) > 2

    def _apart(self, ins: Instruction) -> list[int]:
        """The values of an instruction that are taken apart."""
        shapes = [(v, self.shape(v)) for v in (*ins.inputs, *ins.outputs)]
        return [v for v, shape in shapes if shape.short and shape.long]

    def _rule(self, number: int) -> Make | None:
        """What an instruction becomes; None where it stays."""
        if number not in self._rules:
            self._rules[number] = self._rule_for(self.program.instructions[number])
        return self._rules[number]

    def _rule_for(self, ins: Instruction) -> Make | None:
        kind = ins.op.kind
        if not isinstance(kind, Elementwise | Fill | Reduce | Scan | Reindex | View | Gather | Contract):
            return None
        if ins.op.stateful or ins.origin.scope is None or ins.origin.is_refused or not self._apart(ins):
            return None
        if not all(self._can_be_apart(v) for v in (*ins.inputs, *ins.outputs)):
            return None
        return rule_for(self.program, ins, self.shape)

    def _can_be_apart(self, v: int) -> bool:
        """Whether a value has few places, and what is at one place is a vector or an array of longer ones."""
        shape = self.shape(v)
        if self.program.specs[v].dtype.kind not in "biuf" or shape.places > MOST_PLACES or 0 in shape.extents:
            return False
        return not shape.short or len(shape.long) < 2 or shape.short[-1] > shape.long[-1]

    def _size(self, ins: Instruction) -> int:
        """How many operations an instruction becomes; moves become none."""
        places = max(self.shape(v).places for v in ins.outputs)
        if not isinstance(ins.op.kind, Contract):
            return places if isinstance(ins.op.kind, Elementwise) else 0
        x = self.shape(ins.inputs[0])
        inner = len(x.extents) - (2 if ins.params.get("transpose_a", False) else 1)
        return places * (1 if inner in x.long else x.extents[inner])

    def _is_seed(self, ins: Instruction) -> bool:
        """Whether an instruction does along a short last axis what loops over it do badly."""
        kind = ins.op.kind
        if isinstance(kind, Contract):
            return self._is_of_points(ins)
        if not isinstance(kind, Reduce | Scan | Reindex | Gather):
            return False
        rows = [self._row(v) for v in (*ins.inputs, *ins.outputs)]
        if isinstance(kind, Gather):
            return 0 < rows[-1] <= _MOST
        if isinstance(kind, Reindex):
            most = _FEW if ins.op.name == "broadcast_to" else _MOST
            return any(0 < n <= most for n in rows)
        x = self.shape(ins.inputs[0])
        axes = normalize_axes(ins.params["axis"], len(x.extents))
        return 0 < rows[0] <= _MOST and x.short[-1] in axes and not set(x.long) & set(axes)

    def _is_of_points(self, ins: Instruction) -> bool:
        """Whether an instruction is a product of a matrix and a vector, or of two tiny matrices, for each of many."""
        shapes = [self.shape(v) for v in (*ins.inputs, *ins.outputs)]
        is_batch = all(shape.long and shape.long[-1] < len(shape.extents) - 2 for shape in shapes)
        return is_batch and self._size(ins) <= _MOST_OF_SEED

    def _row(self, v: int) -> int:
        """The extent of a value's last axis, where that is short; else 0."""
        shape = self.shape(v)
        return shape.extents[shape.short[-1]] if shape.short and shape.long and shape.short[-1] > shape.long[-1] else 0


# -- the program anew --------------------------------------------------------------------------------------------------


class _Splitter(Splitting[Parts]):
    """The instructions of a program anew: those chosen by places, the others with what they read put together."""

    def __init__(self, program: Program, chosen: dict[int, Make], shapes: Shapes) -> None:
        super().__init__(program)
        self.chosen = chosen
        self.shapes = shapes
        self._known: dict[Any, int] = {}

    def emit_op(self, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]) -> int:
        """A new instruction, or one that makes the same; its value."""
        key = instruction_key(Instruction(op, inputs, (len(self.specs),), params, self.origin))
        if key not in self._known:
            self._known[key] = super().emit_op(op, inputs, params)
        return self._known[key]

    def _is_split(self, number: int, ins: Instruction) -> bool:
        if number not in self.chosen:
            return False
        self._parts.update(zip(ins.outputs, self.chosen[number](self), strict=True))
        return True

    def _taken_apart(self, v: int) -> Parts:
        return tuple(self._slices(v))

    def _slices(self, v: int) -> Iterator[int]:
        shape, whole = self.shapes(v), self.whole(v)
        if not shape.short:
            yield whole if shape.rest == shape.extents else self.emit("reshape", whole, shape=shape.rest)
            return
        drop = tuple([d for d in range(len(shape.extents)) if d not in shape.long])
        step = (1,) * len(shape.extents)
        for at in shape.at():
            start = tuple([at.get(d, 0) for d in range(len(shape.extents))])
            stop = tuple([at.get(d, 0) + 1 if d in drop else n for d, n in enumerate(shape.extents)])
            yield self.emit("getslice", whole, start=start, stop=stop, step=step, drop=drop)

    def _joined(self, v: int) -> int:
        shape, level = self.shapes(v), list(self._parts[v])
        for d in reversed(shape.short):
            n, axis = shape.extents[d], sum(e < d for e in shape.long)
            level = [self.emit("stack", *level[k : k + n], axis=axis) for k in range(0, len(level), n)]
        (whole,) = level
        return whole if self.specs[whole].shape == shape.extents else self.emit("reshape", whole, shape=shape.extents)
