"""Dependences: a program as clustering sees it: what may be compiled, in which scope, what waits for what."""

from __future__ import annotations

import functools
from functools import cached_property

import numpy as np

from jitgrad.compiler.bodies.programs import has_state
from jitgrad.compiler.constants import constant_value, is_splat
from jitgrad.compiler.emission import scalar_emit
from jitgrad.compiler.fusing import factors
from jitgrad.compiler.fusing.small import is_small_routine
from jitgrad.compiler.subprograms import regions_of
from jitgrad.opdef import (
    Contract,
    Control,
    Convolve,
    Elementwise,
    Fill,
    Gather,
    Interpreted,
    Library,
    OpDef,
    Pairs,
    Reduce,
    Reindex,
    Scan,
    Scatter,
    Shaped,
    Sweep,
    Update,
    View,
)  # fmt: skip
from jitgrad.program import Instruction, Program
from jitgrad.sources import source_text

_COMPUTING = (Elementwise, Fill, View, Pairs, Reduce, Scan, Contract, Convolve, Sweep, Gather, Scatter, Update)
KERNEL_DTYPES = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")))
ROUTINES = frozenset(("solve", "solve_triangular", "inv", "det", "slogdet", "cholesky"))
METADATA = frozenset(("shape", "rank", "size"))


def kernel_refusal(instruction: Instruction, program: Program) -> str | None:
    """Why no kernel can be made for an instruction, whatever its scope; None when one can."""
    refusal = _op_refusal(instruction.op, len(instruction.outputs))
    if refusal is not None:
        return refusal
    specs = program.specs
    if isinstance(instruction.op.kind, Pairs):
        return None
    for v in (*instruction.inputs, *instruction.outputs):
        dtype = specs[v].dtype
        if dtype not in KERNEL_DTYPES:
            return f"{instruction.op.name} has a value of dtype {dtype.name}, for which there are no kernels"
    if isinstance(instruction.op.kind, Control):
        return _control_refusal(instruction, program)
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
            return None if routine in ROUTINES | factors.ROUTINES else f"{op.name} calls the library routine {routine}"
        case Shaped():
            return f"{op.name} takes its shape from another value, which simplify() has not resolved"
        case Reindex() | Control():
            return None
        case kind if isinstance(kind, _COMPUTING):
            return None if outputs == 1 else f"{op.name} has {outputs} outputs"
    return f"{op.name} is of a kind that has no kernels"


def _library_refusal(ins: Instruction, program: Program) -> str | None:
    """Why a routine on these matrices is left to a library; None when there is a kernel or a step for them."""
    if factors.is_factor(ins, program):
        return None
    a = program.specs[ins.inputs[0]]
    if a.dtype.kind != "f":
        return f"{ins.op.name} of {a.dtype.name} has no kernel"
    if ins.op.name not in ROUTINES:
        return f"{ins.op.name} is a step only for one float64 matrix of some size"
    columns = program.specs[ins.inputs[-1]].known_shape[-1]
    if not is_small_routine(a.known_shape, columns):
        return f"{ins.op.name} calls a library: there are kernels for small matrices only"
    return None


def _control_refusal(ins: Instruction, program: Program) -> str | None:
    """Why a loop or a branch runs in the interpreter; None when all of its bodies can be compiled."""
    for sub in regions_of(ins):
        for inside in sub.instructions:
            why = _refusal_inside(inside, sub)
            if why is not None:
                where = f"{inside.op.name} ({source_text(inside.origin.source)})"
                return f"{ins.op.name} runs in the interpreter: {sub.name} has {where}, which {why}"
    if not _keeps_shapes(ins, program):
        return f"{ins.op.name} runs in the interpreter: shapes change from step to step"
    return None


def _refusal_inside(ins: Instruction, sub: Program) -> str | None:
    value = constant_value(ins)
    if value is not None:
        return None if is_splat(value) and value.dtype in KERNEL_DTYPES else "is an array of constants"
    if ins.origin.scope is None:
        return "is in no scope that compiles"
    if ins.after:
        return "waits for another operation"
    refusal = kernel_refusal(ins, sub)
    return None if refusal is None else f"is not compiled: {refusal}"


def _keeps_shapes(ins: Instruction, program: Program) -> bool:
    """Whether what a body makes of the state looks as the state does."""
    assert isinstance(ins.op.kind, Control)
    form, regions = ins.op.kind.form, regions_of(ins)
    if form == "call":
        return True
    if form == "cond":
        return len({tuple(sub.specs[v] for v in sub.outputs) for sub in regions}) == 1
    first = ins.params["n_consts"]
    count = ins.params["n_carry"] if form in ("scan", "while_gradient") else len(ins.inputs) - first
    last = first + count
    groups = [(regions[0] if form == "scan" else regions[1], ins.inputs[first:last])]
    if form == "while_gradient":
        groups.append((regions[2], ins.inputs[last:]))
    return all(
        [program.specs[v] for v in state] == [sub.specs[v] for v in sub.outputs[: len(state)]] for sub, state in groups
    )


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
            if has_state(ins):
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
