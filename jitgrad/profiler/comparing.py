"""compare(): one call interpreted, fused with separate gradients and fused merged; it lays out nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.compiled import Compiled, Options
from jitgrad.profiler.baseline import best_blas_threads
from jitgrad.profiler.comparison import Comparison, Measurement
from jitgrad.profiler.timing import time_in_turns
from jitgrad.profiler.work import Work, interpreted_work
from jitgrad.spec import spec_of


def compare(fn: Callable[..., Any], *args: Any, repeat: int | None = None) -> Comparison:
    """Run ``fn(*args)`` interpreted, fused with separate gradients and fused merged: times, work and results.

    ``fn`` is a function, compiled or not; what it computes with ``jg.grad`` and its kin inside is compiled too.
    The three are called in turns: ``repeat`` times each, or for about two seconds. Times are those of whole calls,
    arguments looked at and results put together. The interpreter gets as many threads of BLAS as suit it best. The
    results of the fused runs are compared with those of the interpreter. Errors are fn's own.
    """
    separate, merged = (_compiled(fn, flag) for flag in (True, False))
    calls = [partial(run, *args) for run in (merged.interpret, separate, merged)]
    results = [call() for call in calls]
    works = [_interpreted_work(merged, args), _compiled_work(separate, args), _compiled_work(merged, args)]
    threads, limited = best_blas_threads(calls[0], repeat)
    times = time_in_turns(calls, repeat, [limited, contextlib.nullcontext, contextlib.nullcontext])
    differences = [None] + [difference(result, results[0]) for result in results[1:]]
    fusions = [""] + [str(made.explain(*args).fusion) for made in (separate, merged)]
    has_products = any(work.products for work in works)
    names = (interpreter_name(threads, has_products), "fused, separate gradients", "fused, merged gradients")
    rows = zip(names, times, works, differences, fusions, strict=True)
    return Comparison(merged.__name__, tuple(Measurement(*row) for row in rows))


def interpreter_name(threads: int, has_products: bool) -> str:
    """The row of the interpreter, which says what its BLAS was given, if that matters."""
    return f"interpreted, {threads} BLAS thread{'s' * (threads > 1)}" if has_products else "interpreted"


def _compiled(fn: Callable[..., Any], is_separate: bool) -> Compiled:
    """``fn`` compiled anew, with its gradients in clusters of their own or not."""
    if isinstance(fn, Compiled):
        return Compiled(fn.fn, replace(fn.options, separate_compiled_gradients=is_separate, scoped=True))
    return Compiled(fn, Options(separate_compiled_gradients=is_separate))


def _interpreted_work(fn: Compiled, args: tuple[Any, ...]) -> Work:
    runs = [(stage.program(list(map(spec_of, arrays))), arrays) for stage, arrays in fn.stages(*args)]
    return sum((interpreted_work(program, arrays) for program, arrays in runs), Work())


def _compiled_work(fn: Compiled, args: tuple[Any, ...]) -> Work:
    from jitgrad.profiler.planned import compiled_work

    return sum((compiled_work(stage.executable(arrays)) for stage, arrays in fn.stages(*args)), Work())


def difference(results: Any, expected: Any) -> float:
    """The largest difference of two results, relative to the largest finite magnitude of each array.

    0.0 when all are equal, infinity where a NaN, an infinity, an integer or a shape is not the same in both.
    """
    ours, theirs = (pytree.flatten(tree)[0] for tree in (results, expected))
    return max((_difference(np.asarray(a), np.asarray(b)) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _difference(a: Any, b: Any) -> float:
    if a.dtype != b.dtype or a.shape != b.shape:
        return float("inf")
    if np.array_equal(a, b, equal_nan=b.dtype.kind in "fc"):
        return 0.0
    finite = np.isfinite(b) if b.dtype.kind in "fc" else np.zeros(b.shape, bool)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=b.dtype.kind in "fc"):
        return float("inf")
    distance = np.max(np.abs(a[finite] - b[finite]))
    return float(distance / np.max(np.abs(b[finite]))) if np.isfinite(distance) else float("inf")
