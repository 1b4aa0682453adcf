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


NUMBERS = {
    "f": [0.0, -0.0, 1.5, -2.5, 3e300, np.inf, -np.inf, np.nan, 5e-324],
    "i": [0, 1, -1, 7, np.iinfo(np.int64).min, np.iinfo(np.int64).max],
    "b": [False, True],
}


def _of_floats(x: Any, y: Any) -> Any:
    pairs = (x + y, x - y, x * y, x / y, x == y, x != y, x < y, x <= y, x > y, x >= y)
    return (*pairs, -x, abs(x), np.square(x), np.where(x < y, x, y), np.maximum(x, y), np.minimum(x, y), x**2, x**3)


def _of_integers(x: Any, y: Any) -> Any:
    pairs = (x + y, x - y, x * y, x / y, x == y, x != y, x < y, x <= y, x > y, x >= y)
    return (*pairs, -x, abs(x), np.where(x < y, x, y), np.maximum(x, y), np.minimum(x, y), x * 0.5, x // y, x % y)


def _of_truths(x: Any, y: Any) -> Any:
    return np.logical_and(x, y), np.logical_or(x, y), np.logical_not(x), np.where(x, y, x), x & y, x == y, 1.0 * x


@pytest.mark.parametrize(
    "fn, values, dtype",
    [
        (_of_floats, NUMBERS["f"], np.float64),
        (_of_floats, NUMBERS["f"], np.float32),
        (_of_integers, NUMBERS["i"], np.int64),
        (_of_integers, [-128, -1, 0, 1, 127], np.int8),
        (lambda x, y: (x + y, x - y, x * y, x / y, x < y, x == y), [0, 1, 200, 255], np.uint8),
        (_of_truths, NUMBERS["b"], np.bool_),
    ],
    ids=["float64", "float32", "int64", "int8", "uint8", "bool"],
)
def test_operators_on_numbers_give_the_bits_of_ufuncs(fn: Any, values: list[Any], dtype: Any) -> None:
    with np.errstate(all="ignore"):
        numbers = np.array(values).astype(dtype)
    program = traced(fn, numbers[0], numbers[0])
    for x in numbers:
        for y in numbers:
            feeds = [np.array(x), np.array(y)]
            with jg.profile():  # which sees each step
                expected = interpret(program, feeds)
            for made, one in zip(_as_listed(program, feeds), expected, strict=True):
                np.testing.assert_array_equal(made, one)
                assert np.asarray(made).dtype == np.asarray(one).dtype
                if np.asarray(made).dtype.kind == "f":
                    assert np.signbit(made) == np.signbit(one)


def test_numbers_stand_in_the_line_that_reads_them_up_to_a_length() -> None:
    def many(x: Any) -> Any:
        for k in range(400):
            x = (x + k) * 0.5
        return x

    program = traced(many, np.float64(1))
    made = _as_listed(program, [np.float64(1)])
    assert made[0] == many(np.float64(1)) and 20 < _lines(program) < 100


def test_numbers_that_are_made_twice_are_made_once() -> None:
    program = traced(lambda x, i: np.exp(x[i - 1]) + np.sin(x[i - 1]) + x[i - 1], np.arange(4.0), np.int64(2))
    _as_listed(program, [np.arange(4.0), np.int64(2)])
    assert _lines(program) == 7  # i - 1, three elements, exp, sin, and both sums


def test_numbers_that_each_step_has_are_made_before_the_first() -> None:
    def fn(a: Any, i: Any, xs: Any) -> Any:
        def step(s: Any, x: Any) -> Any:
            return np.where(a * 2 > 1, s + x * (a - 1), s - a * 2), a * 2

        return jg.scan(step, 0.0, xs), jg.scan(lambda s, x: (i + 1, s), i, xs)

    f = jg.compile(fn)
    for n in (0, 1, 4):
        args = (np.float64(0.7), np.int64(3), np.arange(1.0, n + 1))
        with jg.profile():
            expected, _ = optree.tree_flatten(f.interpret(*args))
        for _ in range(20):
            results, _ = optree.tree_flatten(f.interpret(*args))
            for a, b in zip(results, expected, strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()


def test_parts_are_written_in_the_memory_of_the_state_but_not_of_arguments() -> None:
    def fn(x: Any, table: Any, order: Any) -> Any:
        def write(i: Any, t: Any) -> Any:
            old = t[order[i]]
            t[order[i]] = old * x[i] + i
            return t

        def turn(i: Any, state: Any) -> Any:
            a, b = state
            a[i] = b[i] + 1
            return b, a

        def both(i: Any, state: Any) -> Any:
            a, _ = state
            before = a
            changed = a + 0
            a[i] = x[i]
            return a, before + changed

        n = len(x)
        return (
            jg.fori_loop(0, n, write, table),
            jg.fori_loop(0, n, turn, (table, table)),
            jg.fori_loop(0, n, both, (table, table)),
        )

    x, table = np.linspace(1, 2, 64), np.arange(64.0)
    order = np.random.default_rng(0).integers(0, 64, 64)
    f = jg.compile(fn)
    expected, _ = optree.tree_flatten(f(x, table, order))
    with jg.profile():
        steps, _ = optree.tree_flatten(f.interpret(x, table, order))
    for _ in range(3):
        results, _ = optree.tree_flatten(f.interpret(x, table, order))
        for a, b, c in zip(results, steps, expected, strict=True):
            assert a.tobytes() == b.tobytes()
            np.testing.assert_allclose(a, c)
    np.testing.assert_array_equal(table, np.arange(64.0))


def test_an_element_that_each_step_has_is_read_where_there_are_steps() -> None:
    x = np.arange(3.0)
    f = jg.compile(lambda x, k, rows: jg.scan(lambda s, row: (s + x[k] * row + x[k - 1], s), 0.0, rows))
    rows = np.arange(40.0)
    for _ in range(3):
        assert f.interpret(x, np.int64(2), rows)[0] == 2 * np.sum(rows) + 40
        assert f.interpret(x, np.int64(7), rows[:0])[0] == 0
        with pytest.raises(IndexError, match="a position is out of bounds") as caught:
            f.interpret(x, np.int64(7), rows)
        assert "test_listing.py" in str(caught.value)
