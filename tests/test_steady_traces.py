"""What surrounds calls that machine code takes: traces, blocks, methods, the cache of traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.calls import max_traces
from tests.watched_calls import Watched, X, no_trace_is_left_open, same


def test_calls_inside_a_trace_are_traced() -> None:
    traced = []

    def cube(x: Any) -> Any:
        traced.append(x)
        return x**3

    f = Watched(cube)
    f.taken(X)
    same(jg.compile(lambda x: x * f(X))(X), X * X**3)
    assert len(traced) == 2
    same(jg.grad(lambda x: np.sum(f(x)))(X), 3 * X**2)
    same(f.third(X), X**3)


def test_after_a_trace_that_failed() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    with pytest.raises(ZeroDivisionError):
        jg.compile(lambda x: 1 // 0)(X)
    f.third(X)


def test_threads_of_a_block() -> None:
    f = Watched(lambda x: np.exp(x).sum())
    x = np.linspace(0, 1, 200_000)
    wanted = f.taken(x)
    with jg.config(num_threads=1):
        same(f.third(x), wanted)
        with jg.config(num_threads=3):
            same(f.third(x), wanted)
    before = jg.get_num_threads()
    try:
        jg.set_num_threads(1)
        same(f.third(x), wanted)
    finally:
        jg.set_num_threads(before)
    same(f.third(x), wanted)


def test_a_position_out_of_bounds_raises_and_the_next_call_is_right() -> None:
    f = Watched(lambda x, i: x[i])
    inside, outside = np.array([1, 2]), np.array([1, 7])
    f.taken(X, inside)
    with pytest.raises(IndexError, match="out of bounds"):
        f.third(X, outside)
    same(f.third(X, inside), X[inside])


def test_programs_of_several_parts() -> None:
    """What is no single cluster is run by Python, with arguments checked by machine code."""

    def fn(x: Any, n: Any) -> Any:
        return jg.py_func(lambda v: v + 1, [x * n], [np.float64]) * 2

    f = Watched(fn if hasattr(jg, "py_func") else lambda x, n: np.sort(x * n) * 2)
    same(f.taken(X, 3.0), f.f.interpret(X, 3.0))
    same(f.third(X * 2, 4.0), f.f.interpret(X * 2, 4.0))


def test_a_function_that_returns_its_argument() -> None:
    f = Watched(lambda x: x)
    y = f.taken(X)
    same(y, X)
    assert y is not X
    assert not np.shares_memory(y, X)


def test_methods() -> None:
    class Model:
        scale = 3.0

        @jg.compile
        def apply(self, x: Any) -> Any:
            return x * self.scale

    model = Model()
    for _ in range(4):
        same(model.apply(X), X * 3)


# -- the cache of traces -------------------------------------------------------------------------------------


def test_calls_by_machine_code_count_as_use() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    for n in range(max_traces + 6):
        f(np.ones(n + 10))
        f.third(X)
    assert f.f.cache_info().traces == max_traces + 7


def test_a_dropped_trace_is_not_taken() -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    for n in range(max_traces):
        f(np.ones(n + 10))
    traces = f.f.cache_info().traces
    same(f.left(X), X * 2)
    assert f.f.cache_info().traces == traces + 1


def test_many_ways_to_write_a_call() -> None:
    f = Watched(lambda **options: sum(options.values()))
    names = [f"n{k}" for k in range(100)]
    for name in names:
        f.taken(**{name: X})
        same(f.third(**{name: X}), X)


@pytest.fixture(autouse=True)
def _no_trace_is_left_open() -> Iterator[None]:
    yield
    no_trace_is_left_open()
