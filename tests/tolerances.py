"""How far compiled results may be from interpreted ones: rounding, and what rounding does to this program.

No tolerance is chosen per program. Where results are further apart than a few units in the last place of their largest
value, the interpreter runs again with every float moved by one such unit: what these runs differ by is what the
program makes of rounding errors, and the compiled results, which round elsewhere, may differ by a few times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitgrad.interpreter import interpret
from jitgrad.opdef import Contract, Elementwise, Reduce, Scan
from jitgrad.program import Program

Array = npt.NDArray[Any]
RUNS = 4
SPREADS = 16
ROUNDING_KINDS = (Elementwise, Reduce, Scan, Contract)


def assert_same_up_to_rounding(ours: Sequence[Any], program: Program, feeds: Sequence[Array], what: str = "") -> None:
    """Equal shapes and dtypes, values equal to rounding; AssertionError with the first values that differ."""
    expected = interpret(program, feeds)
    assert_near(ours, expected, coarsest(program), lambda seed: moved_results(program, feeds, seed), what)


def assert_near(
    ours: Sequence[Any],
    interpreted: Sequence[Any],
    eps: float,
    run_moved: Callable[[int], Sequence[Array]],
    what: str = "",
) -> None:
    """As ``assert_same_up_to_rounding``, for results interpreted already and a way to run them moved."""
    expected = [np.asarray(value) for value in interpreted]
    found = [np.asarray(value) for value in ours]
    assert [(a.dtype, a.shape) for a in found] == [(b.dtype, b.shape) for b in expected], what
    if all(_is_close(a, b, eps, np.zeros(b.shape)).all() for a, b in zip(found, expected, strict=True)):
        return
    moved = [run_moved(seed) for seed in range(RUNS)]
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        wrong = ~_is_close(a, b, eps, _spread(b, [run[number] for run in moved]))
        if wrong.any():
            where = [tuple(map(int, place)) for place in np.argwhere(wrong)[:3]]
            raise AssertionError(f"{what}: output {number} at {where}: ours {a[wrong][:3]}, interpreted {b[wrong][:3]}")


def coarsest(program: Program) -> float:
    """The rounding of the narrowest float of the program, 0 where there is none."""
    return max((float(np.finfo(s.dtype).eps) for s in program.specs if s.dtype.kind == "f"), default=0.0)


def _is_close(ours: Array, expected: Array, eps: float, spread: Array) -> npt.NDArray[np.bool_]:
    """Where values are equal to rounding; an infinite spread allows anything."""
    if expected.dtype.kind != "f":
        return np.asarray((ours == expected) | (spread > 0))
    finite = np.abs(expected[np.isfinite(expected)])
    with np.errstate(all="ignore"):
        rounding = 256 * eps * np.abs(expected) + 64 * eps * float(finite.max(initial=1.0))
        near = np.abs(ours.astype(np.float64) - expected) <= rounding + SPREADS * spread
        return np.asarray(near | (ours == expected) | (np.isnan(ours) & np.isnan(expected)) | np.isinf(spread))


def _spread(expected: Array, moved: Sequence[Array]) -> Array:
    """The largest difference per element; infinite where the runs do not agree what is a number."""
    spread = np.zeros(expected.shape)
    for other in moved:
        with np.errstate(all="ignore"):
            if expected.dtype.kind == "f":
                apart = np.abs(other.astype(np.float64) - expected)
                both = np.isnan(other) & np.isnan(expected)
                apart = np.where((other == expected) | both, 0.0, np.where(np.isnan(apart), np.inf, apart))
            else:
                apart = (other != expected).astype(np.float64)
        spread = np.maximum(spread, apart)
    return spread


def moved_results(program: Program, feeds: Sequence[Array], seed: int) -> list[Array]:
    """The program in the interpreter with its float inputs, and all floats it computes, moved by up to an ulp."""
    rng = np.random.default_rng(seed)
    values: dict[int, Array] = {
        v: _moved(np.asarray(feed), rng) for v, feed in zip(program.inputs, feeds, strict=True)
    }
    for ins in program.instructions:
        with np.errstate(all="ignore"):
            made = ins.op.impl(*(values[v] for v in ins.inputs), **ins.params)
        results = [made] if len(ins.outputs) == 1 else made
        for v, result in zip(ins.outputs, map(np.asarray, results), strict=True):
            values[v] = _moved(result, rng) if isinstance(ins.op.kind, ROUNDING_KINDS) else result
    return [values[v] for v in program.outputs]


def _moved(x: Array, rng: np.random.Generator) -> Array:
    if x.dtype.kind != "f":
        return x
    with np.errstate(all="ignore"):
        return np.asarray(x * (1 + rng.integers(-1, 2, x.shape) * np.finfo(x.dtype).eps).astype(x.dtype), x.dtype)
