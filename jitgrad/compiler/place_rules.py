"""What operations are of values taken apart along short axes: which places of theirs are made of which of what they
read. Which values are taken apart is decided elsewhere (short_axes.py).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol

from jitgrad.compiler.constants import constant_value, is_splat, splat, splat_number
from jitgrad.opdef import AxisIndex, Contract, Elementwise, Fill, Gather, IndexMap, Reduce, Reindex, Scan, View
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import DType, normalize_axes, normalize_axis

MOST_PLACES = 16
"""Places into which a value is taken apart."""
_MOST_PRODUCTS = 32
"""Products that a product of matrices may become. Two matrices of 4 x 4 are 64, and with gradients take 0.84 ms for 1e4
where a kernel with a matrix per lane takes 0.22 (float64); a matrix of 3 x 3 and a vector 0.05 and 0.11."""
_MOST_COLUMNS = 7
"""Those of rows that are looked up place by place: whole, each is stored with a mask (6 ns, Zen 4)."""

Parts = tuple[int, ...]
"""The values at the places along the short axes of one, in row-major order."""


class Shape(NamedTuple):
    """A shape, and which of its dimensions are short and which long; others are of extent 1."""

    extents: tuple[int, ...]
    short: tuple[int, ...]
    long: tuple[int, ...]

    @property
    def places(self) -> int:
        """How many places there are along the short dimensions."""
        return math.prod([self.extents[d] for d in self.short])

    @property
    def rest(self) -> tuple[int, ...]:
        """The shape of a value at one place."""
        return tuple([self.extents[d] for d in self.long])

    def at(self) -> Iterator[dict[int, int]]:
        """The places, each as an index for each short dimension."""
        for indices in itertools.product(*(range(self.extents[d]) for d in self.short)):
            yield dict(zip(self.short, indices, strict=True))

    def number(self, at: Mapping[int, int]) -> int:
        """The number of a place among all."""
        found = 0
        for d in self.short:
            found = found * self.extents[d] + at[d]
        return found


class Making(Protocol):
    """What rules need in order to make values."""

    def parts(self, v: int) -> Parts:
        """A value taken apart."""

    def emit(self, name: str, *inputs: int, **params: Any) -> int:
        """A new instruction; its value."""


Make = Callable[[Making], tuple[Parts, ...]]
"""Makes the values of an instruction, taken apart."""
Shapes = Callable[[int], Shape]


def rule_for(program: Program, ins: Instruction, shapes: Shapes) -> Make | None:
    """What an instruction is, place by place; None where it is not of that kind."""
    match ins.op.kind:
        case Elementwise():
            return _elementwise(ins)
        case Fill():
            return _constant(ins, shapes)
        case Reduce(combine):
            return _reduced(program, ins, shapes, combine)
        case Scan(combine):
            return _scanned(program, ins, shapes, combine)
        case Reindex(maps):
            specs = tuple([program.specs[v] for v in ins.inputs])
            return _moved(program, ins, shapes, maps(specs, ins.params))
        case View():
            return _viewed(ins, shapes)
        case Gather():
            return _looked_up(ins, shapes)
        case Contract():
            return _multiplied(ins, shapes, program.specs[ins.outputs[0]].dtype)
    return None


# -- elements ----------------------------------------------------------------------------------------------------------


def _elementwise(ins: Instruction) -> Make:
    """The op itself at each place."""

    def make(s: Making) -> tuple[Parts, ...]:
        rows = zip(*[s.parts(v) for v in ins.inputs], strict=True)
        return (tuple([s.emit(ins.op.name, *row, **ins.params) for row in rows]),)

    return make


def _constant(ins: Instruction, shapes: Shapes) -> Make | None:
    value = constant_value(ins)
    if value is None or not is_splat(value):
        return None
    shape = shapes(ins.outputs[0])

    def make(s: Making) -> tuple[Parts, ...]:
        return ((_number(s, splat_number(value), shape.rest, value.dtype),) * shape.places,)

    return make


def _sum_in(s: Making, v: int, axis: int, dtype: DType) -> int:
    """A sum in its own dtype: NumPy's of short integers and of booleans are long ones, those in products are not."""
    total = s.emit("sum", v, axis=(axis,), keepdims=False)
    return s.emit("astype", total, dtype=dtype) if dtype.kind in "biu" and dtype.itemsize < 8 else total


def _number(s: Making, number: Any, rest: tuple[int, ...], dtype: DType) -> int:
    return s.emit("constant", value=splat(number, rest, dtype))


# -- what combines along axes ------------------------------------------------------------------------------------------

_BY_COMBINE = {
    "add": "add", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum", "logical_or": "logical_or",
    "logical_and": "logical_and",
}  # fmt: skip
_NO_MINUS = frozenset(("square", "absolute", "exp"))  # operations that never give -0.0


def _reduced(program: Program, ins: Instruction, shapes: Shapes, combine: str) -> Make | None:
    """What is combined along short axes is combined one after the other, as NumPy does with so few; then along the
    others.
    """
    if combine not in _BY_COMBINE:
        return None
    x, out = ins.inputs[0], ins.outputs[0]
    shape, dtype = shapes(x), program.specs[out].dtype
    axes = normalize_axes(ins.params["axis"], len(shape.extents))
    kept = [d for d in shape.short if d not in axes]
    left = [d for d in range(len(shape.extents)) if d not in axes or ins.params["keepdims"]]
    if any((d in shape.long and d not in axes) != (e in shapes(out).long) for e, d in enumerate(left)):
        return None  # an axis that is short only in the result
    rest = tuple([k for k, d in enumerate(shape.long) if d in axes])
    maker = program.instructions[program.producers()[x]].op.name if x in program.producers() else ""
    is_short_sum = combine == "add" and dtype.kind == "f" and len(kept) < len(shape.short)

    def make(s: Making) -> tuple[Parts, ...]:
        parts = _cast(s, s.parts(x), program.specs[x].dtype, dtype)
        groups: dict[tuple[int, ...], list[int]] = {}
        for at, part in zip(shape.at(), parts, strict=True):
            groups.setdefault(tuple([at[d] for d in kept]), []).append(part)
        made = [reduce(lambda a, b: s.emit(_BY_COMBINE[combine], a, b), group) for group in groups.values()]
        if rest:
            return (tuple([s.emit(ins.op.name, v, axis=rest, keepdims=False) for v in made]),)
        if is_short_sum and maker not in _NO_MINUS:  # sums begin with 0.0: not so only where all is -0.0
            zero = _number(s, 0.0, shape.rest, dtype)
            made = [s.emit("add", v, zero) for v in made]
        return (tuple(made),)

    return make


def _cast(s: Making, parts: Parts, before: DType, after: DType) -> Parts:
    return parts if before == after else tuple([s.emit("astype", v, dtype=after) for v in parts])


def _scanned(program: Program, ins: Instruction, shapes: Shapes, combine: str) -> Make | None:
    x, out = ins.inputs[0], ins.outputs[0]
    shape = shapes(x)
    axis = normalize_axis(ins.params["axis"], len(shape.extents))
    if combine not in _BY_COMBINE or len(ins.inputs) > 1 or axis not in shape.short:
        return None

    def make(s: Making) -> tuple[Parts, ...]:
        parts = _cast(s, s.parts(x), program.specs[x].dtype, program.specs[out].dtype)
        made: list[int] = []
        for at, part in zip(shape.at(), parts, strict=True):
            before = shape.number({**at, axis: at[axis] - 1}) if at[axis] else None
            made.append(part if before is None else s.emit(_BY_COMBINE[combine], made[before], part))
        return (tuple(made),)

    return make


# -- what moves elements -----------------------------------------------------------------------------------------------


class _Pick(NamedTuple):
    """The place of an input, whose long dimensions are those of the result at these positions."""

    x: int
    place: int
    along: tuple[int, ...]


def _moved(
    program: Program, ins: Instruction, shapes: Shapes, maps: Sequence[Sequence[IndexMap | None]]
) -> Make | None:
    """Each place of a result is one of an input, or the number that stands where no input is read."""
    picked: list[list[_Pick | None]] = []
    for v, of_inputs in zip(ins.outputs, maps, strict=True):
        read = [(x, m) for x, m in zip(ins.inputs, of_inputs, strict=True) if m is not None]
        found = _picks(shapes(v), [(x, m, shapes(x)) for x, m in read])
        if found is None:
            return None
        picked.append(found)
    fill = ins.params.get("fill", 0)

    def make(s: Making) -> tuple[Parts, ...]:
        made = []
        for v, picks in zip(ins.outputs, picked, strict=True):
            rest, dtype = shapes(v).rest, program.specs[v].dtype
            made.append(tuple([
                _number(s, fill, rest, dtype) if pick is None else _spread(s, s.parts(pick.x)[pick.place], pick, rest)
                for pick in picks
            ]))  # fmt: skip
        return tuple(made)

    return make


def _picks(out: Shape, read: Sequence[tuple[int, IndexMap, Shape]]) -> list[_Pick | None] | None:
    picks: list[_Pick | None] = []
    for at in out.at():
        found: _Pick | None = None
        for x, index_map, shape in read:
            guards = [g for g in index_map.guards if g.lo > 0 or g.hi < out.extents[g.axis]]
            if any(g.axis in out.long for g in guards):
                return None
            if all(g.lo <= at.get(g.axis, 0) < g.hi for g in guards):
                found = _pick(x, index_map, shape, out, at)
                if found is None:
                    return None
        picks.append(found)
    return picks


def _pick(x: int, index_map: IndexMap, shape: Shape, out: Shape, at: Mapping[int, int]) -> _Pick | None:
    """What is read of an input at a place of the result; None where that is not one place of the input, and the whole
    of its other dimensions.
    """
    places: dict[int, int] = {}
    for d in shape.short:
        place = _index_at(index_map.dims[d], at, out)
        if place is None:
            return None
        places[d] = place
    along: list[int] = []
    for d in shape.long:
        index = index_map.dims[d]
        if index.axis not in out.long or index != AxisIndex(index.axis) or shape.extents[d] != out.extents[index.axis]:
            return None
        along.append(out.long.index(index.axis))
    return _Pick(x, shape.number(places), tuple(along)) if len(set(along)) == len(along) else None


def _index_at(index: AxisIndex, at: Mapping[int, int], out: Shape) -> int | None:
    """An index at a place of the result; None where it changes along a long dimension."""
    if index.axis is None:
        return index.offset // index.divisor
    if index.axis in out.long:
        return None
    return (index.scale * at.get(index.axis, 0) + index.offset) // index.divisor


def _spread(s: Making, part: int, pick: _Pick, rest: tuple[int, ...]) -> int:
    """A part of an input with the long dimensions of the result: in their order, and repeated along others."""
    order = tuple(sorted(range(len(pick.along)), key=lambda k: pick.along[k]))
    if order != tuple(range(len(order))):
        part = s.emit("transpose", part, axes=order)
    if len(order) < len(rest):
        units = tuple([n if k in pick.along else 1 for k, n in enumerate(rest)])
        part = s.emit("broadcast_to", s.emit("reshape", part, shape=units), shape=rest)
    return part


def _viewed(ins: Instruction, shapes: Shapes) -> Make | None:
    """Short axes that are split, or become one, between long ones that stay."""
    x, out = shapes(ins.inputs[0]), shapes(ins.outputs[0])
    if _gaps(x) != _gaps(out):
        return None
    return lambda s: (s.parts(ins.inputs[0]),)


def _gaps(shape: Shape) -> list[int]:
    """How many places there are before each long extent, which follows, and behind the last."""
    found, places = [], 1
    for d, n in enumerate(shape.extents):
        if d in shape.long:
            found += [places, n]
            places = 1
        else:
            places *= n
    return [*found, places]


def _looked_up(ins: Instruction, shapes: Shapes) -> Make | None:
    """Rows at positions that are the same for all places, from the columns of a table."""
    (table, *positions), out = ins.inputs, shapes(ins.outputs[0])
    shape, axes = shapes(table), _axes_of_positions(ins)
    if not axes or shape.places > _MOST_COLUMNS or any(shapes(v).short for v in positions):
        return None
    shift = len(shapes(positions[0]).extents) - len(axes)
    others = [d for d in range(len(shape.extents)) if d not in axes]
    moved = {d: d if d < axes[0] else d + shift for d in others}
    short = tuple([moved[d] for d in shape.short if d in moved])
    if not set(axes) <= set(shape.long) or short != out.short:
        return None
    if [moved[d] for d in shape.long if d in moved] != [d for d in moved.values() if d in out.long]:
        return None  # an axis that is short in one of them only
    along = [shape.long.index(d) for d in axes]
    params = {"axis": along[0]} if "axis" in ins.params else {"axes": tuple(along)}

    def make(s: Making) -> tuple[Parts, ...]:
        at = [s.parts(v)[0] for v in positions]
        return (tuple([s.emit(ins.op.name, column, *at, **params) for column in s.parts(table)]),)

    return make


def _axes_of_positions(ins: Instruction) -> list[int]:
    """The axes of a table in whose place those of the positions stand; none where positions differ along rows."""
    if ins.op.name == "take_along_axis" or not isinstance(ins.op.kind, Gather):
        return []
    return list(ins.params["axes"]) if "axes" in ins.params else [ins.params["axis"]]


# -- products of matrices ----------------------------------------------------------------------------------------------


def _multiplied(ins: Instruction, shapes: Shapes, dtype: DType) -> Make | None:
    """Sums of products, of places along the inner axis, or along that axis where it is long and both others short."""
    (a, b), out = ins.inputs, ins.outputs[0]
    left, right, result = shapes(a), shapes(b), shapes(out)
    rank = len(result.extents)
    ta, tb = bool(ins.params.get("transpose_a", False)), bool(ins.params.get("transpose_b", False))
    row, inner = (rank - 1, rank - 2) if ta else (rank - 2, rank - 1)
    inner_b, column = (rank - 1, rank - 2) if tb else (rank - 2, rank - 1)
    m, n, k = left.extents[row], right.extents[column], left.extents[inner]
    is_long = [row in left.long, column in right.long, inner in left.long]
    leads = [[d for d in shape.long if d < rank - 2] for shape in (left, right, result)]
    if is_long != [rank - 2 in result.long, rank - 1 in result.long, inner_b in right.long]:
        return None  # an axis that is short in one of them only
    if leads[0] != leads[2] or leads[1] != leads[2]:
        return None
    terms = 1 if is_long[2] else k
    if sum(is_long) > 1 or result.places * terms > _MOST_PRODUCTS or not (m and n and k):
        return None
    batch = len(leads[2])

    def factor(s: Making, v: int, shape: Shape, at: Mapping[int, int], has_long: bool) -> int:
        part = s.parts(v)[shape.number(at)]
        along = tuple(range(batch + has_long))
        return part if is_long[2] else _spread(s, part, _Pick(v, 0, along), result.rest)

    def make(s: Making) -> tuple[Parts, ...]:
        made = []
        for at in result.at():
            batches = {d: i for d, i in at.items() if d < rank - 2}
            i, j = at.get(rank - 2, 0), at.get(rank - 1, 0)
            products = [
                s.emit(
                    "multiply",
                    factor(s, a, left, {**batches, row: i, inner: q}, is_long[0]),
                    factor(s, b, right, {**batches, inner_b: q, column: j}, is_long[1]),
                )
                for q in range(terms)
            ]
            total = reduce(lambda x, y: s.emit("add", x, y), products)
            if is_long[2]:
                made.append(_sum_in(s, total, batch, dtype))
            else:  # as sums, products begin with 0.0
                made.append(s.emit("add", total, _number(s, 0, result.rest, dtype)))
        return (tuple(made),)

    return make
