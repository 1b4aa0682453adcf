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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from sys import getrefcount
from types import CodeType
from typing import Any

import numpy as np

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
    """The listing of a scan's steps, one at least: ``run(*consts, *state, items, *stacks)`` gives the last state.

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
    """An instruction with what it is in operators, and the values that its line reads, where others stand in it too."""

    number: int
    ins: Instruction
    expr: Expression | None
    reads: list[int]


class _Writer:
    """The lines, and the names that they use: ``v7`` for a value, ``f7`` for the call of an instruction."""

    def __init__(self, program: Program, reusable: Mapping[int, tuple[int, ...]]) -> None:
        self.program = program
        self.reusable = reusable
        self.names: dict[str, Any] = {
            "references": getrefcount, "own": _OWN_REFERENCES, "ndarray": np.ndarray, "float64": np.float64,
        }  # fmt: skip
        self.known: dict[int, Any] = {}  # values that are the same in every run
        self.alias: dict[int, int] = {}
        self.lines: list[_Line] = []
        self.made_of: dict[str, int] = {}  # numbers by what they are in operators
        self.constants: dict[Any, int] = {}  # known numbers by dtype and bytes
        self.nested: dict[int, str] = {}  # numbers that stand in the line that reads them

    def listing(self) -> Listing:
        self._enter_all()
        outputs = [self._root(v) for v in self.program.outputs]
        head = f"def run({', '.join([f'v{v}' for v in self.program.inputs])}):"
        self._nest_numbers({*outputs})
        return self._made([head], self._texts({*outputs}), [f" return [{', '.join(map(self._name, outputs))}]"])

    def scan(self, n_consts: int, n_carry: int) -> Listing:
        self._enter_all()
        inputs = [f"v{v}" for v in self.program.inputs]
        outputs = [self._root(v) for v in self.program.outputs]
        carried, stacked = outputs[:n_carry], outputs[n_carry:]
        state, stacks = inputs[n_consts : n_consts + n_carry], [f"y{k}" for k in range(len(stacked))]
        head = [f"def run({', '.join([*inputs[: n_consts + n_carry], 'items', *stacks])}):"]
        taken, same = self._take_out({*self.program.inputs[:n_consts]})
        head += [f" v{line.ins.outputs[0]} = {self._operation(line)}" for line in taken]
        head.append(f" for {', '.join(['t', *inputs[n_consts + n_carry :]])}, in items:")
        self._nest_numbers({*outputs})
        texts = [" " + text for text in self._texts({*outputs, *same})]
        ends = [f"{stack}[t] = {self._name(v)}" for stack, v in zip(stacks, stacked, strict=True)]
        if state:
            ends.append(f"{', '.join(state)} = {', '.join(map(self._name, carried))}")
        made = [v for v in dict.fromkeys(outputs) if v not in same | {*self.known, *self.program.inputs}]
        ends += [f"del {', '.join([f'v{v}' for v in made])}"] if made else []
        tail = ["  " + "; ".join([*ends, "pass"]), f" return [{', '.join(state)}]"]
        return self._made(head, texts, tail, taken)

    def _take_out(self, consts: set[int]) -> tuple[list[_Line], set[int]]:
        """Take out of the lines those in operators whose values each step has, made of ``consts`` alone; and all values
        that each step has.
        """
        same, taken, left = {*consts}, list[_Line](), list[_Line]()
        for line in self.lines:
            is_same = line.expr is not None and all(v in same or v in self.known for v in line.reads)
            same.update(line.ins.outputs if is_same else ())
            (taken if is_same else left).append(line)
        self.lines = left
        return taken, same

    def _made(self, head: list[str], texts: list[str], tail: list[str], taken: Sequence[_Line] = ()) -> Listing:
        """``taken`` are behind the first line of the head."""
        exec(compile("\n".join([*head, *texts, *tail]), "<listing>", "exec"), self.names)
        run = self.names["run"]
        numbers = {k: line.number for k, line in enumerate(taken, 2)}
        numbers |= {k: line.number for k, line in enumerate(self.lines, len(head) + 1)}
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
        elif not self._fold(ins):
            specs = self.program.specs
            expr = expression(ins, [specs[v] for v in ins.inputs], [specs[v] for v in ins.outputs])
            line = _Line(number, ins, expr, [self._root(v) for v in ins.inputs])
            if not self._is_made(line):
                self.lines.append(line)

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

    def _is_made(self, line: _Line) -> bool:
        """Whether there is a number that is made in the same way; it is taken then."""
        if not _is_of_numbers(line):
            return False
        made = line.ins.outputs[0]
        first = self.made_of.setdefault(self._operation(line), made)
        if first != made:
            self.alias[made] = first
        return first != made

    def _leave_broadcasts(self) -> None:
        """A broadcast that only ufuncs read, each with another argument of the whole shape, is no line of its own."""
        readers: dict[int, list[Instruction]] = {}
        for _, ins, _, reads in self.lines:
            for v in {*reads}:
                readers.setdefault(v, []).append(ins)
        left: set[int] = set()
        outputs = {self._root(v) for v in self.program.outputs}
        for number, ins, *_ in self.lines:
            made = ins.outputs[0]
            if ins.op.name != "broadcast_to" or made in outputs:
                continue
            if all(self._spreads(reader, made) for reader in readers.get(made, ())):
                self.alias[made] = self._root(ins.inputs[0])
                left.add(number)
        kept = [line for line in self.lines if line.number not in left]
        self.lines = [line._replace(reads=[self._root(v) for v in line.reads]) for line in kept] if left else kept

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

    def _nest_numbers(self, kept: set[int]) -> None:
        """Take out the lines of numbers that are read once, which stand where they are read; not those kept."""
        uses: Counter[int] = Counter()
        for line in self.lines:
            for k, v in enumerate(line.reads):
                uses[v] += 1 if line.expr is None else line.expr.uses(k)
        left: list[_Line] = []
        behind: dict[int, list[int]] = {}  # a number that stands elsewhere → what is read there for it
        for line in self.lines:
            line = line._replace(reads=[x for v in line.reads for x in behind.get(v, [v])])
            if _is_of_numbers(line) and uses[line.ins.outputs[0]] == 1 and line.ins.outputs[0] not in kept:
                text = f"({self._operation(line)})"
                if len(text) <= NESTED_CHARACTERS:
                    self.nested[line.ins.outputs[0]], behind[line.ins.outputs[0]] = text, line.reads
                    continue
            left.append(line)
        self.lines = left

    def _texts(self, kept: set[int]) -> list[str]:
        """Arrays that are not kept are dropped after their last use."""
        numbers = [v for line in self.lines if line.expr is not None for v in line.ins.outputs]
        numbers = [v for v in (*self.program.inputs, *numbers) if self.program.specs[v].rank == 0]
        seen = kept | {*self.known, *numbers}
        last: list[list[int]] = []
        for line in reversed(self.lines):
            ends = [v for v in dict.fromkeys([*line.reads, *line.ins.outputs]) if v not in seen]
            seen.update(ends)
            last.append(ends)
        return [self._text(line, ends) for line, ends in zip(self.lines, last[::-1], strict=True)]

    def _text(self, line: _Line, ends: list[int]) -> str:
        """The call of an instruction, with what is dropped after it."""
        results = ", ".join(f"v{v}" for v in line.ins.outputs) or "_"
        spare = [_SPARE.format(f"v{v}") for v in self.reusable.get(line.number, ()) if v in ends]
        dropped = f"; del {', '.join([f'v{v}' for v in ends])}" if ends else ""
        if spare:
            memory = "; m = ".join([spare[0], *[f"m if m is not None else {one}" for one in spare[1:]]])
            return f" m = {memory}; {results} = {self._call(line, 'm')}; del m{dropped}"
        comma = "," if len(line.ins.outputs) > 1 else ""
        return f" {results}{comma} = {self._call(line) if line.expr is None else self._operation(line)}{dropped}"

    def _call(self, line: _Line, *more: str) -> str:
        number, ins = line.number, line.ins
        self.names[f"f{number}"] = ready_call(ins.op, ins.params, self.program, ins)
        return f"f{number}({', '.join([*map(self._name, ins.inputs), *more])})"

    def _operation(self, line: _Line) -> str:
        assert line.expr is not None
        return line.expr.template.format(*map(self._name, line.ins.inputs))


def _is_of_numbers(line: _Line) -> bool:
    """Whether a line may stand elsewhere, and in another one."""
    return line.expr is not None and line.expr.is_of_numbers


def _scalar(value: Any) -> Any:
    """A number as NumPy's scalar, which operators take fastest."""
    is_number = isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biufc"
    return value[()] if is_number else value


def _own_references() -> int:
    array = np.empty(0)
    return getrefcount(array)


_OWN_REFERENCES = _own_references()
"""Of an array that only a variable of a function holds."""

_SPARE = "{0} if references({0}) == own and type({0}) is ndarray and {0}.flags.owndata else None"
"""An array that nothing else refers to, no view either; None for others."""
