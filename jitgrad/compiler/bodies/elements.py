"""A rule that takes small arrays in loops apart: a state of two numbers is two states, and what is done with it is done
number by number, in registers.

A kernel over an axis of two or three elements is mostly overhead, and each of them is a kernel of its own. Only where
all of a loop's body can be done so: arithmetic, moves, sums and small products of at most `_MOST_ELEMENTS` elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.compiler.bodies.forms import Loop, can_edit, form_of, loop_of
from jitgrad.compiler.bodies.programs import Values, edited
from jitgrad.compiler.rewriter import Rewriter, Rule
from jitgrad.compiler.subprograms import LOOPS
from jitgrad.opdef import Contract, Elementwise, Fill, OpDef, Reduce, Reindex, View, find
from jitgrad.program import Instruction, Origin, Program
from jitgrad.spec import TensorSpec, normalize_axes

_MOST_ELEMENTS = 8
_MOST_INSTRUCTIONS = 1000

Index = tuple[int, ...]


def element_rules(op: OpDef) -> Sequence[Rule]:
    """The rule of this module, for loops."""
    return (as_elements,) if getattr(op.kind, "form", None) in LOOPS else ()


def as_elements(rw: Rewriter, ins: Instruction) -> Values | None:
    """Small arrays in a loop are numbers"""
    if form_of(ins) not in LOOPS or not can_edit(ins):
        return None
    loop = loop_of(ins)
    programs = [p for p in (loop.body, loop.cond, loop.back) if p is not None]
    if not any(map(_computes, programs)) or not all(map(_can_split, programs)):
        return None
    n, m, saved = len(loop.consts), len(loop.init), len(loop.rest)
    is_gradient = loop.back is not None
    body = _Split(loop.body, range(n, n + m), range(m + saved if is_gradient else m)).program()
    cond = loop.cond and _Split(loop.cond, range(n, n + m), range(0)).program()
    back = loop.back and _Split(loop.back, range(n, len(loop.back.inputs)), range(len(loop.back.outputs))).program()
    init = tuple(itertools.chain.from_iterable(_elements(rw, ins.origin, v) for v in loop.init))
    sums = tuple(itertools.chain.from_iterable(_elements(rw, ins.origin, v) for v in loop.sums))
    changed = replace(loop, init=init, sums=sums, body=body, cond=cond, back=back)
    made = iter(rw.emit_all(ins.origin, ins.op, changed.inputs, changed.params))
    return tuple(_results(rw, ins, loop, made))


def _results(rw: Rewriter, ins: Instruction, loop: Loop, made: Iterator[int]) -> Iterator[int]:
    """The outputs of the instruction, put together again; stacks of a scan are what they were."""
    split = len(loop.sums) if loop.back is not None else len(loop.init)
    for k, v in enumerate(ins.outputs):
        spec = rw.specs[v]
        if k >= split or not _is_small(spec):
            yield next(made)
            continue
        parts = [next(made) for _ in range(spec.size)]
        yield rw.emit(ins.origin, "reshape", rw.emit(ins.origin, "stack", *parts, axis=0), shape=spec.known_shape)


def _elements(rw: Rewriter, origin: Origin, v: int) -> list[int]:
    spec = rw.specs[v]
    if not _is_small(spec):
        return [v]
    return [rw.emit(origin, "getslice", v, **_at(index)) for index in np.ndindex(spec.known_shape)]


def _at(index: Index) -> dict[str, Any]:
    """The params of a slice that is one element."""
    return {
        "start": index, "stop": tuple(i + 1 for i in index), "step": (1,) * len(index), "drop": tuple(range(len(index)))
    }  # fmt: skip


def _is_small(spec: TensorSpec) -> bool:
    return bool(spec.shape) and 1 <= spec.size <= _MOST_ELEMENTS


# -- what can be taken apart -------------------------------------------------------------------------------------------


def _computes(program: Program) -> bool:
    """Whether anything is computed with small arrays."""
    return any(
        isinstance(ins.op.kind, Elementwise | Reduce | Contract)
        and any(_is_small(program.specs[v]) for v in (*ins.inputs, *ins.outputs))
        for ins in program.instructions
    )


def _can_split(program: Program) -> bool:
    """Whether all that a program makes is small, and made by instructions that can be taken apart."""
    work = 0
    for ins in program.instructions:
        specs = [program.specs[v] for v in ins.outputs]
        if not all(not spec.shape or _is_small(spec) for spec in specs):
            return False
        if not any(program.specs[v].shape for v in (*ins.inputs, *ins.outputs)):
            continue
        if not _is_known(program, ins):
            return False
        work += sum(spec.size for spec in specs)
    return work <= _MOST_INSTRUCTIONS


def _is_known(program: Program, ins: Instruction) -> bool:
    specs = [program.specs[v] for v in ins.inputs]
    if len(ins.outputs) != 1:
        return False
    match ins.op.kind:
        case Reindex():
            return True
        case Fill():
            return not ins.inputs
        case Elementwise() | View():
            return all(not spec.shape or _is_small(spec) for spec in specs)
        case Reduce(combine):
            is_sum = combine == "add" and specs[0].dtype.kind == "f"
            same = specs[0].dtype == program.specs[ins.outputs[0]].dtype
            return _is_small(specs[0]) and same and (is_sum or combine in ("maximum", "minimum"))
        case Contract():
            return all(_is_small(spec) and len(spec.known_shape) == 2 for spec in specs)
    return False


class _Split:
    """A program with the small arrays among the chosen inputs and outputs as numbers.

    ``of``: the numbers that a value consists of, in row-major order; of a large one nothing but its elements is read.
    """

    def __init__(self, program: Program, inputs: range, outputs: range) -> None:
        self.source = program
        self.specs = list(program.specs)
        self.made: list[Instruction] = []
        self.of: dict[int, list[int]] = {}
        self._inputs, self._outputs = inputs, outputs
        self._read: dict[tuple[int, Index], int] = {}

    def program(self) -> Program:
        """All of it."""
        inputs: list[int] = []
        for place, v in enumerate(self.source.inputs):
            spec = self.source.specs[v]
            if place in self._inputs and _is_small(spec):
                self.of[v] = [self._new(TensorSpec((), spec.dtype)) for _ in range(spec.size)]
                inputs += self.of[v]
            else:
                inputs.append(v)
        for ins in self.source.instructions:
            self._add(ins)
        outputs: list[int] = []
        for place, v in enumerate(self.source.outputs):
            if place in self._outputs and _is_small(self.source.specs[v]):
                outputs += self._all(v)
            else:
                outputs.append(self._whole(v))
        whole = replace(self.source, specs=tuple(self.specs), instructions=tuple(self.made), _cache={})
        return edited(whole, inputs, outputs)

    def _new(self, spec: TensorSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def _emit(self, origin: Origin, op: OpDef, inputs: Sequence[int], params: Mapping[str, Any]) -> int:
        (spec,) = op.infer(tuple(self.specs[v] for v in inputs), params)
        v = self._new(spec)
        self.made.append(Instruction(op, tuple(inputs), (v,), params, origin))
        return v

    # -- elements of values --------------------------------------------------------------------------------------------

    def _element(self, v: int, index: Index) -> int:
        shape = self.source.specs[v].known_shape
        if not shape:
            return v
        if v in self.of:
            return self.of[v][int(np.ravel_multi_index(index, shape))]
        if (v, index) not in self._read:
            origin = self.source.instructions[0].origin
            self._read[v, index] = self._emit(origin, find("getslice"), (v,), _at(index))
        return self._read[v, index]

    def _all(self, v: int) -> list[int]:
        return [self._element(v, index) for index in np.ndindex(self.source.specs[v].known_shape)]

    def _whole(self, v: int) -> int:
        """A value as an array again."""
        if v not in self.of:
            return v
        origin = self.source.instructions[0].origin
        stacked = self._emit(origin, find("stack"), self.of[v], {"axis": 0})
        return self._emit(origin, find("reshape"), (stacked,), {"shape": self.source.specs[v].known_shape})

    # -- instructions --------------------------------------------------------------------------------------------------

    def _add(self, ins: Instruction) -> None:
        if not any(self.source.specs[v].shape for v in (*ins.inputs, *ins.outputs)):
            self.made.append(ins)
            return
        (out,) = ins.outputs
        found = self._made(ins)
        if self.source.specs[out].shape:
            self.of[out] = found
        else:
            self.made.append(Instruction(find("identity"), (found[0],), (out,), {}, ins.origin))

    def _made(self, ins: Instruction) -> list[int]:
        kind = ins.op.kind
        (out,) = ins.outputs
        shape = self.source.specs[out].known_shape
        if isinstance(kind, Fill):
            array = np.broadcast_to(ins.op.impl(**ins.params), shape)
            return [self._number(ins, number) for number in array.ravel()]
        if isinstance(kind, View):
            return self._all(ins.inputs[0])
        if isinstance(kind, Elementwise):
            columns = [self._all(v) for v in ins.inputs]
            return [self._emit(ins.origin, ins.op, row, ins.params) for row in zip(*columns, strict=True)]
        if isinstance(kind, Reduce):
            return self._reduced(ins, kind)
        if isinstance(kind, Contract):
            return self._products(ins)
        assert isinstance(kind, Reindex)
        (maps,) = kind.maps(tuple(self.source.specs[v] for v in ins.inputs), ins.params)
        return [self._moved(ins, maps, index) for index in np.ndindex(shape)]

    def _number(self, ins: Instruction, number: Any) -> int:
        dtype = self.source.specs[ins.outputs[0]].dtype
        return self._emit(ins.origin, find("constant"), (), {"value": np.asarray(number, dtype)})

    def _moved(self, ins: Instruction, maps: Sequence[Any], index: Index) -> int:
        for v, one in zip(ins.inputs, maps, strict=True):
            if one is not None and all(g.lo <= index[g.axis] < g.hi for g in one.guards):
                place = (
                    (d.offset + (0 if d.axis is None else d.scale * index[d.axis])) // d.divisor for d in one.dims
                )
                return self._element(v, tuple(place))
        return self._number(ins, ins.params.get("fill", 0))

    def _reduced(self, ins: Instruction, kind: Reduce) -> list[int]:
        x = ins.inputs[0]
        shape = self.source.specs[x].known_shape
        axes = normalize_axes(ins.params["axis"], len(shape))
        groups: dict[Index, list[int]] = {}
        for index in np.ndindex(shape):
            kept = tuple(i for axis, i in enumerate(index) if axis not in axes)
            groups.setdefault(kept, []).append(self._element(x, index))
        return [self._combined(ins, kind.combine, parts) for parts in groups.values()]

    def _combined(self, ins: Instruction, combine: str, parts: Sequence[int]) -> int:
        if combine == "add":
            return self._emit(ins.origin, find("add_n"), (self._number(ins, 0), *parts), {})
        result = parts[0]
        for part in parts[1:]:
            result = self._emit(ins.origin, find(combine), (result, part), {})
        return result

    def _products(self, ins: Instruction) -> list[int]:
        a, b = ins.inputs
        rows, columns = self.source.specs[ins.outputs[0]].known_shape
        turned_a, turned_b = ins.params["transpose_a"], ins.params["transpose_b"]
        terms = self.source.specs[a].known_shape[0 if turned_a else 1]

        def element(i: int, j: int) -> int:
            pairs = [
                (self._element(a, (k, i) if turned_a else (i, k)), self._element(b, (j, k) if turned_b else (k, j)))
                for k in range(terms)
            ]
            made = [self._emit(ins.origin, find("multiply"), pair, {}) for pair in pairs]
            return self._emit(ins.origin, find("add_n"), (self._number(ins, 0), *made), {})

        return [element(i, j) for i, j in itertools.product(range(rows), range(columns))]
