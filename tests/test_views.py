"""Writing through views: small programs run by NumPy on arrays and by jitgrad on tensors, with their gradients."""

# ruff: noqa: E701, E702

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.graph import Graph, default_graph
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import slice_graph
from jitgrad.spec import spec_of

Fn = Callable[..., Any]
X = np.random.default_rng(0).normal(size=(3, 4))
C = X + 1j * X[::-1]
programs: list[Any] = []


def program(fn: Fn) -> Fn:
    """Enter a function of one 3×4 array in the table; it may change its argument and gives arrays."""
    programs.append(pytest.param(fn, id=fn.__name__))
    return fn


# fmt: off
@program
def item_of_item(x): x[0][1] = 5; return x
@program
def loop_over_rows(x):
    for row in x: row += 1
    return x
@program
def listed_rows(x):
    rows = list(x)
    for k, row in enumerate(rows): row *= k
    return x, rows[0] + rows[1]
@program
def tail(x): y = x[1:]; y[0] = 2; return x, y
@program
def base_written(x): row = x[0]; x[0] = 7 * x[1]; return row * 2, x
@program
def value_read_before(x): row = x[0]; before = row * 2; x[0] = 7; return before, row
@program
def transposed(x): y = x.T; y[0] = 3.; x[1, 1] = 9; return x, y, y.T
@program
def raveled(x): y = x.ravel(); y[3] = 7; x[0] += 1; return x, y
@program
def raveled_transpose_is_a_copy(x): y = x.T.ravel(); y[3] = 7; x[0] += 1; return x, y
@program
def flat_of_transpose(x): x.T.flat[3] = 7; y = x[:, 1:].flat; y[0] = 2; return x, y[:]
@program
def reshaped(x): y = x.reshape(-1, 2)[1:]; y[:, 0] *= 3; return x, y
@program
def reshaped_columns_are_a_copy(x): y = x[:, 1:].reshape(-1); y[:] = 0; return x, y
@program
def reshaped_rows(x): y = x[1:].reshape(-1); y[:] *= y; return x, y
@program
def copies(x):
    a, b, c, d = x[0].copy(), x[[0, 1]], x + 0, x.flatten()
    for y in (a, b, c, d): y[:] = 1
    return x, a, b, c, d
@program
def as_same_dtype_is_a_copy(x):
    y, z = x.astype(x.dtype), x.astype(x.dtype, copy=False)
    y[0] = 0; z[1] = 2
    return x, y
@program
def flipped(x): y = np.flip(x, 1); y[0, 0] = 5; z = x[::-1]; z[0] = 2; return x, y, z
@program
def view_of_view_of_view(x):
    a = x[1:]; b = a.T; c = b[0]
    c[0] = 4; a[0, 1] = 8; x[2] = x[0]
    return x, a, b, c
@program
def new_axes(x): y = x[0][:, None]; y *= 2; z = np.expand_dims(x, 0); z[0, 1] = 1; return x, y, z
@program
def squeezed(x): y = np.squeeze(x[:1]); y[1] = 5; return x, y
@program
def split_in_rows(x): a, b, c = np.split(x, 3); b += a; return x, a, b, c
@program
def split_in_columns(x): a, b = np.hsplit(x, 2); b[:] = a * 2; return x, b
@program
def swapped(x): y = np.swapaxes(x, 0, 1); y[1] = 0; return x, y
@program
def turned(x): y = np.rot90(x); y[0] = 1; z = np.moveaxis(x, 0, 1); z[0] *= 2; return x, y, z
@program
def read_only_views_follow(x): d, b = x.diagonal(), np.broadcast_to(x[0], (2, 4)); x[0, 0] = 9; return d * 1, b * 1, x
@program
def stencil(x):
    u = x.copy()
    for _ in range(3): u[1:-1] = u[1:-1] + 0.1 * (u[2:] - 2 * u[1:-1] + u[:-2])
    return u
@program
def augmented(x): x[1:-1] += x[:-2]; x[:, 0] -= 1; x[0, 1] **= 2; return x
@program
def out_is_a_view(x): np.multiply(x[0], 2, out=x[1]); np.exp(x[2], out=x[2]); return x
@program
def whole_view(x): y = x[...]; y[...] = x * 2; return x, y
@program
def scalars_are_values(x): s = x[0, 2]; s += 1; t = x[1][1]; x[:2] = 8; return x, s, t
@program
def zero_dimensional_view(x): v = x[0, 1, ...]; v += 1; v[...] = v * 2; return x, v[()]
@program
def functions_that_write(x):
    np.add.at(x[0], [0, 0, 1], 1.); x[1].put([0], 4); np.copyto(x[2], x[1]); np.fill_diagonal(x[:, 1:], 0); x[1].fill(2)
    return x
@program
def sorted_rows(x): x[1].sort(); y = x.T; y.sort(); return x
@program
def flat_assigned(x): x.flat = x[0, 0]; x.flat[1] = 3.; return x
@program
def masked(x): y = x[1:]; y[y > 0] = 0; return x, y
@program
def position_found_while_running(x): r = x[x[:, 0].argmax()]; r[1] = 99; x[0] *= 2; return x, r
@program
def swapped_rows(x): x[[0, 1]] = x[[1, 0]]; return x
@program
def swapped_views(x): x[0], x[1] = x[1], x[0]; return x
@program
def neighbours(x):
    for a, b in zip(x[1:], x[:-1], strict=True): a -= b
    return x
@program
def helper_that_writes(x):
    def normalize(v: Any) -> None: v /= np.sqrt((v * v).sum())
    for row in x: normalize(row)
    return x
@program
def zeros_filled(x):
    y = np.zeros_like(x)
    for i in range(3):
        row = y[i]
        for j in range(3): row[j] = x[i, j] + row[:j].sum()
    return y
# fmt: on


def _leaves(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _assert_same(found: Any, expected: Any) -> None:
    for a, b in zip(_leaves(found), _leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
        assert np.shape(a) == np.shape(b)


@pytest.mark.quick
@pytest.mark.parametrize("fn", programs)
def test_a_program_does_what_numpy_does(fn: Fn) -> None:
    _assert_same(jg.compile(fn).interpret(X), fn(X.copy()))


@pytest.mark.quick
@pytest.mark.parametrize("fn", programs)
def test_gradients_are_those_of_numpys_values(fn: Fn) -> None:
    def loss(x: Any) -> Any:
        results = _leaves(fn(x))
        weights = [np.arange(1, y.size + 1).reshape(y.shape) for y in results]
        return sum((np.sin(k + y) * w).sum() for k, (y, w) in enumerate(zip(results, weights, strict=True)))

    direction = np.random.default_rng(1).normal(size=X.shape)
    h = 1e-6
    slope = (loss(X + h * direction) - loss(X - h * direction)) / (2 * h)
    np.testing.assert_allclose((jg.grad(lambda x: loss(x * 1.0))(X) * direction).sum(), slope, rtol=1e-6, atol=1e-7)


def test_compiled() -> None:
    fns = [entry.values[0] for entry in programs]
    found = jg.compile(lambda x: [fn(x.copy()) for fn in fns])(X)
    for result, fn in zip(found, fns, strict=True):
        _assert_same(result, fn(X.copy()))


@pytest.mark.quick
def test_parts_of_complex_arrays() -> None:
    def fn(z: Any) -> Any:
        part = z.real
        part[0] = 7
        z.imag[1] = 3
        return z, part

    _assert_same(jg.compile(fn).interpret(C), fn(C.copy()))


def _count(fn: Fn) -> dict[str, int]:
    counts: dict[str, int] = {}

    def counted(x: Any) -> Any:
        result = fn(x)
        for op in default_graph().operations:
            counts[op.type] = counts.get(op.type, 0) + 1
        return result

    jg.compile(counted).interpret(X)
    return counts


@pytest.mark.quick
def test_views_that_are_not_written_add_no_operation() -> None:
    expected = {"placeholder": 1, "getslice": 1, "transpose": 1, "reshape": 1}
    assert _count(lambda x: x[1:].T.reshape(-1)) == expected


@pytest.mark.quick
def test_an_augmented_item_is_assigned_once() -> None:
    def fn(x: Any) -> Any:
        x[1:] += 1
        return x

    assert _count(fn)["where"] == 1


@pytest.mark.quick
def test_time_steps_cost_the_same_each() -> None:
    def steps(n: int) -> Fn:
        def fn(x: Any) -> Any:
            for _ in range(n):
                x[1:-1] += 0.1 * (x[2:] - x[:-2])
            return x

        return fn

    few, more, most = (sum(_count(steps(n)).values()) for n in (1, 2, 11))
    assert most - few == 10 * (more - few)


@pytest.mark.quick
@pytest.mark.parametrize(
    "view", [np.diagonal, lambda x: np.broadcast_to(x, (2, 3, 4)), lambda x: np.diag(x[:, :3])[1:]]
)
def test_read_only_views(view: Fn) -> None:
    def fn(x: Any) -> Any:
        view(x)[0] = 1
        return x

    with pytest.raises(ValueError, match="read-only"):
        fn(X.copy())
    with pytest.raises(jg.ReadOnlyError, match="read-only") as caught:
        jg.compile(fn)(X)
    assert f"test_views.py:{inspect.getsourcelines(fn)[1] + 1}" in str(caught.value)


_VIEWS = (
    "{b}[1:]", "{b}.T", "{b}.reshape(-1)", "{b}[::-1]", "{b}[..., 0]", "{b}[..., ::2]", "{b}[..., None]", "{b}[None]",
    "np.expand_dims({b}, 0)", "np.flip({b})", "{b}.ravel()", "{b}.copy()", "np.squeeze({b})", "{b}[0]",
    "({b} + 1).copy()", "np.array_split({b}, 2)[1]", "np.moveaxis({b}, 0, -1)", "{b}.reshape({b}.shape[::-1])",
)  # fmt: skip
_WRITES = (
    "{b} += 2", "{b}[...] = {c}.sum() * 0.1", "{b}[0] = 0.5 * {b}[-1]", "{b}[..., 0] *= -1", "{b}[1:] += {b}[:-1] * 1",
    "np.negative({b}, out={b})", "np.copyto({b}, 3.0 * {b})",
)  # fmt: skip


def _random_program(number: int) -> Fn:
    """A function that takes views of views of its argument and writes to some of them; it gives them all."""
    choose = random.Random(number)
    lines, names = [], ["x"]
    for k in range(choose.randint(4, 14)):
        if choose.random() < 0.7:
            lines.append(f"v{k} = " + choose.choice(_VIEWS).format(b=choose.choice(names)))
            names.append(f"v{k}")
        else:
            lines.append(choose.choice(_WRITES).format(b=choose.choice(names), c=choose.choice(names)))
    space: dict[str, Any] = {"np": np}
    body = "".join(f"    {line}\n" for line in lines)
    exec(f"def fn(x):\n{body}    return tuple(v.copy() for v in ({', '.join(names)},) if v.ndim)\n", space)
    fn: Fn = space["fn"]
    return fn


@pytest.mark.quick
@pytest.mark.parametrize("number", range(120))
def test_random_programs(number: int) -> None:
    fn = _random_program(number)
    try:
        expected = fn(X.copy())
    except (IndexError, ValueError, TypeError):  # an index into nothing, or a scalar written to
        return
    _assert_same(jg.compile(fn).interpret(X), expected)


@pytest.mark.quick
def test_extents_that_are_not_known() -> None:
    feeds = {}
    with Graph().as_default():
        start = call("placeholder", np.float64, (None, 4))
        feeds[start] = spec_of(X)
        x = start * 1.0
        y = x[1:].T
        row = x[0]
        y[0] = 2.0
        x[0] *= 2.0
        fetches = [x * 1.0, y * 1.0, row * 1.0]
    expected = X.copy()
    expected[1:, 0] = 2
    expected[0] *= 2
    _assert_same(tuple(interpret(slice_graph(fetches, feeds), [X])), (expected, expected[1:].T, expected[0]))


@pytest.mark.quick
def test_arguments_of_a_compiled_function_called_while_tracing_are_its_own() -> None:
    @jg.compile
    def inner(v: Any) -> Any:
        v[0] = 5
        return v

    def fn(x: Any) -> Any:
        y = inner(x[0])
        return x, y

    x, y = jg.compile(fn).interpret(X)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, [5, *X[0, 1:]])
