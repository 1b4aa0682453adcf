"""Passes over scans: what is saved for steps back, scans in a chain, products and sums for all steps at once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting import assert_linear, count_calls
from traced import bare, check_text, simplified, traced

import jitgrad as jg
from jitgrad.compiler.bodies.joining import join_instructions
from jitgrad.compiler.simplify import simplify
from jitgrad.compiler.subprograms import status_offsets
from jitgrad.program import Program

pytestmark = pytest.mark.quick

Fn = Callable[..., Any]
A, X = np.float64(0.5), np.linspace(-1.0, 1.0, 5)
RNG = np.random.default_rng(0)
W, U, ROWS = (RNG.normal(size=shape) * 0.3 for shape in ((4, 6), (6, 6), (5, 3, 4)))


def last_tanh(a: Any, xs: Any) -> Any:
    """The last state of a scan."""
    return jg.scan(lambda c, x: (np.tanh(c * a + x), None), 0.5, xs)[0]


def test_one_array_is_saved_of_a_tanh() -> None:
    def fn(a: Any, xs: Any) -> Any:
        return jg.grad(last_tanh, (0, 1))(a, xs)

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[5]) {
  %4 = constant(value=0.5) : f64[]
  %5 = constant(value=1.0) : f64[]
  %6, %7 = scan(%0, %4, %1, body=<f_saving>, length=5) : f64[], f64[5]
    program f_saving(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = multiply(%1, %0) : f64[]
      %4 = add(%3, %2) : f64[]
      %5 = tanh(%4) : f64[]
      return %5, %1
    }
  %9 = constant(value=0.0) : f64[]
  %10, %11, %13, %12 = scan(%0, %5, %9, %6, %7, body=<f_gradient>, reverse=True, length=5) : f64[], f64[], f64[], f64[5]
    program f_gradient(%0: f64[], %1: f64[], %2: f64[], %3: f64[], %4: f64[]) {
      %5 = multiply(%3, %3) : f64[]
      %6 = constant(value=1.0) : f64[]
      %7 = subtract(%6, %5) : f64[]
      %8 = multiply(%1, %7) : f64[]
      %9 = multiply(%8, %0) : f64[]
      %10 = multiply(%8, %4) : f64[]
      %11 = add(%2, %10) : f64[]
      return %9, %11, %4, %8
    }
  return %11, %12
}
""")  # fmt: skip


def test_steps_back_of_a_while_loop_compute_again() -> None:
    def fn(a: Any) -> Any:
        return jg.grad(lambda a: jg.while_loop(lambda s: s < 9, lambda s: s + a / (s * s), 1.0))(a)

    check_text(fn, (np.float64(1.5),), """
program main(%0: f64[]) {
  %2 = constant(value=1.0) : f64[]
  %4 = constant(value=0.0) : f64[]
  %5, %6 = while_gradient(%0, %2, %2, %4, cond=<f>, body=<f_saving>, back=<f_gradient>) : f64[], f64[]
    program f(%0: f64[], %1: f64[]) {
      %2 = constant(value=9.0) : f64[]
      %3 = less(%1, %2) : bool[]
      return %3
    }
    program f_saving(%0: f64[], %1: f64[]) {
      %2 = multiply(%1, %1) : f64[]
      %3 = divide(%0, %2) : f64[]
      %4 = add(%1, %3) : f64[]
      return %4, %1
    }
    program f_gradient(%0: f64[], %1: f64[], %2: f64[], %3: f64[]) {
      %4 = multiply(%1, %1) : f64[]
      %5 = divide(%0, %4) : f64[]
      %6 = divide(%2, %4) : f64[]
      %7 = multiply(%2, %5) : f64[]
      %8 = divide(%7, %4) : f64[]
      %9 = multiply(%8, %1) : f64[]
      %10 = negative(%9) : f64[]
      %11 = add_n(%10, %10, %2) : f64[]
      %12 = add(%3, %6) : f64[]
      return %11, %12
    }
  return %6
}
""")  # fmt: skip


def test_scans_in_a_chain_store_nothing() -> None:
    def fn(a: Any, xs: Any) -> Any:
        return jg.jvp(last_tanh, (a, xs), (a, xs))

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[5]) {
  %4 = constant(value=0.5) : f64[]
  %9 = constant(value=0.0) : f64[]
  %12, %15 = scan(%0, %4, %9, %1, body=<f>, length=5) : f64[], f64[]
    program f(%0: f64[], %1: f64[], %2: f64[], %3: f64[]) {
      %4 = multiply(%1, %0) : f64[]
      %5 = add(%4, %3) : f64[]
      %6 = tanh(%5) : f64[]
      %7 = multiply(%6, %6) : f64[]
      %8 = constant(value=1.0) : f64[]
      %9 = subtract(%8, %7) : f64[]
      %10 = multiply(%2, %0) : f64[]
      %11 = add_n(%10, %4, %3) : f64[]
      %12 = multiply(%11, %9) : f64[]
      return %6, %12
    }
  return %12, %15
}
""")  # fmt: skip


def test_windows_are_summed_by_themselves() -> None:
    def fn(p: Any) -> Any:
        return jg.grad(lambda p: jg.fori_loop(0, 3, lambda i, s: s * p[1] + p[4], 0.5))(p)

    check_text(fn, (X,), """
program main(%0: f64[5]) {
  %2 = constant(value=0.5) : f64[]
  %4 = constant(value=1.0) : f64[]
  %5, %6 = scan(%0, %2, body=<f_saving>, length=3) : f64[], f64[3]
    program f_saving(%0: f64[5], %1: f64[]) {
      %2 = getslice(%0, start=(1,), stop=(2,), step=(1,), drop=(0,)) : f64[]
      %3 = multiply(%1, %2) : f64[]
      %4 = getslice(%0, start=(4,), stop=(5,), step=(1,), drop=(0,)) : f64[]
      %5 = add(%3, %4) : f64[]
      return %5, %1
    }
  %7 = constant(value=0.0) : f64[]
  %9, %10, %11 = scan(%0, %4, %7, %7, %6, body=<f_gradient>, reverse=True, length=3) : f64[], f64[], f64[]
    program f_gradient(%0: f64[5], %1: f64[], %2: f64[], %3: f64[], %4: f64[]) {
      %5 = getslice(%0, start=(1,), stop=(2,), step=(1,), drop=(0,)) : f64[]
      %6 = multiply(%1, %5) : f64[]
      %7 = multiply(%1, %4) : f64[]
      %8 = add(%2, %7) : f64[]
      %9 = add(%3, %1) : f64[]
      return %6, %8, %9
    }
  %12 = unslice(%10, shape=(5,), start=(1,), stop=(2,), step=(1,), drop=(0,)) : f64[5]
  %13 = unslice(%11, shape=(5,), start=(4,), stop=(5,), step=(1,), drop=(0,)) : f64[5]
  %14 = add(%12, %13) : f64[5]
  return %14
}
""", exact=False)  # fmt: skip


def test_products_with_items_come_first() -> None:
    def fn(w: Any, u: Any, rows: Any) -> Any:
        return jg.scan(lambda h, x: (np.tanh(x @ w + h @ u), None), np.zeros((3, 6)), rows)[0]

    check_text(fn, (W, U, ROWS), """
program main(%0: f64[4,6], %1: f64[6,6], %2: f64[5,3,4]) {
  %3 = constant(value=0.0) : f64[3,6]
  %5 = reshape(%2, shape=(15, 4)) : f64[15,4]
  %6 = matmul(%5, %0, transpose_a=False, transpose_b=False) : f64[15,6]
  %7 = reshape(%6, shape=(5, 3, 6)) : f64[5,3,6]
  %8 = scan(%1, %3, %7, body=<f>, length=5) : f64[3,6]
    program f(%0: f64[6,6], %1: f64[3,6], %2: f64[3,6]) {
      %3 = matmul(%1, %0, transpose_a=False, transpose_b=False) : f64[3,6]
      %4 = add(%2, %3) : f64[3,6]
      %5 = tanh(%4) : f64[3,6]
      return %5
    }
  return %8
}
""", exact=False)  # fmt: skip


def test_products_for_stacks_and_sums_come_behind() -> None:
    def fn(w: Any, u: Any, rows: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            h, total = s
            h = np.cos(h) + x[:, :1]
            return (h, total + x.T @ h), h @ u

        return jg.scan(step, (np.zeros((3, 6)), w), rows)

    check_text(fn, (W, U, ROWS), """
program main(%0: f64[4,6], %1: f64[6,6], %2: f64[5,3,4]) {
  %3 = constant(value=0.0) : f64[3,6]
  %7, %8 = scan(%3, %2, body=<step>, length=5) : f64[3,6], f64[5,3,6]
    program step(%0: f64[3,6], %1: f64[3,4]) {
      %2 = cos(%0) : f64[3,6]
      %3 = getslice(%1, start=(0, 0), stop=(3, 1), step=(1, 1), drop=()) : f64[3,1]
      %4 = broadcast_to(%3, shape=(3, 6)) : f64[3,6]
      %5 = add(%2, %4) : f64[3,6]
      return %5, %5
    }
  %9 = reshape(%8, shape=(15, 6)) : f64[15,6]
  %10 = matmul(%9, %1, transpose_a=False, transpose_b=False) : f64[15,6]
  %11 = reshape(%10, shape=(5, 3, 6)) : f64[5,3,6]
  %12 = reshape(%2, shape=(15, 4)) : f64[15,4]
  %14 = matmul(%12, %9, transpose_a=True, transpose_b=False) : f64[4,6]
  %15 = add(%0, %14) : f64[4,6]
  return %7, %15, %11
}
""", exact=False)  # fmt: skip


def test_what_a_loop_needs_at_each_step_is_made_behind_it_too() -> None:
    """The limit 0.2 is a constant of the body, for the sine and for what only the gradient of ``c`` needs."""

    def fn(s: Any, c: Any) -> Any:
        def step(k: Any, s: Any) -> Any:
            return np.sin(s + np.where(s @ c > 0.2, c[k], c[k] @ np.floor(c)))

        return np.sum(jg.fori_loop(0, 2, step, s))

    c = np.random.default_rng(0).standard_normal((4, 4))
    f = jg.compile(jg.grad(fn, 1))
    np.testing.assert_allclose(f(c * 0.5, c), f.interpret(c * 0.5, c), rtol=1e-12)


def test_small_arrays_are_numbers() -> None:
    def fn(p: Any) -> Any:
        def body(y: Any) -> Any:
            return y + 0.1 * np.stack([p[0] * y[0] - y[1], p[1] * y[1] * y[0]])

        return jg.while_loop(lambda y: np.sum(y) < 9, body, p)

    check_text(fn, (np.array([1.5, 2.0]),), """
program main(%0: f64[2]) {
  %2 = getslice(%0, start=(0,), stop=(1,), step=(1,), drop=(0,)) : f64[]
  %3 = getslice(%0, start=(1,), stop=(2,), step=(1,), drop=(0,)) : f64[]
  %4, %5 = while_loop(%0, %2, %3, cond=<f>, body=<body>) : f64[], f64[]
    program f(%0: f64[2], %1: f64[], %2: f64[]) {
      %3 = constant(value=0.0) : f64[]
      %4 = add_n(%3, %1, %2) : f64[]
      %5 = constant(value=9.0) : f64[]
      %6 = less(%4, %5) : bool[]
      return %6
    }
    program body(%0: f64[2], %1: f64[], %2: f64[]) {
      %3 = getslice(%0, start=(0,), stop=(1,), step=(1,), drop=(0,)) : f64[]
      %4 = multiply(%3, %1) : f64[]
      %5 = subtract(%4, %2) : f64[]
      %6 = getslice(%0, start=(1,), stop=(2,), step=(1,), drop=(0,)) : f64[]
      %7 = multiply(%6, %2) : f64[]
      %8 = multiply(%7, %1) : f64[]
      %9 = constant(value=0.1) : f64[]
      %10 = multiply(%9, %5) : f64[]
      %11 = multiply(%9, %8) : f64[]
      %12 = add(%1, %10) : f64[]
      %13 = add(%2, %11) : f64[]
      return %12, %13
    }
  %6 = stack(%4, %5, axis=0) : f64[2]
  return %6
}
""", exact=False)  # fmt: skip


def small_steps(p: Any, xs: Any) -> Any:
    """All that can be taken apart: moves, sums, products and constants of a few numbers."""

    def step(s: Any, x: Any) -> Any:
        y, m = s
        z = np.concatenate([y[::-1], np.tanh(x[None] * p[:1]), np.array([0.5])])
        m = m @ (np.array([[0.1, -0.2], [0.3, 0.4]]) * p[2]) + np.reshape(z, (2, 2)).T
        y = np.sin(np.sum(m, axis=0)) * np.max(y) + np.pad(z[1:2], (1, 0))
        return (y, m), (y * x, np.sum(z))

    (y, m), (ys, zs) = jg.scan(step, (p[:2], np.ones((2, 2))), xs)
    return np.sum(y * m) + np.sum(ys**2) + np.sum(zs)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def lstm(w: Any, u: Any, rows: Any) -> Any:
    """A loss of a recurrent network with two gates."""

    def step(s: Any, x: Any) -> Any:
        h, c = s
        z = x @ w + np.tanh(h @ u)
        c = sigmoid(z) * c + np.sin(z)
        return (sigmoid(c) * h + c, c), (h, c)

    (h, c), ys = jg.scan(step, (np.zeros((3, 6)), np.ones((3, 6))), rows)
    return np.sum(h * c) + np.sum(ys[0] * ys[1])


def shifted(a: Any, xs: Any) -> Any:
    """States that hand on to one another, and stacks of them that are read outside as well."""

    def step(s: Any, x: Any) -> Any:
        p, q, r = s
        return (np.sin(p * a) + x, p, q * r), (p, q * x)

    final, ys = jg.scan(step, (a, a * a, 1.0), xs, reverse=True)
    return final[2] * final[0] + np.sum(ys[0] ** 2) + np.sum(np.cos(ys[1]))


def variance(p: Any, r: Any) -> Any:
    """The likelihood of a GARCH model."""

    def step(h: Any, x: Any) -> Any:
        h = p[0] + p[1] * x * x + p[2] * h
        return h, np.log(h) + x * x / h

    return np.sum(jg.scan(step, 1.0, r)[1])


MODELS: list[tuple[Fn, tuple[Any, ...]]] = [
    (lstm, (W, U, ROWS)), (small_steps, (np.array([0.1, 0.2, 0.7]), X)),
    (shifted, (A, X)), (variance, (np.array([0.1, 0.2, 0.7]), X)), (last_tanh, (A, X)),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "args"), MODELS, ids=[fn.__name__ for fn, _ in MODELS])
def test_derivatives_of_models(fn: Fn, args: tuple[Any, ...]) -> None:
    every = tuple(range(len(args)))
    first = jg.value_and_grad(fn, every)
    for derived in (first, lambda *x: jg.jvp(fn, x, x), lambda *x: jg.hvp(fn, x, x), lambda *x: jg.jvp(first, x, x)):
        simplified(derived, *args, exact=False)


def stacks(program: Program) -> list[int]:
    """How many arrays each scan stacks."""
    return [len(ins.outputs) - ins.params["n_carry"] for ins in program.instructions if ins.op.name == "scan"]


SECOND: list[Fn] = [lambda *x: jg.jvp(jg.grad(last_tanh, (0, 1)), x, x)[1], lambda *x: jg.hvp(last_tanh, x, x)]


@pytest.mark.parametrize("fn", SECOND, ids=["jvp of grad", "hvp"])
def test_second_derivatives_take_two_loops(fn: Fn) -> None:
    program = simplified(fn, A, X)
    assert len(stacks(program)) == 2, bare(program)


def test_one_array_is_saved_of_a_variance() -> None:
    program = simplified(jg.grad(variance), np.array([0.1, 0.2, 0.7]), X, exact=False)
    assert stacks(program) == [1, 0], bare(program)


# -- many loops --------------------------------------------------------------------------------------------------------


def _scans(x: Any, count: int) -> Any:
    for k in range(count):
        x, _ = jg.scan(lambda c, _: (np.sin(c) * 1.01, c), x * (1.0 + k), None, length=3)
    return np.sum(x)


def _choices(x: Any, count: int) -> Any:
    for _ in range(count):
        x = jg.cond(x[0] > 0, lambda x: x * 1.01, lambda x: x * 0.99, x)
    return np.sum(x)


def _whiles(x: Any, count: int) -> Any:
    for _ in range(count):
        x = jg.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, np.sin(s[1])), (0, x), maximum_iterations=5)[1]
    return np.sum(x)


def _heads(x: Any, count: int) -> Any:
    """Loops that begin alike and take other steps."""
    rows = [jg.scan(lambda c, _, k=k: (np.sin(c) * (1.0 + k), c), x, None, length=3)[1] for k in range(count)]
    return sum(np.sum(r) for r in rows)


@pytest.mark.parametrize("fn", [_scans, _choices, _whiles, _heads])
def test_the_work_of_many_loops_grows_with_their_number(fn: Fn) -> None:
    """Twice as many took four times as long: each was compared with all, by what stands between them."""
    assert_linear(lambda n: functools.partial(simplify, traced(lambda x: jg.grad(fn)(x, n), np.ones(3))), 20)


def test_what_a_scan_needs_is_looked_through_once_for_all_that_it_may_be_one_with() -> None:
    """Scans from one state take other steps each, and read of a chain: it was gone through for each pair."""

    def fn(x: Any, length: int) -> Any:
        total, h = 0.0, x
        for k in range(12):
            for _ in range(length):
                h = np.sin(h)
            total += jg.scan(lambda c, _, h=h, k=k: (np.sin(c) * (1.0 + k) + h, None), x, None, length=3)[0]
        return total

    short, long = (traced(functools.partial(fn, length=length), np.ones(3)) for length in (10, 60))
    few, many = (count_calls(functools.partial(join_instructions, p, Counter())) for p in (short, long))
    assert many < 3 * few


def test_each_of_many_scans_is_joined_with_the_one_of_its_gradient() -> None:
    program = simplify(traced(lambda x: jg.grad(_scans)(x, 70), np.ones(3)))
    assert sum(ins.op.name == "scan" for ins in program.instructions) == 140


def test_what_is_joined_stands_behind_what_it_needs() -> None:
    """What only the second needs moves in front of the first, also where that has moved itself."""

    def fn(x: Any, xs: Any) -> Any:
        first = jg.scan(lambda c, t: (np.sin(c) * t, c), x, xs)[1]
        other = jg.scan(lambda c, t: (c * 0.5 + t, c), x + 1.0, xs)[1]
        items = xs, np.cos(other)
        both = jg.scan(lambda c, t: ((np.sin(c[0]) * t[0], c[1] + t[1]), c[0] * c[1]), (x, 2.0 * x), items)[1]
        items = xs, np.exp(first)
        last = jg.scan(lambda c, t: ((c[0] * 0.5 + t[0], c[1] * t[1]), c[0] * c[1]), (x + 1.0, x), items)[1]
        return np.sum(both) + np.sum(last) + np.sum(first * other)

    program = simplified(fn, 0.5, X)
    assert sum(ins.op.name == "scan" for ins in program.instructions) == 3  # the last reads what the joined one makes
    simplified(lambda x, xs: jg.grad(fn, (0, 1))(x, xs), 0.5, X, exact=False)


def test_statuses_are_numbered_once() -> None:
    program = simplify(traced(lambda x: jg.grad(_choices)(x, 3), np.ones(3)))
    offsets = status_offsets(program)
    assert status_offsets(program) is offsets
    assert list(offsets) == [number for number, ins in enumerate(program.instructions) if ins.op.name == "cond"]
    assert min(offset for both in offsets.values() for offset in both) == len(program.specs)
