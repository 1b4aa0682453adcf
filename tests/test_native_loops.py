"""Control ops as native loops: compiled equals interpreted, in all forms and nested, and what a loop may not do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loop_programs import call, check, cond, scan, while_gradient, while_loop

from jitgrad.config import config
from jitgrad.executable import Executable
from jitgrad.ops.common import as_tensor

X = np.linspace(-1, 1, 30).reshape(10, 3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_scan(length: int, reverse: bool) -> None:
    def body(w: Any, h: Any, x: Any) -> Any:
        h = np.tanh(h * w + x)
        return h, h * 2, x + w

    def function(w: Any, h: Any, xs: Any) -> Any:
        return scan(body, [h], [xs], [w], reverse=reverse)

    check(function, np.array([0.5, 2.0, -1.0]), np.zeros(3), X[:length])


def test_scan_of_counts_and_small_dtypes() -> None:
    def body(n: Any, flag: Any, total: Any, x: Any) -> Any:
        return n + 1, np.logical_xor(flag, x > 0), total + x, n * 2, flag

    def function(n: Any, flag: Any, total: Any, xs: Any) -> Any:
        return scan(body, [n, flag, total], [xs])

    check(function, np.int32(3), np.bool_(True), np.float32(0.5), X[:, 0].astype(np.float32))


def test_state_passed_through_swapped_and_overwritten() -> None:
    def body(a: Any, b: Any, kept: Any, c: Any, d: Any, x: Any) -> Any:
        return b, a, kept, d * 0 + 1, x, a, x, a, kept

    def function(*inputs: Any) -> Any:
        return scan(body, inputs[:5], inputs[5:])

    check(function, np.float64(1), np.float64(2), np.arange(3.0), np.float64(3), np.float64(4), X[:7, 0])


def test_state_that_is_the_same_value_twice_and_views() -> None:
    def body(a: Any, b: Any, c: Any) -> Any:
        s = a + b
        return s, s, np.reshape(s, (3, 2)), np.reshape(s, (6,)), s, np.reshape(a, (6,)), c

    def function(*inputs: Any) -> Any:
        return scan(body, inputs, length=4)

    check(function, np.ones((2, 3)), np.full((2, 3), 2.0), np.zeros((3, 2)))


def test_constants_as_state_and_items() -> None:
    def body(a: Any, b: Any) -> Any:
        return a * 0 + 2.0, b + a, np.zeros(3), np.zeros(3) + 1

    def function(b: Any) -> Any:
        return scan(body, [np.zeros(3) * b, b], length=3)

    check(function, np.arange(3.0))


def test_literal_init_and_output() -> None:
    def function(x: Any) -> Any:
        zero, one = as_tensor(np.zeros(3)), as_tensor(np.float64(1))
        return scan(lambda a, b, item: (a + item, np.float64(3), np.zeros(3)), [zero, one], [x])

    check(function, X)


def is_one_kernel(executable: Executable) -> bool:
    """Whether the scan of a program is one kernel."""
    return "(one kernel)" in executable.explanation.fusion


def test_scans_over_numbers_are_one_kernel() -> None:
    def body(table: Any, a: Any, n: Any, flag: Any, x: Any) -> Any:
        step = np.take(table, n) + x[1]
        return np.where(flag, a * 0.5 + step, step), (n + 1) % 3, a > 0.25, a, step, x[0], n

    def function(table: Any, a: Any, n: Any, flag: Any, xs: Any) -> Any:
        return [*scan(body, [a, n, flag], [xs], [table]), *scan(body, [a, n, flag], [xs], [table], reverse=True)]

    x = X.astype(np.float32)
    assert is_one_kernel(check(function, x[0], np.float32(0.5), np.int64(1), np.bool_(False), x))


@pytest.mark.parametrize("width", [1, 11, 64, 1000])
def test_scans_element_by_element_are_one_kernel(width: int) -> None:
    def body(w: Any, s: Any, h: Any, c: Any, x: Any) -> Any:
        c = np.tanh(h * w + x) / s + c
        return np.sqrt(c * c + 1), c, x, h * s, c > 0

    def function(w: Any, s: Any, h: Any, c: Any, xs: Any) -> Any:
        return [*scan(body, [h, c], [xs], [w, s]), *scan(body, [c, h], [xs], [w, s], reverse=True)]

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) for shape in ((width,), (), (width,), (width,), (9, width))]
    executable = check(function, *arrays)
    assert is_one_kernel(executable)
    results = []
    for threads in (1, 2, 3):
        with config(num_threads=threads):
            results.append([r.tobytes() for r in executable(arrays)])
    assert results[1:] == results[:-1]


def test_arrays_that_a_body_of_numbers_does_not_touch() -> None:
    def body(a: Any, b: Any, n: Any, m: Any) -> Any:
        return b, a, n * 2 + m, n, a, b

    check(lambda a, b, n, m: scan(body, [a, b, n, m], length=5), X[0], X[1], np.float64(1), np.float64(2))
    check(lambda a, b, h, m: scan(body, [a, b, h, m], length=5), X[0], X[1], X[2], X[3])


def test_what_is_around_a_loop_shares_its_call() -> None:
    def function(x: Any, xs: Any) -> Any:
        y = np.exp(x) @ np.exp(x).T
        h, ys = scan(lambda h, item: (np.tanh(h + item), h * item), [y[0]], [np.sin(xs)])
        return h * 2, np.sum(ys * ys, axis=0), y, ys[::-1]

    check(function, X[:3], X[:, :3])


@pytest.mark.parametrize("start", [2.0, 200.0])
def test_while(start: float) -> None:
    def function(v: Any, n: Any) -> Any:
        return while_loop(lambda v, n: [v < 100], lambda v, n: (v * v, n + 1), [v, n])

    check(function, np.float64(start), np.int64(0))


def test_condition_is_a_part_of_the_state() -> None:
    def function(go: Any, n: Any, most: Any) -> Any:
        return while_loop(lambda most, go, n: [go], lambda most, go, n: (n < most, n + 1), [go, n], [most])

    check(function, np.bool_(True), np.int32(0), np.int32(5))


def test_while_gradient() -> None:
    def function(scale: Any, v: Any, g: Any, gs: Any) -> Any:
        return while_gradient(
            lambda s, v: [v[0] < 1e6], lambda s, v: (v * s + 1, v, np.sum(v)),
            lambda s, v, total, g, gs: (g * s, gs + np.sum(g * v) + total), [v], [g, gs], [scale],
        )  # fmt: skip

    check(function, np.float64(1.5), np.arange(1.0, 4.0), np.ones(3), np.float64(0))


@pytest.mark.parametrize("steps", [0, 1, 10, 2000, 50_000])
def test_stack_grows(steps: int) -> None:
    def function(n: Any, x: Any, g: Any) -> Any:
        return while_gradient(
            lambda n, x: [n > 0], lambda n, x: (n - 1, np.sin(x) + 1, x, n),
            lambda x, n, g: [np.cos(x) * g + n], [n, x], [g],
        )  # fmt: skip

    check(function, np.int64(steps), np.array([0.5, 0.25, 0.125]), np.ones(3))


@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "i8", "u2", "u8"])
def test_cond(dtype: str) -> None:
    def function(index: Any, x: Any, y: Any) -> Any:
        branches = [lambda x, y: (x + y, x, y), lambda x, y: (x * y, y, y), lambda x, y: (np.sum(x) + y, x * 0, x)]
        return cond(index, branches, [x, y])

    values = [0, 1] if dtype == "?" else [0, 1, 2, 7] + ([] if dtype[0] == "u" else [-3])
    for value in values:
        check(function, np.array(value).astype(dtype), X[0], X[1])


def test_call() -> None:
    def function(x: Any, y: Any) -> Any:
        a, b = call(lambda x, y: (np.exp(x) + y, y), [x, y])
        return a * b, np.exp(x)

    check(function, X[0], X[1])


def test_loops_in_loops() -> None:
    def inner(scale: Any, h: Any, x: Any) -> Any:
        return [np.tanh(h * scale + x)]

    def outer(h: Any, n: Any, row: Any) -> Any:
        (h2,) = scan(inner, [h], [row], [h * 0.5 + 1])
        v, _ = while_loop(
            lambda n, v, k: [np.logical_and(v < 10, k < n)], lambda n, v, k: (v * 1.5 + 1, k + 1), [h2, n * 0], [n]
        )
        short = [lambda v, h: [v + h], lambda v, h: scan(lambda v, h: (v * 0.5, h), [v, h], length=3)[:1]]
        (w,) = cond(n > 2, short, [v, h])
        return w, n + 1, v, call(lambda v: [v * v + np.exp(-v)], [v])[0]

    def function(h: Any, xs: Any) -> Any:
        return scan(outer, [h, np.sum(xs > 9)], [xs])

    check(function, np.float64(0.25), X)


def test_large_bodies_run_in_parallel_and_the_same_for_any_number_of_threads() -> None:
    def body(w: Any, h: Any, total: Any) -> Any:
        h = np.tanh(h @ w + np.sin(h) * 0.1)
        return h, total + np.sum(np.exp(h))

    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(400, 100)), rng.normal(size=(100, 100)) * 0.1, np.float64(0)
    executable = check(lambda h, w, t: scan(body, [h, t], consts=[w], length=5), *arrays)
    results = []
    for threads in (1, 2, 3, 4):
        with config(num_threads=threads):
            results.append([r.tobytes() for r in executable(arrays)])
    assert results[1:] == results[:-1]
