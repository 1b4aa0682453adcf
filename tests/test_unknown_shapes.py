"""Every function on tensors whose extents, or whose rank, are only known when they are fed: the numbers and gradients
of known shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from scipy import special

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad import pytree
from jitgrad.spec import is_inexact
from tests import test_array_functions, test_functions, test_indexing, test_nn

Case = tuple[str, Callable[..., Any], list[Any], dict[str, Any]]


def named(name: str) -> Callable[..., Any] | None:
    """The function of NumPy, SciPy or jitgrad of that name, as users call it."""
    for home in (np, special, jg, jg.nn):
        found: Any = home
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    return None


def cases() -> dict[str, Case]:
    """One row per call: its name, the function, the arguments."""
    found: dict[str, Case] = {}
    calls = [(name, list(args), kwargs) for name, args, kwargs in test_array_functions.calls]
    calls += [(row.values[0], list(row.values[2]), row.values[3]) for row in test_functions.rows]
    for name, args, kwargs in calls:
        fn = named(name)
        if fn is not None and any(isinstance(leaf, np.ndarray) for leaf in pytree.flatten(args)[0]):
            found[f"{len(found)} {name}"] = (name, fn, args, kwargs)
    for index in test_indexing.indices:
        found[f"{len(found)} [{str(index)[:40]}]"] = ("getitem", lambda x, i=index: x[i], [test_indexing.X], {})
    for name, (fn, arrays, _) in test_nn.formulas.items():
        found[f"{len(found)} {name}"] = (name, fn, list(arrays), {})
    return found


rng = np.random.default_rng(5)
A, V = rng.normal(size=(4, 3)), rng.normal(size=5)
S = rng.normal(size=(3, 3)) + 3.0 * np.eye(3)
IMAGES, KERNELS = rng.normal(size=(2, 3, 6, 6)), rng.normal(size=(4, 3, 3, 3))
LABELS = np.array([0, 2, 1, 1])


def written(write: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the first argument that ``write`` has assigned to."""

    def fn(x: Any, *rest: Any) -> Any:
        y = x * 1.0
        write(y, *rest)
        return y

    return fn


def shifted(y: Any) -> None:
    y[1:] = y[:-1] * 2.0
    y[0] = 3.0
    y[:, 0] += 1.0


def hessian(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The Hessian of the sum of what ``fn`` gives."""
    return lambda x: jg.hessians(np.sum(fn(x)), [x])[0]


methods = ("mean", "std", "prod", "max", "all", "argmin", "argsort", "cumsum", "cumprod")
whole: dict[str, tuple[Any, ...]] = {
    **{f"x.{name}": (lambda x, name=name: getattr(x, name)(axis=-1), A) for name in methods},
    "x.reshape": (lambda x: x.reshape(2, 2, -1), A),
    "x @ y": (lambda x, y: 2.0 * x @ y, A, S),
    "array @ x": (lambda x: np.ones((2, 4)) @ x, A),
    "add.reduce": (lambda x: np.add.reduce(x, axis=1), A),
    "maximum.accumulate": (lambda x: np.maximum.accumulate(x), A),
    "multiply.outer": (lambda x, y: np.multiply.outer(x, y), A, V),
    "out=": (lambda x: np.exp(x, where=x > 0, out=np.zeros_like(x)), A),
    "numpy.array": (lambda x: jg.numpy.array([x[0], x[1]]), A),
    "x[a:b] = y": (written(shifted), A),
    "x[i] = y": (written(lambda y, i: y.__setitem__(i, 7.0)), A, LABELS),
    "x[mask] = y": (written(lambda y: y.__setitem__(y > 0, 0.5)), A),
    "put": (written(lambda y: np.put(y, [1, 2], [5.0, 6.0])), A),
    "copyto": (written(lambda y: np.copyto(y, 4.0, where=y > 1)), A),
    "fill_diagonal": (written(lambda y: np.fill_diagonal(y, 1.0)), A),
    "put_along_axis": (written(lambda y: np.put_along_axis(y, np.argsort(y, 1)[:, :1], 9.0, 1)), A),
    "add.at": (written(lambda y: np.add.at(y, [0, 0, 1], 2.0)), A),
    "conv2d": (lambda x, w: jg.nn.conv2d(x, w, padding=1), IMAGES, KERNELS),
    "conv2d NHWC": (lambda x, w: jg.nn.conv2d(x, w, data_format="NHWC"), IMAGES.transpose(0, 2, 3, 1), KERNELS),
    "conv_transpose2d": (jg.nn.conv_transpose2d, IMAGES, KERNELS.transpose(1, 0, 2, 3)),
    "max_pool2d": (lambda x: jg.nn.max_pool2d(x, 2), IMAGES),
    "avg_pool2d": (lambda x: jg.nn.avg_pool2d(x, 2), IMAGES),
    "cross_entropy": (jg.nn.cross_entropy, A, LABELS),
    "lookup of a lookup": (lambda x, i: jg.gather(jg.gather(x, i), [0, 0]) * 1.0, A, LABELS),
    "segment_sum": (lambda x, i: jg.unsorted_segment_sum(x, i, 3), A, LABELS),
    "cond": (lambda x: jg.cond(x[0, 0] > 0, np.linalg.inv, lambda a: np.tile(a, 1), x), S),
    "scan": (lambda x, w: jg.scan(lambda c, r: (np.tanh(c @ w + r), c), x[0] * 1.0, x), A, S),
    "while_loop": (lambda x, w: jg.while_loop(lambda s: np.sum(s * s) < 100, lambda s: s @ w, x), A, S),
    "fori_loop": (lambda x: jg.fori_loop(0, 2, lambda i, s: np.cumsum(s, axis=-1), x), A),
    "foldl": (lambda x: jg.foldl(lambda a, r: a + np.sin(r), x), A),
    "checkpoint": (lambda x: jg.checkpoint(lambda a: np.sin(a) @ a.T)(x), A),
    "function": (lambda x, w: jg.function(lambda a, q: np.sum(np.tanh(a @ q), axis=-1))(x, w), A, S),
    "noinline": (lambda x: jg.function(lambda a: np.linalg.inv(a) + np.tile(a, 1), noinline=True)(x), S),
    "hessian of tile": (hessian(lambda x: np.tile(x, 2) ** 3), V),
    "hessian of norm": (hessian(np.linalg.norm), A),
    "hessian of lookups": (hessian(lambda x: jg.gather(x, [0, 0, 1]) ** 3), V),
    "hessian of inv": (hessian(np.linalg.inv), S),
    "hessian of quantile": (hessian(lambda x: np.quantile(x, 0.3) ** 2), V),
}
CASES = cases() | {name: (name, fn, list(arrays), {}) for name, (fn, *arrays) in whole.items()}
SHAPES: dict[str, Callable[[Any], Any]] = {
    "known": lambda a: a.shape,
    "rows": lambda a: (None, *a.shape[1:]) if a.ndim else (),
    "extents": lambda a: (None,) * a.ndim,
    "rank": lambda a: None,
}


def results(case: Case, shapes: str, order: int, is_compiled: bool) -> list[Any]:
    """What a call gives, and its gradients."""
    _, fn, args, kwargs = case
    feeds: dict[Any, Any] = {}

    def stand_in(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            return [stand_in(item) for item in value]
        if not isinstance(value, np.ndarray):
            return value
        x = jg.placeholder(value.dtype, SHAPES[shapes](value))
        feeds[x] = value
        return x

    with jg.Graph().as_default(), jg.jit_scope() if is_compiled else nullcontext():
        made = fn(*map(stand_in, args), **{key: stand_in(value) for key, value in kwargs.items()})
        fetches = [y for y in pytree.flatten(made)[0] if isinstance(y, jg.Tensor)]
        xs = [x for x in feeds if is_inexact(x.dtype)]
        level = [y for y in fetches if is_inexact(y.dtype)]
        for _ in range(order):
            losses = [np.sum(np.sin(np.real(y))) for y in level]
            level = [g * 1.0 for g in jg.gradients(losses, xs) if g is not None] if losses and xs else []
            fetches += level
        return [np.asarray(value) for value in jg.Session().run(fetches, feeds)]


@functools.cache
def wanted(name: str, order: int, is_compiled: bool) -> list[Any] | type[Exception]:
    """What a call gives, or refuses, for known shapes."""
    try:
        return results(CASES[name], "known", order, is_compiled)
    except (jg.GradientError, jg.UnsupportedOpError, jg.TracedValueError) as error:
        return type(error)


def check(name: str, shapes: str, order: int = 1, is_compiled: bool = False) -> None:
    """The call gives what it gives for known shapes, or refuses what it refuses there."""
    expected = wanted(name, order, is_compiled)
    if not isinstance(expected, list):
        with pytest.raises(expected):
            results(CASES[name], shapes, order, is_compiled)
        return
    found = results(CASES[name], shapes, order, is_compiled)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        tolerance = 1e-9 if ours.dtype.itemsize > 4 else 1e-4
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance / 10)


def depends_on_the_rank(case: Case) -> bool:
    """Whether the call has a result per axis."""
    return case[0] == "gradient" and "axis" not in case[3] and len(case[2]) <= 2


@pytest.mark.quick
@pytest.mark.parametrize("shapes", ["rows", "extents", "rank"])
@pytest.mark.parametrize("case", CASES)
def test_every_function(case: str, shapes: str) -> None:
    if shapes == "rank" and depends_on_the_rank(CASES[case]):
        with pytest.raises(jg.ShapeError, match=r"(?s)how many results.*test_unknown_shapes.*hint"):
            check(case, shapes)
    else:
        check(case, shapes)


# One call of each function, where gradients of gradients and machine code are cheap enough for a test.
FIRST = {case[0]: name for name, case in reversed(CASES.items()) if not depends_on_the_rank(case)}


@pytest.mark.parametrize("shapes", ["extents", "rank"])
@pytest.mark.parametrize("name", FIRST)
def test_one_call_of_each_function_compiled_to_second_order(name: str, shapes: str) -> None:
    check(FIRST[name], shapes, order=2, is_compiled=True)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["zeros", "ones", "full", "full of a tensor", "broadcast_to", "arange"])
def test_the_shape_of_a_placeholder_is_no_shape_of_an_array(name: str) -> None:
    with jg.Graph().as_default():
        x, y = jg.placeholder(np.float64, (None, 3)), jg.placeholder(np.float64)
        calls: dict[str, Callable[[Any], Any]] = {
            "zeros": jnp.zeros,
            "ones": jnp.ones,
            "full": lambda shape: jnp.full(shape, 2.0),
            "full of a tensor": lambda shape: jnp.full(shape, x[0, 0]),
            "broadcast_to": lambda shape: np.broadcast_to(x[0], shape),
            "arange": lambda shape: jnp.arange(shape and shape[0]),
        }
        for shape in (x.shape, y.shape):
            with pytest.raises(jg.ShapeError, match=r"(?s)not fully known.*test_unknown_shapes.*hint:.*zeros_like"):
                calls[name](shape)


@pytest.mark.quick
@pytest.mark.parametrize("fn", [np.partition, np.argpartition])
def test_places_beyond_an_axis_are_refused_once_its_extent_is_known(fn: Callable[..., Any]) -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (None, 2))
        found = {axis: fn(x, 9, axis=axis) for axis in (0, None)}
        with jg.Session() as session:
            for axis, y in found.items():
                rows = np.random.default_rng(0).standard_normal((12, 2))
                whole = np.sort(rows, axis=axis) if fn is np.partition else np.argsort(rows, axis=axis)
                np.testing.assert_array_equal(session.run(y, {x: rows}), whole)
                with pytest.raises(ValueError, match=r"kth=9 is out of bounds for [46] elements"):
                    session.run(y, {x: rows[: 4 if axis == 0 else 3]})
