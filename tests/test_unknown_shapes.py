"""Every function on tensors whose extents, or whose rank, are only known when they are fed: the numbers and gradients
of known shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from scipy import special

import jitgrad as jg
from jitgrad import pytree
from jitgrad.spec import is_inexact
from tests import test_array_functions, test_functions, test_indexing, test_nn

Case = tuple[str, Callable[..., Any], list[Any], dict[str, Any]]


def named(name: str) -> Callable[..., Any] | None:
    """The function of NumPy, SciPy or jitgrad of that name, as users call it."""
    for home in (np, special, jg, jg.nn):
        found: Any = home
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None


def cases() -> dict[str, Case]:
    """One row per call: its name, the function, the arguments."""
    found: dict[str, Case] = {}
    calls = [(name, list(args), kwargs) for name, args, kwargs in test_array_functions.calls]
    calls += [(row.values[0], list(row.values[2]), row.values[3]) for row in test_functions.rows]
    for name, args, kwargs in calls:
        fn = named(name)
        if fn is not None and any(isinstance(leaf, np.ndarray) for leaf in pytree.flatten(args)[0]):
            found[f"{len(found)} {name}"] = (name, fn, args, kwargs)
    for index in test_indexing.indices:
        found[f"{len(found)} [{str(index)[:40]}]"] = ("getitem", lambda x, i=index: x[i], [test_indexing.X], {})
    for name, (fn, arrays, _) in test_nn.formulas.items():
        found[f"{len(found)} {name}"] = (name, fn, list(arrays), {})
    return found


CASES = cases()
SHAPES: dict[str, Callable[[Any], Any]] = {
    "known": lambda a: a.shape,
    "extents": lambda a: (None,) * a.ndim,
    "rank": lambda a: None,
}


def results(case: Case, shapes: str, order: int, is_compiled: bool) -> list[Any]:
    """What a call gives, and its gradients."""
    _, fn, args, kwargs = case
    feeds: dict[Any, Any] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [stand_in(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        x = jg.placeholder(value.dtype, SHAPES[shapes](value))
        feeds[x] = value
        return x

    with jg.Graph().as_default(), jg.jit_scope() if is_compiled else nullcontext():
        made = fn(*map(stand_in, args), **{key: stand_in(value) for key, value in kwargs.items()})
        fetches = [y for y in pytree.flatten(made)[0] if isinstance(y, jg.Tensor)]
        xs = [x for x in feeds if is_inexact(x.dtype)]
        level = [y for y in fetches if is_inexact(y.dtype)]
        for _ in range(order):
            losses = [np.sum(np.sin(np.real(y))) for y in level]
            level = [g * 1.0 for g in jg.gradients(losses, xs) if g is not None] if losses and xs else []
            fetches += level
        return [np.asarray(value) for value in jg.Session().run(fetches, feeds)]


@functools.cache
def wanted(name: str, order: int, is_compiled: bool) -> list[Any] | type[Exception]:
    """What a call gives, or refuses, for known shapes."""
    try:
        return results(CASES[name], "known", order, is_compiled)
    except (jg.GradientError, jg.UnsupportedOpError, jg.TracedValueError) as error:
        return type(error)


def check(name: str, shapes: str, order: int = 1, is_compiled: bool = False) -> None:
    """The call gives what it gives for known shapes, or refuses what it refuses there."""
    expected = wanted(name, order, is_compiled)
    if not isinstance(expected, list):
        with pytest.raises(expected):
            results(CASES[name], shapes, order, is_compiled)
        return
    found = results(CASES[name], shapes, order, is_compiled)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        tolerance = 1e-9 if ours.dtype.itemsize > 4 else 1e-4
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 10)


def depends_on_the_rank(case: Case) -> bool:
    """Whether the call has a result per axis."""
    return case[0] == "gradient" and "axis" not in case[3] and len(case[2]) <= 2


@pytest.mark.quick
@pytest.mark.parametrize("shapes", ["extents", "rank"])
@pytest.mark.parametrize("case", CASES)
def test_every_function(case: str, shapes: str) -> None:
    if shapes == "rank" and depends_on_the_rank(CASES[case]):
        with pytest.raises(jg.ShapeError, match=r"(?s)how many results.*test_unknown_shapes.*hint"):
            check(case, shapes)
    else:
        check(case, shapes)


# One call of each function, where gradients of gradients and machine code are cheap enough for a test.
FIRST = {case[0]: name for name, case in reversed(CASES.items()) if not depends_on_the_rank(case)}


@pytest.mark.parametrize("shapes", ["extents", "rank"])
@pytest.mark.parametrize("name", FIRST)
def test_one_call_of_each_function_compiled_to_second_order(name: str, shapes: str) -> None:
    check(FIRST[name], shapes, order=2, is_compiled=True)
