"""Listings: a program interpreted again and again gives the bits of its first run, and its errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest
from cases import OpCase
from test_ops import each_row, program_of
from traced import traced

import jitgrad as jg
from jitgrad import error_states, interpreter
from jitgrad.interpreter import interpret
from jitgrad.listing import list_scan
from jitgrad.program import Program
from jitgrad.spec import spec_of

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def listed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "LISTED_FROM", 3)


def _as_listed(program: Program, feeds: Any) -> list[Any]:
    first = interpret(program, feeds)
    for _ in range(interpreter.LISTED_FROM):
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_known", [True, False])
def test_warnings_are_off_within_and_as_before_behind(monkeypatch: pytest.MonkeyPatch, is_known: bool) -> None:
    if not is_known:
        monkeypatch.setattr(error_states, "IGNORED", None)
    program = traced(lambda x, i: np.log(x)[i], np.zeros(3), np.int64(0))
    with np.errstate(divide="raise"):
        before = np.geterr()
        assert np.isneginf(_as_listed(program, [np.zeros(3), np.int64(2)])[0])
        with pytest.raises(IndexError):
            interpret(program, [np.zeros(3), np.int64(5)])
        assert np.geterr() == before


@pytest.mark.filterwarnings("error")
def test_warnings_are_off_in_every_step_of_a_loop() -> None:
    def halved(x: Any) -> Any:
        return jg.while_loop(lambda s: s[0] < 100, lambda s: (s[0] + 1, s[1] / 2 + 0 * np.log(0 * s[1])), (0, x))[1]

    fn = jg.compile(jg.value_and_grad(halved))
    with np.errstate(all="raise"):
        assert np.isnan(fn.interpret(np.float64(3.0))).all()
        np.log(1.0)


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


def _counts(carry: Any, x: Any) -> Any:
    total, kept, count = carry
    y = np.where(x > 0, total / x, -x) * 0.1
    return (total + y, kept, count + 1), (y, count, kept[0], 2.0)


def _large(carry: Any, x: Any) -> Any:
    y = np.tanh(carry * x + 1.0) - x
    return y * y, y


SCANS = [
    (lambda p, xs: jg.scan(lambda s, x: (p[0] + p[1] * s, s * x), p[2], xs), (np.array([1, -0.5, 3]), np.arange(9.0))),
    (lambda p, xs: jg.scan(_counts, (p, xs[:2], 0), xs, reverse=True), (np.float64(2), np.linspace(-1, 1, 7))),
    (lambda p, xs: jg.scan(_large, p, xs), (np.ones((300, 200)), np.linspace(-1, 1, 5 * 60_000).reshape(5, 300, 200))),
    (lambda p, xs: jg.scan(lambda s, x: (s, s), p, xs), (np.float32(2), np.zeros((4, 0)))),
    (lambda p, xs: jg.scan(lambda s, x: ((), x / 0.0), (), xs), (np.ones(2), np.arange(-2, 3.0))),
    (lambda p, xs: jg.scan(lambda s, x: ((s[1], s[0]), 1.0), (p, p[::-1]), xs), (np.arange(2.0), np.arange(5))),
    (lambda p, xs: jg.fori_loop(0, 6, lambda i, s: s * p + i, xs), (np.float64(0.7), np.float64(3))),
]  # fmt: skip


@pytest.mark.parametrize("fn, arrays", SCANS, ids=range(len(SCANS)))
def test_the_steps_of_a_scan_are_a_loop(
    monkeypatch: pytest.MonkeyPatch, fn: Any, arrays: tuple[Any, ...]
) -> None:
    written: list[Any] = []

    def write(*args: Any) -> Any:
        written.append(list_scan(*args))
        return written[-1]

    monkeypatch.setattr(interpreter, "list_scan", write)
    f = jg.compile(fn)
    with jg.profile():  # which sees each step
        expected, _ = optree.tree_flatten(f.interpret(*arrays))
    assert not written
    for _ in range(3):
        results, _ = optree.tree_flatten(f.interpret(*arrays))
        for a, b in zip(results, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
    assert len(written) == 1


def test_an_error_in_a_loop_names_the_instruction() -> None:
    x = np.arange(3.0)
    f = jg.compile(lambda x, rows: jg.scan(lambda s, row: (s + x[row], s), 0.0, rows))
    assert f.interpret(x, np.array([0, 1, 2, 0]))[0] == 3
    with pytest.raises(IndexError, match="a position is out of bounds") as caught:
        f.interpret(x, np.array([0, 1, 5, 0]))
    assert "test_listing.py" in str(caught.value)


def test_profiles_see_the_steps_of_a_loop() -> None:
    f = jg.compile(lambda xs: jg.scan(lambda s, x: (s + np.sin(x), s), 0.0, xs))
    f.interpret(np.arange(8.0))
    with jg.profile() as prof:
        f.interpret(np.arange(8.0))
    assert sum(event.name == "sin" for event in prof.events) == 8
