"""Functions as users of NumPy write them: values, dtypes, shapes and kinds of results are NumPy's; gradients hold."""

# ruff: noqa: E701, E702

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import gammaln

import jitgrad as jg
from jitgrad import pytree

pytestmark = pytest.mark.quick
Fn = Callable[..., Any]
rng = np.random.default_rng(5)
X = rng.normal(size=(6, 4))
Y = rng.normal(size=6)
W = rng.normal(size=4)
P = rng.uniform(0.5, 2, 6)
I = rng.integers(0, 4, 6)
F = X.astype(np.float32)
B = np.arange(3, dtype=np.int8)
cases: list[Any] = []
smooth: list[Any] = []


def case(*args: Any, grad: bool = False) -> Callable[[Fn], Fn]:
    """Enter a function with its arguments; ``grad``: it is a loss of the first one."""

    def enter(fn: Fn) -> Fn:
        cases.append(pytest.param(fn, args, id=getattr(fn, "__name__", type(fn).__name__)))
        if grad:
            smooth.append(cases[-1])
        return fn

    return enter


class Point(NamedTuple):
    """A named tuple among the arguments and results."""

    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Layer:
    """A dataclass with a method that the traced function calls."""

    w: Any
    name: str = "tanh"

    def apply(self, x: Any) -> Any:
        """The layer's values."""
        return getattr(np, self.name)(x @ self.w)


class Mode(enum.Enum):
    """An argument that is no array."""

    MEAN = 1
    SUM = 2


class Model:
    """State in attributes, a method as the loss."""

    def __init__(self) -> None:
        self.w = np.ones(4)

    def __call__(self, x: Any) -> Any:
        return x @ self.w

    def loss(self, x: Any) -> Any:
        """A loss that calls the object."""
        return np.square(self(x)).sum()


# fmt: off
# -- models and losses
@case(W, X, Y, grad=True)
def least_squares(w, x, y): r = y - x @ w; return 0.5 * np.mean(r**2)
@case(W, X, Y > 0, grad=True)
def logistic(w, x, y): z = x @ w; return -np.mean(np.where(y, -np.log1p(np.exp(-z)), -np.log1p(np.exp(z))))
@case(np.array([0.5, 1.3]), P, grad=True)
def gamma_likelihood(t, x): a, b = t; return -np.sum(a * np.log(b) - gammaln(a) + (a - 1) * np.log(x) - b * x)
@case(np.array([0.1, 0.2]), X, Y, grad=True)
def gaussian_process(t, x, y):
    scale, s = np.exp(t)
    d = ((x[:, None, :] - x[None, :, :]) / scale) ** 2
    k = s * np.exp(-0.5 * d.sum(-1)) + 0.1 * np.eye(x.shape[0])
    c = np.linalg.cholesky(k)
    a = np.linalg.solve(c, y)
    return 0.5 * a @ a + np.log(np.diag(c)).sum() + 0.5 * len(y) * np.log(2 * np.pi)
@case(X[:3], X, grad=True)
def k_means(c, x): return ((x[:, None] - c) ** 2).sum(-1).min(axis=1).mean()
@case(X[:3], X)
def k_means_step(c, x):
    a = np.linalg.norm(x[:, None] - c, axis=-1).argmin(1)
    chosen = a[:, None] == np.arange(3)
    return a, (chosen.T @ x) / np.maximum(chosen.sum(0), 1)[:, None], np.bincount(a, minlength=3)
@case(X, I, grad=True)
def cross_entropy(z, y):
    z = z - z.max(1, keepdims=True)
    return -(z - np.log(np.exp(z).sum(1, keepdims=True)))[np.arange(len(y)), y].mean()
@case(X, np.array([1, 3, 3]), grad=True)
def embedding(e, ids): return np.sum(e[ids] ** 2)
@case(np.eye(2), rng.normal(size=2), np.array([[1.0, 0.1], [0, 1]]), np.array([[1.0, 0]]))
def kalman(p, x, f, h):
    x, p = f @ x, f @ p @ f.T + 0.01 * np.eye(2)
    k = p @ h.T @ np.linalg.inv(h @ p @ h.T + 0.1)
    return x + k @ (0.3 - h @ x), (np.eye(2) - k @ h) @ p
# -- steps and loops that write
@case(Y, grad=True)
def verlet(q):
    p = np.zeros_like(q); q = q.copy()
    for _ in range(3): p -= 0.05 * np.sin(q); q += 0.1 * p
    return 0.5 * (p @ p) - np.cos(q).sum()
@case(rng.normal(size=(5, 6)), grad=True)
def heat(u):
    u = u.copy()
    for _ in range(2):
        u[1:-1, 1:-1] += 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
    return (u**2).sum()
@case(Y, grad=True)
def tridiagonal(d):
    n = len(d); c = np.zeros_like(d); x = d.copy(); c[0] = -0.25
    for i in range(1, n): t = 1 + 0.25 * c[i - 1]; c[i] = -0.25 / t; x[i] = (x[i] + 0.25 * x[i - 1]) / t
    for i in range(n - 2, -1, -1): x[i] -= c[i] * x[i + 1]
    return (x**2).sum()
@case(rng.normal(size=(3, 3)), grad=True)
def cholesky_by_hand(b):
    a = b @ b.T + np.eye(3); c = np.zeros_like(a)
    for i in range(3):
        for j in range(i + 1):
            s = a[i, j] - c[i, :j] @ c[j, :j]
            c[i, j] = np.sqrt(s) if i == j else s / c[j, j]
    return np.log(np.diag(c)).sum()
@case(rng.normal(size=(4, 4)) + 4 * np.eye(4))
def elimination(a):
    a = a.copy()
    for k in range(3):
        a[k + 1:, k] /= a[k, k]
        a[k + 1:, k + 1:] -= np.outer(a[k + 1:, k], a[k, k + 1:])
    return np.tril(a, -1) + np.eye(4), np.triu(a)
@case(X)
def normalized_rows(x):
    for i in range(len(x)): x[i] /= np.linalg.norm(x[i])
    return x
@case(rng.normal(size=(5, 6)), np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16.0)
def blurred(im, k):
    out = np.zeros_like(im); p = np.pad(im, 1, mode="edge")
    for i in range(3):
        for j in range(3): out += k[i, j] * p[i:i + im.shape[0], j:j + im.shape[1]]
    return out
# -- signals and statistics
@case(Y, np.ones(3) / 3)
def filtered(y, k):
    return np.convolve(y, k, "same"), np.correlate(y, k), np.gradient(y, 0.1), np.cumsum(np.insert(y, 0, 0))
@case(Y, grad=True)
def smoothed_slope(y):
    return (np.gradient(np.convolve(y, [0.25, 0.5, 0.25], "valid"), 0.5) ** 2).sum() + np.quantile(y, 0.3)
@case(X, grad=True)
def correlated(x): return np.corrcoef(x.T)[0, 1] + np.cov(x, rowvar=False).trace() + np.percentile(x, 40, axis=0).sum()
@case(X)
def summaries(x):
    return np.median(x, axis=0), np.var(x), x.std(0, ddof=1), np.average(x, axis=0, weights=np.arange(6)), np.ptp(x)
# -- arguments and results of all kinds
@case({"w": W, "b": 0.5}, X, grad=True)
def dict_of_parameters(p, x): return np.sum(np.tanh(x @ p["w"] + p["b"]))
@case(Point(W, np.float64(2.0)), X)
def named_tuple(p, x): return Point(x @ p.a, p.b * 2)
@case(Layer(np.ones(4)), X)
def dataclass(layer, x): return dataclasses.replace(layer, w=layer.apply(x))
@case(X, Mode.SUM, "relu", None, True)
def other_arguments(x, mode, name, axis, flag):
    x = np.maximum(x, 0) if name == "relu" else x
    return np.where(flag, x.sum(axis) if mode is Mode.SUM else x.mean(axis), 0.0) * 1
@case(collections.OrderedDict(a=X, b=Y))
def ordered_dict(d): return collections.OrderedDict((k, v * 2) for k, v in d.items())
@case(Y)
def nested_results(y): return {"a": [y, (y.sum(), {"b": y > 0})], "n": None, "s": "text", "i": 3}
@case(Y)
def same_result_twice(y): return y, y
@case(Y)
def constant_results(y): return np.arange(3), 3, y
case(X, grad=True)(Model().loss)
case(X)(Model())
case(X)(functools.partial(lambda a, x, b=1: a * x + b, 3.0, b=2))
case(X)(np.tanh)
case(X, grad=True)(np.linalg.norm)
@case(X)
def caught(x):
    try: return x[10]
    except IndexError: return x.reshape(-1)
@case(X)
def iterated(x): a, b, *rest = x; return sum(x), a + b, rest[0], [np.exp(r) for r in x], len(x)
@case(X)
def questions(x):
    return x + np.finfo(x.dtype).eps, np.ndim(x), np.size(x, 0), np.tril_indices_from(x[:4])[0], x[np.diag_indices(4)]
# -- dtypes
@case(F, 2, 2.5)
def functions_of_python_numbers(f, n, x):
    return f * x, f * n, f * np.sqrt(x), f * np.sum(x), f * -x, f * (x + n), np.append(f[0], x), np.dot(f, x)
@case(F, B)
def numbers_beside_arrays(f, i):
    return (np.stack([f[0, 0], 2.5]), np.append(i, 2), np.inner(f[0], 2.5), np.dot(i, 2), np.kron(f[0], 2.5), f / 3,
            np.where(f > 0, 2.5, f), np.clip(f, 0, 2.5), np.polyval([1, 2.5], f), np.quantile(f, 0.5),
            np.quantile(f, [0.5]), np.diff(f, prepend=0.0))
@case(3)
def python_integers_compared(n):
    return np.where(np.equal(n, 3), 1.0, 2.0), np.add(n > 2, 1), np.add(n == 3, 0), np.add(n != 3, 0)
@case(np.float32(2.5), np.int8(50))
def numpy_scalars(s, b):
    return s * 2, s + np.float64(1), np.exp(s), s**2, np.array([1.0, 2.0]) * s, np.array([1, 2]) * s, b + b, b / 2
@case(np.arange(6, dtype=np.int32))
def integers(i):
    return (i * 2, i / 2, i.sum(), i.mean(), i**2, np.sqrt(i), i.cumsum(), np.where(i > 2, i, 0.5),
            i // np.int16(2), i.prod())
@case(np.array([True, False]))
def bools(a): return a + a, a * 2, a.sum(), a.mean(), ~a, a.astype(float), a.any(), np.where(a, 1, 2)
@case(X[:0], np.zeros(0))
def empty(a, b): return a.sum(0), a + 1, b.sum(), np.concatenate([b, b]), a.T, a @ W, b.prod(), np.sort(b), b.any()
@case(np.asfortranarray(X), X[::2, ::-1], X.astype(">f8"), np.broadcast_to(Y, (3, 6)))
def memory_layouts(a, b, c, d): return a * 2, b.sum(1), a.T @ a, b.ravel(), c + 1, d * 2
# fmt: on


def _kind(value: Any) -> Any:
    """What a result is: arrays and scalars of NumPy by dtype and shape, Python numbers by type."""
    if isinstance(value, np.ndarray | np.generic):
        return isinstance(value, np.ndarray), value.dtype, value.shape
    return type(value)


def _copied(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, tree)


@pytest.mark.parametrize(("fn", "args"), cases)
def test_results_are_numpys(fn: Fn, args: Any) -> None:
    expected, structure = pytree.flatten(fn(*_copied(args)))
    found, found_structure = pytree.flatten(jg.compile(fn).interpret(*args))
    assert found_structure == structure
    for ours, theirs in zip(found, expected, strict=True):
        if np.ndim(theirs):  # a 0-d array is given as a scalar
            assert _kind(ours) == _kind(theirs)
        elif isinstance(theirs, np.ndarray | np.generic):
            assert ours.dtype == theirs.dtype
        if isinstance(theirs, str):
            assert ours == theirs
        else:
            np.testing.assert_allclose(ours, theirs, rtol=2e-6 if np.asarray(theirs).dtype == np.float32 else 1e-11)


@pytest.mark.parametrize(("fn", "args"), smooth)
def test_gradients_are_slopes(fn: Fn, args: Any) -> None:
    leaves, structure = pytree.flatten(args[0])
    direction = [np.asarray(rng.normal(size=np.shape(leaf))) for leaf in leaves]
    h = 1e-6

    def at(step: float) -> Any:
        moved = [leaf + step * d for leaf, d in zip(leaves, direction, strict=True)]
        return fn(pytree.unflatten(structure, moved), *args[1:])

    found = pytree.flatten(jg.grad(fn)(*args))[0]
    slope = sum((g * d).sum() for g, d in zip(found, direction, strict=True))
    np.testing.assert_allclose(slope, (at(h) - at(-h)) / (2 * h), rtol=1e-5, atol=1e-7)


def _fill_numpys_array(x: Any) -> Any:
    out = np.zeros(4)
    out[0] = x[0, 0]
    return out


def _fill_rows_of_numpys_array(x: Any) -> Any:
    out = np.empty((2, 4))
    for t in range(2):
        out[t] = x[t] * 2.0
    return out


wrong: list[Any] = [
    (lambda x: x[7], jg.IndexingError, "out of bounds"),
    (lambda x: x[1, 1, 1], jg.IndexingError, "too many indices"),
    (lambda x: x["k"], jg.IndexingError, "only integers"),
    (lambda x: x.sum(axis=3), jg.ShapeError, "axis 3 is out of bounds"),
    (lambda x: x @ 2, jg.ShapeError, "does not take scalars"),
    (lambda x: f"{x.sum():.3f}", jg.TracedValueError, "formatting with '.3f'"),
    (lambda x: sum(range(x.argmax())), jg.TracedValueError, "an index or a count"),
    (lambda x: np.eye(4)[x.argmax(1)], jg.TracedValueError, r"jitgrad\.numpy\.asarray\(table\)\[i\]"),
    (lambda x: np.zeros(x.argmax()), jg.TracedValueError, "static_argnames"),
    (_fill_numpys_array, jg.TracedValueError, "np.zeros_like"),
    (_fill_rows_of_numpys_array, jg.TracedValueError, "jitgrad.numpy.zeros.*cannot hold traced values"),
    (lambda x: x.resize(2), jg.UnsupportedOpError, "the method resize"),
    (lambda x: np.add(x, "k"), jg.DTypeError, "add does not take"),
]


@pytest.mark.parametrize(("fn", "error", "text"), wrong)
def test_wrong_code_is_told_where_and_what(fn: Fn, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        jg.compile(fn)(X)
    assert "test_user_code.py:" in str(caught.value)


def _objects(x: Any) -> Any:
    out = np.empty(2, object)
    out[0] = x
    return out


@pytest.mark.parametrize(
    ("fn", "kind", "path"),
    [
        (lambda x: (x[i] for i in range(2)), "generator", ""),
        (lambda x: {"a": [x, map(np.sin, x)]}, "map", r" \['a'\]\[1\]"),
        (lambda x: (x, {x}), "set", r" \[1\]"),
        (_objects, "ndarray", ""),
    ],
)
def test_results_that_hide_traced_values_are_refused(fn: Fn, kind: str, path: str) -> None:
    with pytest.raises(jg.DTypeError, match=f"the result{path} is of type {kind}, whose items"):
        jg.compile(fn)(X)


@pytest.mark.filterwarnings("ignore:you are shuffling")
@pytest.mark.parametrize("shuffle", [np.random.shuffle, np.random.default_rng(0).shuffle, random.shuffle])
def test_shuffling_a_traced_value_is_refused(shuffle: Fn) -> None:
    def fn(x: Any) -> Any:
        y = x.copy()
        shuffle(y)
        return y

    with pytest.raises(jg.TracedValueError, match=r"(?s)a shuffle.*one permutation.*x\[permutation\]"):
        jg.compile(fn)(Y)

    def swapped(x: Any) -> Any:
        x[0], x[1] = x[1], x[0]
        x[2] += x[3]
        return x

    assert jg.compile(swapped)(Y).tolist() == swapped(Y.copy()).tolist()


def test_a_leaked_value_is_no_array() -> None:
    kept: list[Any] = []
    jg.compile(lambda x: kept.append(x * 2.0) or x)(X)
    for use in (np.asarray, float, bool, lambda x: x.tolist()):
        with pytest.raises(jg.LeakedTracerError, match="after the call that traced it had ended"):
            use(kept[0])


def test_arguments_that_cannot_be_traced_are_named() -> None:
    text = r"(?s)argument params\['w'\] of <lambda>: arrays of dtype object.*user_code.py:"
    with pytest.raises(jg.DTypeError, match=text):
        jg.compile(lambda params: params)({"w": np.array([1, None])})


def test_copies_of_traced_values_are_copies() -> None:
    import copy

    def fn(x: Any) -> Any:
        y, z = copy.copy(x), copy.deepcopy([x])[0]
        y[0], z[0] = 1, 2
        return x, y, z

    x, y, z = jg.compile(fn).interpret(Y)
    np.testing.assert_array_equal([x[0], y[0], z[0]], [Y[0], 1, 2])
