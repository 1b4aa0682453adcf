"""NumPy and SciPy called on traced values: the same results, dtypes and shapes; what cannot be traced is
refused by name.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import scipy.special as sp

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad.operators import SELDOM
from jitgrad.operators import functions as table

pytestmark = pytest.mark.quick

rng = np.random.default_rng(7)
A = rng.normal(size=(3, 4))
F = A.astype(np.float32)
N = rng.integers(1, 9, (3, 4))
POSITIVE = np.abs(A) + 0.5


def traced(fn: Callable[..., Any], *args: Any) -> Any:
    """The function traced and interpreted."""
    return jg.compile(fn).interpret(*args)


def check(fn: Callable[..., Any], *args: Any) -> None:
    expected, got = np.asarray(fn(*args)), np.asarray(traced(fn, *args))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-5 if got.dtype == np.float32 else 1e-12)


operators = {
    "add": lambda a: a + 1,
    "radd": lambda a: np.ones(4) + a,
    "sub": lambda a: 2 - a,
    "mul": lambda a: np.float32(2) * a,
    "scalar": lambda a: np.float64(2) * a,
    "div": lambda a: 1 / (a * a + 1),
    "floordiv": lambda a: a // 0.3,
    "mod": lambda a: a % 0.3,
    "divmod": lambda a: divmod(a, 0.3)[1],
    "pow": lambda a: a**2,
    "rpow": lambda a: 2.0**a,
    "matmul": lambda a: a @ a.T,
    "rmatmul": lambda a: np.ones((2, 3), a.dtype) @ a,
    "neg": lambda a: -a,
    "abs": lambda a: abs(a),
    "less": lambda a: a < 0.5,
    "equal": lambda a: a == a,
    "and": lambda a: (a > 0) & (a < 1),
    "not": lambda a: ~(a > 0),
    "index": lambda a: a[1:, ::2] + a[0, 0],
    "new axis": lambda a: a[:, None, -1],
    "advanced": lambda a: a[[0, 2], [1, 1]],
}


@pytest.mark.parametrize("name", operators)
@pytest.mark.parametrize("x", [A, F, N], ids=["f64", "f32", "i64"])
def test_operators(name: str, x: Any) -> None:
    check(operators[name], x)


methods = {
    "sum": lambda a: a.sum(),
    "sum axis": lambda a: a.sum(axis=0, keepdims=True),
    "mean": lambda a: a.mean(1),
    "std": lambda a: a.std(ddof=1),
    "max": lambda a: a.max(axis=-1),
    "argmin": lambda a: a.argmin(axis=1),
    "reshape": lambda a: a.reshape(2, -1),
    "ravel": lambda a: a.ravel() + a.flatten(),
    "T": lambda a: a.T,
    "transpose": lambda a: a.transpose(1, 0),
    "astype": lambda a: a.astype(np.int32),
    "clip": lambda a: a.clip(-1, 1),
    "cumsum": lambda a: a.cumsum(axis=1),
    "dot": lambda a: a.dot(a.T),
    "swapaxes": lambda a: a.swapaxes(0, 1),
    "take": lambda a: a.take([1, 0], axis=1),
    "round": lambda a: a.round(1),
    "choose": lambda a: (a > 0).astype(np.int64).choose([a, 2 * a]),
    "compress": lambda a: a.compress([True, False, True], axis=0),
    "argpartition": lambda a: np.take_along_axis(a, a.argpartition(1, axis=0), 0)[1],
    "partition": lambda a: [b := a.copy(), b.partition(1, axis=1)][0][:, 1],
    "copy": lambda a: a.copy(),
    "ndim": lambda a: a * a.ndim * a.size * len(a),
    "iter": lambda a: sum(row for row in a),
}


@pytest.mark.parametrize("name", methods)
def test_methods(name: str) -> None:
    check(methods[name], A)


functions = {
    "concatenate": lambda a: np.concatenate([a, np.ones((1, 4))]),
    "stack": lambda a: np.stack([a, a * 2], axis=1),
    "where": lambda a: np.where(a > 0, a, 0.0),
    "einsum": lambda a: np.einsum("ij,kj->ik", a, a),
    "norm": lambda a: np.linalg.norm(a, axis=0),
    "outer": lambda a: np.outer(a[0], a[1]),
    "zeros_like": lambda a: np.zeros_like(a) + a,
    "full_like": lambda a: np.full_like(a, 3),
    "shape": lambda a: a * np.shape(a)[0] * np.ndim(a) * np.size(a, 1),
    "result_type": lambda a: np.ones(2, np.result_type(a, np.float32)) * a[:2, 0],
    "isclose": lambda a: np.isclose(a, a + 1e-12),
    "var": lambda a: np.var(a, axis=1),
    "diff": lambda a: np.diff(a),
    "average": lambda a: np.average(a, axis=0),
    "logaddexp": lambda a: np.logaddexp(a, 1.0),
    "apply_over_axes": lambda a: np.apply_over_axes(np.sum, a, [0, 1]),
    "vecdot along an axis": lambda a: np.vecdot(a, a, axis=0),
}


@pytest.mark.parametrize("name", functions)
def test_functions(name: str) -> None:
    check(functions[name], A)


ufunc_methods = {
    "reduceat": lambda a: np.add.reduceat(a, [0, 2, 1, 1]),
    "reduceat along an axis": lambda a: np.maximum.reduceat(a, [1, 3], axis=1),
    "add.reduce": lambda a: np.add.reduce(a),
    "add.reduce keepdims": lambda a: np.add.reduce(a, 1, keepdims=True),
    "multiply.reduce": lambda a: np.multiply.reduce(a, axis=(0, 1)),
    "maximum.reduce": lambda a: np.maximum.reduce(a, axis=None),
    "minimum.reduce": lambda a: np.minimum.reduce(a),
    "logical_and.reduce": lambda a: np.logical_and.reduce(a > 0),
    "logical_or.reduce": lambda a: np.logical_or.reduce(a > 0, axis=1),
    "add.accumulate": lambda a: np.add.accumulate(a, axis=1),
    "multiply.accumulate": lambda a: np.multiply.accumulate(a),
    "maximum.accumulate": lambda a: np.maximum.accumulate(a, 1),
    "minimum.accumulate": lambda a: np.minimum.accumulate(a),
    "logaddexp.accumulate": lambda a: np.logaddexp.accumulate(a, axis=-1),
    "logaddexp.accumulate of integers": lambda a: np.logaddexp.accumulate(np.sign(a).astype(np.int64)),
    "multiply.outer": lambda a: np.multiply.outer(a, a[0]),
    "subtract.outer": lambda a: np.subtract.outer(np.arange(3.0), a),
    "dtype": lambda a: np.add(a, 1, dtype=np.float32),
    "where and out": lambda a: np.add(a, 1, where=a > 0, out=np.zeros_like(a)),
}


@pytest.mark.parametrize("name", ufunc_methods)
def test_ufunc_methods_and_options(name: str) -> None:
    check(ufunc_methods[name], A)


def test_out_is_an_assignment() -> None:
    def f(a: Any) -> Any:
        out = np.zeros_like(a)
        same = np.multiply(a, 2, out=out)
        assert same is out
        return out + 1

    check(f, A)


def _kept(fill: Callable[[Any, Any], Any], shape: tuple[int, ...], dtype: Any = float) -> Callable[[Any], Any]:
    def f(a: Any) -> Any:
        out = np.zeros_like(a, shape=shape, dtype=dtype)
        assert fill(a, out) is out
        return out * 2

    return f


def _twice(a: Any) -> Any:
    return np.cumsum(np.clip(a, -1, 1, out=a), axis=0, out=a) + a


def _row(a: Any) -> Any:
    np.max(a, axis=0, out=a[0])
    return a


functions_with_out = {
    "sum": _kept(lambda a, out: np.sum(a, axis=0, out=out), (4,)),
    "cumsum": _kept(lambda a, out: np.cumsum(a, axis=1, out=out), (3, 4)),
    "clip": _kept(lambda a, out: np.clip(a, -1, 1, out=out), (3, 4)),
    "argmax": _kept(lambda a, out: np.argmax(a, axis=0, out=out), (4,), np.int64),
    "median": _kept(lambda a, out: np.median(a, axis=0, out=out), (4,)),
    "concatenate": _kept(lambda a, out: np.concatenate([a[1:], a[:1]], out=out), (3, 4)),
    "einsum": _kept(lambda a, out: np.einsum("ij->j", a, out=out), (4,)),
    "accumulate": _kept(lambda a, out: np.add.accumulate(a, axis=1, out=out), (3, 4)),
    "into what it is of": lambda a: _twice(a.copy()),
    "into a row": lambda a: _row(a.copy()),
}


@pytest.mark.parametrize("name", functions_with_out)
def test_functions_assign_to_out(name: str) -> None:
    check(functions_with_out[name], A)


in_place = {
    "seen by another name": lambda a: _alias(a.copy()),
    "seen by the caller": lambda a: _helper(a.copy()),
    "scalars are values": lambda a: _scalars(a),
    "all operators": lambda a: _all_operators(a.copy()),
    "integers": lambda a: _integers((a > 0).astype(np.int64) + 5),
}


def _alias(a: Any) -> Any:
    b = a
    b += 1.0
    b[0] *= 2.0
    return a * 10.0 + b


def _helper(a: Any) -> Any:
    def add(target: Any) -> None:
        target -= 3

    out = np.zeros_like(a)
    add(out)
    return out + a


def _scalars(a: Any) -> Any:
    total = np.sum(a)
    same = total
    same += a[0]
    return same * total


def _all_operators(a: Any) -> Any:
    a += 1
    a -= 0.5
    a *= a
    a /= 3
    a **= 2
    a //= 0.1
    a %= 7
    return a


def _integers(n: Any) -> Any:
    n <<= 2
    n |= 1
    n &= 21
    n ^= 3
    n >>= 1
    return n


@pytest.mark.parametrize("name", in_place)
def test_in_place_operators(name: str) -> None:
    check(in_place[name], A)


def test_in_place_results_must_fit() -> None:
    def halve(n: Any) -> Any:
        n /= 2
        return n

    def grow(a: Any) -> Any:
        a += np.ones((2, 3, 4))
        return a

    with pytest.raises(jg.DTypeError, match="float64 cannot be stored as int64"):
        traced(halve, N)
    with pytest.raises(jg.ShapeError):
        traced(grow, A)


def test_tensors_of_a_users_graph_are_values() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, [2])
        y = x
        y += 1.0
        assert y is not x and x.op.type == "placeholder"


def test_out_must_hold_the_dtype() -> None:
    with pytest.raises(jg.DTypeError, match=r"numpy.add with out=: float64 cannot be stored as int64"):
        traced(lambda n: np.add(n, 0.5, out=np.zeros_like(n)), N)
    with pytest.raises(jg.DTypeError, match=r"numpy.mean with out=: float64 cannot be stored as int64"):
        traced(lambda n: np.mean(n, axis=0, out=np.zeros_like(n[0])), N)
    with pytest.raises(jg.DTypeError, match=r"numpy.mean with out=: float64 cannot be stored as int64"):
        traced(lambda n: n.mean(0, out=np.zeros_like(n[0])), N)
    with pytest.raises(jg.UnsupportedOpError, match=r"(?s)numpy.sum with out=.*hint: .*out=y by name"):
        traced(lambda n: np.sum(n, 0, None, np.zeros_like(n[0])), N)


def test_at_adds_repeatedly() -> None:
    def f(a: Any) -> Any:
        out = np.zeros_like(a)
        np.add.at(out, ([0, 0, 1],), 1.0)
        return out

    check(f, A)


special = "erf erfc gammaln psi expit logit xlogy xlog1py ndtr log_ndtr log_expit entr erfinv i0e betaln"


@pytest.mark.parametrize("name", special.split())
def test_scipy_special(name: str) -> None:
    ufunc = getattr(sp, name)
    x = POSITIVE / 4
    check(lambda *args: ufunc(*args), *(x,) * ufunc.nin)


# -- jitgrad.numpy -------------------------------------------------------------------------------------------


def test_arrays_of_traced_values() -> None:
    def f(a: Any) -> Any:
        return jnp.array([[a[0, 0], 1], [2.5, a[1, 1]]]) @ jnp.asarray([a[0, 1], 1.0])

    np.testing.assert_allclose(traced(f, A), np.array([[A[0, 0], 1], [2.5, A[1, 1]]]) @ [A[0, 1], 1.0])


def test_python_numbers_do_not_give_way_in_arrays_of_traced_values() -> None:
    assert traced(lambda a: jnp.array([a[0, 0], 1.0]), F).dtype == np.array([F[0, 0], 1.0]).dtype == np.float64
    assert traced(lambda a: jnp.array([a[0, 0], a[0, 1]]), F).dtype == np.float32
    assert traced(lambda a: jnp.array([a[0, 0], 1], dtype=np.float64), F).dtype == np.float64


def test_new_arrays_can_be_assigned_to() -> None:
    def f(a: Any) -> Any:
        out = jnp.zeros((2, 4))
        out[1] = a[0]
        return out

    np.testing.assert_array_equal(traced(f, A), np.stack([np.zeros(4), A[0]]))


def test_the_namespace_is_numpys_outside_a_trace() -> None:
    assert isinstance(jnp.zeros(3), np.ndarray) and isinstance(jnp.array([1.0]), np.ndarray)
    assert jnp.pi == np.pi and jnp.float32 is np.float32 and jnp.linalg is np.linalg
    assert set(dir(np)) <= set(dir(jnp))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = jnp.no_such_name


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (lambda a: np.roots(a[0]), "numpy.roots"),
        (lambda a: np.apply_along_axis(np.sum, 0, a), "numpy.apply_along_axis"),
        (lambda a: np.linalg.eig(a @ a.T), "numpy.linalg.eig"),
        (lambda a: np.bitwise_or.reduce(a > 0), "numpy.bitwise_or.reduce"),
        (lambda a: np.add.reduceat(a, [0, 1], dtype=int), "numpy.add.reduceat at traced indices, or with dtype="),
        (lambda a: np.hypot.reduceat(a, [0, 1]), "numpy.hypot.reduce"),
        (lambda a: np.add(a, 1, where=a > 0), "numpy.add with where="),
        (lambda a: np.add(a, 1, casting="no"), "numpy.add with casting='no'"),
        (lambda a: sp.jv(1.0, a), "scipy.special.jv"),
    ],
)
def test_unsupported_functions_are_named(fn: Callable[..., Any], name: str) -> None:
    with pytest.raises(jg.UnsupportedOpError) as caught:
        traced(fn, A)
    text = str(caught.value)
    assert text.startswith(name) and "test_dispatch.py" in text
    assert isinstance(caught.value, NotImplementedError)


@pytest.mark.parametrize("module", SELDOM)
def test_families_that_few_ask_for_are_listed_whole(module: str) -> None:
    made = vars(import_module(f"jitgrad.ops.{module}")).values()
    assert {name for name, fn in table.items() if any(fn is value for value in made)} == set(SELDOM[module])


def test_families_that_few_ask_for_are_not_loaded_with_the_package() -> None:
    code = "import sys, jitgrad; print([name for name in sys.modules if name.startswith('jitgrad.ops.')])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "jitgrad.ops.linalg" in loaded and not any(f"jitgrad.ops.{module}" in loaded for module in SELDOM)


def test_the_way_out_is_py_func() -> None:
    with pytest.raises(jg.UnsupportedOpError, match=r"jg\.py_func\(fn, inputs, dtypes\)"):
        traced(lambda a: np.packbits(a[0] > 0), A)
    out = traced(lambda a: jg.py_func(lambda x: np.packbits(x > 0), [a[0]], np.uint8) * 2, A)
    np.testing.assert_allclose(out, np.packbits(A[0] > 0) * 2)
