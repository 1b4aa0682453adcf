"""Parts of arrays that loops write, in place where that can be, against Python's loops; gradients of two orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.bodies.updates import without_updates
from jitgrad.compiler.simplify import simplify
from tests.counting import assert_linear
from tests.traced import traced

Array = np.ndarray[Any, Any]
State = tuple[Any, ...]
Step = Callable[[Any, State], State]


def _python(step: Step, low: int, high: int, state: Sequence[Array], backward: bool = False) -> State:
    """The state after the steps, in NumPy."""
    found: State = tuple(np.array(x) for x in state)
    for i in range(low, high)[:: -1 if backward else 1]:
        found = step(i, found)
    return found


def _fori(step: Step, low: int, high: int, state: State) -> State:
    return tuple(jg.fori_loop(low, high, lambda i, s: step(i, s), state))


def _while(step: Step, low: int, high: int, state: State) -> State:
    found = jg.while_loop(lambda s: s[0] < high, lambda s: (s[0] + 1, *step(s[0], s[1:])), (low, *state))
    return tuple(found[1:])


def _scan(step: Step, low: int, high: int, state: State) -> State:
    """A scan that also stacks what it reads."""
    found = jg.scan(lambda s, i: (step(i, s), s[0][i]), state, np.arange(low, high))[0]
    return tuple(found)


LOOPS = {"fori": _fori, "while": _while, "scan": _scan}


def _check(loop: Any, step: Step, low: int, high: int, *arrays: Array, kept: int | None = None) -> str:
    """What the compiled loop and the interpreter give, and their gradients of the first and second order."""
    weights = [np.cos(np.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in arrays]

    def after(*arrays: Array) -> Any:
        return loop(step, low, high, arrays)

    def loss(*arrays: Array) -> Any:
        return sum(np.sum(out * w) for out, w in zip(after(*arrays), weights, strict=True))

    def slope(*arrays: Array) -> Any:
        return sum(np.sum(g * w) for g, w in zip(jg.grad(loss, every)(*arrays), weights, strict=True))

    every = tuple(range(len(arrays)))
    f, g, h = jg.compile(after), jg.compile(jg.grad(loss, every)), jg.compile(jg.grad(slope, every))
    wanted = _python(step, low, high, arrays)
    for found in (f(*arrays), f.interpret(*arrays)):
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12)
    for x, y in zip(g(*arrays), g.interpret(*arrays), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)
    along = 1e-6
    moved = [tuple(x + sign * along * w for x, w in zip(arrays, weights, strict=True)) for sign in (1, -1)]
    ends = [sum(np.sum(x * w) for x, w in zip(_python(step, low, high, m), weights, strict=True)) for m in moved]
    found = sum(np.sum(np.asarray(x) * w) for x, w in zip(g(*arrays), weights, strict=True))
    np.testing.assert_allclose(found, (ends[0] - ends[1]) / (2 * along), rtol=1e-6, atol=1e-7)
    for x, a, b in zip(h(*arrays), g(*moved[0]), g(*moved[1]), strict=True):
        np.testing.assert_allclose(x, (np.asarray(a) - b) / (2 * along), rtol=1e-5, atol=1e-6)
    text = f.explain(*arrays).text
    if kept is not None:
        lines = [line for line in text.splitlines() if "changed in place: " in line]
        assert sum(line.split("place: ")[1].count("%") for line in lines) == kept, text
    return text


def _waves(shape: tuple[int, ...]) -> Array:
    return np.sin(np.arange(float(np.prod(shape)))).reshape(shape) + 1.5


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("shape", [(80,), (12, 8), (9, 2, 5)])
def test_rows_made_of_rows_before(loop: Any, shape: tuple[int, ...]) -> None:
    def step(i: Any, state: State) -> State:
        (x,) = state
        x[i] = np.sin(x[i - 1]) * 0.7 + 0.2 * x[i - 2]
        return (x,)

    text = _check(loop, step, 2, shape[0], _waves(shape), kept=1)
    assert "update(" in text


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_part_that_is_read_after_it_was_written(loop: Any) -> None:
    def step(i: Any, state: State) -> State:
        x, y = state
        x[i] = x[i - 1] * 0.5 + y[0]
        x[i] *= x[i + 1]
        y[i] += np.exp(-x[i]) + x[0] * x[i - 1]
        return x, y

    _check(loop, step, 1, 8, _waves((10, 7)), _waves((11, 7)), kept=2)


@pytest.mark.parametrize("place", ["column", "element", "middle", "from the end", "one place"])
def test_other_parts_than_rows(place: str) -> None:
    def step(i: Any, state: State) -> State:
        (x,) = state
        if place == "column":
            x[:, i] = x[:, i - 1] * x[:, i]
        elif place == "element":
            x[i, i - 1] = x[i - 1, i] * x[2, i] + x[0, 0]
        elif place == "middle":
            x[:, i, :] = np.sin(x[:, i - 1])
        elif place == "from the end":
            x[-i] = x[i] * x[-1]
        else:
            x[3, i] = x[i, 3] + x[3, i - 1]
        return (x,)

    _check(_fori, step, 1, 8, _waves((4, 9, 3) if place == "middle" else (9, 10)), kept=1)


@pytest.mark.parametrize("how", ["row", "element", "row before", "static row", "from the end"])
def test_rows_of_written_arrays_are_views(how: str) -> None:
    def step(i: Any, state: State) -> State:
        (x,) = state
        x[i] = 0.5 * x[i]
        if how == "row":
            row = x[i]
            row *= x[i + 1]
        elif how == "element":
            row = x[i + 1]
            row[3] = 2.0
        elif how == "row before":
            row = x[i]
            x[i] = 0.7 * x[0]
            x[i + 1] += row
        else:
            row = x[2] if how == "static row" else x[-i]
            row[2] += 1.5
            x[i + 1] = row
        return (x,)

    _check(_fori, step, 1, 7, _waves((9, 8)))


@pytest.mark.parametrize("shape", [(80,), (9, 8), (9, 2, 5)])
def test_a_numbered_part_is_written_before_a_traced_one_is_read(shape: tuple[int, ...]) -> None:
    def step(i: Any, state: State) -> State:
        (x,) = state
        x[i] = x[i + 1] * 0.5
        x[2] = 0.25
        x[0] = x[i] * 3.0
        x[i] = x[i - 1] + x[2]
        return (x,)

    _check(_fori, step, 1, 7, _waves(shape))


@pytest.mark.parametrize("outer", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("inner", LOOPS.values(), ids=LOOPS)
def test_tables_of_loops_in_loops(outer: Any, inner: Any) -> None:
    def row(i: Any, state: State) -> State:
        def cell(j: Any, state: State) -> State:
            (x,) = state
            x[i, j] = np.sin(x[i - 1, j]) * x[i, j - 1] + 0.3 * x[i - 1, j - 1]
            return (x,)

        loop = inner if isinstance(state[0], jg.Tensor) else _in_python
        return tuple(loop(cell, 1, 9, state))

    text = _check(outer, row, 1, 9, _waves((9, 10)))
    assert text.count("changed in place: ") == 2, text


def _in_python(step: Step, low: int, high: int, state: State) -> State:
    for i in range(low, high):
        state = step(i, state)
    return state


def test_two_loops_in_one_change_the_state_of_both() -> None:
    def row(i: Any, state: State) -> State:
        def cell(j: Any, state: State) -> State:
            (x,) = state
            x[i, j] = x[i - 1, j] * 0.5 + x[i, j - 1]
            return (x,)

        loop = _fori if isinstance(state[0], jg.Tensor) else _in_python
        (x,) = loop(cell, 1, 9, loop(cell, 1, 8, state))
        x[i, 0] = x[i, 9] * x[i, 2]
        return (x,)

    text = _check(_fori, row, 1, 9, _waves((9, 10)))
    assert text.count("changed in place: ") == 3, text


@pytest.mark.parametrize("why", ["summed", "moved on", "exchanged", "shifted", "chosen"])
def test_what_is_needed_as_a_whole_is_not_changed_in_place(why: str) -> None:
    def step(i: Any, state: State) -> State:
        x, y = state
        if why == "summed":
            x[i] = y[i] * 0.1
            y[i] = y[i] + np.sum(x) * 0.01
        elif why == "moved on":
            x[i] = x[i - 1] * 0.5
            y = x * 1.0 if isinstance(x, np.ndarray) else x
        elif why == "exchanged":
            x[i] = y[i] * 0.5
            y[i] = x[i - 1]
            x, y = y, x
        elif why == "shifted":
            x[i] = y[i]
            x = x[::-1]
        else:
            x[i] = y[i]
            x = np.where(x > 1, x, y)
        return x, y

    _check(_fori, step, 1, 8, _waves((9, 8)), _waves((9, 8)), kept=1 if why == "summed" else 0)


def test_a_cotangent_that_comes_twice_counts_twice() -> None:
    def step(i: Any, state: State) -> State:
        x, y = state
        part = np.sum(np.sin(x[i]))
        y = x + x
        x = np.cos(x) + part
        return x, y

    _check(_fori, step, 0, 5, _waves((9, 8)), _waves((9, 8)))


def test_a_program_without_other_updates_is_not_made_again() -> None:
    def step(i: Any, x: Any) -> Any:
        x[i] = x[i - 1] * 0.5
        return x

    kept = simplify(traced(lambda x: jg.fori_loop(1, 9, step, x), _waves((9, 8))))
    assert "update(" in kept.text and without_updates(kept) is kept
    summed = simplify(traced(lambda x: jg.fori_loop(1, 9, lambda i, x: step(i, x) * np.sum(x), x), _waves((9, 8))))
    assert "update(" in summed.text and "update(" not in without_updates(summed).text


def test_small_arrays_stay_in_registers() -> None:
    def step(i: Any, state: State) -> State:
        (x,) = state
        x[i] = x[i - 1] * 0.5
        return (x,)

    assert "update(" not in _check(_fori, step, 1, 5, _waves((6,)), kept=0)


def test_a_part_may_be_the_state_of_another_that_is_changed_too() -> None:
    def step(i: Any, state: State) -> State:
        x, y = state
        x[i] = y.reshape(10, 8)
        y[i] = y[i - 1] + 1.0
        return x, y

    _check(_fori, step, 1, 4, _waves((5, 10, 8)), _waves((80,)), kept=1)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool", "complex128", "int8"])
def test_other_dtypes(dtype: str) -> None:
    def step(i: Any, state: State) -> State:
        x, y = state
        x[i] = y[i - 1]
        y[i] = x[i - 2] + y[i]
        return x, y

    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 2, (20, 8)).astype(dtype) for _ in range(2)]
    f = jg.compile(lambda *arrays: _fori(step, 2, 20, arrays))
    for found in (f(*arrays), f.interpret(*arrays)):
        for x, y in zip(found, _python(step, 2, 20, arrays), strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype


def test_places_out_of_bounds_write_nothing() -> None:
    def step(i: Any, x: Any) -> Any:
        x[i - 3] = 7.0
        return x

    f = jg.compile(lambda x: jg.fori_loop(0, 20, step, x))
    x = np.zeros((10, 8))
    found = f(x)
    assert np.all(found == 7.0) and np.array_equal(found, f.interpret(x)) and not x.any()
    g = jg.compile(lambda x: jg.fori_loop(14, 20, step, x))
    assert not np.any(g(x))


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_reads_out_of_bounds_after_writes(way: str) -> None:
    """What a step has written by the same position is there; any other position is checked."""
    x = _waves((10, 8))

    def loop(read: Callable[[Any, Any], Any]) -> Any:
        def step(i: Any, state: Any) -> Any:
            x, c = state
            x[i + 1] = c
            return x, read(x, i)

        f = jg.compile(lambda x: jg.fori_loop(7, 10, step, (x, np.ones(8)))[1])
        return f(x) if way == "compiled" else f.interpret(x)

    np.testing.assert_array_equal(loop(lambda x, i: x[i + 1] * 2), np.full(8, 8.0))
    with pytest.raises(jg.IndexingError, match="out of bounds"):
        loop(lambda x, i: x[1 * i + 1] * 2)
    with pytest.raises(jg.IndexingError, match="out of bounds"):
        loop(lambda x, i: x[i + 2] * 2)


def test_what_is_given_stays_as_it_is() -> None:
    def step(i: Any, x: Any) -> Any:
        x[i] = x[i - 1] + 1.0
        return x

    def f(x: Array) -> Any:
        y = np.exp(x)
        return jg.fori_loop(1, 9, step, y), jg.fori_loop(1, 5, step, y), y

    compiled, x = jg.compile(f), _waves((9, 8))
    for _ in range(3):
        first, second, y = compiled(x)
        np.testing.assert_allclose(y, np.exp(x), rtol=1e-14)
        np.testing.assert_array_equal(first[:5], second[:5])
        np.testing.assert_array_equal(second[5:], y[5:])


def test_lists_of_tensors() -> None:
    def f(x: Array) -> Any:
        def body(i: Any, state: Any) -> Any:
            array, y = state
            y = np.sin(y) + 0.1 * array.read(i - 1)
            return array.write(i, y), y

        array = jg.TensorArray(np.float64, 40).write(0, x)
        return np.sum(jg.fori_loop(1, 40, body, (array, x))[0].stack() ** 2)

    g, x = jg.compile(jg.grad(f)), _waves((5,))
    np.testing.assert_allclose(g(x), g.interpret(x), rtol=1e-12)
    assert "changed in place" in g.explain(x).text


def test_for_many_examples_at_once() -> None:
    def f(x: Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            table, c = state
            table[i] = c * table[i - 1]
            table[np.asarray(c > 1).astype(int) if isinstance(c, np.ndarray) else (c > 1).astype(int)] += 0.1
            return table, c * 0.9

        return jg.fori_loop(1, 12, step, (np.ones((12, 8)) * x, x * 1.0))[0][:, 0]

    rows = jg.compile(jg.jacobian(lambda x: np.stack([f(x[0]), f(x[1])])))
    x = np.array([1.2, 0.7])
    found = np.asarray(rows(x))
    step = 1e-6
    for k in range(2):
        ends = [np.stack([jg.compile(f)(v) for v in x + sign * step * np.eye(2)[k]]) for sign in (1, -1)]
        np.testing.assert_allclose(found[..., k], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)


def test_the_work_of_a_step_is_that_of_a_row() -> None:
    """The interpreter aside, no kernel of a step runs over the table."""

    def loss(x: Array) -> Any:
        def step(i: Any, state: Any) -> Any:
            table, c = state
            c = np.sin(c) + table[i - 1]
            table[i] = c
            return table, c

        return np.sum(jg.fori_loop(1, 500, step, (np.zeros((500, 6)), x))[0] ** 2)

    g = jg.compile(jg.value_and_grad(loss))
    x = _waves((6,))
    fusion = g.explain(x).fusion
    assert fusion.count("changed in place") == 2
    assert "2 axes" not in "".join(line for line in fusion.splitlines(True) if line.startswith("      kernel")), fusion


def test_calls_grow_linearly_with_writes() -> None:
    def prepare(size: int) -> Callable[[], Any]:
        def f(x: Array) -> Any:
            def step(i: Any, x: Any) -> Any:
                for k in range(size):
                    x[i + k] = x[i] * 0.5 + k
                return x

            return jg.fori_loop(0, 2, step, x)

        def run() -> None:
            with jg.config(cache=False, verify=False):
                jg.compile(f)(np.ones((300, 2)))

        return run

    prepare(3)()
    assert_linear(prepare, 40)


def test_calls_grow_linearly_with_loops_in_loops() -> None:
    """Each loop around asks what the one in it changes in place, for each of its states."""

    def prepare(size: int) -> Callable[[], Any]:
        def around(depth: int) -> Any:
            def body(i: Any, state: State) -> State:
                if depth > 1:
                    return tuple(jg.fori_loop(0, 2, around(depth - 1), state))
                for x in state:
                    x[i] = x[i] * 0.5
                return state

            return body

        def run() -> None:
            arrays = [np.ones((40, 3 + k)) for k in range(5)]
            with jg.config(cache=False, verify=False):
                jg.compile(lambda *arrays: jg.fori_loop(0, 2, around(size), arrays))(*arrays)

        return run

    prepare(1)()
    assert_linear(prepare, 2)
