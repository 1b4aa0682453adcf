"""Programs that are written anew, one instruction after another: what passes have in common that do so. Which
instructions become others, and which, is theirs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from jitgrad.opdef import OpDef, find
from jitgrad.program import Instruction, Origin, Program
from jitgrad.spec import TensorSpec

P = TypeVar("P")


class Remaking:
    """The instructions of a new program so far; values of the old one keep their numbers. ``origin`` is that of
    instructions that are made.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.specs: list[TensorSpec] = list(program.specs)
        self.instructions: list[Instruction] = []
        self.origin = next((ins.origin for ins in program.instructions), Origin("nothing", None, None))

    def emit(self, name: str, *inputs: int, **params: Any) -> int:
        """A new instruction; its value."""
        return self.emit_op(find(name), inputs, params)

    def emit_op(self, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]) -> int:
        """The same, for an op at hand."""
        (spec,) = op.infer(tuple([self.specs[v] for v in inputs]), params)
        self.specs.append(spec)
        v = len(self.specs) - 1
        self.instructions.append(Instruction(op, inputs, (v,), params, self.origin))
        return v

    def put(self, v: int, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]) -> None:
        """An instruction that makes a value of the old program."""
        self.instructions.append(Instruction(op, inputs, (v,), params, self.origin))

    def remade(self, outputs: tuple[int, ...]) -> Program:
        """The whole program."""
        instructions, specs = tuple(self.instructions), tuple(self.specs)
        return replace(self.program, instructions=instructions, outputs=outputs, specs=specs, _cache={})


class Splitting(Remaking, ABC, Generic[P]):
    """A program of which some instructions are done by the parts of what they read and make, the others with what they
    read put together.
    """

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self._parts: dict[int, P] = {}
        self._whole: dict[int, int] = {v: v for v in program.inputs}

    def split(self) -> Program:
        """The whole program."""
        self._add_all()
        return self.remade(tuple([self.whole(v) for v in self.program.outputs]))

    def _add_all(self) -> None:
        for number, ins in enumerate(self.program.instructions):
            self.origin = ins.origin
            if not self._is_split(number, ins):
                self.instructions.append(replace(ins, inputs=tuple([self.whole(v) for v in ins.inputs])))
                self._whole.update((v, v) for v in ins.outputs)

    def whole(self, v: int) -> int:
        """A value as the program had it."""
        if v not in self._whole:
            self._whole[v] = self._joined(v)
        return self._whole[v]

    def parts(self, v: int) -> P:
        """A value taken apart."""
        if v not in self._parts:
            self._parts[v] = self._taken_apart(v)
        return self._parts[v]

    @abstractmethod
    def _is_split(self, number: int, ins: Instruction) -> bool:
        """Make what an instruction makes by parts, and say whether that is to be done."""

    @abstractmethod
    def _joined(self, v: int) -> int:
        """A value put together from its parts."""

    @abstractmethod
    def _taken_apart(self, v: int) -> P:
        """The parts of a value that is whole."""
