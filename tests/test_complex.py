"""Gradients of complex tensors: JAX's convention, to order 2 against numerical derivatives; and float16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.operators import functions
from jitgrad.testing import check_gradients

pytestmark = pytest.mark.quick

rng = np.random.default_rng(3)


def drawn(*shape: int) -> Any:
    """Complex numbers with positive parts, away from every cut."""
    return rng.uniform(0.3, 1.2, shape) + 1j * rng.uniform(0.3, 1.2, shape)


Z, W, V, M = drawn(2, 3), drawn(2, 3), drawn(3), drawn(3, 3)
R = rng.uniform(0.3, 1.2, (2, 3))

unary = (
    "negative", "positive", "square", "reciprocal", "sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "sinc",
    "absolute", "real", "imag", "conjugate", "angle", "sign",
    "sum", "prod", "mean", "var", "std", "cumsum", "cumprod", "median", "linalg.norm", "logsumexp", "softmax", "trace",
)  # fmt: skip
with_cuts = ("sqrt", "log", "log1p", "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh")
binary = ("add", "subtract", "multiply", "divide", "power")
rows: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((name, (Z,), {}) for name in unary),
    *((name, (z,), {}) for name in with_cuts for z in (-Z, -np.conj(Z))),
    *((name, pair, {}) for name in binary for pair in ((Z, W), (Z, R), (R, Z))),
    *((name, (Z,), {"axis": 1}) for name in ("sum", "prod", "mean", "var", "std", "cumsum", "cumprod")),
    *(("linalg.norm", (Z, order, 1), {}) for order in (1, 2, 3, np.inf)),
    *(("power", args, {}) for args in ((Z, 2), (Z, 0.5), (2.0, Z))),
    ("angle", (Z,), {"deg": True}),
    ("matmul", (Z, M), {}),
    ("vdot", (V, drawn(3)), {}),
    ("vecdot", (Z, W), {}),
    ("outer", (V, V), {}),
    ("einsum", ("ij,kj->ik", Z, W), {}),
    ("linalg.solve", (M, V), {}),
    ("linalg.inv", (M,), {}),
    ("linalg.det", (M,), {}),
    ("where", (R > 0.7, Z, W), {}),
    ("take", (V, np.array([0, 0, 2])), {}),
    ("astype", (R, np.complex128), {}),
    ("unsorted_segment_sum", (V, np.array([0, 1, 0]), 2), {}),
    ("add_n", ([Z, W],), {}),
    ("concatenate", ([Z, W],), {}),
]  # fmt: skip


def leaves(args: Any) -> list[Any]:
    """The arrays that are differentiated."""
    flat = [x for arg in args for x in (arg if isinstance(arg, list) else [arg])]
    return [x for x in flat if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]


@pytest.mark.parametrize(("name", "args", "kwargs"), rows, ids=lambda part: part if isinstance(part, str) else None)
def test_gradients_to_order_two(name: str, args: Any, kwargs: Any) -> None:
    arrays = leaves(args)

    def call(*tensors: Any) -> Any:
        given = iter(tensors)

        def standing(x: Any) -> Any:
            if isinstance(x, list):
                return [standing(item) for item in x]
            return next(given) if any(x is array for array in arrays) else x

        return functions[name](*map(standing, args), **kwargs)

    check_gradients(call, *arrays, order=2)


def test_a_wrong_complex_gradient_is_found() -> None:
    conjugated = jg.custom_gradient(lambda z: (z * z, lambda g: np.conj(2 * g * z)))
    with pytest.raises(AssertionError, match="the gradient is wrong at order 1"):
        check_gradients(conjugated, Z, order=1)


def test_the_convention_is_jaxs() -> None:
    """Of a real loss: dL/dRe - i dL/dIm, whose conjugate is the direction of steepest ascent."""
    z = np.array([1.0 + 2.0j])
    loss: Callable[[Any], Any] = lambda z: np.sum(np.abs(z) ** 2)  # noqa: E731
    assert jg.grad(loss)(z).tolist() == [2 - 4j]
    assert jg.grad(lambda z: np.sum(z.real * 3 + z.imag * 5))(z).tolist() == [3 - 5j]
    for _ in range(60):
        z = z - 0.2 * np.conj(jg.grad(loss)(z))
    assert abs(z[0]) < 1e-9


@pytest.mark.parametrize("at", [0j, 1 + 0j, -1 + 0j, 1j, -1j])
def test_derivatives_at_the_origin_and_on_the_axes_are_numbers(at: complex) -> None:
    for name in ("absolute", "angle", "sign"):
        g = jg.grad(lambda z, name=name: np.sum(functions[name](z).real))(np.array([at]))
        assert np.isfinite(g).all(), name


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("separate", [None, False, True])
def test_complex_parts_of_compiled_scopes(dtype: Any, separate: bool | None) -> None:
    with jg.Graph().as_default():
        z = jg.placeholder(dtype, (3,), name="z")
        x = jg.placeholder(z.real.dtype, (3,))
        with jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate)):
            y = np.sum(np.abs(np.exp(1j * z) * x) ** 2 + np.tanh(x))
        grads = jg.gradients(y, [z, x])
        assert [g.dtype for g in grads] == [dtype, x.dtype]
        at = [np.array([0.1 + 0.2j, 0.3, -0.2j], dtype), np.array([0.5, 0.6, 0.7], x.dtype)]
        found = jg.Session().run(grads, {z: at[0], x: at[1]})
    size = np.exp(-2 * at[0].imag)
    rtol = 1e-5 if dtype == np.complex64 else 1e-12
    np.testing.assert_allclose(found[0], 2j * size * at[1] ** 2, rtol=rtol)
    np.testing.assert_allclose(found[1], 2 * size * at[1] + 1 - np.tanh(at[1]) ** 2, rtol=rtol)


def test_errors_of_dtypes_name_the_tensor() -> None:
    with jg.Graph().as_default():
        z = jg.placeholder(np.complex128, (2,), name="impedance")
        n = jg.placeholder(np.int64, (2,), name="counts")
        for refused in (np.floor, np.fabs, jg.nn.relu, lambda z: z // 2, lambda z: np.arctan2(z, z)):
            with pytest.raises(TypeError, match=r"(?s)complex128.*inputs: +impedance = placeholder.*test_complex.py"):
                refused(z)
        with pytest.raises(TypeError, match=r"(?s)'multiply:0' is complex128: gradients of complex ys need grad_ys"):
            jg.gradients(z * 2.0, z)
        with pytest.raises(TypeError, match=r"(?s)'multiply_1:0' of dtype int64 carries no gradient.*counts"):
            jg.gradients(n * 2, n, [1.0])
        assert jg.gradients([n * 2, n > 1], [n]) == [None]


@pytest.mark.parametrize("separate", [None, False, True])
def test_float16_is_interpreted_wherever_it_stands(separate: bool | None) -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float16, (3,))
        with jg.jit_scope(separate is not None, separate_compiled_gradients=bool(separate)):
            y = np.sum(np.tanh(x) * x)
            z = np.sum(np.exp(x.astype(np.float32)))
        first = jg.gradients([y, z], x)
        second = jg.gradients(first, x)
        assert first[0].dtype == second[0].dtype == np.float16
        at = np.array([0.5, 1.0, -0.8], np.float16)
        found = jg.Session().run([*first, *second], {x: at})
        wide = at.astype(np.float64)
        slope = 1 - np.tanh(wide) ** 2
        np.testing.assert_allclose(found[0], np.tanh(wide) + wide * slope + np.exp(wide), rtol=4e-3)
        np.testing.assert_allclose(found[1], 2 * slope * (1 - wide * np.tanh(wide)) + np.exp(wide), rtol=2e-2)
        if separate is not None:
            stage, arrays = jg.Session().stages([y, *first], {x: at})[0]
            assert "float16, for which there are no kernels" in stage.executable(arrays).explanation.clusters


@pytest.mark.parametrize("name", ["logaddexp", "logaddexp2"])
def test_gradients_of_float16_stay_float16(name: str) -> None:
    """A sigmoid has float32 for float16; two gradients of different dtypes could not be added."""

    def fn(x: Any) -> Any:
        return np.sum(getattr(np, name)(x, x[::-1]) * x)

    x = np.array([0.5, 1.0, -0.75], np.float16)
    wide = jg.compile(jg.value_and_grad(fn))(x.astype(np.float64))[1]
    for found in (jg.compile(jg.grad(fn))(x), jg.grad(fn)(x)):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, wide, rtol=4e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_no_code_is_begun_for_floats_without_kernels(dtype: Any) -> None:
    x = np.array([0.5, 1.0, -0.75], dtype)
    with jg.config(quick_start=True):  # begins code before the first stage
        found = jg.compile(lambda x: np.tanh(x) * 2)(x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.tanh(x) * 2)
