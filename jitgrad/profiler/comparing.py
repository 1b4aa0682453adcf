"""compare(): one call interpreted, fused with separate gradients and fused merged; it lays out nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.compiled import Compiled, Options
from jitgrad.fresh import interpret_fresh
from jitgrad.profiler.baseline import best_blas_threads
from jitgrad.profiler.comparison import Comparison, Measurement
from jitgrad.profiler.graph_stages import graph_program, rescoped
from jitgrad.profiler.timing import time_in_turns
from jitgrad.profiler.work import Work, interpreted_work
from jitgrad.records import dataclass
from jitgrad.restoring import Snapshot, snapshot_for
from jitgrad.spec import spec_of


@dataclass(frozen=True)
class _Subject:
    """What is compared: its name, the three ways to run it, what they assign to as it was before, their work, and the
    executables of the fused two.
    """

    name: str
    calls: tuple[Callable[[], Any], ...]
    state: Snapshot
    works: tuple[Work, ...]
    executables: tuple[tuple[Any, ...], ...]


def compare(fn: Any, *args: Any, repeat: int | None = None) -> Comparison:
    """Run ``fn(*args)`` interpreted, fused with separate gradients and fused merged: times, work and results.

    ``fn`` is a function, compiled or not; what it computes with ``jg.grad`` and its kin inside is compiled too. Or it
    is what a session fetches from a graph, and the only argument the feeds: ``jg.compare([loss, *grads], {x: array})``.
    Then the ops of compiled scopes run fused, their gradients in scopes of their own or in those of their ops.

    The three are called in turns: ``repeat`` times each, or for about two seconds. Times are those of whole calls,
    arguments looked at and results put together. The interpreter gets as many threads of BLAS as suit it best. The
    results of the fused runs are compared with those of the interpreter. Every run finds Variables as they are now, and
    they are so afterwards. Errors are fn's own; ValueError for a graph with a py_func.
    """
    subject = _function(fn, args) if callable(fn) else _graph(fn, *args)
    calls = [_restoring(call, subject.state) for call in subject.calls]
    results = [call() for call in calls]
    threads, limited = best_blas_threads(calls[0], repeat)
    times = time_in_turns(calls, repeat, [limited, contextlib.nullcontext, contextlib.nullcontext])
    differences = [None] + [difference(result, results[0]) for result in results[1:]]
    fusions = [""] + ["\n".join(str(e.explanation.fusion) for e in made) for made in subject.executables]
    has_products = any(work.products for work in subject.works)
    names = (interpreter_name(threads, has_products), "fused, separate gradients", "fused, merged gradients")
    rows = zip(names, times, subject.works, differences, fusions, strict=True)
    return Comparison(subject.name, tuple(Measurement(*row) for row in rows), subject.executables[1])


def _restoring(call: Callable[[], Any], state: Snapshot) -> Callable[[], Any]:
    """The call, leaving Variables as they were; the call itself where there are none."""

    def restored() -> Any:
        try:
            return call()
        finally:
            state.restore()

    return restored if state else call


def _function(fn: Callable[..., Any], args: tuple[Any, ...]) -> _Subject:
    separate, merged = (_compiled(fn, flag) for flag in (True, False))
    state = Snapshot(merged.prepared(*args)[0].variables)
    calls = tuple(partial(run, *args) for run in (merged.interpret, separate, merged))
    for call in calls:
        _restoring(call, state)()
    stages = [_restoring(partial(c.stages, *args), state)() for c in (separate, merged)]
    made = tuple(tuple(stage.executable(arrays) for stage, arrays in found) for found in stages)
    work = _restoring(partial(_interpreted_work, stages[1]), state)()
    return _Subject(merged.__name__, calls, state, (work, *map(_planned_work, made)), made)


def _graph(fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> _Subject:
    from jitgrad.executable import make_executable
    from jitgrad.profiler.planned import compiled_work

    program, arrays = graph_program(fetches, feed_dict or {})
    state = snapshot_for(program)
    made = [make_executable(rescoped(program, is_separate)) for is_separate in (True, False)]
    calls = (partial(interpret_fresh, program, arrays), *(partial(executable, arrays) for executable in made))
    work = _restoring(partial(interpreted_work, program, arrays), state)()
    works = (work, *(compiled_work(executable) for executable in made))
    return _Subject("graph", calls, state, works, tuple((executable,) for executable in made))


def interpreter_name(threads: int, has_products: bool) -> str:
    """The row of the interpreter, which says what its BLAS was given, if that matters."""
    return f"interpreted, {threads} BLAS thread{'s' * (threads > 1)}" if has_products else "interpreted"


def _compiled(fn: Callable[..., Any], is_separate: bool) -> Compiled:
    """``fn`` compiled anew, with its gradients in clusters of their own or not."""
    if isinstance(fn, Compiled):
        return Compiled(fn.fn, replace(fn.options, separate_compiled_gradients=is_separate, scoped=True))
    return Compiled(fn, Options(separate_compiled_gradients=is_separate))


def _interpreted_work(stages: Sequence[tuple[Any, list[Any]]]) -> Work:
    runs = [(stage.program(list(map(spec_of, arrays))), arrays) for stage, arrays in stages]
    return sum((interpreted_work(program, arrays) for program, arrays in runs), Work())


def _planned_work(executables: Sequence[Any]) -> Work:
    from jitgrad.profiler.planned import compiled_work

    return sum(map(compiled_work, executables), Work())


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
