"""Results that are written over an operand: which may be, and that nothing but the memory changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import jitgrad as jg
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Bound,
    Buffer,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
)
from jitgrad.compiler.lowering.in_place import find_overwritable

F64 = np.dtype(np.float64)
ROWS, COLUMNS = 40, 5000

HERE = Index((Term("i0", "n0"), Term("i1")))
LOAD = Load("v0", F64, "in0", HERE)
SINE = Let("v1", F64, "sin", ("v0",))
STORE = Store("out0", HERE, "v1", F64)


def _kernel(*body: Statement, inner: str = VECTOR, around: str | None = None) -> Kernel:
    """Rows and columns, the statements in the inner loop; perhaps all of it repeated in another loop."""
    rows = Loop("i0", "n1", PARALLEL, (Loop("i1", "n0", inner, body),))
    nest = rows if around is None else Loop("i2", "n2", around, (rows,))
    buffers = (Buffer("in0", F64, "in"), Buffer("scratch0", F64, "scratch", "n0"), Buffer("out0", F64, "out"))
    return Kernel(buffers, ("n0", "n1", "n2"), (), (nest,))


def test_an_element_that_is_read_where_another_is_written() -> None:
    assert find_overwritable(_kernel(LOAD, SINE, STORE)) == ((0, 2),)


@pytest.mark.parametrize(
    "kernel",
    [
        _kernel(LOAD, SINE, Store("out0", Index((Term("i1", "n1"), Term("i0"))), "v1", F64)),
        _kernel(LOAD, SINE, STORE, Load("v2", F64, "in0", HERE)),
        _kernel(Store("out0", HERE, "i0", F64), LOAD),
        _kernel(LOAD, SINE, STORE, around=SERIAL),
        _kernel(LOAD, SINE, Store("out0", HERE, "v1", F64, (Bound("i1", "n2", None),))),
        _kernel(Load("v0", F64, "in0", HERE, (Bound("i1", "n2", None),)), SINE, STORE),
        _kernel(Load("v0", np.dtype(np.float32), "in0", Index((Term("i1"),))), SINE, STORE),
    ],
    ids=["elsewhere", "read twice", "read after", "repeated", "some written", "some read", "read by column"],
)
def test_others_stay_apart(kernel: Kernel) -> None:
    assert find_overwritable(kernel) == ()


Loss = Callable[..., Any]


def mixture(x: Any) -> Any:
    """Exponentials need the largest of each column of what they are written over."""
    logs = np.sin(x) * 3
    terms = np.exp(logs - np.max(logs, axis=0))
    return terms / np.sum(terms, axis=0)


def read_again(x: Any) -> Any:
    """What the exponentials are made of is read once more."""
    logs = np.sin(x) * 3
    terms = np.exp(logs - np.max(logs, axis=0))
    return terms / np.sum(terms, axis=0) + logs[::-1]


def by_others(x: Any) -> Any:
    """Sums of rows, which the product with them needs as they were."""
    z = np.sin(x) * 3
    return np.cos(z - np.sum(z, axis=0)) @ z.T


LOSSES = [mixture, read_again, by_others]


def _cluster(f: Any, *arrays: NDArray[Any]) -> BoundCluster:
    ((stage, given),) = f.stages(*arrays)
    found = [step for step in stage.executable(given).bound.steps if isinstance(step, BoundCluster)]
    (cluster,) = found
    return cluster


def _given(rows: int = ROWS, columns: int = COLUMNS) -> NDArray[Any]:
    return np.random.default_rng(0).standard_normal((rows, columns))


def _arena(loss: Loss, x: NDArray[Any]) -> int:
    """Bytes of the arena of a function without large outputs, planned anew."""
    with jg.config(cache=False):
        return _cluster(jg.compile(lambda x: np.sum(loss(x) ** 2)), x).arena.nbytes


def test_a_result_in_place_needs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _given()
    together = {loss: _arena(loss, x) for loss in (mixture, read_again)}
    monkeypatch.setattr("jitgrad.compiler.freezing.freeze.find_in_place", lambda *_: {})
    assert together[mixture] < 2 * x.nbytes <= _arena(mixture, x)
    assert together[read_again] == _arena(read_again, x)


def test_what_lies_in_one_place_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exponentials written over what they are made of touch that memory alone, and need no stores past the caches."""
    x, freeze = _given(), "jitgrad.compiler.freezing.freeze"
    monkeypatch.setattr(f"{freeze}.last_level_bytes", lambda: 2 * x.nbytes)
    large = set[str]()  # kernels that touch more than three quarters of the cache

    def note(kernel: Kernel, *_: object) -> bool:
        large.add(str(kernel))
        return True

    monkeypatch.setattr(f"{freeze}.has_whole_lines", note)
    _arena(mixture, x)
    assert len(large) == 1
    monkeypatch.setattr(f"{freeze}.find_in_place", lambda *_: {})
    _arena(mixture, x)
    assert len(large) == 2


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("rows, columns", [(ROWS, COLUMNS), (3, 70_001), (300, 37)])
def test_values_and_bits(loss: Loss, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as the interpreter's, and the same bits with memory of their own and for any number of threads."""
    x = _given(rows, columns)
    before = jg.get_num_threads()
    made = []
    try:
        for is_apart, threads in itertools.product((False, True), (1, 2, 3)):
            with monkeypatch.context() as context, jg.config(cache=False):
                if is_apart:
                    context.setattr("jitgrad.compiler.freezing.freeze.find_in_place", lambda *_: {})
                jg.set_num_threads(threads)
                f = jg.compile(jg.value_and_grad(lambda x: np.sum(loss(x) ** 2)))
                f(x)
                made.append(f(x))
    finally:
        jg.set_num_threads(before)
    value, gradient = f.interpret(x)
    np.testing.assert_allclose(made[0][0], value, rtol=1e-12)
    np.testing.assert_allclose(made[0][1], gradient, rtol=1e-9, atol=1e-12 * np.abs(gradient).max())
    for other in made[1:]:
        assert other[0] == made[0][0]
        np.testing.assert_array_equal(other[1], made[0][1])


def test_a_new_shape_lies_in_place_too() -> None:
    f = jg.compile(lambda x: np.sum(mixture(x) ** 2))
    for columns in (3000, 4000, 5000):
        x = _given(columns=columns)
        np.testing.assert_allclose(f(x), f.interpret(x), rtol=1e-12)
        assert _cluster(f, x).arena.nbytes < 2 * x.nbytes
