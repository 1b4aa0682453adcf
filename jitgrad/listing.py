"""Listings: a program that is interpreted again and again, written as one Python function of its calls; not what the
calls mean.

Taking a call from a list of steps, its arguments from a table and asking for errors costs as much as NumPy needs for
ten numbers. The function has one line per instruction, so that the line of an error tells the instruction. Nothing but
the cost differs from a run step by step: what is an alias has no line, what depends on small constants alone is made
once, a broadcast that only ufuncs read is left to them, and sums and products are Python's operators, which take a
tenth of the ufunc's time for NumPy's scalars. The steps of a scan are a loop within the function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import CodeType
from typing import Any

import numpy as np

from jitgrad.error_states import quiet
from jitgrad.opdef import Elementwise, Fill, OpDef, Params, Reindex
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple

FOLDED_BYTES = 64 * 1024  # larger values that depend on constants alone are made in each run, and dropped
_IDENTITY, _CONSTANT = Elementwise("identity"), Fill("constant")
_OPERATORS = {
    np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.equal: "==", np.not_equal: "!=",
    np.less: "<", np.less_equal: "<=", np.greater: ">", np.greater_equal: ">=",
}  # fmt: skip


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


class _Writer:
    """The lines, and the names that they use: ``v7`` for a value, ``f7`` for the call of an instruction."""

    def __init__(self, program: Program, reusable: Mapping[int, tuple[int, ...]]) -> None:
        self.program = program
        self.reusable = reusable
        self.names: dict[str, Any] = {"spare": _spare}
        self.known: dict[int, Any] = {}  # values that are the same in every run
        self.alias: dict[int, int] = {}
        self.lines: list[tuple[int, Instruction]] = []

    def listing(self) -> Listing:
        self._enter_all()
        outputs = [self._root(v) for v in self.program.outputs]
        head = f"def run({', '.join([f'v{v}' for v in self.program.inputs])}):"
        lines = self._lines({*outputs})
        return self._made([head], lines, [f" return [{', '.join(map(self._name, outputs))}]"])

    def scan(self, n_consts: int, n_carry: int) -> Listing:
        self._enter_all()
        inputs = [f"v{v}" for v in self.program.inputs]
        outputs = [self._root(v) for v in self.program.outputs]
        carried, stacked = outputs[:n_carry], outputs[n_carry:]
        state, stacks = inputs[n_consts : n_consts + n_carry], [f"y{k}" for k in range(len(stacked))]
        head = f"def run({', '.join([*inputs[: n_consts + n_carry], 'items', *stacks])}):"
        lines = self._lines({*outputs, *self.program.inputs[:n_consts]})
        ends = [f"{stack}[t] = {self._name(v)}" for stack, v in zip(stacks, stacked, strict=True)]
        if state:
            ends.append(f"{', '.join(state)} = {', '.join(map(self._name, carried))}")
        made = dict.fromkeys(v for v in outputs if v not in self.known and v not in self.program.inputs)
        ends += [f"del {', '.join([f'v{v}' for v in made])}"] if made else []
        loop = f" for {', '.join(['t', *inputs[n_consts + n_carry :]])}, in items:"
        tail = ["  " + "; ".join([*ends, "pass"]), f" return [{', '.join(state)}]"]
        return self._made([head, loop], [" " + line for line in lines], tail)

    def _made(self, head: list[str], lines: list[str], tail: list[str]) -> Listing:
        exec(compile("\n".join([*head, *lines, *tail]), "<listing>", "exec"), self.names)
        run = self.names["run"]
        numbers = {k: number for k, (number, _) in enumerate(self.lines, len(head) + 1)}
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
            self.names[f"v{root}"] = self.known[root]
        return f"v{root}"

    def _lines(self, kept: set[int]) -> list[str]:
        """A line per instruction; what is not kept is dropped after its last use."""
        seen = kept | {*self.known}
        last: list[list[int]] = []
        for _, ins in reversed(self.lines):
            ends = [v for v in dict.fromkeys([*map(self._root, ins.inputs), *ins.outputs]) if v not in seen]
            seen.update(ends)
            last.append(ends)
        return [self._line(number, ins, ends) for (number, ins), ends in zip(self.lines, last[::-1], strict=True)]

    def _line(self, number: int, ins: Instruction, ends: list[int]) -> str:
        """The call of an instruction, with what is dropped after it."""
        results = ", ".join(f"v{v}" for v in ins.outputs) or "_"
        spare = [f"v{v}" for v in self.reusable.get(number, ()) if v in ends]
        dropped = "".join(f"; del v{v}" for v in ends)
        if spare:
            return f" m = spare({', '.join(spare)}); {results} = {self._call(number, ins, 'out=m')}; del m{dropped}"
        comma = "," if len(ins.outputs) > 1 else ""
        return f" {results}{comma} = {self._operation(ins) or self._call(number, ins)}{dropped}"

    def _call(self, number: int, ins: Instruction, *more: str) -> str:
        self.names[f"f{number}"] = ready_call(ins.op, ins.params, self.program, ins)
        return f"f{number}({', '.join([*map(self._name, ins.inputs), *more])})"

    def _operation(self, ins: Instruction) -> str | None:
        """An element of a vector, arithmetic and comparisons of floats as Python has them; None for all else."""
        specs = [self.program.specs[v] for v in (*ins.inputs, *ins.outputs)]
        if ins.op.name == "getslice" and specs[0].rank == 1 and ins.params["drop"]:
            return f"{self._name(ins.inputs[0])}[{ins.params['start'][0]}]"
        impl = ins.op.impl
        if not isinstance(impl, np.ufunc) or impl not in _OPERATORS or len(ins.inputs) != 2 or ins.params:
            return None
        if not isinstance(ins.op.kind, Elementwise) or any(spec.dtype.kind != "f" for spec in specs[:2]):
            return None
        return f" {_OPERATORS[impl]} ".join(map(self._name, ins.inputs))


def _scalar(value: Any) -> Any:
    """A number as NumPy's scalar, which operators take fastest."""
    is_number = isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "biufc"
    return value[()] if is_number else value


def _spare(*arrays: Any) -> Any:
    """The first of these arrays that nothing else refers to, no view either; None when there is none."""
    for array in arrays:
        if type(array) is np.ndarray and array.flags.owndata and sys.getrefcount(array) == _OWN_REFERENCES:
            return array
    return None


def _references(*arrays: Any) -> int:
    count = 0
    for array in arrays:
        count = sys.getrefcount(array)
    return count


def _own_references() -> int:
    array = np.empty(0)
    return _references(array)


_OWN_REFERENCES = _own_references()
"""Of an array that only a variable of the listing holds, seen from ``_spare``."""
