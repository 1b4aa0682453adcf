"""Parts assigned by number, ``out[i] = x``: read as they are, put together once, with NumPy's sharing of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp

Array = np.ndarray[Any, np.dtype[Any]]


def chain(xp: Any, x: Any) -> Any:
    out = xp.zeros(6)
    for i in range(1, 6):
        out[i] = x[i] + out[i - 1] * 0.5
    return out


def gaps(xp: Any, x: Any) -> Any:
    out = xp.ones(9)
    out[0] = x[0]
    out[4] = out[0] * x[1]
    out[-1] = out[3] + out[4]
    return out * 2


def rows(xp: Any, x: Any) -> Any:
    """Each row made of the one before, then scaled in place; an element of a row is read as well."""
    a = xp.zeros((4, 6))
    a[0] = x
    for t in range(1, 4):
        a[t] = a[t - 1] * x + a[t - 1, 2] - a[t - 1, 1:-1].sum()
        a[t] /= a[t].sum()
    return a


def kinds(xp: Any, x: Any) -> Any:
    """Rows, an element of one, a column and windows, while views of them are held."""
    a = xp.zeros((4, 6))
    a[0] = x
    row = a[1]
    a[1] = 2 * x
    row[2] = 5 * x[0]
    same = a[1]
    a[1, 3] = 7 * x[1]
    a[2, 1:3] += x[:2]
    a[:, 5] = x[0]
    total = row + same
    same += 1
    return xp.concatenate([a.ravel(), total, same])


def table(xp: Any, x: Any) -> Any:
    """A table by recursion: what is assigned is a box inside of it."""
    out = xp.full((4, 5), 10.0)
    out[0, 0] = 0 * x[0]
    for i in range(1, 4):
        for j in range(1, 5):
            out[i, j] = x[i] + out[i - 1, j - 1] * 0.5 + out[i - 1, j] * x[j] - out[i, j - 1]
    return out


def band(xp: Any, x: Any) -> Any:
    """The matrix of a chain of springs: elements here and there, each added to twice."""
    out = xp.zeros((7, 7))
    for k in range(6):
        out[k, k] += x[k]
        out[k, k + 1] -= x[k]
        out[k + 1, k] -= x[k]
        out[k + 1, k + 1] += x[k]
    return out


def columns(xp: Any, x: Any) -> Any:
    out = xp.zeros((6, 3))
    for k in range(3):
        out[:, k] = x * (k + 1)
    column = out[:, 1]
    out[2, 1] = 3.0
    out[:, 0] += column
    return out


def names(xp: Any, x: Any) -> Any:
    """What is read is the value of that time, whoever changes what afterwards."""
    a = xp.zeros(3)
    v = x[:3] * 2
    a[0] = v[0]
    v[0] = 9 * x[3]
    before = a[0]
    a[0] = 5 * x[1]
    same = a
    same[1] = before
    a = a.copy()
    a[2] = 1.0
    same[2] = v[0]
    return xp.concatenate([a, same, v])


def rows_of_others(xp: Any, x: Any) -> Any:
    """A row that is assigned and changed afterwards, one that is filled by number itself, one that is the array's."""
    a, row = xp.zeros((4, 6)), xp.zeros(6)
    row[1] = x[0]
    a[0] = row
    row[2] = x[1]
    a[1] = row
    a[2] = a[1]
    a[1] = a[0] * 3
    row += 1
    return xp.concatenate([a.ravel(), row])


def whole(xp: Any, x: Any) -> Any:
    a = xp.zeros(4)
    a[1] = x[0]
    a[:] = x[1]
    a[2] = x[2]
    total = a.sum()
    a[3] = total
    a *= 2
    a[0] = total
    return a


def backwards(xp: Any, x: Any) -> Any:
    a = xp.zeros((3, 4))
    a[-1, ::-2] = x[:2]
    a[-1, ::-1] = a[-1] + 1
    a[0] = a[2]
    a[1, ::2] = x[0]
    return a[::-1]


def planes(xp: Any, x: Any) -> Any:
    a = xp.zeros((2, 3, 4))
    for i in range(2):
        for j in range(3):
            a[i, j] = x[:4] * i + j
    a[1, 2, 3] = x[5]
    plane = a[0]
    plane[1] = 3 * x[2]
    a[:, 1, 2] = x[:2]
    return a


def wave(xp: Any, x: Any) -> Any:
    """Windows of rows, of which neighbours are read, and an element of one that is added to."""
    u = xp.ones((5, 6))
    for t in range(2, 5):
        u[t, 1:-1] = 2 * u[t - 1, 1:-1] - u[t - 2, 1:-1] + x[1:-1] * (u[t - 1, 2:] - u[t - 1, :-2])
        u[t, 3] += x[t]
        u[t - 1, ::-2] *= x[0]
    return u


def windows(xp: Any, x: Any) -> Any:
    """Windows of planes: those of one kind alone, then rows in them and elements."""
    a = xp.ones((2, 3, 4))
    for k in range(2):
        a[k, ::2, 1:] = x[k] * x[:3]
    held = a[1, 1:]
    a[1, 2, ::-1] = a[1, 0] + x[:4]
    a[0, :, 0] = x[3:]
    return xp.concatenate([a.ravel(), held.ravel()])


def factor(xp: Any, x: Any) -> Any:
    """A Cholesky factor and a solution by hand: products of windows of what is there so far."""
    a = np.eye(6) * 3 + 0.1
    low, y = xp.zeros((6, 6)), xp.zeros(6)
    for i in range(6):
        for j in range(i):
            low[i, j] = (a[i, j] * x[j] - low[i, :j] @ low[j, :j]) / low[j, j]
        low[i, i] = xp.sqrt(a[i, i] - low[i, :i] @ low[i, :i])
        y[i] = (x[i] - low[i, :i] @ y[:i] + y[i::-2].sum()) / low[i, i]
    return xp.concatenate([low.ravel(), y])


def across(xp: Any, x: Any) -> Any:
    """Windows of several parts as views: of elements, of rows and of columns, that are written to."""
    a, b = xp.ones((4, 6)), xp.ones((6, 3))
    a[1], a[2] = x, 2 * x
    b[:, 1] = x
    some, others, apart = a[1:3], a[::-2, 1:3], b[1:4, ::2]
    a[1, 2] = 7 * x[0]
    some += 1
    others[1, 0] = x[5]
    b[2, 0] = a[0:3, 2:4].sum()
    b[:, :2] *= 2
    return xp.concatenate([v.ravel() for v in (a, b, some, others, apart)])


def argument(xp: Any, x: Any) -> Any:
    x[1] = x[0] * 2
    x[3] = x[1] + x[2]
    return x


PROGRAMS = (
    chain, gaps, rows, kinds, table, band, columns, names, rows_of_others, whole, backwards, planes, wave, windows,
    factor, across, argument,
)  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_pieces_are_numpys(fn: Callable[[Any, Any], Any]) -> None:
    x = np.linspace(0.1, 1.0, 6)
    wished = fn(np, x.copy())
    compiled = jg.compile(lambda x: fn(jnp, x))
    np.testing.assert_allclose(compiled(x), wished, rtol=1e-12)
    np.testing.assert_allclose(compiled.interpret(x), wished, rtol=1e-12)
    assert np.array_equal(x, np.linspace(0.1, 1.0, 6))

    def loss(x: Any) -> Any:
        return (fn(jnp, x) ** 2).sum()

    slope = jg.compile(jg.grad(loss))(x)
    np.testing.assert_allclose(slope, jg.grad(loss)(x), rtol=1e-11, atol=1e-13)
    step = 1e-6 * np.cos(np.arange(6.0))
    change = np.sum(fn(np, x + step) ** 2) - np.sum(fn(np, x - step) ** 2)
    np.testing.assert_allclose(slope @ step, change / 2, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128, np.int64])
def test_pieces_have_the_arrays_dtype(dtype: Any) -> None:
    def fill(xp: Any, x: Any) -> Any:
        out = xp.zeros(4, dtype)
        out[0], out[2] = x[0], 2
        out[1] = out[0] * out[2]
        return out

    x = np.array([np.nan, -0.0]) if dtype != np.int64 else np.array([3, 4])
    made = jg.compile(lambda x: fill(jnp, x))(x)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made, fill(np, x))


def test_a_loop_of_pythons_grows_in_proportion() -> None:
    def operations(steps: int) -> int:
        @jg.compile
        def variance(theta: Any, r: Any) -> Any:
            h = jnp.zeros(steps)
            h[0] = 1.0
            for t in range(1, steps):
                h[t] = theta[0] + theta[1] * r[t - 1] ** 2 + theta[2] * h[t - 1]
            return np.sum(np.log(h))

        return len(variance.explain(np.ones(3), np.ones(steps)).program.splitlines())

    few, many = operations(10), operations(40)
    assert many - few <= 30 * 8  # seven that the step is written with, and its place among the others


def test_an_error_names_the_line_of_the_assignment() -> None:
    def f(x: Any) -> Any:
        out = jnp.zeros((3, 2))
        out[1] = x  # here
        return out * 2

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(jg.ShapeError, match=f"test_pieces.py:{line}"):
        jg.compile(f)(np.ones(3))

    def outside(x: Any) -> Any:
        x[3] = x[0]
        return x

    with pytest.raises(IndexError, match="out of bounds"):
        jg.compile(outside)(np.ones(3))


def test_pieces_are_of_the_scope_in_which_they_were_assigned() -> None:
    def f(x: Any) -> Any:
        out = jnp.zeros(4)
        with jg.jit_scope():
            out[0] = x[0]
            out[1] = x[1]
        with jg.jit_scope(compile_ops=False):
            out[2] = x[0]
            out[3] = x[1]
        return out + 1

    made = jg.compile(f)
    assert made(np.array([1.0, 2.0])).tolist() == [2.0, 3.0, 2.0, 3.0]


def test_bodies_read_pieces_and_do_not_write_them() -> None:
    def read(x: Any) -> Any:
        table = jnp.zeros((3, 2))
        table[0] = x
        table[2, :] = 2 * x
        table[1, :1] = x[:1]
        return jg.fori_loop(0, 3, lambda i, total: total + table[i] + table[2] + table[0, 1], jnp.zeros(2))

    x = np.array([1.0, 2.0])
    assert jg.compile(read)(x).tolist() == [16.0, 24.0]

    def write(x: Any) -> Any:
        table = jnp.zeros(3)
        table[0] = x[0]

        def body(i: Any, total: Any) -> Any:
            table[1] = total
            return total + table[1]

        return jg.fori_loop(0, 3, body, x[1])

    with pytest.raises(jg.UnsupportedOpError, match="assigns to an array that it reads from outside"):
        jg.compile(write)(x)


def test_a_body_fills_its_own_array() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, state: Any) -> Any:
            new = jnp.zeros(3)
            for k in range(3):
                new[k] = state[k] * (k + 1) + (new[k - 1] if k else 0)
            return new

        return jg.fori_loop(0, 2, body, x)

    def by_numpy(x: Array) -> Array:
        for _ in range(2):
            new = np.zeros(3)
            for k in range(3):
                new[k] = x[k] * (k + 1) + (new[k - 1] if k else 0)
            x = new
        return x

    x = np.array([1.0, 2.0, 3.0])
    assert jg.compile(f)(x).tolist() == by_numpy(x).tolist()
    rows = np.stack([by_numpy(e) for e in np.eye(3)], 1)
    np.testing.assert_allclose(jg.compile(jg.jacobian(f))(x), rows)


def test_another_shape_is_another_loop() -> None:
    @jg.compile
    @jg.grad
    def f(x: Any) -> Any:
        out = jnp.zeros(len(x))
        for k in range(len(x)):
            out[k] = x[k] ** 2 + (out[k - 1] if k else 0)
        return out.sum()

    for n in (1, 3, 7):
        x = np.linspace(1, 2, n)
        np.testing.assert_allclose(f(x), 2 * x * np.arange(n, 0, -1), rtol=1e-14)


@pytest.mark.parametrize("places", [(0, 1), (0, 2), (0,)], ids=["side by side", "apart", "one"])
def test_what_was_overwritten_has_the_gradient_0(places: tuple[int, ...]) -> None:
    """The root of 0 has an infinite slope, which a cotangent of 0 would make NaN."""

    def f(x: Any) -> Any:
        out = np.sqrt(x)
        for k in places:
            out[k] = 2 * x[3]
        return out.sum()

    slope = jg.compile(jg.grad(f))(np.array([0.0, 1.0, 4.0, 9.0]))
    wished = np.array([np.inf, 0.5, 0.25, 1 / 6 + 2 * len(places)])
    wished[list(places)] = 0
    np.testing.assert_allclose(slope, wished)


@pytest.mark.parametrize("places", [range(4), (0, 2, 3), (1, 2)], ids=["all", "apart", "side by side"])
def test_pieces_are_masked_by_what_is_around(places: Any) -> None:
    def f(x: Any) -> Any:
        out = jnp.zeros(4)
        for k in places:
            out[k] = np.log(x[k])
        return np.where(x > 0, out, 0.0).sum()

    x = np.array([0.0, 2.0, 0.0, 4.0])
    wished = np.zeros(4)
    for k in places:
        wished[k] = 1 / x[k] if x[k] else 0
    np.testing.assert_allclose(jg.compile(jg.grad(f))(x), wished)


def test_masks_of_many_arrays_side_by_side_are_made_at_once() -> None:
    def operations(count: int) -> int:
        @jg.compile
        @jg.grad
        def f(x: Any) -> Any:
            return np.where(x > 0, np.stack([np.log(x[k]) for k in range(count)]), 0.0).sum()

        x = np.arange(count) - 2.0
        assert np.array_equal(f(x)[:4], [0, 0, 0, 1])
        return len(f.explain(x).program.splitlines())

    assert operations(40) - operations(20) <= 20 * 16  # 8 of each element's, and 400 if each made its mask alone


def test_numbers_are_swapped_with_views_of_rank_0() -> None:
    def swapped(x: Any) -> Any:
        out = x.copy()
        out[-3], out[0, ...] = out[0, ...], out[-3]
        return out

    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(jg.compile(swapped)(x), swapped(x))


def test_a_view_of_rank_0_of_a_part_writes_to_the_array() -> None:
    def filled(xp: Any, x: Any) -> Any:
        out = xp.zeros((2, 3))
        out[0] = x
        corner, number = out[0, 0, ...], out[0, 1]
        corner[...] = 7.0 * x[2]
        out[0, 1] = x[0]
        return out, corner, number

    x = np.array([1.0, 2.0, 3.0])
    for got, expected in zip(jg.compile(lambda x: filled(jnp, x))(x), filled(np, x), strict=True):
        np.testing.assert_array_equal(got, expected)
