"""Control flow: values and gradients of any order of cond, while_loop, fori_loop and scan, in NumPy's meaning."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

Fn = Callable[..., Any]


def second_difference(fn: Fn, x: float, h: float = 1e-5) -> float:
    """The derivative of the gradient, by central differences."""
    return float((jg.grad(fn)(x + h) - jg.grad(fn)(x - h)) / (2 * h))


def check(fn: Fn, x: float, value: float, first: float, second: float | None = None) -> None:
    """Value, gradient and second derivative of a scalar function, interpreted and compiled, and its tangent."""
    for wrap in (lambda f: f, jg.compile):
        assert wrap(fn)(x) == pytest.approx(value, rel=1e-12)
        assert wrap(jg.grad(fn))(x) == pytest.approx(first, rel=1e-12)
        found = wrap(jg.grad(jg.grad(fn)))(x)
        assert found == pytest.approx(second_difference(fn, x) if second is None else second, rel=1e-6, abs=1e-6)
    assert jg.jvp(fn, (x,), (1.0,))[1] == pytest.approx(first, rel=1e-12)


def until_100(v: Any) -> Any:
    """The state squared until it is at least 100."""
    return jg.while_loop(lambda v: v < 100, lambda v: v * v, v)


# The table of loop gradients that graphs with loops are known by.
REFERENCE: list[tuple[str, Fn, float, float, float, float | None]] = [
    ("square until 100", until_100, 2.0, 256.0, 1024.0, 3584.0),
    ("its square", lambda v: until_100(v) ** 2, 2.0, 65536.0, 524288.0, 16 * 15 * 2.0**14),
    ("times a, by a", lambda a: jg.while_loop(lambda v: v < 100, lambda v: v * a, 2.0), 3.0, 162.0, 216.0, 216.0),
    ("times a, by v", lambda v: jg.while_loop(lambda v: v < 100, lambda v: v * 3.0, v), 2.0, 162.0, 81.0, 0.0),
    ("no step", lambda v: jg.while_loop(lambda v: v < 1, lambda v: v * v, v), 2.0, 2.0, 1.0, 0.0),
    (
        "nested",
        lambda v: jg.while_loop(
            lambda s: s < 50, lambda s: jg.while_loop(lambda t: t < 8, lambda t: t * v, s) * v, v
        ),
        3.0, 81.0, 108.0, 108.0,
    ),
    (
        "cond in a loop",
        lambda x: jg.fori_loop(0, 4, lambda i, s: jg.cond(i % 2 == 0, lambda: s * x, lambda: s + x), 1.0),
        2.0, 14.0 - 4.0, 9.0, None,
    ),
    (
        "loop in a cond",
        lambda x: jg.cond(x > 0, lambda: jg.fori_loop(0, 3, lambda i, s: s * x, x), lambda: x), 2.0, 16.0, 32.0, 48.0,
    ),
    (
        "one loop after another", lambda v: jg.while_loop(lambda s: s < 1000, lambda s: 2 * s, until_100(v)),
        2.0, 1024.0, 4096.0, 14336.0,
    ),
    (
        "loops side by side", lambda v: until_100(v) + jg.while_loop(lambda s: s < 10, lambda s: 3 * s, v),
        2.0, 274.0, 1033.0, 3584.0,
    ),
    ("overwritten by a constant", lambda x: jg.fori_loop(0, 3, lambda i, s: 7.0, x) + 0 * x, 2.0, 7.0, 0.0, 0.0),
    (
        "two outputs as ys",
        lambda x: sum(jg.while_loop(lambda s: s[0] < 20, lambda s: (s[0] * x, s[1] + s[0]), (x, x))),
        3.0, 27.0 + 3 + 3 + 9, 27.0 + 1 + 1 + 6, None,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "x", "value", "first", "second"), [row[1:] for row in REFERENCE],
                         ids=[row[0] for row in REFERENCE])  # fmt: skip
def test_reference_gradients(fn: Fn, x: float, value: float, first: float, second: float | None) -> None:
    check(fn, x, value, first, second)


def test_scan_with_items_and_constants() -> None:
    xs = np.linspace(-1, 1, 7)

    def f(a: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            c = np.tanh(c * a + x)
            return c, c * c

        c, ys = jg.scan(step, 0.3, xs)
        return c + np.sum(ys)

    def loop(a: float, xs: Any) -> float:
        c, total = 0.3, 0.0
        for x in xs:
            c = np.tanh(c * a + x)
            total += c * c
        return float(c + total)

    assert f(0.5, xs) == pytest.approx(loop(0.5, xs))
    assert jg.compile(f)(0.5, xs) == pytest.approx(loop(0.5, xs))
    da, dxs = jg.compile(jg.grad(f, (0, 1)))(0.5, xs)
    h = 1e-6
    assert da == pytest.approx((loop(0.5 + h, xs) - loop(0.5 - h, xs)) / (2 * h), rel=1e-7)
    steps = h * np.eye(7)
    differences = [(loop(0.5, xs + d) - loop(0.5, xs - d)) / (2 * h) for d in steps]
    np.testing.assert_allclose(dxs, differences, rtol=1e-6)
    first = jg.grad(f)
    assert jg.grad(first)(0.5, xs) == pytest.approx((first(0.5 + h, xs) - first(0.5 - h, xs)) / (2 * h), rel=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("every", [1, 3, 10, 100])
def test_checkpoints_change_nothing(every: int, reverse: bool) -> None:
    xs = np.linspace(0.5, 1.5, 10)

    def total(a: Any, every: int | None) -> Any:
        step = lambda c, x: (np.sin(c * a + x), c * x)  # noqa: E731
        c, ys = jg.scan(step, a, xs, reverse=reverse, checkpoint_every=every)
        return c * np.sum(ys)

    for order in (lambda f: f, jg.grad, lambda f: jg.grad(jg.grad(f))):
        assert order(lambda a: total(a, every))(1.1) == pytest.approx(order(lambda a: total(a, None))(1.1), rel=1e-12)


def test_branches_keep_their_nans_to_themselves() -> None:
    f = lambda x: jg.cond(x > 0, lambda: np.log(x), lambda: x * x)  # noqa: E731
    check(f, 2.0, np.log(2.0), 0.5, -0.25)
    check(f, -2.0, 4.0, -4.0, 2.0)
    assert jg.grad(f)(0.0) == 0.0


def test_unknown_lengths_and_feeds() -> None:
    graph = jg.Graph()
    with graph.as_default():
        xs, a = jg.placeholder(np.float64, (None,)), jg.placeholder(np.float64, ())
        c, ys = jg.scan(lambda c, x: (c * a + x, c), 0.0, xs)
        da, dxs = jg.gradients([c, ys], [a, xs])
    session = jg.Session(graph)
    for n in (4, 3):
        got = session.run([c, da, dxs], {xs: np.arange(float(n)), a: 2.0})
        expected = np.polyval(np.arange(float(n)), 2.0)
        assert got[0] == pytest.approx(expected)
        assert got[2].shape == (n,)


def test_gradients_inside_a_body() -> None:
    def f(x: Any) -> Any:
        return jg.fori_loop(0, 3, lambda i, s: s - 0.1 * jg.grad(lambda t: t**4 * x)(s), x)

    h = 1e-6
    assert jg.grad(f)(1.2) == pytest.approx((f(1.2 + h) - f(1.2 - h)) / (2 * h), rel=1e-6)
    graph = jg.Graph()
    with graph.as_default():
        x = jg.placeholder(np.float64, ())
        y = jg.fori_loop(0, 2, lambda i, s: jg.gradients(s * s * x, [s, x])[0], x)
        (dx,) = jg.gradients(y, [x])
    assert jg.Session(graph).run([y, dx], {x: 3.0}) == [108.0, 108.0]


def test_newtons_iteration_has_the_derivative_of_the_root() -> None:
    """x + log(x) = a: the gradient through the iterations is that of the root, x/(1 + x), and so is the next one."""

    def root(a: Any) -> Any:
        step = lambda x: x - (x + np.log(x) - a) / (1 + 1 / x)  # noqa: E731
        return jg.while_loop(lambda x: np.abs(x + np.log(x) - a) > 1e-13, step, 1.0, maximum_iterations=50)

    for way in (lambda f: f, jg.compile):
        x = way(root)(3.0)
        assert x + np.log(x) == pytest.approx(3.0, rel=1e-13)
        assert way(jg.grad(root))(3.0) == pytest.approx(x / (1 + x), rel=1e-12)
        assert way(jg.hessian(root))(3.0) == pytest.approx(x / (1 + x) ** 3, rel=1e-8)
        assert way(lambda a: jg.jvp(root, (a,), (1.0,))[1])(3.0) == pytest.approx(x / (1 + x), rel=1e-12)


def test_checkpoints_take_keyword_arguments() -> None:
    def scaled(x: Any, *, by: Any) -> Any:
        return np.sum(np.sin(x) * by["k"])

    def loss(x: Any, fn: Any = scaled) -> Any:
        return fn(x, by={"k": x * x})

    def again(x: Any) -> Any:
        return loss(x, jg.checkpoint(scaled))

    x = np.array([0.5, 1.0])
    assert jg.checkpoint(scaled)(x, by={"k": 2.0}) == scaled(x, by={"k": 2.0})
    np.testing.assert_allclose(jg.compile(jg.grad(again))(x), jg.grad(loss)(x), rtol=1e-14)
    np.testing.assert_allclose(jg.hessian(again)(x), jg.hessian(loss)(x), rtol=1e-14)


def test_checkpoints_save_memory() -> None:
    """The peak of a gradient over n steps: that of n with all steps kept, of 2 sqrt(n) with checkpoints."""
    n, x = 2500, np.linspace(0.1, 1.0, 100)

    def last(a: Any, every: int | None) -> Any:
        step = lambda c, _: (np.tanh(c * a) + 0.01 * c, None)  # noqa: E731
        return np.sum(jg.scan(step, x, None, n, checkpoint_every=every)[0])

    peaks = {}
    for every in (None, 50):
        run = jg.compile(jg.grad(lambda a, every=every: last(a, every)))
        run.interpret(1.05)
        tracemalloc.start()
        run.interpret(1.05)
        peaks[every] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[None] > n * x.nbytes and peaks[50] < 6 * 50 * x.nbytes


def test_what_is_saved_is_what_the_rules_need() -> None:
    """Per step: a factor for the gradient of the other, tanh for its own; nothing for a sum."""
    for body, saved in (
        (lambda c, a: c + a, 0), (lambda c, a: c * a, 1), (lambda c, a: np.tanh(c), 1),
        (lambda c, a: np.tanh(c) * a, 1), (lambda c, a: (np.tanh(c) + 1) / 2 - c, 1), (lambda c, a: np.exp(-c) * 2, 1),
    ):  # fmt: skip
        f = lambda x, a, body=body: jg.fori_loop(0, 9, lambda i, c: body(c, a), x)  # noqa: E731
        text = str(jg.compile(jg.grad(f, (0, 1))).explain(0.3, 0.5).program)
        loops = [line for line in text.splitlines() if line.startswith("  %") and "= scan(" in line]
        assert sum(line.count("f64[9]") for line in loops if "reverse=False" in line) == saved, text


def test_conditions_may_be_numbers() -> None:
    down = lambda n: jg.while_loop(lambda s: s, lambda s: s - 256, n)  # noqa: E731
    sign = lambda n, x: jg.cond(n, lambda: x, lambda: -x)  # noqa: E731
    for wrap in (lambda f: f, jg.compile, lambda f: jg.compile(f).interpret):
        assert wrap(down)(np.int64(1024)) == 0
        assert wrap(sign)(np.int64(-1), 1.0) == 1.0
        assert wrap(lambda i: jg.switch(i, [lambda: 1.0, lambda: 2.0]))(np.uint64(2**63 + 5)) == 2.0


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * jg.fori_loop(0, 3, lambda i, s: s * 2.0, 1.0),
        lambda x: x * jg.while_loop(lambda s: s < 10, lambda s: s * 2.0, 1.0),
        lambda x: x * jg.cond(x[0] > 0, lambda: 1.5, lambda: 2.5),
        lambda x: jg.fori_loop(0, 3, lambda i, c: c + x * i, x),
        lambda x: jg.fori_loop(0, 6, lambda i, s: (x[0] * 1.0, *s[:4]), (0, 0, 0, 0, 0))[4],
    ],
)
def test_python_numbers_give_way_behind_loops(fn: Fn) -> None:
    x = np.ones(3, np.float32)
    assert fn(x).dtype == jg.compile(fn)(x).dtype == np.float32
    np.testing.assert_array_equal(fn(x), jg.compile(fn)(x))


def test_rules_may_read_from_outside() -> None:
    def f(x: Any) -> Any:
        @jg.custom_gradient
        def sine(a: Any) -> Any:
            return np.sin(a), lambda g: g * np.cos(a) + 0 * x

        return jg.scan(lambda c, _: (sine(c), None), x, np.arange(3.0))[0].sum()

    x = np.array([0.3, 0.4])
    np.testing.assert_allclose(jg.grad(f)(x), jg.grad(lambda x: np.sin(np.sin(np.sin(x))).sum())(x))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: jg.while_loop(lambda s: s < 3, lambda s: s + 1, 0, maximum_iterations=-1), ValueError, "negative"),
        (lambda: jg.scan(lambda c, _: (c, None), 0.0, None, -1), ValueError, "length=-1 is negative"),
        (lambda: jg.fori_loop(0, 2.5, lambda i, s: s, 1.0), TypeError, "fori_loop counts in integers"),
    ],
)
def test_numbers_of_steps_are_checked(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
    with pytest.raises(error, match=text):
        jg.compile(lambda x: call())(1.0)


def test_the_first_failure_is_told() -> None:
    def written(n: Any) -> Any:
        return jg.fori_loop(0, n, lambda i, a: a.write(i, 1.0), jg.TensorArray(np.float64, 4)).stack()

    for run in (jg.compile(written), jg.compile(written).interpret):
        with pytest.raises(IndexError):
            run(np.int64(5))


@pytest.mark.parametrize("make", [np.array, jg.asarray])
def test_loops_on_values_keep_the_dtype_of_their_state(make: Any) -> None:
    with pytest.raises(jg.DTypeError, match=r"changes state from i64\[2\] to f64\[2\]"):
        jg.fori_loop(0, 3, lambda i, c: c + 1.5, make([0, 0]))
    with pytest.raises(jg.DTypeError, match=r"changes carry.* from f32\[2\] to f64\[2\]|from f32\[2\] to f64\[2\]"):
        jg.scan(lambda c, x: (c + x, c), make(np.zeros(2, np.float32)), np.ones((3, 2)))
    assert jg.fori_loop(0, 3, lambda i, c: c + 1.5, 0) == 4.5


def test_the_gradient_of_a_scan_loads_no_other_rules() -> None:
    code = (
        "import sys, numpy as np, jitgrad as jg\n"
        "f = jg.compile(jg.grad(lambda c: jg.scan(lambda c, x: (c * x, c), c, np.ones(3))[0]))\n"
        "f.explain(1.5); print('jitgrad.control.rules' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
