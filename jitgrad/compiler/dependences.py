"""Dependences: a program as clustering sees it: what may be compiled, in which scope, what waits for what."""

from __future__ import annotations

import functools
from functools import cached_property

import numpy as np

from jitgrad.compiler import scalar_emit
from jitgrad.compiler.constants import constant_value, is_splat
from jitgrad.compiler.small import is_small_routine
from jitgrad.opdef import (
    Contract,
    Elementwise,
    Fill,
    Gather,
    Interpreted,
    Library,
    OpDef,
    Reduce,
    Reindex,
    Scan,
    Scatter,
    Shaped,
    View,
)  # fmt: skip
from jitgrad.program import Instruction, Program

KERNEL_DTYPES = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")))
ROUTINES = frozenset(("solve", "solve_triangular", "inv", "det", "slogdet", "cholesky"))
METADATA = frozenset(("shape", "rank", "size"))


def kernel_refusal(instruction: Instruction, program: Program) -> str | None:
    """Why no kernel can be made for an instruction, whatever its scope; None when one can."""
    refusal = _op_refusal(instruction.op, len(instruction.outputs))
    if refusal is not None:
        return refusal
    specs = program.specs
    for v in (*instruction.inputs, *instruction.outputs):
        dtype = specs[v].dtype
        if dtype not in KERNEL_DTYPES:
            return f"{instruction.op.name} has a value of dtype {dtype.name}, for which there are no kernels"
    if isinstance(instruction.op.kind, Library):
        return _library_refusal(instruction, program)
    if isinstance(instruction.op.kind, Elementwise):
        return scalar_emit.refusal(instruction.op.kind.scalar, [specs[v].dtype for v in instruction.inputs])
    return None


@functools.lru_cache(maxsize=4096)
def _op_refusal(op: OpDef, outputs: int) -> str | None:
    """Why no kernel can be made for an op, whatever its inputs."""
    if op.stateful:
        return f"{op.name} keeps state outside the program"
    match op.kind:
        case Interpreted(reason):
            return f"{op.name} runs in the interpreter: {reason}"
        case Library(routine):
            return None if routine in ROUTINES else f"{op.name} calls the library routine {routine}"
        case Shaped():
            return f"{op.name} takes its shape from another value, which simplify() has not resolved"
        case Reindex():
            return None
        case Elementwise() | Fill() | View() | Reduce() | Scan() | Contract() | Gather() | Scatter():
            return None if outputs == 1 else f"{op.name} has {outputs} outputs"
    return f"{op.name} is of a kind that has no kernels"


def _library_refusal(ins: Instruction, program: Program) -> str | None:
    """Why a routine on these matrices is left to a library; None when there is a kernel for them."""
    a = program.specs[ins.inputs[0]]
    if a.dtype.kind != "f":
        return f"{ins.op.name} of {a.dtype.name} has no kernel"
    columns = program.specs[ins.inputs[-1]].known_shape[-1]
    if not is_small_routine(a.known_shape, columns):
        return f"{ins.op.name} calls a library: there are kernels for small matrices only"
    return None


class Dependences:
    """Per instruction, the scope that may compile it (None: no one) and what must run before.

    ``literals`` are constants that are one number everywhere: they have neither, for every reader can have
    its own. Other constants are made by the interpreter and read from memory.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.refusals: dict[int, str] = {}
        constants = {
            n: value
            for n, ins in enumerate(program.instructions)
            if (value := constant_value(ins)) is not None
        }
        ordered = {n for ins in program.instructions for n in ins.after}
        self.literals = {
            n: None for n, value in constants.items()
            if is_splat(value) and value.dtype in KERNEL_DTYPES
            and n not in ordered and not program.instructions[n].after
        }  # fmt: skip
        self.scopes = [
            None if n in constants or ins.origin.scope is None else self._scope(n, ins)
            for n, ins in enumerate(program.instructions)
        ]
        self.needs = self._needs()

    def _scope(self, number: int, ins: Instruction) -> str | None:
        refusal = kernel_refusal(ins, self.program)
        if refusal is None:
            return ins.origin.scope
        self.refusals[number] = refusal
        return None

    def _needs(self) -> list[set[int]]:
        """Producers, control inputs, and for a stateful instruction the stateful one before it."""
        producers, literals = self.program.producers(), self.literals
        needs: list[set[int]] = []
        stateful: tuple[int, ...] = ()
        for number, ins in enumerate(self.program.instructions):
            found = {n for v in ins.inputs if (n := producers.get(v, -1)) >= 0 and n not in literals}
            found.update(ins.after)
            if ins.op.stateful:
                found.update(stateful)
                stateful = (number,)
            needs.append(found)
        return needs

    @cached_property
    def users(self) -> list[list[int]]:
        """Per instruction, those that need it."""
        users: list[list[int]] = [[] for _ in self.needs]
        for number, needs in enumerate(self.needs):
            for n in needs:
                users[n].append(number)
        return users

    @cached_property
    def wanted(self) -> set[int]:
        """The instructions that make what the caller gets."""
        producers = self.program.producers()
        return {producers[v] for v in self.program.outputs if v in producers}

    def starts_cluster(self, number: int) -> bool:
        """Whether an instruction is worth a cluster: it is neither a constant nor metadata."""
        op = self.program.instructions[number].op
        return op.name not in METADATA and op.kind != Fill("constant")
