"""Calls that machine code takes: which it takes, the same results as the first call, what it leaves to Python, and
that nothing is lost, kept or shared.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import pytree
from tests.watched_calls import Watched, X, no_trace_is_left_open, same, total


class Pair(NamedTuple):
    a: Any
    b: Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    n: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(unsafe_hash=True)
class Mutable:
    n: int


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {}),
    ((X, X, X[:1], np.float32(3)), {}),
    ((X, 2.5), {}),
    ((X, 3), {}),
    ((X, True), {}),
    ((X, 1 - 2j), {}),
    ((X, np.array(4.0)), {}),
    ((X, np.float64(4.0)), {}),
    ((X, np.bool_(True)), {}),
    ((X, np.complex64(1j)), {}),
    ((X,), {"y": X, "z": 2.0}),
    ((), {"y": X}),
    (({"b": X, "a": 2.0},), {}),
    (([X, (X, [X, 1])],), {}),
    (((),), {"x": X}),
    ((Pair(X, {"w": [X]}),), {}),
    (({1: X, 2: X},), {}),
    ((X, None), {}),
    ((X, "text"), {"mode": "other"}),
    ((np.ones((2, 0, 3)),), {}),
    ((np.ones((2, 3, 4, 5), np.int16),), {}),
]


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS, ids=str)
def test_the_same_as_the_first_call(args: Any, kwargs: Any) -> None:
    f = Watched(total)
    first = f(*args, **kwargs)
    same(f.taken(*args, **kwargs), first)
    same(first, f.f.interpret(*args, **kwargs))


def changed(tree: Any) -> Any:
    """The same tree with other values of the same types."""

    def change(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x + 1
        return x if isinstance(x, str | bool) else type(x)(1) + x

    return pytree.tree_map(change, tree)


@pytest.mark.parametrize(("args", "kwargs"), ARGUMENTS, ids=str)
def test_other_values_of_the_same_kind(args: Any, kwargs: Any) -> None:
    f = Watched(total)
    f.taken(*args, **kwargs)
    args, kwargs = changed((args, kwargs))
    same(f.third(*args, **kwargs), f.f.interpret(*args, **kwargs))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", "i4", "i8", "u8", "?", "c8", "c16"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 0)])
def test_dtypes_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    f = Watched(lambda x: (x, x.reshape(-1), x == x))
    x = np.ones(shape, dtype)
    same(f.taken(x), f.f.interpret(x))


C = np.array([[1.0, 3.0, 0.5, 2.5], [2.0, 1.0, 4.0, 0.25], [1.0, 1.5, 2.0, 3.5], [0.0, 1.0, 5.0, 2.0]])
RESULTS: list[Callable[[Any], Any]] = [
    lambda x: x * 2,
    lambda x: x.sum(),
    lambda x: (x.sum(), x * 2),
    lambda x: [x * 2, (x.max(), {"k": x + 1})],
    lambda x: {"b": x * 2, "a": [x.sum()], 3: ()},
    lambda x: (x * 2, None, "text", 3, 2.5),
    lambda x: Pair(x * 2, x.sum()),
    lambda x: Frozen(x * 2, (x.sum(),)),
    lambda x: (x * 2, np.arange(3)),
    lambda x: (x, x * 2, x),
    lambda x: (lambda y: (y, y, y.sum(), y.reshape(2, 2)))(x * 3),
    lambda x: (lambda s: (s, s, s.reshape(1)))(x.sum()),
    lambda x: (x.reshape(2, 2), x.sum() > 3, x.astype(np.complex128).sum()),
    lambda x: np.zeros((8192, 4)) + x,
    lambda x: {f"k{n}": x + n for n in range(50)},
    lambda x: x * C[0] + C[1] @ x,
    lambda x: (x[[2, 0]] * C[0, :2], C[:, ::2] * x[::2], np.tril(x + C)),
    lambda x: (x + C, C[:1] + 0 * x[0], np.where(C > 2, x, 0)),
]


@pytest.mark.parametrize("fn", RESULTS)
def test_results(fn: Callable[[Any], Any]) -> None:
    f = Watched(fn)
    first = f(X)
    third = f.taken(X)
    same(third, first)
    arrays = [leaf for leaf in pytree.flatten(third)[0] if isinstance(leaf, np.ndarray)]
    for k, array in enumerate(arrays):
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert not np.shares_memory(array, X)
        assert not any(np.shares_memory(array, other) for other in arrays[:k])


def test_constants_are_given_to_no_call_and_no_caller() -> None:
    """Machine code takes a function with arrays of its own; what is changed in results, or outside, changes no call."""
    table = C.copy()
    f = Watched(lambda x: (x * table, np.sort(x) + table[0]))
    first = f(X)
    table[:] = 0
    f(X)[0][:] = 0
    same(f(X), first)
    g = Watched(lambda x: (x + C[1], C.reshape(2, 8), C))
    for made in (g(X), g.taken(X)):
        same(made, (X + C[1], C.reshape(2, 8), C))
        assert not any(np.shares_memory(array, C) for array in made)
        made[2][:] = made[1][:] = 7


def test_constants_are_no_steps_of_a_run() -> None:
    f = Watched(lambda x: np.sum(x * C[0]) + np.max(C @ x))
    f.taken(X)
    with jg.profile() as prof:
        f(X)
        f(X)
    assert [event.name for event in prof.events if event.kind == "numpy"] == []
    assert len([event for event in prof.events if event.kind == "native"]) == 2


class Subclass(np.ndarray[Any, Any]):
    """Not exactly numpy.ndarray."""


UNUSUAL = [
    np.ones(8)[::2],
    np.ones(4).astype(">f8"),
    np.ones(4).view(Subclass),
    np.ones(33, np.uint8)[1:].view(np.float64),
]


@pytest.mark.parametrize("x", UNUSUAL, ids=["strided", "swapped", "subclass", "misaligned"])
def test_unusual_arrays_are_left_to_python(x: Any) -> None:
    f = Watched(lambda x: x * 2)
    f.taken(X)
    same(f.left(x), np.asarray(x) * 2.0)


@pytest.mark.parametrize("x", [X.astype(np.float32), X[:3], X.reshape(2, 2), np.arange(4), 2.0, [1.0, 2.0]], ids=str)
def test_other_kinds_of_arguments(x: Any) -> None:
    """They get descriptions of their own, and do not disturb that of the first."""
    f = Watched(lambda x: x if isinstance(x, list) else x * 2)
    f.taken(X)
    same(f.taken(x), f.f.interpret(x))
    same(f.third(X), X * 2)


def test_read_only_arguments_are_taken() -> None:
    f = Watched(lambda x: x * 2)
    x = X.copy()
    x.flags.writeable = False
    same(f.taken(x), X * 2)


def test_an_assignment_in_the_function_does_not_reach_the_caller() -> None:
    def fn(x: Any) -> Any:
        x[0] = 9.0
        return x

    f, x = Watched(fn), X.copy()
    assert f.taken(x).tolist() == [9, 2, 3, 4]
    assert x.tolist() == X.tolist()


# -- counts and names ----------------------------------------------------------------------------------------


def test_wrong_arguments_say_what_python_says() -> None:
    f = Watched(lambda x, y: x * y)
    f.taken(X, X)
    for args, kwargs in (((X,), {}), ((X, X, X), {}), ((X, X), {"y": X}), ((X,), {"z": X})):
        with pytest.raises(TypeError, match="argument"):
            f(*args, **kwargs)
    with pytest.raises(TypeError, match="object"):
        f(X, np.array([object()]))
    same(f.third(X, X), X * X)


def test_names_in_any_order() -> None:
    f = Watched(lambda x, y, z: x - y * z)
    f.taken(X, y=X, z=2.0)
    same(f.taken(X, z=2.0, y=X), X - X * 2)
    same(f.third(X, y=X, z=2.0), X - X * 2)
    assert f.f.cache_info().traces == 1
    same(f.left(x=X, y=X, z=2.0), X - X * 2)


def test_dicts_in_that_order_with_just_those_keys() -> None:
    f = Watched(lambda d: d["a"] - d["b"] + len(d))
    f.taken({"a": X, "b": 2.0})
    same(f.third({"".join("a"): X, "b": 2.0}), X - 2.0 + 2)
    same(f.left({"b": 2.0, "a": X}), X - 2.0 + 2)
    same(f.left({"b": 2.0, "a": X, "c": 1.0}), X - 2.0 + 3)
    with pytest.raises(KeyError):
        f({"a": X})


def test_lengths_of_lists() -> None:
    f = Watched(lambda xs: sum(xs))
    f.taken([X, X])
    same(f.left([X]), X)
    same(f.left([]), 0)
    same(f.left([X, X, X]), X * 3)
    same(f.left((X, X)), X * 2)


def test_integers_that_do_not_fit() -> None:
    f = Watched(lambda x, n: x * n)
    f.taken(X, 3)
    with pytest.raises(TypeError, match="does not fit"):
        f(X, 2**70)
    same(f.third(X, -1), -X)


# -- static arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [3, -1, 2**70, "mode", b"x", 0.5, float("nan"), None, True, (3, "a", (1.5,)), Colour.RED, frozenset({1})]
    + [Frozen(3, ("a",)), X.dtype.type, np.dtype("f4"), np.int64(4), np.sin, len, same, Pair],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_static_values(value: Any) -> None:
    seen = []

    def fn(x: Any, value: Any) -> Any:
        seen.append(value)
        return x * 2

    f = Watched(fn, static_argnames="value")
    same(f.taken(X, value), X * 2)
    same(f.taken(X, value=value), X * 2)
    same(f.taken(value=value, x=X), X * 2)
    assert len(seen) == 1


def test_equal_static_values_that_are_other_objects() -> None:
    f = Watched(lambda x, shape, name: x.reshape(shape), static_argnums=(1, 2))
    f.taken(X, (2, 2), "name")
    same(f.third(X, tuple([2, 2]), "".join(["na", "me"])), X.reshape(2, 2))  # noqa: C409
    same(f.left(X, (4, 1), "name"), X.reshape(4, 1))


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0), ((1,), (True,)), ("1", b"1"), (Colour.RED, Colour.BLUE)]
)
def test_static_values_that_differ(one: Any, other: Any) -> None:
    seen = []

    def fn(x: Any, value: Any) -> Any:
        seen.append(value)
        return x * 2

    f = Watched(fn, static_argnums=1)
    f.taken(X, one)
    f.left(X, other)
    assert [repr(value) for value in seen] == [repr(one), repr(other)]


def test_a_static_value_that_changes_is_looked_at_each_time() -> None:
    f, setting = Watched(lambda x, s: x * s.n, static_argnums=1), Mutable(2)
    for _ in range(3):
        same(f.left(X, setting), X * 2)
    setting.n = 3
    same(f.left(X, setting), X * 3)


def test_static_defaults() -> None:
    f = Watched(lambda x, n=2, *, m=3: x * n + m, static_argnames=("n", "m"))
    for args, kwargs in (((X,), {}), ((X, 2), {}), ((X,), {"n": 2}), ((), {"m": 3, "x": X})):
        same(f.taken(*args, **kwargs), X * 2 + 3)
    assert f.f.cache_info().traces == 1


@pytest.fixture(autouse=True)
def _no_trace_is_left_open() -> Iterator[None]:
    yield
    no_trace_is_left_open()
