"""Regions over a long matrix in the bodies of loops and branches, and over square matrices, whose sums have as many
elements as the matrix has rows: the interpreter's numbers, and the same bits for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import jitgrad as jg
from jitgrad import pytree
from jitgrad.compiler.freezing import regions
from jitgrad.compiler.freezing.freeze import freeze_cluster
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.products import gemv

pytestmark = pytest.mark.skipif(vector_bytes() < 32, reason="products with vectors are our own only there")

ROWS, COLUMNS, SIDE = 3001, 13, 211
Fn = Callable[..., Any]


@pytest.fixture(autouse=True)
def small_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemv, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(regions, "LEAST_BYTES", 1000)
    monkeypatch.setattr(regions, "CHUNK_BYTES", 20_000)


def step(w: Any, x: Any, y: Any, rate: Any = 0.5) -> Any:
    """A step of gradient descent on log cosh of the residuals."""
    return w - x.T @ np.tanh(x @ w - y) * (rate / len(y))


# -- functions of w, x, y with a region in a body ----------------------------------------------------------------------


def of_rates(w: Any, x: Any, y: Any) -> Any:
    def body(w: Any, rate: Any) -> Any:
        r = np.tanh(x @ w - y)
        return w - x.T @ r * (rate / len(y)), np.sum(r * r)

    return jg.scan(body, w, np.array([0.5, 0.25, 0.125], y.dtype))


def of_targets(w: Any, x: Any, y: Any) -> Any:
    """Residuals of each step are outputs: they have memory of their own."""

    def body(w: Any, y: Any) -> Any:
        r = np.tanh(x @ w - y)
        return w - x.T @ r / len(y), r

    return jg.scan(body, w, np.stack([y, y * 2, y[::-1]]))


def of_matrices(w: Any, x: Any, y: Any) -> Any:
    """The matrix lies at another address in each step."""
    return jg.scan(lambda w, x: (step(w, x, y), w), w, np.stack([x, x * 0.5, x[::-1]]))


def swapped(w: Any, x: Any, y: Any) -> Any:
    """Two matrices change places after each step."""
    return jg.scan(lambda s, rate: ((step(s[0], s[1], y, rate), s[2], s[1]), s[0]), (w, x, x[::-1]),
                   np.array([0.5, 0.25, 0.125], y.dtype))  # fmt: skip


def made_anew(w: Any, x: Any, y: Any) -> Any:
    """The matrix is made by each step, from that of the step before it."""
    return jg.scan(lambda s, rate: ((step(s[0], np.sin(s[1] + rate), y), np.sin(s[1] + rate)), np.sum(s[0])), (w, x),
                   np.array([0.5, 0.25, 0.125], y.dtype))  # fmt: skip


def until_it_rests(w: Any, x: Any, y: Any) -> Any:
    def goes_on(s: Any) -> Any:
        return np.logical_and(s[0] < 9, np.sum(s[2] ** 2) > 0.02)

    def body(s: Any) -> Any:
        new = step(s[1], x, y)
        return s[0] + 1, new, new - s[1]

    return jg.while_loop(goes_on, body, (0, w, w))


def counted(w: Any, x: Any, y: Any, n: Any) -> Any:
    return jg.fori_loop(0, n, lambda k, w: step(w, x, y), w)


def in_branches(w: Any, x: Any, y: Any) -> Any:
    def body(w: Any, rate: Any) -> Any:
        return jg.cond(rate > 0.2, lambda w: step(w, x, y), lambda w: w * 0.5 + x.T @ np.cos(x @ w) / len(y), w), ()

    return jg.scan(body, w, np.array([0.5, 0.25, 0.125], y.dtype))[0]


def nested(w: Any, x: Any, y: Any) -> Any:
    def body(w: Any, rate: Any) -> Any:
        w = jg.fori_loop(0, 2, lambda k, w: step(w, x, y, rate), w)
        return w, np.sum(w)

    return jg.scan(body, w, np.array([0.5, 0.25, 0.125], y.dtype))


def beside_one_another(w: Any, x: Any, y: Any) -> Any:
    """Two states that do not know of one another, each with a region of its own in each step."""
    return jg.scan(lambda s, rate: ((step(s[0], x, y, rate), step(s[1], x, -y, rate)), ()), (w, w * 2),
                   np.array([0.5, 0.25, 0.125], y.dtype))[0]  # fmt: skip


BODIES: dict[Fn, int] = {
    of_rates: 1, of_targets: 1, of_matrices: 1, swapped: 1, made_anew: 1, until_it_rests: 1, in_branches: 2, nested: 1,
    beside_one_another: 2,
}  # fmt: skip


# -- functions of v and a square matrix a: the product with the transpose is whole before anything reads it ------------


def read_at_once(v: Any, a: Any) -> Any:
    return np.tanh(a.T @ np.tanh(a @ v)) * v


def powers(v: Any, a: Any) -> Any:
    for _ in range(3):
        v = a.T @ (a @ v)
        v = v / np.sqrt(np.sum(v * v))
    return v, np.sum((a @ v) ** 2)


def and_back(v: Any, a: Any) -> Any:
    """What the product with the transpose gives is multiplied by the matrix again."""
    r = a.T @ np.sin(a @ v)
    return a @ np.cos(r), r


def with_itself(v: Any, a: Any) -> Any:
    """The matrix twice, not its transpose; and a row of it."""
    r = np.sin(a @ v)
    return a @ r + a[0] * r, a.T @ r


def both_sides(v: Any, a: Any) -> Any:
    return (v @ a) * (a @ v) + a.T @ np.tanh(a @ v - v)


def beside(v: Any, a: Any) -> Any:
    """A sum over the rows, read by what belongs to the same rows."""
    r = np.tanh(a @ v)
    return np.sum(np.exp(-((a.T @ r) ** 2)) * r)


def conjugate(v: Any, a: Any) -> Any:
    """Conjugate gradients on the normal equations."""

    def body(s: Any) -> Any:
        k, x, r, p = s
        q = a.T @ (a @ p) + p
        alpha = np.sum(r * r) / np.sum(p * q)
        new = r - alpha * q
        return k + 1, x + alpha * p, new, new + p * (np.sum(new * new) / np.sum(r * r))

    return jg.while_loop(lambda s: (s[0] < 6) & (np.sum(s[2] ** 2) > 1e-9), body, (0, v * 0, v, v))


def rotated(v: Any, a: Any) -> Any:
    """Each step reads what the one before it summed up, also at other places."""
    return jg.scan(lambda v, s: (np.roll(np.tanh(a.T @ np.tanh(a @ v) * s), 1), v[3]), v, np.array([0.1, 0.2], v.dtype))


SQUARE: dict[Fn, int] = {
    read_at_once: 1, powers: 3, and_back: 1, with_itself: 1, both_sides: 1, beside: 1, conjugate: 1, rotated: 1,
}  # fmt: skip


# -- the tests ---------------------------------------------------------------------------------------------------------


def given(fn: Fn, dtype: str) -> tuple[NDArray[Any], ...]:
    rng = np.random.default_rng(1)
    shapes: Sequence[tuple[int, ...]] = [(COLUMNS,), (ROWS, COLUMNS), (ROWS,)]
    if fn in SQUARE:
        shapes = [(SIDE,), (SIDE, SIDE)]
    return tuple(rng.standard_normal(shape).astype(dtype) / np.sqrt(shape[-1]) for shape in shapes)


def loss_of(fn: Fn) -> Fn:
    """A number to which all that a function gives contributes."""
    return lambda *args: sum(np.sum(np.sin(part)) for part in pytree.flatten(fn(*args))[0])


def regions_in(plan: Any) -> int:
    """How many regions a plan has, those of bodies among them."""
    return (plan[:1] == ("region",)) + sum(map(regions_in, plan)) if isinstance(plan, tuple) else 0


def regions_of(fn: Fn, *args: Any) -> int:
    found = 0
    for stage, arrays in jg.compile(fn).stages(*args):
        compiled = stage.executable(arrays).compiled
        clusters = [step for step in compiled.steps if not isinstance(step, int)]
        found += sum(regions_in(freeze_cluster(compiled.program, cluster)) for cluster in clusters)
    return found


def check(fn: Fn, *args: Any) -> None:
    """One and two threads give the same bits, more than once, and the interpreter's numbers."""
    compiled = jg.compile(fn)
    expected = pytree.flatten(compiled.interpret(*args))[0]
    found = []
    for threads in (1, 2):
        with jg.config(num_threads=threads):
            found += [pytree.flatten(compiled(*args))[0] for _ in range(2)]
    for leaves in found[1:]:
        assert [leaf.tobytes() for leaf in leaves] == [leaf.tobytes() for leaf in found[0]]
    for leaf, wanted in zip(found[0], expected, strict=True):
        assert leaf.dtype == wanted.dtype
        tolerance = 2e-4 if wanted.dtype == np.float32 else 1e-11
        np.testing.assert_allclose(leaf, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fn", [*BODIES, *SQUARE])
def test_values(fn: Fn, dtype: str) -> None:
    check(fn, *given(fn, dtype))


@pytest.mark.parametrize("fn", [*BODIES, *SQUARE])
def test_gradients(fn: Fn) -> None:
    args = given(fn, "float64")
    check(jg.value_and_grad(loss_of(fn)), *args)
    check(jg.grad(loss_of(fn), tuple(range(len(args)))), *args)


@pytest.mark.parametrize("fn", [*BODIES, *SQUARE])
def test_there_are_regions(fn: Fn) -> None:
    assert regions_of(fn, *given(fn, "float64")) == (BODIES | SQUARE)[fn]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_count_that_is_given(steps: int) -> None:
    args = given(counted, "float64")
    assert regions_of(counted, *args, np.int64(steps)) == 1
    check(counted, *args, np.int64(steps))
    check(jg.grad(loss_of(counted)), *args, np.int64(steps))


@pytest.mark.parametrize("rows", [1, 7, 160, 999])
def test_other_numbers_of_rows(rows: int) -> None:
    """A plan for other extents follows from the first, also for rows of fewer bytes than a chunk."""
    w, x, y = given(of_rates, "float64")
    compiled = jg.compile(jg.value_and_grad(loss_of(of_rates)))
    compiled(w, x, y)
    for n in (rows, 2 * rows, 3 * rows):
        value, gradient = compiled(w, x[:n].copy(), y[:n].copy())
        expected, wanted = compiled.interpret(w, x[:n].copy(), y[:n].copy())
        np.testing.assert_allclose(value, expected, rtol=1e-11)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-11, atol=1e-11 * np.abs(wanted).max())
