"""Long axes: which axis lies last where products of a batch, or arrays that are summed, have a long axis and a short
last one; it makes no kernel.

A loop over a short last axis leaves lanes of its registers empty, and sums along it are sums of lanes; BLAS does long
matrices of few columns one row at a time. Where such arrays are made in a program, from arrays with fewer axes, all
values with their long axis are made with that axis last: products of A and B as Bᵀ Aᵀ. What they are made of is
transposed first, and what is read as it was in the end; where either would be as large, all stays.

Which axes are short and which are long is asked of extents as far as they are part of what programs have in common
(likeness.py), and which are one and the same of what the program says (fusing/extents.py), so that programs of one
pattern are treated alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jitgrad.compiler.constants import constant_value, is_splat, splat, splat_number
from jitgrad.compiler.fusing.extents import ONE, ExtentClasses
from jitgrad.compiler.likeness import exact_in
from jitgrad.compiler.remaking import Remaking
from jitgrad.opdef import Contract, Elementwise, OpDef, Reduce, View, find
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import normalize_axes

_SHORT = 16
"""Axes below this are short. A mixture of 25 normals and 1000 points of so many dimensions, with short axes last and
with the long one, in microseconds (two of Intel's cores with AVX-512, in turns):

                   2            4            8           10           16           20           32
    float64    853, 233    1052, 463     837, 550    1298, 749   1338, 1375   1882, 1630   3049, 3554

Of 25 normals with diagonal covariances and 3 dimensions 202 and 51, of 1000 of them 8322 and 1633.
"""
_COMBINES = frozenset(("add", "multiply", "maximum", "minimum", "logical_or", "logical_and"))


class _RefusedError(Exception):
    """A value that is too large would be transposed."""


class _Long(NamedTuple):
    """A long axis, by its class; how many axes the products have whose rows it counts, or what is combined, the classes
    of these and of what is multiplied, and their scope.
    """

    axis: int
    rank: int
    classes: frozenset[int]
    scope: str | None


def long_axes_last(program: Program) -> Program:
    """An equal program, in which values with a long axis have it last if products or sums are the better for it; the
    same object where there are none. Axes are transposed where that is needed, and nothing is simplified.
    """
    exact = exact_in(program)
    seeds = [ins for ins in program.instructions if _is_narrow(program, ins, exact)]
    if not seeds or any(ins.after for ins in program.instructions):
        return program
    classes = ExtentClasses(program, range(len(program.instructions)))
    for long in dict.fromkeys(long for ins in seeds for long in _longs_of(program, ins, classes, exact)):
        try:
            return _Mover(program, classes, long).moved()
        except _RefusedError:
            continue
    return program


def _is_narrow(program: Program, ins: Instruction, exact: int) -> bool:
    """Whether an instruction makes, or combines, arrays of a long axis and a short last one."""
    if ins.origin.scope is None or ins.origin.is_refused:
        return False
    match ins.op.kind:
        case Contract():
            return _is_narrow_product(program, ins, exact)
        case Reduce(combine):
            return combine in _COMBINES and _is_narrow_reduction(program, ins, exact)
    return False


def _is_narrow_product(program: Program, ins: Instruction, exact: int) -> bool:
    """Whether an instruction is a batch of products of long matrices of few columns with small ones."""
    spec = program.specs[ins.outputs[0]]
    *batch, m, n = spec.known_shape
    k = program.specs[ins.inputs[0]].known_shape[-2 if ins.params["transpose_a"] else -1]
    is_short = 1 < n < _short(exact) and 1 < k < _short(exact)
    return spec.dtype.kind == "f" and any(size > 1 for size in batch) and m > exact and is_short


def _is_narrow_reduction(program: Program, ins: Instruction, exact: int) -> bool:
    """Whether an instruction combines what lies along a short last axis of three or more."""
    shape = program.specs[ins.inputs[0]].known_shape
    sized = [d for d, n in enumerate(shape) if n != 1]
    reduced = [d for d in normalize_axes(ins.params["axis"], len(shape)) if shape[d] != 1]
    if len(sized) < 3 or reduced != sized[-1:]:
        return False
    return 1 < shape[sized[-1]] < _short(exact) and max(shape[d] for d in sized[:-1]) > exact


def _short(exact: int) -> int:
    """Axes below this are short, where extents up to ``exact`` are known."""
    return min(_SHORT, exact + 1)


def _longs_of(program: Program, ins: Instruction, classes: ExtentClasses, exact: int) -> Iterator[_Long]:
    """The long axis of a product's rows, or those of what is combined, the first one first."""
    values = (*ins.inputs, *ins.outputs) if isinstance(ins.op.kind, Contract) else ins.inputs
    made = ins.outputs[0] if isinstance(ins.op.kind, Contract) else ins.inputs[0]
    found = classes.of(made)
    used = frozenset([c for v in values for c in _sized(classes.of(v))])
    pairs = list(zip(found, program.specs[made].known_shape, strict=True))
    for axis, extent in pairs[-2:-1] if isinstance(ins.op.kind, Contract) else pairs[:-1]:
        if extent > exact and found.count(axis) == 1:
            yield _Long(axis, len(_sized(found)), used, ins.origin.scope)


def _sized(classes: tuple[int, ...]) -> list[int]:
    return [c for c in classes if c != ONE]


class _Mover(Remaking):
    """The instructions of a program anew. Each value has its number where its axes are in their order; with the long
    axis last it has another, if that is another order.
    """

    def __init__(self, program: Program, classes: ExtentClasses, long: _Long) -> None:
        super().__init__(program)
        self.classes = classes
        self.long = long
        self.plain = set(program.inputs)  # values that are there with their axes in order
        self.last: dict[int, int] = {}  # and with the long axis last

    def moved(self) -> Program:
        """The whole program; _RefusedError where that costs too much."""
        for ins in self.program.instructions:
            self.origin = ins.origin
            if not any(map(self._is_led, (*ins.inputs, *ins.outputs))) or not self._is_moved(ins):
                for v in ins.inputs:
                    self._as_it_was(v)
                self.instructions.append(ins)
                self.plain.update(ins.outputs)
        for v in self.program.outputs:
            self._as_it_was(v)
        return self.remade(self.program.outputs)

    # -- values --------------------------------------------------------------------------------------------------------

    def _is_led(self, v: int) -> bool:
        """Whether a value has the long axis, once."""
        return self.classes.of(v).count(self.long.axis) == 1

    def order(self, v: int) -> tuple[int, ...]:
        """The dimensions of a value, that of the long axis last."""
        classes = self.classes.of(v)
        rank = range(len(classes))
        if not self._is_led(v):
            return tuple(rank)
        place = classes.index(self.long.axis)
        return (*(d for d in rank if d != place), place)

    def _is_in_order(self, v: int) -> bool:
        return list(self.order(v)) == list(range(len(self.classes.of(v))))

    def shape(self, v: int) -> tuple[int, ...]:
        """The shape of a value with the long axis last."""
        shape = self.program.specs[v].known_shape
        return tuple([shape[d] for d in self.order(v)])

    def operand(self, v: int) -> int:
        """A value with the long axis last."""
        if self._is_in_order(v):
            return v
        if v not in self.last:
            self._check_transposed(v)
            self.last[v] = self.emit("transpose", v, axes=self.order(v))
        return self.last[v]

    def _as_it_was(self, v: int) -> None:
        """See to it that a value is there with its axes in their order."""
        if v in self.plain:
            return
        self._check_transposed(v)
        order = self.order(v)
        back = tuple([order.index(d) for d in range(len(order))])
        self.put(v, find("transpose"), (self.last[v],), {"axes": back})

    def _check_transposed(self, v: int) -> None:
        """_RefusedError unless a value has fewer axes than the products."""
        if len(_sized(self.classes.of(v))) >= self.long.rank:
            raise _RefusedError

    # -- instructions --------------------------------------------------------------------------------------------------

    def put(self, v: int, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]) -> None:
        """An instruction that makes a value with its axes in their order."""
        super().put(v, op, inputs, params)
        self.plain.add(v)

    def _is_moved(self, ins: Instruction) -> bool:
        """Make an instruction's value with the long axis last, and say whether that can be done.

        _RefusedError for one of another scope, and for axes that the products do not have.
        """
        out = ins.outputs[0]
        if any(self.classes.of(v).count(self.long.axis) > 1 for v in (*ins.inputs, *ins.outputs)):
            return False  # of two such axes neither is the last
        rule = _RULES.get(ins.op.name) or _RULES_BY_KIND.get(type(ins.op.kind))
        if ins.origin.scope != self.long.scope or ins.origin.is_refused:
            raise _RefusedError
        led = [v for v in (*ins.inputs, *ins.outputs) if self._is_led(v)]
        if any(not self.long.classes.issuperset(_sized(self.classes.of(v))) for v in led):
            raise _RefusedError
        made = None if rule is None or ins.op.stateful else rule(self, ins)
        if made is None:
            return False
        op, inputs, params = made
        if self._is_in_order(out):
            self.put(out, op, inputs, params)
        else:
            self.last[out] = self.emit_op(op, inputs, params)
        return True


_Made = tuple[OpDef, tuple[int, ...], Mapping[str, Any]] | None
_Rule = Callable[[_Mover, Instruction], _Made]


def _elementwise(mover: _Mover, ins: Instruction) -> _Made:
    return ins.op, tuple([mover.operand(v) for v in ins.inputs]), ins.params


def _constant(mover: _Mover, ins: Instruction) -> _Made:
    """One number everywhere is that in any order."""
    value = constant_value(ins)
    if value is None or not is_splat(value):
        return None
    return ins.op, (), {"value": splat(splat_number(value), mover.shape(ins.outputs[0]), value.dtype)}


def _broadcast(mover: _Mover, ins: Instruction) -> _Made:
    """Extents of 1 are added first, where the axes then stand."""
    x, out = ins.inputs[0], ins.outputs[0]
    shape = mover.program.specs[x].known_shape
    aligned = (1,) * (len(mover.order(out)) - len(shape)) + shape
    units = tuple([aligned[d] for d in mover.order(out)])
    narrow = mover.emit("reshape", mover.operand(x), shape=units)
    return ins.op, (narrow,), {"shape": mover.shape(out)}


def _units(mover: _Mover, ins: Instruction) -> _Made:
    """A reshape that adds and drops extents of 1."""
    x, out = ins.inputs[0], ins.outputs[0]
    if _sized(mover.classes.of(x)) != _sized(mover.classes.of(out)):
        return None
    return find("reshape"), (mover.operand(x),), {"shape": mover.shape(out)}


def _transpose(mover: _Mover, ins: Instruction) -> _Made:
    x, out = ins.inputs[0], ins.outputs[0]
    before = mover.order(x)
    axes = tuple([before.index(ins.params["axes"][d]) for d in mover.order(out)])
    return ins.op, (mover.operand(x),), {"axes": axes}


def _reduce(mover: _Mover, ins: Instruction) -> _Made:
    """Combined along the same axes, wherever they stand; without the long one what is left is in order."""
    assert isinstance(ins.op.kind, Reduce)
    x, out = ins.inputs[0], ins.outputs[0]
    if ins.op.kind.combine not in _COMBINES:
        return None
    order = mover.order(x)
    axes = tuple(sorted(order.index(d) for d in normalize_axes(ins.params["axis"], len(order))))
    total = mover.emit(ins.op.name, mover.operand(x), **{**ins.params, "axis": axes})
    return find("reshape"), (total,), {"shape": mover.shape(out)}


def _product(mover: _Mover, ins: Instruction) -> _Made:
    """A B, or (A B)ᵀ = Bᵀ Aᵀ; operands whose matrices were transposed have the other flag."""
    (a, b), out = ins.inputs, ins.outputs[0]
    if any(mover.long.axis in mover.classes.of(v)[:-2] for v in (a, b, out)):
        return None
    is_turned = [mover.order(v)[-2:] != (rank - 2, rank - 1) for v in (a, b, out)
                 for rank in (len(mover.order(v)),)]  # fmt: skip
    ta, tb = ins.params["transpose_a"] != is_turned[0], ins.params["transpose_b"] != is_turned[1]
    left, right = mover.operand(a), mover.operand(b)
    if is_turned[2]:
        return ins.op, (right, left), {"transpose_a": not tb, "transpose_b": not ta}
    return ins.op, (left, right), {"transpose_a": ta, "transpose_b": tb}


_RULES: Mapping[str, _Rule] = {"constant": _constant, "broadcast_to": _broadcast, "transpose": _transpose}
_RULES_BY_KIND: Mapping[type, _Rule] = {
    Elementwise: _elementwise,
    View: _units,
    Reduce: _reduce,
    Contract: _product,
}
