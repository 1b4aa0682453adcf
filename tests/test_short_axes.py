"""short_axes_apart(): values and gradients of functions of points, which values are taken apart and which are not."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import optree
import pytest

import jitgrad as jg
from jitgrad.compiler.short_axes import short_axes_apart
from jitgrad.compiler.simplify import simplify
from jitgrad.program import Program, verify
from tests.cases import Array
from tests.short_functions import FUNCTIONS, arguments, loss_of
from tests.tolerances import assert_same_up_to_rounding

PARTLY = ("crossed_axes", "pooled", "turned_pairs")  # functions of which more than the arguments stays whole


def program_of(f: Any, *arrays: Array) -> Program:
    """The simplified program, before values are taken apart."""
    (stage, taken), *_ = jg.compile(f).stages(*arrays)
    return simplify(stage.executable(taken).source)


def kernels_of(f: Any, *arrays: Array) -> int:
    return int(jg.compile(f).explain(*arrays).fusion.split(": ")[1].split(" kernel")[0])


def whole_values(program: Program) -> list[str]:
    """What makes values with a short last axis."""
    return [
        ins.op.name for ins in program.instructions for v in ins.outputs
        if len(shape := program.specs[v].known_shape) > 1 and 1 < shape[-1] <= 8
    ]  # fmt: skip


def looked_up(p: Any, i: Any) -> Any:
    return np.sum((p[i] - p[i[::-1]]) ** 2, axis=1)


# -- values ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_the_interpreters(name: str, dtype: str) -> None:
    given = arguments(name, 203, dtype)
    f = jg.compile(lambda *args: (FUNCTIONS[name][0](*args), jg.grad(loss_of(name), tuple(range(len(given))))(*args)))
    (stage, taken), *_ = f.stages(*given)
    source = stage.executable(taken).source
    value, grads = f(*given)
    assert_same_up_to_rounding([value, *grads], source, given, name)
    expected, eps = FUNCTIONS[name][0](*given), 1e-5 if dtype == "f4" else 1e-12
    np.testing.assert_allclose(value, expected, rtol=100 * eps, atol=eps * np.abs(expected).max())


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in PARTLY])
def test_gradients_take_few_kernels(name: str) -> None:
    """One over the points and one for what its chunks sum up; two for an array of few numbers and of its gradient."""
    given = arguments(name, 300)
    step = jg.value_and_grad(loss_of(name), tuple(range(len(given))))
    before = program_of(step, *given)
    after = simplify(short_axes_apart(verify(before)))
    verify(after)
    assert set(whole_values(after)) <= {"stack", "reshape", "constant"}, after.text
    sums = sum(array.ndim > 0 and array.size < 50 for array in given)
    assert kernels_of(step, *given) <= 2 + 2 * sums


@pytest.mark.parametrize("name", ["areas", "mixture"])
def test_another_number_of_points_compiles_nothing(name: str) -> None:
    step = jg.compile(jg.value_and_grad(loss_of(name)))
    step(*arguments(name, 300))
    before = step.cache_info()
    value, _ = step(*arguments(name, 1001))
    assert step.cache_info().compiles == before.compiles
    np.testing.assert_allclose(value, loss_of(name)(*arguments(name, 1001)))


@pytest.mark.quick
def test_products_of_points_are_never_minus_zero() -> None:
    r, p = np.zeros((40, 2, 2)), np.tile([1.0, -0.0], (40, 1))
    r[:, 0] = -0.0, 1.0
    f = jg.compile(lambda r, p: (r @ p[:, :, None])[:, :, 0])
    assert not np.signbit(f.interpret(r, p)).any()
    assert not np.signbit(f(r, p)).any()


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "i4", "i8"])
def test_long_sums_of_products_keep_their_dtype(dtype: str) -> None:
    x = np.arange(400).reshape(200, 2).astype(dtype)
    f = jg.compile(lambda x: x[:, 0] @ x)
    assert f(x).dtype == x.dtype
    np.testing.assert_array_equal(f(x), x[:, 0] @ x)


@pytest.mark.parametrize("name", ["rotated_by_quaternions", "rotated_by_one_matrix"])
def test_bits_are_those_of_any_number_of_threads(name: str) -> None:
    given = arguments(name, 30_011)
    step = jg.compile(jg.grad(loss_of(name), tuple(range(len(given)))))
    count = jg.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            jg.set_num_threads(threads)
            found.append([np.array(g) for g in step(*given)])
    finally:
        jg.set_num_threads(count)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


def test_special_numbers_are_numpys() -> None:
    """Sums of negative zeros, and extremes with NaN."""
    special = np.array([-0.0, 0.0, np.nan, np.inf, -np.inf, 1.5])
    rng = np.random.default_rng(0)
    x = np.concatenate([np.full((70, 3), -0.0), special[rng.integers(len(special), size=(200, 3))]])

    def combined(x: Any) -> Any:
        return np.sum(x, axis=-1), np.max(x, axis=-1), np.min(x, axis=-1), np.prod(x, axis=-1), np.any(x > 0, axis=-1)

    assert simplify(short_axes_apart(program := program_of(combined, x))) is not program
    with np.errstate(all="ignore"):
        wanted = combined(x)
    for got, want in zip(jg.compile(combined)(x), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
        assert np.array_equal(np.signbit(got[:70]), np.signbit(want[:70]))


# -- what is left as it is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: np.tanh(x) * x, (300, 3)),
        (softmax := lambda x: np.exp(x) / np.sum(np.exp(x), axis=-1, keepdims=True), (300, 10)),
        (softmax, (8, 3)),
        (lambda x: functools.reduce(lambda x, _: np.sin(x) * 1.01, range(60), x)[:, ::-1] * x, (300, 4)),
        (softmax, (3, 300)),
        (softmax, (300, 200)),
        (lambda x: np.linalg.inv(x @ np.swapaxes(x, 1, 2) + 9 * np.eye(3)) * np.sum(x, 2)[:, None], (300, 3, 3)),
        (lambda x: np.maximum(x + np.arange(8.0), 0.0), (300, 8)),
        (lambda x: np.take_along_axis(x - np.max(x, 1, keepdims=True), np.argmin(x, 1)[:, None], 1), (300, 7)),
    ],
)  # fmt: skip
def test_what_is_no_better_apart_stays(f: Any, shape: tuple[int, ...]) -> None:
    program = program_of(f, np.ones(shape))
    assert short_axes_apart(program) is program


def test_others_read_what_is_put_together() -> None:
    def f(x: Any) -> Any:
        unit = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
        return np.sort(unit, axis=-1), unit.reshape(-1)

    x = np.random.default_rng(0).standard_normal((300, 3))
    for got, want in zip(jg.compile(f)(x), f(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-14)


# -- random functions ------------------------------------------------------------------------------------------


def moved(rng: np.random.Generator, pool: list[Any]) -> Any:
    """An array of [n, k] made of some of those."""
    x, y = (pool[int(rng.integers(len(pool)))] for _ in range(2))
    k, at = x.shape[1], int(rng.integers(x.shape[1]))
    match int(rng.integers(13)):
        case 0:
            return np.stack([np.sin(x[:, at]), y[:, at], x[:, 0] * y[:, -1], x[:, -1]][:k], axis=-1)
        case 1:
            return np.concatenate([x[:, at:], y[:, :at]], axis=1)
        case 2:
            return x / np.sqrt(1 + np.sum(y * y, axis=1, keepdims=True))
        case 3:
            return np.max(x, axis=-1, keepdims=True) - y
        case 4:
            return x[:, ::-1] * np.mean(y, axis=0)
        case 5:
            return np.roll(x, at, axis=1) + y[:, at : at + 1]
        case 6:
            return np.where(x > y, x, np.sum(y, axis=1)[:, None])
        case 7:
            return np.tanh(0.3 * x @ (y.T @ x / len(x)))
        case 8:
            return np.einsum("ni,nj->nij", x, y).sum(axis=int(rng.integers(1, 3)))
        case 9:
            return np.cumsum(x, axis=1) * 0.3
        case 10:
            return np.stack(list(x.T)[::-1], axis=1) - y
        case 11:
            return np.pad(x, ((0, 0), (1, 1)))[:, 1:-1] * np.prod(np.tanh(y), axis=1, keepdims=True)
    return np.concatenate([x[1:], y[:1]], axis=0)


def random_loss(seed: int, *given: Any) -> Any:
    """A number, and an array; the same function for the same seed."""
    rng = np.random.default_rng(seed)
    pool = list(given)
    for _ in range(int(rng.integers(3, 8))):
        pool.append(moved(rng, pool))
    return sum(np.sum(np.sin(y)) for y in pool[-2:]), pool[-1]


@pytest.mark.parametrize("seed", range(14))
def test_random_functions_are_the_interpreters(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(2, 5))
    step = jg.compile(jg.value_and_grad(lambda *args: random_loss(seed, *args), (0, 1), has_aux=True))
    for n in (200, 77):
        given = [rng.standard_normal((n, k)) for _ in range(2)]
        (stage, taken), *_ = step.stages(*given)
        (value, last), grads = step(*given)
        assert_same_up_to_rounding([value, last, *grads], stage.executable(taken).source, given, f"{seed}, {n}")


@pytest.mark.parametrize("mode", ["edge", "symmetric"])
def test_the_edge_of_a_padded_array_stays_whole(mode: Any) -> None:
    x = np.random.default_rng(0).standard_normal((40, 60))
    padded = jg.compile(lambda x: np.pad(x, 2, mode=mode) ** 2)
    np.testing.assert_array_equal(padded(x), np.pad(x, 2, mode=mode) ** 2)
    assert "stack(" not in padded.explain(x).program


# -- rows that are looked up -----------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 3, 7])
def test_short_rows_are_looked_up_place_by_place(columns: int) -> None:
    """Where they lie, in the kernel that reads them: no row is stored, and no column copied."""
    rng = np.random.default_rng(0)
    p, i = rng.standard_normal((40, columns)), rng.integers(-40, 40, 203)
    assert kernels_of(looked_up, p, i) == 1
    np.testing.assert_allclose(jg.compile(looked_up)(p, i), looked_up(p, i), rtol=1e-13)


@pytest.mark.parametrize(
    "f",
    [
        lambda p, i: p[i],
        lambda p, i: p[10:50][i],
        lambda p, i: p[::-1][i],
        lambda p, i: (2 * p)[i, ::-1],
        lambda p, i: np.take(p.T, i, axis=1),
        lambda p, i: p.reshape(10, 9, 3)[i, i // 2],
        lambda p, i: p.reshape(90, 1, 3)[i.reshape(-1, 1, 1)],
        lambda p, i: p[:, 1][i] * p[:, :1][i, 0],
    ],
)
def test_looked_up_rows_are_the_interpreters(f: Any) -> None:
    rng = np.random.default_rng(1)
    p, i = rng.standard_normal((90, 3)), rng.integers(0, 9, 203)
    step = jg.compile(jg.value_and_grad(lambda p, i: (np.sum(np.sin(f(p, i))), f(p, i)), has_aux=True))
    (stage, taken), *_ = step.stages(p, i)
    (value, made), grad = step(p, i)
    assert_same_up_to_rounding([value, made, grad], stage.executable(taken).source, [p, i], "looked up")
    np.testing.assert_array_equal(made, f(p, i))


@pytest.mark.parametrize("wrong", [40, -41])
def test_positions_of_short_rows_out_of_bounds_are_the_interpreters(wrong: int) -> None:
    p, i = np.ones((40, 3)), np.zeros(203, np.int64)
    compiled = jg.compile(looked_up)
    compiled(p, i)
    i[100] = wrong
    with pytest.raises(IndexError, match="a position is out of bounds"):
        compiled(p, i)


def test_points_in_loops_are_apart_too() -> None:
    """Bodies in space: a step is one kernel over pairs, in place of three with rows of three elements."""

    def moved(x: Any, v: Any) -> Any:
        def step(state: Any, rate: Any) -> Any:
            x, v = state
            d = x[None] - x[:, None]
            v = v + rate * np.sum(d * (np.sum(d * d, axis=-1) + 0.1)[..., None] ** -1.5, axis=1)
            return (x + rate * v, v), ()

        return jg.scan(step, (x, v), np.array([0.1, 0.2, 0.1]))[0]

    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((20, 3)), rng.standard_normal((20, 3))
    f = jg.compile(moved)
    lines = [line for line in str(f.explain(x, v).fusion).splitlines() if line.startswith("      kernel")]
    assert len(lines) == 1 and "2 axes" in lines[0]
    g = jg.compile(jg.value_and_grad(lambda x, v: np.sum(moved(x, v)[0] ** 2), (0, 1)))
    for made, wanted in zip(optree.tree_leaves(g(x, v)), optree.tree_leaves(g.interpret(x, v)), strict=True):
        np.testing.assert_allclose(made, wanted, rtol=1e-11)
