"""Groups rolled into their readers: stencils with gradients equal the interpreter and the kernels run in Python."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from benchmarks.workloads import stencil
from jitgrad.compiler.fusing.groups import Plan
from jitgrad.compiler.fusing.rolling import roll_windows
from jitgrad.profiler.planned_picture import picture_of
from tests.counting import assert_linear
from tests.oracles import python_results
from tests.traced import traced

Array = Any
Offsets = list[tuple[int, ...]]


def _stencil(x: Array, offsets: Offsets, factors: list[int]) -> Array:
    """A weighted sum of shifted parts, where all of them lie inside."""
    spans = [(min(o[d] for o in offsets), max(o[d] for o in offsets)) for d in range(x.ndim)]
    parts = (
        x[tuple(slice(o[d] - lo, x.shape[d] - hi + o[d]) for d, (lo, hi) in enumerate(spans))] * x.dtype.type(c)
        for o, c in zip(offsets, factors, strict=True)
    )
    total = next(parts)
    for part in parts:
        total = total + part
    return total


def _random_offsets(rng: np.random.Generator, rank: int) -> tuple[Offsets, list[int]]:
    count, reach = int(rng.integers(2, 6)), int(rng.integers(1, 3))
    offsets = [tuple(int(k) for k in rng.integers(-reach, reach + 1, rank)) for _ in range(count)]
    return offsets, [int(c) for c in rng.integers(-3, 4, count)]


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Small whole numbers: sums are exact in any order, so results are compared by their bits."""
    return rng.integers(-3, 4, shape).astype(dtype)


def _check(loss: Callable[..., Array], *args: Array, rings: int | None = None, plain: bool = True) -> None:
    """Value and gradient of all arguments by machine code, with one thread and two, and by kernels in plain Python."""
    f = jg.compile(jg.value_and_grad(loss, argnums=tuple(range(len(args)))))
    value, gradients = f.interpret(*args)
    expected = [value, *gradients]
    for threads in (1, 2):
        with jg.config(num_threads=threads):
            value, gradients = f(*args)
            for found, right in zip([value, *gradients], expected, strict=True):
                np.testing.assert_array_equal(found, right)
    if rings is not None:
        assert f.explain(*args).kernels.count(": 'ring ") == rings, f.explain(*args).fusion
    if plain:
        program = traced(lambda *a: list(_flat(jg.value_and_grad(loss, argnums=tuple(range(len(args))))(*a))), *args)
        for found, right in zip(python_results(program, args), expected, strict=True):
            np.testing.assert_array_equal(found.reshape(np.shape(right)), right)


def _flat(result: Any) -> tuple[Any, ...]:
    return (result[0], *result[1])


@pytest.mark.parametrize("seed", range(12))
def test_random_stencils_with_their_gradients(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jitgrad.compiler.fusing.rolling.MOST_AXES", 3)
    rng = np.random.default_rng(seed)
    rank = 2 if seed % 3 else 3
    offsets, factors = _random_offsets(rng, rank)
    shape = (int(rng.integers(70, 100)), *(int(n) for n in rng.integers(5, 24, rank - 1)))
    u = _integers(rng, shape, ("float32", "float64")[seed % 2])
    f = _integers(rng, _stencil(u, offsets, factors).shape, u.dtype.name)
    _check(lambda u, f: np.sum((_stencil(u, offsets, factors) - f) ** 2), u, f)


def test_the_residual_of_poissons_equation_never_is_in_memory() -> None:
    rng = np.random.default_rng(1)
    cross: Offsets = [(1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)]
    for shape in ((66, 40), (130, 5), (300, 70), (1000, 33)):
        u = _integers(rng, shape, "float32")
        f = _integers(rng, (shape[0] - 2, shape[1] - 2), "float32")
        _check(
            lambda u, f: np.sum((_stencil(u, cross, [1, 1, 1, 1, -4]) - f) ** 2), u, f, rings=1, plain=shape[0] < 200
        )


def test_steps_of_smoothing_are_rolled_into_one_another() -> None:
    rng = np.random.default_rng(2)
    across: Offsets = [(-1, 0), (1, 0), (0, 1), (0, -1)]

    def loss(u: Array) -> Array:
        for _ in range(2):
            u = _stencil(np.pad(u, 1), across, [1, 2, 1, -1])
        return np.sum(u)

    u = _integers(rng, (120, 17), "float64")
    _check(loss, u)
    weights = [1, 2, 3, 4]
    f = jg.compile(lambda u: _stencil(_stencil(_stencil(u, across, weights), across, weights), across, weights))
    np.testing.assert_array_equal(f(u), f.interpret(u))
    assert f.explain(u).kernels.count(": 'ring ") == 2, f.explain(u).text


def test_calls_grow_linearly_with_steps_of_smoothing(monkeypatch: pytest.MonkeyPatch) -> None:
    across: Offsets = [(-1, 0), (1, 0), (0, 1), (0, -1)]

    def prepare(size: int) -> Callable[[], Any]:
        plans: list[tuple[Plan, Collection[int]]] = []

        def seen(plan: Plan, kept: Collection[int]) -> Plan:
            plans.append((plan, kept))
            return plan

        def loss(u: Array) -> Array:
            for _ in range(size):
                u = _stencil(np.pad(u, 1), across, [1, 2, 1, -1])
            return np.sum(u)

        with jg.config(cache=False), monkeypatch.context() as patched:
            patched.setattr("jitgrad.compiler.fusing.fusion.roll_windows", seen)
            jg.compile(jg.grad(loss))(np.ones((12, 12)))
        return partial(roll_windows, *max(plans, key=lambda planned: len(planned[0].steps)))

    assert_linear(prepare, 100)


@pytest.mark.parametrize("form", ["roll", "diff", "pad", "kept", "rows", "product", "maximum"])
def test_other_ways_to_read_neighbours(form: str) -> None:
    rng = np.random.default_rng(3)
    u = _integers(rng, (140, 21), "float64")
    losses: dict[str, Callable[[Array], Array]] = {
        "roll": lambda u: np.sum((np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) - 3 * u) ** 2),
        "diff": lambda u: np.sum(np.diff(u, axis=0) ** 2) + np.sum(np.diff(u, axis=1) ** 2),
        "pad": lambda u: np.sum(np.diff(np.pad(u, 1, mode="edge"), n=2, axis=0) ** 2),
        "kept": lambda u: np.sum(np.diff(u * u - u, axis=0) ** 2) + (u * u - u)[3, 4],
        "rows": lambda u: np.sum(np.sum((u[1:] - u[:-1]) ** 2, axis=1)[2:]),
        "product": lambda u: np.sum(u[1:-1] * u[2:] * u[:-2]),
        "maximum": lambda u: np.sum(np.maximum(u[1:-1], u[2:] + u[:-2]) ** 2),
    }
    _check(losses[form], u)


def test_sums_of_columns_count_each_row_once() -> None:
    rng = np.random.default_rng(4)

    def columns(u: Array) -> tuple[Array, ...]:
        r = u[1:-1] * 2 - u[2:] - u[:-2]
        return np.sum(r * r, axis=0), np.max(r, axis=0), r, r[1:] - r[:-1]

    for rows in (40, 131, 1000):
        u = _integers(rng, (rows, 37), "float32")
        f = jg.compile(columns)
        for found, right in zip(f(u), f.interpret(u), strict=True):
            np.testing.assert_array_equal(found, right)
        program = traced(columns, u)
        if rows < 200:
            for found, right in zip(python_results(program, [u]), f.interpret(u), strict=True):
                np.testing.assert_array_equal(found, right)


def test_any_number_of_rows_has_the_same_kernels() -> None:
    f = jg.compile(jg.value_and_grad(lambda u: np.sum(np.diff(u, n=2, axis=0) ** 2)))
    compiles = set()
    for shape in ((300, 50), (5, 7), (4, 70), (9, 3), (17, 200), (33, 5), (2000, 9)):
        u = _integers(np.random.default_rng(5), shape, "float32")
        for found, right in zip(f(u), f.interpret(u), strict=True):
            np.testing.assert_array_equal(found, right)
        compiles.add(f.explain(u).kernels)
    assert len(compiles) == 1


def _rows_made(f: Any, *args: Array) -> list[str]:
    return [line for line in f.explain(*args).fusion.splitlines() if "row by row" in line]


def test_explain_says_what_is_made_row_by_row() -> None:
    u, field = np.ones((90, 40), np.float32), np.ones((88, 38), np.float32)
    (line,) = _rows_made(jg.compile(jg.value_and_grad(stencil.loss)), u, field)
    ops = r"add add add \(stencil\.py:\d+\), multiply subtract subtract square add \(stencil\.py:\d+\)"
    assert re.fullmatch(rf"  made row by row in kernel 0: {ops} -> %\d+, kept in cache as a ring of 3 rows", line), line
    assert not _rows_made(jg.compile(jg.value_and_grad(lambda u: np.sum(np.tanh(np.sin(u) * 2)))), u)


def test_the_picture_says_what_is_made_row_by_row() -> None:
    args = np.ones((90, 40), np.float32), np.ones((88, 38), np.float32)
    f = jg.compile(jg.value_and_grad(stencil.loss))
    (box,) = (box for box in picture_of(*f.explain(*args).compiled).boxes if box.kind == "kernel" and box.notes)
    assert [note.partition(": ")[2] for note in box.notes] == [line.partition(": ")[2] for line in _rows_made(f, *args)]
    svg = f.explain(*args).svg
    assert "kept in cache as a ring of 3 rows" in svg
    drawn = re.findall(r'class="soft"[^>]*>([^<]*)<', svg)
    assert any(line.startswith("made row by row") for line in drawn), svg
    assert max(map(len, drawn)) <= 70


def test_explain_says_so_of_rings_inside_rings_and_in_loops() -> None:
    def smooth(u: Array) -> Array:
        return u[:-3] + u[3:]

    u = np.ones((60, 20))
    lines = _rows_made(jg.compile(lambda u: smooth(smooth(smooth(u)))), u)
    assert [line.rpartition(" as ")[2] for line in lines] == ["a ring of 4 rows"] * 2
    first, second = (int(re.findall(r"%(\d+)", line)[0]) for line in lines)
    assert first < second
    loop = jg.compile(lambda u: jg.scan(lambda c, _: (c, np.sum(smooth(smooth(c)) ** 2)), u, None, length=3))
    (inner,) = _rows_made(loop, u)
    assert re.match(r"      made row by row in kernel 0: add \(test_rolling\.py:\d+\) -> %", inner), inner


def test_why_rows_go_through_memory() -> None:
    u = np.ones((90, 9))
    reasons: dict[str, Callable[[Array], Array]] = {
        "one of both kernels is no nest over rows": lambda u: np.sum(np.diff(u[:, 0] * u[:, 1]) ** 2),
        "it is read 40 rows away": lambda u: np.sum((u[40:] * u[:-40]) ** 2),
        "its rows are planes": lambda u: np.sum(np.diff(np.diff(u.reshape(30, 3, 9), axis=0), axis=2) ** 2),
        "it is not read at rows beside the reader's own": lambda u: np.sum((u * u[::-1] - 1) ** 2),
    }
    for reason, loss in reasons.items():
        f = jg.compile(jg.value_and_grad(loss))
        assert f"not made row by row where it is read: {reason}" in f.explain(u).fusion, f.explain(u).fusion
    g = jg.compile(lambda u: (np.tanh(u), np.diff(np.tanh(u), axis=0)))
    assert "it goes through memory anyhow, for others" in g.explain(u).fusion


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_rows_are_made_for_others_where_their_reader_has_none(rows: int) -> None:
    def values(x: Array) -> tuple[Array, ...]:
        y = -0.5 * x
        return np.sum(np.sin(np.array_split(y, 3)[2])), np.sum(np.sin(y)), np.cos(y)

    f, x = jg.compile(values), np.linspace(1.0, 2.0, 2 * rows).reshape(rows, 2)
    for found, right in zip(f(x), values(x), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12)


@pytest.mark.parametrize("columns", [*range(290, 307), 700, 1041])
def test_rings_whose_rows_are_stored_past_the_caches(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then their readers ask for rows to come, up to and beyond the last one."""
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.last_level_bytes", lambda: 1)
    rng = np.random.default_rng(0)
    u, f = (rng.standard_normal(shape).astype(np.float32) for shape in ((67, columns), (65, columns - 2)))
    with jg.config(cache=False):
        compiled = jg.compile(jg.value_and_grad(stencil.loss))
        value, gradient = compiled(u, f)
        expected, wanted = compiled.interpret(u, f)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-4)
