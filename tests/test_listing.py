"""Listings: a program interpreted again and again gives the bits of its first run, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import OpCase
from test_ops import each_row, program_of
from traced import traced

import jitgrad as jg
from jitgrad import interpreter
from jitgrad.interpreter import interpret
from jitgrad.program import Program
from jitgrad.spec import spec_of

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def listed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_LISTED_FROM", 3)


def _as_listed(program: Program, feeds: Any) -> list[Any]:
    first = interpret(program, feeds)
    for _ in range(interpreter._LISTED_FROM):
        later = interpret(program, feeds)
    assert "listing" in program._cache
    for a, b in zip(first, later, strict=True):
        x, y = np.asarray(a), np.asarray(b)
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        np.testing.assert_array_equal(x, y)
        if x.dtype.kind in "fc":
            np.testing.assert_array_equal(np.signbit(x.real), np.signbit(y.real))
    return later


def _lines(program: Program) -> int:
    return len(program._cache["listing"].numbers)


@each_row
def test_every_op(row: OpCase) -> None:
    for specs in row.variants():
        _as_listed(program_of(row, specs), row.sample(specs))


def test_what_follows_from_constants_is_made_once_and_cannot_be_changed() -> None:
    fn = jg.compile(jg.value_and_grad(lambda x: np.sum(2.0 * x)))
    x = np.ones(3)
    for _ in range(5):
        value, grad = fn.interpret(x)
        assert value == 6
        np.testing.assert_array_equal(grad, [2, 2, 2])
        grad += 1
    runner, arrays = fn.prepared(x)
    program = runner.stages(arrays)[0][0].program([spec_of(x)])
    assert _lines(program) == 2


def test_a_broadcast_that_ufuncs_read_is_theirs() -> None:
    x, row, number = np.arange(6.0).reshape(2, 3), np.arange(3.0), np.array(2.0)
    program = traced(lambda x, row, number: (x + row) * number - np.exp(x), x, row, number)
    _as_listed(program, [x, row, number])
    assert _lines(program) == 4


def test_a_broadcast_stays_where_nothing_else_has_the_shape() -> None:
    x, y = np.arange(3.0), np.arange(2.0)
    for fn in (
        lambda x, y: x[None, :] * y[:, None],
        lambda x, y: np.broadcast_to(x, (2, 3)) * 2.0,
        lambda x, y: np.broadcast_to(x, (2, 3)),
        lambda x, y: np.exp(np.broadcast_to(x, (2, 3))),
        lambda x, y: np.sum(np.broadcast_to(x, (2, 3)) + np.broadcast_to(y[:, None], (2, 3)), axis=0),
    ):
        _as_listed(traced(fn, x, y), [x, y])


def test_memory_is_used_again_and_arguments_are_kept() -> None:
    x = np.linspace(0, 1, 200_000)
    before = x.copy()
    fn = jg.compile(lambda x: (np.sqrt((y := x * 3) + 1) * 2, y, y[::2]))
    for _ in range(5):
        a, b, c = fn.interpret(x)
        np.testing.assert_array_equal(a, np.sqrt(before * 3 + 1) * 2)
        np.testing.assert_array_equal(b, before * 3)
        np.testing.assert_array_equal(c, (before * 3)[::2])
        np.testing.assert_array_equal(x, before)


def test_an_error_names_the_instruction() -> None:
    good, bad = np.array([0, 1]), np.array([0, 7])
    fn = jg.compile(lambda x, k: np.sum(np.exp(x)[k] * 2))
    texts = []
    for _ in range(4):
        with pytest.raises(IndexError, match="out of bounds") as found:
            fn.interpret(np.arange(3.0), bad)
        texts.append(str(found.value))
    assert len(set(texts)) == 1 and "test_listing.py" in texts[0]
    assert fn.interpret(np.arange(3.0), good) == np.sum(np.exp(np.arange(2.0)) * 2)


def test_singular_matrices_are_told() -> None:
    fn = jg.compile(lambda a: np.linalg.solve(a, a[0]))
    for _ in range(4):
        with pytest.raises(np.linalg.LinAlgError, match=r"test_listing\.py"):
            fn.interpret(np.zeros((40, 40)))


def test_calls_with_arrays_alone_and_others() -> None:
    fn = jg.compile(lambda x, scale=2.0: x * scale)
    x = np.arange(4.0)
    for _ in range(4):
        np.testing.assert_array_equal(fn.interpret(x), x * 2)
        np.testing.assert_array_equal(fn.interpret(x[::-1]), x[::-1] * 2)
        np.testing.assert_array_equal(fn.interpret(x.astype(np.float32)), x.astype(np.float32) * 2)
        np.testing.assert_array_equal(fn.interpret(x, 3.0), x * 3)
        np.testing.assert_array_equal(fn.interpret(x, scale=x), x * x)
        np.testing.assert_array_equal(fn.interpret(x.astype(">f8")), x * 2)


def test_the_results_of_a_call_are_the_callers_from_the_first_to_the_last() -> None:
    fn = jg.compile(lambda x, k: {"sum": np.sum(x), "x": x, "twice": (y := x * 2, y), "fixed": 7, "turned": (x + k).T})
    x, k = np.arange(6.0).reshape(2, 3), np.array(1.5)
    kinds = []
    for _ in range(6):
        made = fn.interpret(x, k)
        kinds.append({name: type(value) for name, value in made.items()})
        np.testing.assert_array_equal(made["turned"], (x + 1.5).T)
        assert (made["sum"], made["fixed"]) == (15, 7)
        assert made["turned"].flags.c_contiguous
        made["x"] += 1
        made["twice"][0][:] = 0
        np.testing.assert_array_equal(made["twice"][1], np.arange(0.0, 12, 2).reshape(2, 3))
        np.testing.assert_array_equal(x, np.arange(6.0).reshape(2, 3))
    assert fn._calls._listed
    assert all(found == kinds[0] for found in kinds)


def test_observers_see_the_calls_of_what_is_one_function() -> None:
    fn = jg.compile(lambda x: np.log(x) + 1)
    for _ in range(4):
        fn.interpret(np.ones(3))
    with jg.profile() as profile:
        fn.interpret(np.ones(3))
    assert any(event.name == "log" for event in profile.events)
    with jg.config(debug_nans=True), pytest.raises(FloatingPointError, match="log"):
        fn.interpret(-np.ones(3))
    assert np.isnan(fn.interpret(-np.ones(3))).all()
