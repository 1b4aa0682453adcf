"""Which factors of positive definite matrices, their gradients, and triangular systems are steps of a cluster, by our
own code, and which Fourier transforms; how they are cut, and the code, are elsewhere (products/).
"""

from __future__ import annotations

import functools

from jitgrad.compiler.machine.compilation import has_fma, vector_bytes
from jitgrad.compiler.subprograms import regions_of
from jitgrad.compiler.symbols import at_once
from jitgrad.lapack import has_own_rows
from jitgrad.opdef import Library
from jitgrad.program import Instruction, Program

TRANSFORMS = frozenset(("pairs_fft", "pairs_rfft", "pairs_irfft"))
"""Fourier transforms, by NumPy's loops: programs have these only where there are some (complex_pairs.py)."""
EIGEN_ROWS = 32
"""Up to so many rows eigenvalues are steps, by NumPy's loop; with more, LAPACK would begin threads of its own."""
ROUTINES = frozenset((
    "cholesky", "cholesky_cotangent", "solve_triangular", "solve_turned", "eigh_joined", *TRANSFORMS
))  # fmt: skip
_SOLUTIONS = ("solve_triangular", "solve_turned")


def is_factor(ins: Instruction, program: Program) -> bool:
    """Whether an instruction is a step: for one float64 matrix of a size that our own code is for; and with one right
    side. Stacks, float32 and other sizes are computed matrix by matrix, called from Python (lapack.py).
    """
    if not isinstance(ins.op.kind, Library) or ins.op.kind.routine not in ROUTINES:
        return False
    spec = program.specs[ins.inputs[0]]
    if ins.op.kind.routine in TRANSFORMS or ins.op.kind.routine == "eigh_joined":
        return spec.dtype.char in ("fd" if ins.op.kind.routine in TRANSFORMS else "d")
    *stack, _, n = spec.known_shape
    is_single = spec.dtype.char == "d" and all(extent == 1 for extent in stack)
    if ins.op.kind.routine in _SOLUTIONS:
        is_single = is_single and program.specs[ins.inputs[1]].known_shape[-1] == 1
    return is_single and _has_registers() and bool(at_once(_fits(ins.op.kind.routine), n))


def factors_in(program: Program) -> tuple[bool, ...]:
    """Which routines of a program, and of the bodies in it, are steps: programs that differ in that are not alike."""
    found: list[bool] = []
    for ins in program.instructions:
        if isinstance(ins.op.kind, Library):
            found.append(is_factor(ins, program))
        for body in regions_of(ins):
            found += factors_in(body)
    return tuple(found)


@functools.lru_cache
def _fits(routine: str) -> functools.partial[bool]:
    return functools.partial(has_own_rows, routine)


def _has_registers() -> bool:
    """Whether there is code for the machine: for registers of 32 bytes or more, and sums of products rounded once."""
    return has_fma() and vector_bytes() in (32, 64)
