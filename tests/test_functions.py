"""Functions called as NumPy and SciPy call them: equal results, right gradients, unknown shapes too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import special

import jitgrad
from jitgrad.errors import UnsupportedOpError
from jitgrad.graph import Graph, Tensor
from jitgrad.interpreter import interpret
from jitgrad.operators import functions
from jitgrad.program import slice_graph, verify
from jitgrad.spec import spec_of
from jitgrad.testing import assert_close, check_gradients

pytestmark = pytest.mark.quick
rng = np.random.default_rng(7)
X = rng.permutation(np.linspace(-2, 2, 24)).reshape(2, 3, 4)
M = rng.normal(size=(3, 4))
V = rng.normal(size=4)
P = rng.uniform(0.5, 2, (3, 4))
F = M.astype(np.float32)
I = rng.integers(-5, 6, (3, 4))
U = I.astype(np.uint8) % 7
B = I > 0
N = np.where(B, M, np.nan)
Z = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0], [1.5, -2.0, 0.5]])
mask = np.array([[True, False, True, True], [False, False, True, False], [True, True, True, True]])
axes: list[Any] = [None, 0, -1, (0, 1)]
weak_pairs = ("maximum", "arctan2", "hypot", "logaddexp", "copysign", "less", "fmod", "remainder")
moments = ("sum", "prod", "max", "min", "mean", "var", "std")
nan_moments = ("nansum", "nanprod", "nanmean", "nanvar", "nanstd")


def row(name: str, *args: Any, like: Callable[..., Any] | None = None, order: int = 2, **kwargs: Any) -> Any:
    """A call of functions[name]; ``like`` is the function it must equal, numpy's of that name by default."""
    shown = ", ".join(
        [*(_word(a) for a in args), *(f"{key}={_word(value)}" for key, value in kwargs.items())]
    )
    return pytest.param(name, like or _numpy(name), args, kwargs, order, id=f"{name}({shown})")


def scipy_row(name: str, *args: Any, **kwargs: Any) -> Any:
    """A call that must equal scipy.special's function of that name."""
    return row(name, *args, like=getattr(special, name), **kwargs)


def _word(value: Any) -> str:
    return str(spec_of(value)) if isinstance(value, np.ndarray) else repr(value).replace(" ", "")


def _numpy(name: str) -> Any:
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part)
    return found


rows = [
    # promotion
    *(row("add", a, b) for a in (M, F, I, U, B) for b in (F[0], I[0], 2, 2.0, True)),
    *(row("divide", a, b) for a in (F, I, U) for b in (np.int32(3), 2, 2.5)),
    *(row("power", a, b) for a, b in ((P, M), (P, 3), (F, 2), (I, 2), (np.float32(2.0), F), (2, P))),
    *(row(name, F, 2) for name in weak_pairs),
    *(row(name, I) for name in ("sqrt", "sin", "exp", "abs", "negative", "sign", "floor", "square", "isnan")),
    *(row(name, F[0]) for name in ("tanh", "rint", "signbit", "isfinite", "cbrt", "deg2rad")),
    row("logical_and", F, I),
    *(row(name, U, value) for name in ("less", "equal", "greater_equal") for value in (-1, 300)),
    row("left_shift", I, 2),
    row("mod", M, 0.7),
    row("acos", M / 5),
    row("divmod", np.array([2.5, -3.3]), 0.7),
    row("multiply", [1.0, 2.0, 3.0, 4.0], M),
    # choosing
    row("where", B, M, 0),
    row("where", B, F, 1.5),
    row("where", M > 0, I, V),
    row("clip", X, -1, 1),
    row("clip", F, None, 0.3),
    row("clip", I, -2, None),
    row("clip", I, -1.5, 2.5),
    row("clip", M, V - 0.5, V + 0.5),
    row("clip", M, min=-0.1, max=0.2),
    row("nan_to_num", np.array([np.nan, np.inf, -np.inf, 1.0]), order=0),
    row("nan_to_num", F, nan=2.0, posinf=3.0),
    row("round", M, 2, order=0),
    row("round", M * 100, -1, order=0),
    row("round", I),
    row("around", M, order=0),
    row("fix", M, order=0),
    row("isclose", M, M + 1e-9),
    row("allclose", M, M + 1e-9),
    row("select", [M > 1, M > 0], [M, M * 2], 3.0),
    # converting
    row("astype", M, np.float32, order=0),
    row("astype", M, np.int32),
    row("astype", N, bool),
    row("real", M),
    row("imag", M),
    row("real", M + 1j),
    row("conj", M + 1j * V),
    row("conjugate", M),
    row("angle", M + 1j * V),
    row("angle", M),
    row("angle", M, deg=True),
    row("abs", M + 1j * V),
    row("iscomplex", M + 1j * V),
    row("isreal", M),
    row("copy", M),
    # making
    *(row(name, F) for name in ("zeros_like", "ones_like")),
    row("full_like", I, 3),
    row("full_like", M, 3, dtype=np.float32),
    row("zeros_like", M, shape=(2, 2)),
    row("full", (2, 4), V),
    row("linspace", np.float64(1.0), V[1], 7),
    row("linspace", V, V + 3, 5, axis=-1),
    row("linspace", V, V + 3, 5, endpoint=False),
    row("logspace", V[:1], V[1:2], 4),
    # reductions
    *(row(name, X, axis=axis) for name in moments for axis in axes),
    *(row(name, M, axis=1, keepdims=True) for name in (*moments, "ptp")),
    *(row(name, a) for name in ("sum", "prod", "mean", "var") for a in (I, U, B, F)),
    *(row(name, M, 0, where=mask) for name in ("sum", "prod")),
    *(row(name, M, axis=1, where=mask) for name in ("mean", "var", "std", "any", "all")),
    *(row(name, M, 1, initial=0.3) for name in ("sum", "prod", "max", "min")),
    *(row(name, M, 1, initial=0.3, where=mask) for name in ("max", "min")),
    row("sum", F, dtype=np.float64),
    row("sum", F, 0, np.float64),
    row("sum", I, axis=0, dtype=np.float32),
    row("sum", np.float64(3.0)),
    row("sum", np.zeros((0, 3)), axis=0),
    row("amax", I, 0),
    row("var", M, axis=0, ddof=1),
    row("std", M, correction=1),
    row("mean", F, dtype=np.float64),
    *(row(name, a, axis=axis) for name in ("any", "all") for a in (B, I, N) for axis in (None, 0)),
    *(row("argmax", a, axis=axis) for a in (X, I, N, B) for axis in (None, 0, -1)),
    *(row("argmin", a, axis=axis) for a in (X, I, N, B) for axis in (None, 0, -1)),
    row("argmax", M, axis=1, keepdims=True),
    row("count_nonzero", I),
    row("count_nonzero", M, axis=1, keepdims=True),
    *(row(name, a, axis=axis) for name in ("cumsum", "cumprod") for a in (M, I, Z) for axis in (None, 0, -1)),
    row("cumsum", F, dtype=np.float64),
    row("cumulative_sum", M, axis=1),
    row("cumulative_prod", M, axis=1),
    row("cumulative_sum", M, axis=0, include_initial=True),
    row("cumulative_prod", M, axis=-1, include_initial=True),
    row("cumulative_prod", M[0], include_initial=True),
    row("prod", Z),
    row("prod", Z, axis=0),
    row("prod", Z, axis=(0, 1), keepdims=True),
    row("average", M, axis=0),
    row("average", M, axis=0, weights=P),
    row("average", M, axis=1, weights=V**2),
    row("average", M, weights=P, returned=True),
    row("ptp", M),
    *(row("median", a, axis=axis) for a in (X, M, I) for axis in (None, 0, -1)),
    row("median", N, axis=1, order=0),
    row("median", M, axis=1, keepdims=True),
    row("trapezoid", M),
    row("trapezoid", M, dx=0.3, axis=0),
    row("trapezoid", M, np.cumsum(P, 1)),
    row("trapezoid", M, np.cumsum(P[:, 0]), axis=0),
    row("sinc", np.array([0.0, 1e-5, -0.1, 0.3, 2.5, 3.0])),
    row("isposinf", N),
    row("isneginf", N),
    row("array_equal", M, M + 0.0),
    *(row(name, N, axis=axis) for name in nan_moments for axis in (None, -1)),
    *(row(name, N, axis=None) for name in ("nanmax", "nanmin", "nancumsum", "nancumprod")),
    # sums of exponentials
    *(scipy_row(name, X, axis=axis) for name in ("logsumexp", "softmax", "log_softmax") for axis in axes),
    row("logsumexp", M, axis=1, keepdims=True, like=special.logsumexp),
    row("logsumexp", M, axis=1, b=P, like=special.logsumexp),
    row("logsumexp", np.array([-np.inf, -np.inf]), like=special.logsumexp, order=0),
    row("logsumexp", np.array([np.inf, 1.0]), like=special.logsumexp, order=0),
    row("logsumexp", F * 100, axis=1, like=special.logsumexp),
    # norms
    row("linalg.norm", X),
    *(row("linalg.norm", M, ord, 1) for ord in (None, 1, 2, 3, 0, np.inf, -np.inf)),
    *(row("linalg.norm", M, ord) for ord in (None, "fro", 1, -1, np.inf, -np.inf)),
    row("linalg.norm", X, axis=(0, 2), keepdims=True),
    row("linalg.norm", I),
    row("linalg.vector_norm", M),
    row("linalg.matrix_norm", X),
    # special functions
    *(scipy_row(name, a) for name in ("erf", "expit", "gammaln", "psi") for a in (P, F**2 + 1, I * I + 1)),
    row("polygamma", 1, P, like=special.polygamma),
    row("polygamma", 3, P, like=special.polygamma),
    row("betaln", P, 2.0, like=special.betaln),
    row("xlogy", P, 2, like=special.xlogy),
    row("relu", F, like=lambda x: np.maximum(x, 0)),
    row("softplus", M, like=lambda x: np.logaddexp(x, 0)),
    row("log_sigmoid", M, like=special.log_expit),
    row("trigamma", P, like=lambda x: special.polygamma(1, x)),
]  # fmt: skip


def results_of(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Any, unknown: int
) -> list[np.ndarray[Any, Any]]:
    """``fn`` of the arguments, arrays fed to placeholders with so many unknown extents, interpreted."""
    feeds: dict[Tensor, Any] = {}

    def stand_in(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        x = functions["placeholder"](value.dtype, (*(None,) * min(unknown, value.ndim), *value.shape[unknown:]))
        feeds[x] = value
        return x

    with Graph().as_default():
        found = fn(*map(stand_in, args), **{key: stand_in(value) for key, value in kwargs.items()})
        outputs = found if isinstance(found, tuple) else (found,)
        assert all(type(out) is Tensor for out in outputs)
        program = verify(slice_graph(outputs, {x: spec_of(value) for x, value in feeds.items()}))
    return [np.asarray(value) for value in interpret(program, list(feeds.values()))]


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:numpy.fix is deprecated")
@pytest.mark.parametrize("unknown", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize(("name", "like", "args", "kwargs", "order"), rows)
def test_equals_numpy(name: str, like: Any, args: Any, kwargs: Any, order: int, unknown: bool) -> None:
    expected = like(*args, **kwargs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    unknown_axes = 1 if "initial" in kwargs else 3  # a maximum asks whether there are elements at all
    found = results_of(functions[name], args, kwargs, unknown_axes * unknown)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, np.asarray(theirs), what=name)


smooth = [
    r
    for r in rows
    if r.values[4] and any(isinstance(a, np.ndarray) and a.dtype.kind == "f" for a in r.values[2])
]


@pytest.mark.parametrize(("name", "like", "args", "kwargs", "order"), smooth)
def test_gradients(name: str, like: Any, args: Any, kwargs: Any, order: int) -> None:
    arrays = [a for a in args if isinstance(a, np.ndarray) and a.dtype.kind == "f"]

    def call(*tensors: Any) -> Any:
        given = iter(tensors)
        return functions[name](*(next(given) if any(a is b for b in arrays) else a for a in args), **kwargs)

    check_gradients(call, *arrays, order=order)


def test_unsupported_options_are_refused() -> None:
    with Graph().as_default():
        x = functions["placeholder"](np.float64, (3,))
        for name, options in (
            ("sum", {"out": x}),
            ("cumulative_sum", {"out": x}),
        ):
            with pytest.raises(UnsupportedOpError, match=name):
                functions[name](x, **options)
        with pytest.raises(UnsupportedOpError, match="arange"):
            functions["arange"](x)


def test_extreme_of_nothing() -> None:
    nothing = np.zeros((0, 3))
    (found,) = results_of(functions["max"], [nothing], {"axis": 0, "initial": -1.0}, unknown=0)
    assert_close(found, np.full(3, -1.0))
    with pytest.raises(ValueError, match="max of no elements has no value"):
        results_of(functions["max"], [nothing], {"axis": 0}, unknown=0)


def test_cumulative_functions_of_nothing_and_without_an_axis() -> None:
    nothing = np.zeros(0)
    (found,) = results_of(functions["cumulative_prod"], [nothing], {"include_initial": True}, unknown=0)
    assert_close(found, np.ones(1))
    with pytest.raises(ValueError, match="an array of 2 dimensions needs axis="):
        results_of(functions["cumulative_sum"], [np.ones((2, 3))], {}, unknown=0)


def test_slopes_and_integrals_are_computed_along_the_axis_where_it_lies() -> None:
    """What is computed of a transpose goes through memory as one, against the order of its readers."""
    for f in (lambda u: sum(np.sum(s * s) for s in np.gradient(u)), lambda u: np.sum(np.trapezoid(u, axis=0) ** 2)):
        assert "transpose" not in jitgrad.compile(jitgrad.grad(f)).explain(np.ones((6, 7))).program


@pytest.mark.parametrize("count", [1, 2, 8, 9])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_few_copies_are_read_by_an_index(axis: int, count: int) -> None:
    x, weights = np.arange(12.0).reshape(3, 4), np.random.default_rng(0).standard_normal((3, 4, count))
    weights = weights.reshape(3, 4 * count) if axis else weights.transpose(0, 2, 1).reshape(3 * count, 4)
    step = jitgrad.compile(jitgrad.value_and_grad(lambda x: np.sum(np.sin(np.repeat(x, count, axis)) * weights)))
    value, slope = step(x)
    np.testing.assert_allclose(value, np.sum(np.sin(np.repeat(x, count, axis)) * weights))
    shares = weights.reshape(3, 4, count).sum(2) if axis else weights.reshape(3, count, 4).sum(1)
    np.testing.assert_allclose(slope, np.cos(x) * shares)
    assert ("broadcast_to" in step.explain(x).program) == (count > 8)
