"""Checking: eager operations whose results are looked at as they come, while debug_nans is on; it computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree, recording
from jitgrad.config import config
from jitgrad.eager.calls import ProgramCall
from jitgrad.eager.tensor import plain, run
from jitgrad.eager.timing import run_timed
from jitgrad.eagerness import no_collecting
from jitgrad.errors import NonFiniteError, layout
from jitgrad.nonfinite import TESTS, Test, bad_elements, range_text, search
from jitgrad.sources import source_text, user_source


def run_looked_at(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call, made now; NonFiniteError where a NaN or an infinity is in its results and in no argument.

    What comes of it does not count: every eager value is a result. Where the call is a program (the gradient of other
    calls), its first op that made one is named.
    """
    with no_collecting(), np.errstate(all="ignore"):
        made = run_timed(fn, args, kwargs) if recording.sinks else run(fn, args, kwargs)
    if config.debug_nans:
        given, results = _arrays((args, kwargs)), _arrays(made)
        for test, what in TESTS:
            if _count(results, test) and not _count(given, test):
                raise _error(fn, given, results, test, what)
    return made


def _arrays(tree: Any) -> list[Any]:
    """The arrays and numbers among the leaves."""
    leaves = (plain(leaf) for leaf in pytree.flatten(tree)[0])
    return [np.asarray(x) for x in leaves if isinstance(x, np.ndarray | np.generic | float | complex)]


def _count(arrays: Sequence[Any], test: Test) -> int:
    return sum(bad_elements(array, test).size for array in arrays)


def _error(
    fn: Callable[..., Any], given: Sequence[Any], results: Sequence[Any], test: Test, what: str
) -> NonFiniteError:
    if isinstance(fn, ProgramCall):
        return search(fn.program, given, test, what)
    name = getattr(fn, "__name__", None) or str(fn)
    total = sum(array.size for array in results)
    ranges = {f"input {k}": range_text(array) for k, array in enumerate(given)}
    return NonFiniteError(
        layout(
            f"op {name!r} made {what} in {_count(results, test)} of {total} values",
            op=f"{name}, run at {source_text(user_source())}",
            **ranges,
        )
    )
