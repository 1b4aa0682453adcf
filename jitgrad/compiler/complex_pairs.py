"""Complex numbers as pairs of real ones, for which there are kernels; it makes none itself.

Complex values that are made by operations with a rule here, and read by such, form islands. The operations of an island
become those of real and imaginary parts: two or more in place of one, but fused with their neighbours. What other
operations make is read in place, as real numbers in pairs (`pair_of`), and what they read is stored as such by the
kernel that makes it, and then taken for complex numbers in the same memory (`complex_of`). An island that only moves
numbers for others stays as it is.

A loop, a branch or a call is an operation like others where there is a rule for all that is complex in its bodies: what
they are given and give is taken apart, so that a state of complex numbers is two of real ones. Where complex numbers do
not cross its border, each body is a program of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.complex_rules import RULES, TRANSFORMS, Pair, PairWriter, is_transform_step, real_dtype
from jitgrad.compiler.constants import constant_value
from jitgrad.compiler.subprograms import regions_of, with_bodies, with_regions
from jitgrad.opdef import Control, Fill, Gather, Reindex, View
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec

_MOVES = (Reindex, View, Gather, Fill)
"""Kinds of operations that compute nothing: for what others read, NumPy has views, or copies as kernels do."""


def complex_as_pairs(program: Program) -> Program:
    """An equal program, in which complex values that kernels can make are pairs of real ones; the same object where
    there are none. Nothing is simplified.
    """
    program = with_bodies(program, _of_real_borders)
    if not _has_complex(program) or any(ins.after for ins in program.instructions):
        return program
    chosen = _chosen(program)
    return _Splitter(program, chosen).split() if chosen else program


def _has_complex(program: Program) -> bool:
    return any(spec.dtype.kind == "c" for spec in program.specs)


def _of_real_borders(body: Program) -> Program:
    """A body written anew where complex numbers do not cross its border."""
    is_crossed = any(body.specs[v].dtype.kind == "c" for v in (*body.inputs, *body.outputs))
    return body if is_crossed else complex_as_pairs(body)


# -- islands -----------------------------------------------------------------------------------------------------------


def _chosen(program: Program) -> frozenset[int]:
    """The numbers of the instructions that become those of parts."""
    able = {n for n, ins in enumerate(program.instructions) if _is_able(program, ins)}
    islands = _Islands(len(program.specs))
    for n in able:
        islands.join(_complex_values(program, program.instructions[n]))
    computing: set[int] = set()
    left: set[int] = set()
    for n, ins in enumerate(program.instructions):
        values = _complex_values(program, ins)
        if n in able:
            if not isinstance(ins.op.kind, _MOVES):
                computing.add(islands.of(values[0]))
        else:
            left.update(ins.inputs)
    left.update(program.outputs)
    read = {islands.of(v) for n in able for v in program.instructions[n].outputs if v in left}
    numbers = {n: islands.of(_complex_values(program, program.instructions[n])[0]) for n in able}
    return frozenset(n for n, island in numbers.items() if island in computing or island not in read)


def _is_able(program: Program, ins: Instruction) -> bool:
    """Whether an instruction is about complex numbers, and there is a rule for it."""
    values = _complex_values(program, ins)
    if not values or ins.origin.scope is None or ins.origin.is_refused:
        return False
    if isinstance(ins.op.kind, Control):
        return ins.params.get("shapes") is None and all(map(_is_able_body, regions_of(ins)))
    if ins.op.name == "astype" and ins.params["dtype"].kind not in "fc":
        return False
    if ins.op.name in TRANSFORMS and not is_transform_step(program, ins):
        return False
    return ins.op.name in RULES


def _is_able_body(body: Program) -> bool:
    """Whether there is a rule for all that is about complex numbers in a body."""
    of_complex = [ins for ins in body.instructions if _complex_values(body, ins)]
    return all(not ins.after for ins in body.instructions) and all(_is_able(body, ins) for ins in of_complex)


def _complex_values(program: Program, ins: Instruction) -> list[int]:
    return [v for v in (*ins.inputs, *ins.outputs) if program.specs[v].dtype.kind == "c"]


class _Islands:
    """Sets of values that are joined bit by bit."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def of(self, v: int) -> int:
        """The value that stands for the set."""
        while self._above[v] != v:
            self._above[v] = v = self._above[self._above[v]]
        return v

    def join(self, values: Sequence[int]) -> None:
        """One set of several."""
        for v in values[1:]:
            self._above[self.of(v)] = self.of(values[0])


# -- the program anew --------------------------------------------------------------------------------------------------


class _Splitter(PairWriter):
    """The instructions of a program anew: those chosen by parts, the others with what they read put together."""

    def __init__(self, program: Program, chosen: frozenset[int]) -> None:
        super().__init__(program)
        self.chosen = chosen
        self._constants: dict[int, Instruction] = {}

    def _is_split(self, number: int, ins: Instruction) -> bool:
        if number not in self.chosen:
            return False
        if isinstance(ins.op.kind, Control):
            self._split_control(ins)
            return True
        if constant_value(ins) is not None:
            self._constants[ins.outputs[0]] = ins
        made = RULES[ins.op.name](self, ins)
        if isinstance(made, Pair):
            self._parts[ins.outputs[0]] = made
        else:
            self._whole[ins.outputs[0]] = made
        return True

    def _split_control(self, ins: Instruction) -> None:
        """A loop, a branch or a call, of what is real alone."""
        inputs = self._sides(ins.inputs)
        outputs: list[int] = []
        for v in ins.outputs:
            if self.program.specs[v].dtype.kind == "c":
                self._parts[v] = Pair(self._new(v), self._new(v))
                outputs += self._parts[v]
            else:
                self._whole[v] = v
                outputs.append(v)
        made = with_regions(ins, tuple(map(_real_body, regions_of(ins))))
        params = {**made.params, **self._counted(ins)}
        self.instructions.append(replace(made, inputs=tuple(inputs), outputs=tuple(outputs), params=params))

    def _sides(self, values: Sequence[int]) -> list[int]:
        """What values are when complex ones are both of their parts."""
        is_complex = [self.program.specs[v].dtype.kind == "c" for v in values]
        return [x for v, c in zip(values, is_complex, strict=True) for x in (self.parts(v) if c else (self.whole(v),))]

    def _new(self, like: int) -> int:
        """A real value of the shape of a complex one."""
        spec = self.program.specs[like]
        self.specs.append(TensorSpec(spec.shape, real_dtype(spec.dtype)))
        return len(self.specs) - 1

    def _counted(self, ins: Instruction) -> dict[str, Any]:
        """The params that count inputs, or are places among the constants, when complex ones are two."""
        widths = [2 if self.program.specs[v].dtype.kind == "c" else 1 for v in ins.inputs]
        first = ins.params.get("n_consts", 0)
        found: dict[str, Any] = {}
        if "n_consts" in ins.params:
            found["n_consts"] = sum(widths[:first])
        if "n_carry" in ins.params:
            found["n_carry"] = sum(widths[first : first + ins.params["n_carry"]])
        if "totals" in ins.params:
            starts = [sum(widths[:k]) for k in range(first + 1)]
            found["totals"] = tuple([n for k in ins.params["totals"] for n in range(starts[k], starts[k + 1])])
        return found

    def of_parts(self) -> Program:
        """A body, with both parts of complex inputs and outputs in their place."""
        inputs: list[int] = []
        for v in self.program.inputs:
            if self.program.specs[v].dtype.kind == "c":
                del self._whole[v]
                self._parts[v] = Pair(self._new(v), self._new(v))
                inputs += self._parts[v]
            else:
                inputs.append(v)
        self._add_all()
        return replace(self.remade(tuple(self._sides(self.program.outputs))), inputs=tuple(inputs))

    def _joined(self, v: int) -> int:
        if v in self._constants:
            self.instructions.append(self._constants[v])
            return v
        return self.emit("complex_of", self.paired(v))

    def _taken_apart(self, v: int) -> Pair:
        """The imaginary part of a real value is 0."""
        whole = self.whole(v)
        if self.specs[whole].dtype.kind != "c":
            return Pair(whole, self.number(0.0, whole))
        return self.out_of_pairs(v, self.emit("pair_of", whole))


def _real_body(body: Program) -> Program:
    """A body with a rule for all that is complex in it, as one of real numbers."""
    chosen = frozenset(n for n, ins in enumerate(body.instructions) if _complex_values(body, ins))
    return _Splitter(with_bodies(body, _of_real_borders), chosen).of_parts()
