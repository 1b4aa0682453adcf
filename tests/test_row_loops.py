"""Loops over independent rows, whose chunks go through all steps by themselves: which they are, and that results are
those of the interpreter, with the same bits for any number of threads.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.freezing import row_loops
from jitgrad.compiler.freezing.bind import BoundCluster

Fn = Callable[..., Any]


@pytest.fixture(autouse=True)
def _any_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_loops, "_LEAST_WORK", 0)


def loops_of(f: Any, *arrays: Any) -> list[tuple[int, int]]:
    """Extent and number of chunks of each loop of a compiled function."""
    found = []
    for stage, given in f.stages(*arrays):
        for step in stage.executable(given).bound.steps:
            if isinstance(step, BoundCluster):
                records = zip(step.names, step.steps[:, 2:4].tolist(), strict=True)
                found += [(extent, chunks) for name, (extent, chunks) in records if name.startswith("loop")]
    return found


def check(fn: Fn, arrays: list[Any], cut: tuple[int, int] | None, count: int) -> None:
    """The gradient of a function as interpreted, with equal bits; ``count`` loops are cut so."""
    step = jg.compile(jg.value_and_grad(lambda *args: np.sum(fn(*args) ** 2), tuple(range(len(arrays)))))
    loops = loops_of(step, *arrays)
    assert [loop for loop in loops if loop[1] > 1] == [cut] * count, loops
    results = []
    threads = jg.get_num_threads()
    try:
        for k in (1, 2, 3, 4):
            jg.set_num_threads(k)
            results.append(step(*arrays))
    finally:
        jg.set_num_threads(threads)
    bits = {b"".join(np.asarray(leaf).tobytes() for leaf in (value, *slopes)) for value, slopes in results}
    assert len(bits) == 1
    value, slopes = step.interpret(*arrays)
    tolerance = 1e-3 if arrays[0].dtype == np.float32 else 1e-9
    np.testing.assert_allclose(results[0][0], value, rtol=tolerance)
    for ours, theirs in zip(results[0][1], slopes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * np.max(np.abs(theirs)))


def rnn(w: Any, u: Any, h: Any, xs: Any) -> Any:
    return jg.scan(lambda h, x: ((h := np.tanh(h @ w + x @ u)), h), h, xs)[1]


def lstm(w: Any, u: Any, h: Any, xs: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        z = h @ w + x @ u
        n = h.shape[1]
        i, f, o, g = (z[:, k * n : (k + 1) * n] for k in range(4))
        c = jg.nn.sigmoid(f) * c + jg.nn.sigmoid(i) * np.tanh(g)
        h = jg.nn.sigmoid(o) * np.tanh(c)
        return (h, c), h * 2

    (h, c), ys = jg.scan(step, (h, h * 0.5), xs, reverse=True)
    return np.concatenate([ys.reshape(-1), h.reshape(-1), c.reshape(-1)])


def arguments(rows: int, width: int, gates: int, steps: int, dtype: Any) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = (width, gates * width), (5, gates * width), (rows, width), (steps, rows, 5)
    return [(rng.normal(size=shape) * 0.3).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("rows", "cut"), [(16, (16, 2)), (34, (34, 2)), (132, (132, 4)), (130, (130, 2))])
def test_recurrent_networks(rows: int, cut: tuple[int, int], dtype: Any) -> None:
    check(rnn, arguments(rows, 24, 1, 7, dtype), cut, 2)
    check(lstm, arguments(rows, 11, 4, 6, dtype), cut, 2)


@pytest.mark.parametrize("rows", [8, 33])
def test_few_rows_and_odd_ones_are_left(rows: int) -> None:
    check(rnn, arguments(rows, 24, 1, 7, np.float32), None, 0)


MIXING: dict[str, Fn] = {
    "mean": lambda h: h - np.mean(h, axis=0),
    "turned": lambda h: h[::-1],
    "shifted": lambda h: np.concatenate([h[1:], h[:1]]),
    "transposed": lambda h: h.T @ h @ h.T,
    "looked up": lambda h: np.take(h, np.arange(32)[::-1], axis=0),
    "reshaped": lambda h: h.reshape(8, -1).T.reshape(h.shape),
}


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_need_one_another_stay_together(name: str) -> None:
    mixed = MIXING[name]

    def f(w: Any, h: Any) -> Any:
        return jg.scan(lambda h, _: ((h := np.tanh(mixed(h @ w))), h), h, None, length=5)[1]

    rng = np.random.default_rng(0)
    arrays = [(rng.normal(size=shape) * 0.3) for shape in ((32, 32), (32, 32))]
    check(f, arrays, None, 0)


def test_states_that_stay_and_results_that_are_constants() -> None:
    def f(w: Any, a: Any, b: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            a, b, c = state
            return (np.sin(a @ w) + x, a + b, c), (b, np.ones((32, 3)), x * c)

        (a, b, c), ys = jg.scan(step, (a, b, b * 2), xs)
        return np.concatenate([np.ravel(y) for y in (a, b, c, *ys)])

    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape) * 0.3 for shape in ((6, 6), (32, 6), (32, 6), (9, 32, 6))]
    step = jg.compile(f)
    assert (32, 2) in loops_of(step, *arrays)
    np.testing.assert_allclose(step(*arrays), step.interpret(*arrays), rtol=1e-12, atol=1e-13)


def test_no_step_at_all() -> None:
    step = jg.compile(lambda w, h, xs: jg.scan(lambda h, x: (np.tanh(h @ w + x), h), h, xs))
    rng = np.random.default_rng(0)
    w, h = rng.normal(size=(6, 6)), rng.normal(size=(32, 6))
    found = step(w, h, np.zeros((0, 32, 6)))
    np.testing.assert_array_equal(found[0], h)
    assert found[1].shape == (0, 32, 6)


def test_several_threads_in_one_loop() -> None:
    arrays = arguments(32, 24, 1, 50, np.float64)
    step = jg.compile(jg.value_and_grad(lambda *args: np.sum(rnn(*args) ** 2), (0, 1)))
    expected = step(*arrays)[1][0].tobytes()
    wrong: list[int] = []

    def calls(number: int) -> None:
        for _ in range(50):
            if step(*arrays)[1][0].tobytes() != expected:
                wrong.append(number)

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_signal_ends_all_chunks() -> None:
    step = jg.compile(lambda w, h: jg.scan(lambda h, _: (np.tanh(h @ w), None), h, None, length=4_000_000)[0])
    rng = np.random.default_rng(0)
    w, h = rng.normal(size=(32, 32)), rng.normal(size=(32, 32))
    assert (32, 2) in loops_of(step, w, h)
    before = signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(KeyboardInterrupt):
            step(w, h)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_allclose(jg.compile(lambda w, h: h @ w)(w, h), h @ w)


MOVES: list[Fn] = [
    lambda a, b, w: a @ w,
    lambda a, b, w: np.tanh(a + b),
    lambda a, b, w: a * b,
    lambda a, b, w: np.concatenate([a[:, 3:], b[:, :3]], axis=1),
    lambda a, b, w: a - np.mean(b, axis=1, keepdims=True),
    lambda a, b, w: a[:, ::-1] * 0.5,
    lambda a, b, w: jg.nn.softmax(a, axis=1) * 3,
    lambda a, b, w: a @ w.T + b[:, :1],
    lambda a, b, w: np.where(a > b, a, 0.5 * b),
    lambda a, b, w: a.reshape(len(a), 2, 5).transpose(0, 2, 1).reshape(a.shape),
    lambda a, b, w: (a.reshape(2 * len(a), 5) + 1).reshape(a.shape),
    lambda a, b, w: np.cumsum(a, axis=1) * 0.2,
    lambda a, b, w: a + b[::-1],
    lambda a, b, w: a * np.max(b, axis=0),
    lambda a, b, w: a + np.mean(b),
]
ALONE = 12  # the first moves need no other row


@pytest.mark.parametrize("seed", range(16))
def test_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    most = ALONE if seed % 4 else len(MOVES)
    chosen = [(MOVES[rng.integers(most)], *rng.integers(0, 3 + k, 2)) for k in range(int(rng.integers(2, 8)))]

    def f(w: Any, a: Any, b: Any, xs: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            pool = [*state, x]
            for move, i, j in chosen:
                pool.append(move(pool[i], pool[j], w))
            return (np.sin(pool[-1]), np.sin(pool[-2])), pool[-1] * pool[3]

        (a, b), ys = jg.scan(step, (a, b), xs, reverse=bool(seed % 2))
        return np.concatenate([np.ravel(a), np.ravel(b), np.ravel(ys)])

    arrays = [rng.normal(size=shape) * 0.3 for shape in ((10, 10), (32, 10), (32, 10), (5, 32, 10))]
    step = jg.compile(jg.value_and_grad(lambda *args: np.sum(f(*args) ** 2), (0, 1, 2, 3)))
    value, slopes = step(*arrays)
    expected, others = step.interpret(*arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    for ours, theirs in zip(slopes, others, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-9 * max(1.0, float(np.max(np.abs(theirs)))))
    cut = [loop for loop in loops_of(step, *arrays) if loop[1] > 1]
    assert set(cut) <= {(32, 2)}
    if all(MOVES.index(move) in (0, 1, 2, 3, 4, 5, 8) for move, *_ in chosen):
        assert cut
