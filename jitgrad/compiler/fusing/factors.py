"""Which factors of matrices, gradients of Cholesky's, and systems with triangles or factors are steps of a cluster, by
our own code, and which Fourier transforms and decompositions, by NumPy's; how they are cut, and the code, are elsewhere
(products/).
"""

from __future__ import annotations

import functools
import operator

from jitgrad.bare import matrix_loop, qr_loops
from jitgrad.compiler.machine.compilation import has_fma, vector_bytes
from jitgrad.compiler.subprograms import regions_of
from jitgrad.compiler.symbols import at_once
from jitgrad.lapack import fits_columns, has_own_rows
from jitgrad.opdef import Library
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec

TRANSFORMS = frozenset(("pairs_fft", "pairs_rfft", "pairs_irfft"))
"""Fourier transforms, by NumPy's loops: programs have these only where there are some (complex_pairs.py)."""
_SQUARE = frozenset(("eigh", "eigvalsh"))
RECTANGULAR = frozenset(("svd", "svdvals", "qr"))
_SHORT, _LONG = 32, 64
"""Up to so many rows and columns, the fewer and the more, these are steps, by NumPy's loops; with more, LAPACK works in
blocks, and would begin threads of its own.
"""
_SOLUTIONS = frozenset(("solve_triangular", "solve_turned", "lu_solve"))
ROUTINES = _SOLUTIONS | TRANSFORMS | _SQUARE | RECTANGULAR | {"cholesky", "cholesky_cotangent", "lu", "lu_inv"}

_COLUMNS = frozenset((*(f"{routine}_columns" for routine in _SOLUTIONS), "lu_inv"))


def is_factor(ins: Instruction, program: Program) -> bool:
    """Whether an instruction is a step: a transform, eigenvalues of float64 matrices, and what our own code does with
    one float64 matrix of a size that it is for. Stacks of such, float32 and other sizes are computed matrix by matrix,
    called from Python (lapack.py).
    """
    if not isinstance(ins.op.kind, Library) or ins.op.kind.routine not in ROUTINES:
        return False
    spec = program.specs[ins.inputs[0]]
    if ins.op.kind.routine in TRANSFORMS:
        return spec.dtype.char in "fd"
    if ins.op.kind.routine in _SQUARE | RECTANGULAR:
        return spec.dtype.char == "d" and is_decomposed(ins, spec)
    *stack, _, n = spec.known_shape
    is_single = spec.dtype.char == "d" and all(extent == 1 for extent in stack)
    is_single = is_single and all(program.specs[v].dtype.char in "dl" for v in (*ins.inputs, *ins.outputs))
    if not is_single or not _has_registers():
        return False
    routine, columns = routine_of(ins, program), program.specs[ins.outputs[0]].known_shape[-1]
    if routine in _COLUMNS:
        return bool(at_once(_fits_columns(routine), n, columns))
    return bool(at_once(_fits(routine), n))


def is_decomposed(ins: Instruction, spec: TensorSpec) -> bool:
    """Whether eigenvalues, singular values or QR factors of matrices, in float64, are found by NumPy's loop."""
    shape, routine = spec.known_shape, ins.op.name
    if 0 in shape or not at_once(_is_short, *shape[-2:]):
        return False
    if routine == "qr":
        return bool(at_once(operator.ge, *shape[-2:])) and bool(qr_loops())
    return bool(matrix_loop("svd" if routine == "pinv" else routine, is_lower(ins)))


def is_lower(ins: Instruction) -> bool:
    """Whether a routine reads a lower triangle."""
    return bool(ins.params["UPLO"] in "Ll" if "UPLO" in ins.params else ins.params.get("lower", True))


def _is_short(m: int, n: int) -> bool:
    return min(m, n) <= _SHORT and max(m, n) <= _LONG


def routine_of(ins: Instruction, program: Program) -> str:
    """What does the step of an instruction: a system with several right sides is one of columns."""
    assert isinstance(ins.op.kind, Library)
    routine = ins.op.kind.routine
    is_wide = routine in _SOLUTIONS and program.specs[ins.outputs[0]].known_shape[-1] != 1
    return f"{routine}_columns" if is_wide else routine


def is_lu_step(ins: Instruction, spec: TensorSpec) -> bool:
    """Whether LU factors of a matrix in double precision would be a step, where an instruction asks something of it."""
    *stack, n = spec.known_shape[:-1]
    is_single = spec.dtype.char in "fd" and all(extent == 1 for extent in stack)
    is_compiled = ins.origin.scope is not None and not ins.origin.is_refused
    return is_single and is_compiled and _has_registers() and bool(at_once(_fits("lu"), n))


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
def _fits_columns(routine: str) -> functools.partial[bool]:
    return functools.partial(fits_columns, routine.startswith("lu"))


@functools.lru_cache
def _fits(routine: str) -> functools.partial[bool]:
    return functools.partial(has_own_rows, routine)


def _has_registers() -> bool:
    """Whether there is code for the machine: for registers of 32 bytes or more, and sums of products rounded once."""
    return has_fma() and vector_bytes() in (32, 64)
