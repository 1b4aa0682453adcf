"""Listings: a program that is interpreted again and again, written as one Python function of its calls; not what the
calls mean.

Taking a call from a list of steps, its arguments from a table and asking for errors costs as much as NumPy needs for
ten numbers. The function has one line per instruction, so that the line of an error tells the instruction. Nothing but
the cost differs from a run step by step: what is an alias has no line, what depends on small constants alone is made
once, a broadcast that only ufuncs read is left to them, and what Python has operators for is written with them
(operator_lines). The steps of a scan are a loop within the function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from sys import getrefcount
from types import CodeType
from typing import Any

import numpy as np
from numpy import ndarray

from jitgrad.error_states import quiet
from jitgrad.opdef import Elementwise, Fill, OpDef, Params, Reindex
from jitgrad.operator_lines import Expression, expression
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple

FOLDED_BYTES = 64 * 1024  # larger values that depend on constants alone are made in each run, and dropped
NESTED_CHARACTERS = 200  # of numbers within a line, for parentheses that Python's parser takes
_IDENTITY, _CONSTANT = Elementwise("identity"), Fill("constant")


class Listing(NamedTuple):
    """``run(*feeds)`` gives the values of the outputs, with NumPy's warnings off, and ``bare`` where they are off; an
    error on line ``k`` of its code is of instruction ``numbers[k]``.
    """

    run: Callable[..., list[Any]]
    bare: Callable[..., list[Any]]
    numbers: dict[int, int]
    code: CodeType


def list_program(program: Program, reusable: Mapping[int, tuple[int, ...]]) -> Listing:
    """The program's listing; ``reusable``: by instruction, the values in whose memory its result may be made."""
    return _Writer(program, reusable).listing()


def list_scan(program: Program, reusable: Mapping[int, tuple[int, ...]], n_consts: int, n_carry: int) -> Listing:
    """The listing of a scan's steps: ``run(*consts, *state, items, *stacks)`` gives the last state.

    Of each step ``items`` has its number and what it takes apart; a stack gets a result of the step at that number.
    """
    return _Writer(program, reusable).scan(n_consts, n_carry)


def ready_call(op: OpDef, params: Params, program: Program, ins: Instruction) -> Callable[..., Any]:
    """The op's implementation with its params, in the form that is made for many calls where it has one."""
    specs = tuple([program.specs[v] for v in (*ins.inputs, *ins.outputs)])
    if op.bound is not None and all(spec.dtype.kind in "biufc" for spec in specs):
        return op.bound(params, specs[: len(ins.inputs)])
    return partial(op.impl, **params) if params else op.impl


class _Line(NamedTuple):
    """An instruction's line, and the values that it reads, where other instructions stand in it too."""

    number: int
    ins: Instruction
    reads: list[int]


class _Writer:
    """The lines, and the names that they use: ``v7`` for a value, ``f7`` for the call of an instruction."""

    def __init__(self, program: Program, reusable: Mapping[int, tuple[int, ...]]) -> None:
        self.program = program
        self.reusable = reusable
        self.names: dict[str, Any] = {"spare": _spare, "float64": np.float64}
        self.known: dict[int, Any] = {}  # values that are the same in every run
        self.alias: dict[int, int] = {}
        self.lines: list[tuple[int, Instruction]] = []
        self.made_of: dict[str, int] = {}  # numbers by what they are in operators
        self.constants: dict[Any, int] = {}  # known numbers by dtype and bytes
        self.nested: dict[int, str] = {}  # numbers that stand in the line that reads them

    def listing(self) -> Listing:
        self._enter_all()
        outputs = [self._root(v) for v in self.program.outputs]
        head = f"def run({', '.join([f'v{v}' for v in self.program.inputs])}):"
        nested = self._nested({*outputs})
        lines = self._texts(nested, {*outputs})
        return self._made([head], nested, lines, [f" return [{', '.join(map(self._name, outputs))}]"])

    def scan(self, n_consts: int, n_carry: int) -> Listing:
        self._enter_all()
        inputs = [f"v{v}" for v in self.program.inputs]
        outputs = [self._root(v) for v in self.program.outputs]
        carried, stacked = outputs[:n_carry], outputs[n_carry:]
        state, stacks = inputs[n_consts : n_consts + n_carry], [f"y{k}" for k in range(len(stacked))]
        head = [f"def run({', '.join([*inputs[: n_consts + n_carry], 'items', *stacks])}):"]
        same = {*self.program.inputs[:n_consts]}
        head += self._before_steps(same)
        head.append(f" for {', '.join(['t', *inputs[n_consts + n_carry :]])}, in items:")
        nested = self._nested({*outputs})
        lines = [" " + line for line in self._texts(nested, {*outputs, *same})]
        ends = [f"{stack}[t] = {self._name(v)}" for stack, v in zip(stacks, stacked, strict=True)]
        if state:
            ends.append(f"{', '.join(state)} = {', '.join(map(self._name, carried))}")
        made = [v for v in dict.fromkeys(outputs) if v not in same | {*self.known, *self.program.inputs}]
        ends += [f"del {', '.join([f'v{v}' for v in made])}"] if made else []
        tail = ["  " + "; ".join([*ends, "pass"]), f" return [{', '.join(state)}]"]
        return self._made(head, nested, lines, tail)

    def _before_steps(self, same: set[int]) -> list[str]:
        """Lines of numbers that are made of ``same`` alone, values that each step has; they are added to these."""
        lines, others = [], []
        for number, ins in self.lines:
            expr = self._expression(ins)
            is_same = all(v in same or v in self.known for v in map(self._root, ins.inputs))
            if expr is not None and expr.is_of_numbers and is_same:
                same.add(ins.outputs[0])
                lines.append(f" v{ins.outputs[0]} = {self._operation(expr, ins)}")
            else:
                others.append((number, ins))
        self.lines = others
        return lines

    def _made(self, head: list[str], nested: list[_Line], lines: list[str], tail: list[str]) -> Listing:
        exec(compile("\n".join([*head, *lines, *tail]), "<listing>", "exec"), self.names)
        run = self.names["run"]
        numbers = {k: line.number for k, line in enumerate(nested, len(head) + 1)}
        return Listing(quiet(run), run, numbers, run.__code__)

    def _enter_all(self) -> None:
        for number, ins in enumerate(self.program.instructions):
            self._enter(number, ins)
        self._leave_broadcasts()

    def _enter(self, number: int, ins: Instruction) -> None:
        if ins.op.kind == _IDENTITY:
            self.alias[ins.outputs[0]] = self._root(ins.inputs[0])
        elif ins.op.kind == _CONSTANT:
            self.known[ins.outputs[0]] = _scalar(ins.op.impl(**ins.params))
        elif not self._fold(ins) and not self._is_made(ins):
            self.lines.append((number, ins))

    def _fold(self, ins: Instruction) -> bool:
        """Whether the instruction's value is the same in every run; it is made then, and nobody may write to it."""
        inputs = [self._root(v) for v in ins.inputs]
        is_moved = isinstance(ins.op.kind, Elementwise | Reindex) and not ins.op.stateful and len(ins.outputs) == 1
        if not (is_moved and ins.inputs and all(v in self.known for v in inputs)):
            return False
        if self.program.specs[ins.outputs[0]].nbytes > FOLDED_BYTES:
            return False
        with np.errstate(all="ignore"):
            value = ins.op.impl(*[self.known[v] for v in inputs], **ins.params)
        if isinstance(value, np.ndarray) and value.flags.writeable:
            value.flags.writeable = False
        self.known[ins.outputs[0]] = value
        return True

    def _is_made(self, ins: Instruction) -> bool:
        """Whether there is a number that is made in the same way; it is taken then."""
        expr = self._expression(ins)
        if expr is None or not expr.is_of_numbers:
            return False
        made = ins.outputs[0]
        first = self.made_of.setdefault(self._operation(expr, ins), made)
        if first != made:
            self.alias[made] = first
        return first != made

    def _leave_broadcasts(self) -> None:
        """A broadcast that only ufuncs read, each with another argument of the whole shape, is no line of its own."""
        readers: dict[int, list[Instruction]] = {}
        for _, ins in self.lines:
            for v in {self._root(v) for v in ins.inputs}:
                readers.setdefault(v, []).append(ins)
        left: set[int] = set()
        outputs = {self._root(v) for v in self.program.outputs}
        for number, ins in self.lines:
            made = ins.outputs[0]
            if ins.op.name != "broadcast_to" or made in outputs:
                continue
            if all(self._spreads(reader, made) for reader in readers.get(made, ())):
                self.alias[made] = self._root(ins.inputs[0])
                left.add(number)
        self.lines = [line for line in self.lines if line[0] not in left]

    def _spreads(self, ins: Instruction, made: int) -> bool:
        """Whether a ufunc gives the same with ``made`` before it is broadcast."""
        if not isinstance(ins.op.impl, np.ufunc) or not isinstance(ins.op.kind, Elementwise) or ins.params:
            return False
        others = [v for v in ins.inputs if self._root(v) != made]
        shape = self.program.specs[ins.outputs[0]].shape
        return any(self.program.specs[self._root(v)].shape == shape for v in others)

    def _root(self, v: int) -> int:
        while v in self.alias:
            v = self.alias[v]
        return v

    def _name(self, v: int) -> str:
        root = self._root(v)
        if root in self.known:
            value = self.known[root]
            if isinstance(value, np.generic):
                root = self.constants.setdefault((value.dtype, value.tobytes()), root)
            self.names[f"v{root}"] = value
        return self.nested.get(root, f"v{root}")

    def _nested(self, kept: set[int]) -> list[_Line]:
        """The lines, without those of numbers that are read once, which stand where they are read; not those kept."""
        uses: Counter[int] = Counter()
        for _, ins in self.lines:
            expr = self._expression(ins)
            for k, v in enumerate(ins.inputs):
                uses[self._root(v)] += 1 if expr is None else expr.uses(k)
        lines: list[_Line] = []
        read_by: dict[int, list[int]] = {}
        for number, ins in self.lines:
            reads = [x for v in map(self._root, ins.inputs) for x in read_by.get(v, [v])]
            expr = self._expression(ins)
            if expr is not None and expr.is_of_numbers and uses[ins.outputs[0]] == 1 and ins.outputs[0] not in kept:
                text = f"({self._operation(expr, ins)})"
                if len(text) <= NESTED_CHARACTERS:
                    self.nested[ins.outputs[0]], read_by[ins.outputs[0]] = text, reads
                    continue
            lines.append(_Line(number, ins, reads))
        return lines

    def _texts(self, lines: list[_Line], kept: set[int]) -> list[str]:
        """What is not kept is dropped after its last use."""
        seen = kept | {*self.known}
        last: list[list[int]] = []
        for line in reversed(lines):
            ends = [v for v in dict.fromkeys([*line.reads, *line.ins.outputs]) if v not in seen]
            seen.update(ends)
            last.append(ends)
        return [self._text(line.number, line.ins, ends) for line, ends in zip(lines, last[::-1], strict=True)]

    def _text(self, number: int, ins: Instruction, ends: list[int]) -> str:
        """The call of an instruction, with what is dropped after it."""
        results = ", ".join(f"v{v}" for v in ins.outputs) or "_"
        spare = [f"spare(v{v})" for v in self.reusable.get(number, ()) if v in ends]
        dropped = f"; del {', '.join([f'v{v}' for v in ends])}" if ends else ""
        if spare:
            memory = "; m = ".join([spare[0], *[f"{one} if m is None else m" for one in spare[1:]]])
            return f" m = {memory}; {results} = {self._call(number, ins, 'm')}; del m{dropped}"
        comma, expr = "," if len(ins.outputs) > 1 else "", self._expression(ins)
        made = self._call(number, ins) if expr is None else self._operation(expr, ins)
        return f" {results}{comma} = {made}{dropped}"

    def _call(self, number: int, ins: Instruction, *more: str) -> str:
        self.names[f"f{number}"] = ready_call(ins.op, ins.params, self.program, ins)
        return f"f{number}({', '.join([*map(self._name, ins.inputs), *more])})"

    def _expression(self, ins: Instruction) -> Expression | None:
        specs = self.program.specs
        return expression(ins, [specs[v] for v in ins.inputs], [specs[v] for v in ins.outputs])

    def _operation(self, expr: Expression, ins: Instruction) -> str:
        return expr.template.format(*map(self._name, ins.inputs))


def _scalar(value: Any) -> Any:
    """A number as NumPy's scalar, which operators take fastest."""
    is_number = isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biufc"
    return value[()] if is_number else value


def _spare(array: Any) -> Any:
    """An array that nothing else refers to, no view either; None for others."""
    if getrefcount(array) == _OWN_REFERENCES and type(array) is ndarray and array.flags.owndata:
        return array
    return None


def _references(array: Any) -> int:
    return getrefcount(array)


def _own_references() -> int:
    array = np.empty(0)
    return _references(array)


_OWN_REFERENCES = _own_references()
"""Of an array that only a variable of the listing holds, seen from ``_spare``."""
