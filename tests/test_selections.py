"""``x[mask]`` of a mask that is traced: values beside NumPy's, gradients beside those of a mask that is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.testing import check_gradients

Fn = Callable[..., Any]
rng = np.random.default_rng(7)
N = 24
MASK = rng.random(N) < 0.6
X, Y = rng.uniform(0.4, 2.0, N), rng.uniform(0.5, 1.5, N)
ROWS, TABLE = rng.normal(size=(N, 3)), rng.uniform(0.5, 2.0, (6, 4))
S, W = np.float64(1.3), rng.normal(size=3)
MASK2 = TABLE > 1.1
# What is not chosen: values at which functions and their slopes are not finite.
BAD_X, BAD_Y = np.where(MASK, X, np.resize([np.nan, np.inf, 0.0, -1.0], N)), np.where(MASK, Y, 0.0)
BAD_ROWS = np.where(MASK[:, None], ROWS, np.nan)


def written(x: Any, m: Any) -> Any:
    out = np.zeros_like(x)
    out[m] = np.log(x[m])
    out[m] += x[m] * 2.0
    out[~m] = 0.25
    return np.sum(out**2)


def changed(x: Any, y: Any, m: Any) -> Any:
    chosen = x[m]
    alias = chosen
    chosen *= y[m]
    chosen -= 0.5
    return np.sum(alias**2)


def mask_changed(x: Any, m: Any) -> Any:
    m = m.copy()
    before = x[m]
    m[: N // 2] = False
    return np.sum(before) * 100.0 + np.sum(x[m])


def softmax(x: Any, m: Any) -> Any:
    e = np.exp(x[m] - x[m].max())
    p = e / e.sum()
    return np.sum(p**2)


def least_squares(rows: Any, y: Any, w: Any, m: Any) -> Any:
    residual = rows[m] @ w - y[m]
    return 0.5 * np.dot(residual, residual) / len_of(residual)


def normal_equations(rows: Any, y: Any, m: Any) -> Any:
    a = rows[m]
    return np.sum(np.linalg.solve(a.T @ a + np.eye(3), a.T @ y[m]) ** 2)


def len_of(x: Any) -> Any:
    return x.size


# name → (function whose last argument is the mask, its other arguments, those with bad values where it does not hold)
Case = tuple[Fn, tuple[Any, ...], tuple[Any, ...]]
x_m: tuple[Any, Any] = ((X,), (BAD_X,))
xy_m: tuple[Any, Any] = ((X, Y), (BAD_X, BAD_Y))
xs_m: tuple[Any, Any] = ((X, S), (BAD_X, S))
rows_m: tuple[Any, Any] = ((ROWS, W), (BAD_ROWS, W))
CASES: dict[str, Case] = {
    "sum of logarithms": (lambda x, m: np.sum(np.log(x[m])), *x_m),
    "mean": (lambda x, m: x[m].mean(), *x_m),
    "squares": (lambda x, y, m: np.sum((y[m] - x[m]) ** 2), *xy_m),
    "quotient": (lambda x, y, m: np.sum(x[m] / y[m] ** 1.5), *xy_m),
    "dot": (lambda x, y, m: np.dot(x[m] / y[m], np.sqrt(x[m])), *xy_m),
    "at": (lambda x, y, m: x[m] @ y[m] + np.vdot(x[m], y[m]) + np.inner(x[m], x[m]) + x[m].dot(y[m]), *xy_m),
    "variance": (lambda x, m: np.var(x[m]) + x[m].var(ddof=1) * 2.0, *x_m),
    "deviation": (lambda x, m: np.std(np.log(x[m])), *x_m),
    "product": (lambda x, m: np.prod(np.sqrt(x[m])), *x_m),
    "largest": (lambda x, m: x[m].max() * np.min(x[m]) + np.ptp(np.log(x[m])), *x_m),
    "norms": (
        lambda x, m: np.linalg.norm(x[m]) + np.linalg.norm(x[m], 1) + np.linalg.norm(np.log(x[m]), np.inf)
        + np.linalg.norm(x[m], 3), *x_m),
    "a number that broadcasts": (lambda x, s, m: np.sum(np.exp(-s * x[m]) * s + s), *xs_m),
    "a number that divides": (lambda x, s, m: np.sum((x[m] - s) ** 2 / s), *xs_m),
    "mean of a number": (lambda x, s, m: np.mean(np.ones_like(x[m]) * s) * np.sum(x[m]), *xs_m),
    "size": (lambda x, m: np.sum(x[m]) / x[m].size + x[m].shape[0] * x[m].sum() / np.sum(m), *x_m),
    "average": (lambda x, y, m: np.average(x[m], weights=y[m]) + np.average(x[m]), *xy_m),
    "where": (lambda x, y, m: np.sum(np.where(x[m] > 1.0, np.log(x[m]), y[m])), *xy_m),
    "clip": (lambda x, m: np.sum(np.clip(x[m], 0.7, 1.2) ** 2 + np.maximum(x[m], 1.0)), *x_m),
    "reduce": (lambda x, m: np.add.reduce(x[m]) * np.logaddexp.reduce(x[m]), *x_m),
    "mask of the values": (lambda x, m: np.sum(np.log(x[x > 0.9]) * x[x > 0.9] ** 2), (X,), (X,)),
    "complement": (lambda x, m: np.sum(x[m]) * np.sum(x[~m] ** 2), (X,), (X,)),
    "compress": (lambda x, m: np.sum(np.compress(m, x) ** 2) + np.log(np.extract(m, x)).sum(), *x_m),
    "compress, method": (lambda x, m: np.sum(x.compress(m) ** 2), *x_m),
    "compress, rows": (lambda r, w, m: np.sum(np.compress(m, r, axis=0) * w), *rows_m),
    "assigned": (written, *x_m),
    "in place": (changed, *xy_m),
    "mask assigned to": (mask_changed, *x_m),
    "softmax": (softmax, *x_m),
    "rows": (lambda r, w, m: np.sum(np.tanh(r[m]) * w), *rows_m),
    "means of rows": (lambda r, w, m: np.sum((r[m].mean(axis=0) - w) ** 2) + np.sum(r[m].std(0)), *rows_m),
    "sums within rows": (lambda r, w, m: np.sum(np.exp(r[m].sum(axis=1)) * r[m].max(axis=-1)), *rows_m),
    "norms of rows": (lambda r, w, m: np.sum(np.linalg.norm(r[m], axis=1)) + np.linalg.norm(r[m]), *rows_m),
    "columns of rows": (lambda r, w, m: np.sum(r[m][:, 0] * r[m][:, 1:].sum(1)), *rows_m),
    "rows times vector": (lambda r, w, m: np.sum(np.log1p(np.exp(r[m] @ w))), *rows_m),
    "rows times matrix": (lambda r, w, m: np.sum((r[m] @ np.outer(w, w)) ** 2), *rows_m),
    "rows by a column": (lambda r, w, m: np.sum(r[m] * np.exp(r[m][:, 0])[:, None]), *rows_m),
    "least squares": (least_squares, (ROWS, Y, W), (BAD_ROWS, BAD_Y, W)),
    "normal equations": (normal_equations, (ROWS, Y), (BAD_ROWS, BAD_Y)),
    "columns": (lambda r, w, m: np.sum(w @ np.log(r.T[:, m] ** 2 + 1.0)), *rows_m),
    "keepdims": (lambda r, w, m: np.sum((r[m] - r[m].mean(0, keepdims=True)) ** 4), *rows_m),
}


def with_known_mask(fn: Fn, mask: Any) -> Fn:
    return lambda *args: fn(*args, mask)


@pytest.mark.parametrize("name", CASES)
def test_values_are_numpys(name: str) -> None:
    fn, good, bad = CASES[name]
    compiled = jg.compile(fn)
    for args in (good, bad):
        for mask in (MASK, np.ones(N, bool)) if args is good else (MASK,):
            expected = fn(*args, mask)
            np.testing.assert_allclose(compiled(*args, mask), expected, rtol=1e-12)
            np.testing.assert_allclose(compiled.interpret(*args, mask), expected, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_a_known_mask(name: str) -> None:
    """To second order, also where what is not chosen has no logarithm, no root, or is NaN."""
    fn, good, bad = CASES[name]
    for args in (good, bad):
        argnums = tuple(range(len(args)))
        known, traced = jg.grad(with_known_mask(fn, MASK), argnums), jg.grad(fn, argnums)

        def slope(*args: Any, of: Fn = traced) -> Any:
            return sum(np.sum(g * np.cos(np.arange(g.size)).reshape(g.shape)) for g in of(*args))

        for of_known, of_traced in (
            (known, traced),
            (jg.grad(lambda *a, of=known: slope(*a, of=of), argnums), jg.grad(slope, argnums)),
        ):
            for compiled in (jg.compile(of_traced), jg.compile(of_traced).interpret):
                for found, expected in zip(compiled(*args, MASK), of_known(*args), strict=True):
                    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_numerical_derivatives(name: str) -> None:
    fn, good, _ = CASES[name]
    check_gradients(fn, *good, MASK, order=1)


TABLES: dict[str, Fn] = {
    "sum": lambda t, m: np.sum(np.log(t[m])),
    "mean, deviation": lambda t, m: np.mean(t[m]) + np.std(t[m]),
    "number": lambda t, m: np.sum(t[m] ** t[0, 0]),
    "norm, product": lambda t, m: np.linalg.norm(t[m]) + t[m] @ np.sqrt(t[m]),
    "largest": lambda t, m: np.max(t[m], keepdims=True) - t[m].min(axis=0),
    "extract": lambda t, m: np.extract(m, t).sum() + np.compress(np.ravel(m), t).prod(),
    "layers": lambda t, m: np.sum(np.stack([t, t * 2.0], -1)[m] * np.array([1.0, -0.5]), axis=0),
    "layers times a matrix": lambda t, m: np.stack([t, t * 2.0], -1)[m].T @ np.stack([t, t**2], -1)[m],
    "layers times a vector": lambda t, m: np.exp(np.stack([t, t], -1)[m] @ np.array([0.5, -0.2])).sum(),
    "layers in front": lambda t, m: (np.array([2.0, -1.0]) @ np.stack([t, t * t])[:, m]).prod(),
    "a column": lambda t, m: (np.array([[2.0], [-1.0]]) * t[m]).sum(axis=1),
    "rows of it": lambda t, m: t[m[:, 0]].sum(axis=0),
    "slice and mask": lambda t, m: t[1:5, m[0]].sum(axis=1),
    "integer and mask": lambda t, m: (t[2, m[0]] ** 2).sum() + t[m[:, 1], 1].sum(),
}


@pytest.mark.parametrize("mask", [MASK2, np.zeros_like(MASK2) | [True, True, False, True]], ids=["some", "columns"])
@pytest.mark.parametrize("name", TABLES)
def test_masks_of_matrices(name: str, mask: Any) -> None:
    fn = TABLES[name]
    compiled = jg.compile(fn)
    np.testing.assert_allclose(compiled(TABLE, mask), fn(TABLE, mask), rtol=1e-12)
    np.testing.assert_allclose(compiled.interpret(TABLE, mask), fn(TABLE, mask), rtol=1e-12)
    check_gradients(fn, TABLE, mask)


def scattered(t: Any, m: Any) -> Any:
    out = t * 0.5
    out[m] = np.log(t[m])
    out[m] *= t[m]
    layers = np.stack([t, t])
    layers[:, m] = out[m] ** 2
    layers[1, m] += layers[0, m]
    rows = t.copy()
    rows[m[:, 0]] = rows[m[:, 0]] * 3.0
    rows[m[:, 0], 1] -= 1.0
    return out, layers, rows


def test_assignments_through_masks_of_matrices() -> None:
    for found, expected in zip(jg.compile(scattered)(TABLE, MASK2), scattered(TABLE, MASK2), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-13)
    check_gradients(scattered, TABLE, MASK2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.bool_, np.complex128])
def test_dtypes_are_numpys(dtype: Any) -> None:
    def of_all(x: Any, m: Any) -> Any:
        y = x[m]
        return (
            y.sum(), y.prod(), y.mean(), np.mean(y) * 2.0, y @ y, np.dot(y, y), y.any(), y.all(), np.count_nonzero(y),
            y.std(), (y + 1).sum(), (y * 2.5).sum(), (y == y).sum(), np.linalg.norm(y), (-abs(y * 1)).sum(),
            y.astype(np.complex64).sum(), y.real.sum() + y.imag.sum(), y.conj().sum(), np.ones_like(y).sum(),
            np.nansum(y), np.nanvar(y), np.isfinite(y).sum(), y.sum() / y.size, np.vdot(y, y),
        )

    def of_ordered(x: Any, m: Any) -> Any:
        y = x[m]
        return y.max(), y.min(), np.amax(y, initial=1), (y // 2).sum(), np.divmod(y, 2)[1].sum(), np.fmax(y, 1).max()

    values = (rng.normal(size=N) * 3).astype(dtype)
    for fn in (of_all,) if dtype is np.complex128 else (of_all, of_ordered):
        for mask in (MASK, np.ones(N, bool)):
            found, expected = jg.compile(fn)(values, mask), fn(values, mask)
            assert [np.asarray(a).dtype for a in found] == [np.asarray(a).dtype for a in expected]
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-6 if np.asarray(b).dtype.char in "fF" else 1e-12)


def test_of_no_elements() -> None:
    """Sums and products as in NumPy; an extreme, for which NumPy raises, is NaN; and gradients are 0."""

    def fn(x: Any, m: Any) -> Any:
        y = np.log(x[m])
        ends = y.max(), y.min()
        return y.sum(), y.prod(), y @ y, np.linalg.norm(y), y.any(), y.all(), y.size, y.mean(), y.var(), *ends

    none = np.zeros(N, bool)
    found = jg.compile(fn)(BAD_X, none)
    np.testing.assert_array_equal(found, [0, 1, 0, 0, False, True, 0, np.nan, np.nan, np.nan, np.nan])
    for place in range(11):
        if place not in (4, 5, 6):
            g = jg.compile(jg.grad(lambda x, m, k=place: fn(x, m)[k]))(BAD_X, none)
            np.testing.assert_array_equal(g, np.zeros(N))
    assert jg.compile(lambda x, m: x[m].max())(np.arange(N), none) == np.iinfo(np.int64).min
    assert jg.compile(lambda x, m: x[m].max(initial=-3.0))(X, none) == -3.0


def test_scalars_get_the_gradient_of_chosen_places_alone() -> None:
    def loss(s: Any, x: Any, m: Any) -> Any:
        return np.sum(np.log(x[m] * s))

    value, slope = jg.compile(jg.value_and_grad(loss))(2.0, BAD_X, MASK)
    np.testing.assert_allclose([value, slope], [loss(2.0, BAD_X, MASK), MASK.sum() / 2.0], rtol=1e-13)


def test_one_trace_serves_all_masks_and_new_extents() -> None:
    f = jg.compile(jg.value_and_grad(CASES["sum of logarithms"][0]))
    for n in (5, 8, 8, 13, 1, 300):
        x = rng.uniform(0.5, 1.5, n)
        m = rng.random(n) < 0.5
        value, slope = f(x, m)
        np.testing.assert_allclose(value, np.sum(np.log(x[m])), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(slope, np.where(m, 1.0 / x, 0.0), rtol=1e-13)


def test_hessians_and_jacobians() -> None:
    fn = CASES["softmax"][0]
    np.testing.assert_allclose(
        jg.compile(jg.hessian(fn))(BAD_X, MASK), jg.hessian(with_known_mask(fn, MASK))(BAD_X), rtol=1e-9, atol=1e-12
    )
    def sums(r: Any, m: Any) -> Any:
        return np.exp(r[m]).sum(axis=0)

    np.testing.assert_allclose(
        jg.jacobian(sums)(BAD_ROWS, MASK), jg.jacobian(with_known_mask(sums, MASK))(BAD_ROWS), rtol=1e-12
    )


def test_in_loops_and_branches() -> None:
    """A selection made outside, and masks made inside."""

    def fn(x: Any, m: Any) -> Any:
        outer = np.log(x[m])

        def step(total: Any, row: Any) -> Any:
            y = row[row > 0]
            total = total + np.sum(y * y) * np.sum(outer) + np.sum(x[m] * outer)
            return total, np.sum(y)

        total, sums = jg.scan(step, 0.0 * x[0], ROWS)
        return jg.cond(total > 0, lambda: total + np.sum(x[x > 1]), lambda: -total) + np.sum(sums)

    def plain(x: Any, m: Any) -> Any:
        total = sum(np.sum(r[r > 0] ** 2) * np.sum(np.log(x[m])) + np.sum(x[m] * np.log(x[m])) for r in ROWS)
        return (total + np.sum(x[x > 1]) if total > 0 else -total) + sum(np.sum(r[r > 0]) for r in ROWS)

    np.testing.assert_allclose(jg.compile(fn)(X, MASK), plain(X, MASK), rtol=1e-12)
    check_gradients(fn, X, MASK)


@pytest.mark.quick
def test_in_graphs() -> None:
    with jg.Graph().as_default():
        x, m = jg.placeholder(np.float64, (N,)), jg.placeholder(np.bool_, (N,))
        chosen = x[m]
        other = chosen
        chosen += 1.0  # in a graph a value, which is bound anew
        total = np.sum(chosen) - np.sum(other)
        (g,) = jg.gradients(np.sum(np.log(other)), x)
        found = jg.Session().run([total, g], {x: BAD_X, m: MASK})
    np.testing.assert_allclose(found[0], MASK.sum())
    np.testing.assert_allclose(found[1], np.where(MASK, 1 / X, 0.0))


def test_beside_variables_and_eager_tensors() -> None:
    v, e = jg.Variable(np.float64(2.0)), jg.asarray(Y)

    @jg.compile
    def fn(x: Any, m: Any) -> Any:
        return np.sum(v * x[m]) + np.sum(x[m] * v) + np.sum(np.multiply(v, x[m])) + np.sum(np.extract(m, e) * x[m])

    np.testing.assert_allclose(fn(X, MASK), np.sum(6.0 * X[MASK]) + np.sum(X[MASK] * Y[MASK]))
    two = jg.asarray(2.0)
    scaled = jg.compile(lambda x, m: (two * x[m] + np.multiply(two, x[m]) + x[m] * two).sum())
    np.testing.assert_allclose(scaled(X, MASK), np.sum(6.0 * X[MASK]))
    of_variable = jg.Variable(X)
    np.testing.assert_allclose(jg.compile(lambda m: of_variable[m].sum())(MASK), X[MASK].sum())


def test_python_numbers_give_way() -> None:
    def fn(s: Any, x: Any, m: Any) -> Any:
        return (x[m] * s).sum() / x[m].size, x[m] @ x[m] * x[m].shape[0], (s + x[m]).mean()

    for a in jg.compile(fn)(2.0, X.astype(np.float32), MASK):
        assert a.dtype == np.float32


def test_of_an_array_of_numpy_and_of_scipys_functions() -> None:
    import scipy.special

    import jitgrad.scipy.stats as stats

    f = jg.compile(lambda m: np.compress(m, ROWS, axis=0).sum() + np.extract(m, X).sum())
    np.testing.assert_allclose(f(MASK), ROWS[MASK].sum() + X[MASK].sum())
    g = jg.compile(lambda x, m: np.sum(scipy.special.gammaln(x[m])) + np.sum(stats.norm.logpdf(x[m], 0.0, 2.0)))
    logpdf = -(X[MASK] ** 2) / 8 - np.log(2.0) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(g(X, MASK), scipy.special.gammaln(X[MASK]).sum() + logpdf.sum(), rtol=1e-12)


def test_operators_of_each_side() -> None:
    def fn(x: Any, s: Any, m: Any) -> Any:
        y, a = x[m], np.float64(0.7)
        parts = [s + y, y + s, s - y, y - s, s * y, s / y, y / s, s**y, y**s, y**2, s // y, s % y, a * y, y * a,
                 np.array([0.3]) * y, y * np.array([0.3]), divmod(s, y)[1], abs(-y), np.multiply(s, y),
                 np.where(s < y, y, s), 1.0 * (y < s), 1.0 * (s >= y), 1.0 * ((y > 1) & ~(y > 1.5))]  # fmt: skip
        return np.stack([p.sum() for p in parts])

    np.testing.assert_allclose(jg.compile(fn)(X, S, MASK), fn(X, S, MASK), rtol=1e-12)


OPTIONS: dict[str, Fn] = {
    "astype": lambda x, m: x[m].astype(np.float32, copy=False).sum() + np.astype(x[m], np.int64).sum(),
    "nan_to_num": lambda x, m: np.nan_to_num(x[m], copy=False).sum() + np.nan_to_num(x[m], nan=2.0).sum(),
    "rounding": lambda x, m: (np.round(x[m], 1) + x[m].round(1) + np.around(x[m]) + np.trunc(x[m])).sum(),
    "like it": lambda x, m: (np.full_like(x[m], 3.0) * np.ones_like(x[m], dtype=np.float32) + np.copy(x[m])).sum(),
    "questions": lambda x, m: np.isclose(x[m], 1.0, atol=0.2).sum() + np.isposinf(x[m]).sum() + np.angle(x[m]).sum(),
    "clip": lambda x, m: (np.clip(x[m], a_min=None, a_max=1.0) + x[m].clip(min=0.9) + x[m].clip(0.9, 1)).sum(),
    "shape": lambda x, m: np.size(x[m]) + np.shape(x[m])[0] + np.ndim(x[m]),
    "two results": lambda x, m: sum(part.sum() for part in np.modf(x[m])),
    "along rows": lambda x, m: np.argmax(np.stack([x, 1 - x], 1)[m], axis=1).sum(),
    "median of rows": lambda x, m: np.median(np.stack([x, -x, x * x], 1)[m], axis=1).sum(),
    "logic": lambda x, m: np.any(x[m] > 1) & np.all(x[m] > 0.5),
    "dot of a number": lambda x, m: np.dot(x[m], 2.0).sum() + np.dot(3.0, x[m]).sum(),
    "NaN among the chosen": lambda x, m: np.nansum(np.sqrt(x[m] - 1.0)) + np.isnan(np.sqrt(x[m] - 1).max()),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_functions(name: str) -> None:
    with np.errstate(invalid="ignore"):
        expected = OPTIONS[name](X, MASK)
    np.testing.assert_allclose(jg.compile(OPTIONS[name])(X, MASK), expected, rtol=1e-6 if name == "astype" else 1e-12)


# what a compiled function must not do with x[m] → words of the sentence
REFUSED: dict[str, tuple[Fn, str]] = {
    "returned": (lambda x, y, m: x[m], "this use of x.mask. needs the number"),
    "returned in a list": (lambda x, y, m: [x, np.log(x[m])], "this use of x.mask. needs"),
    "sort": (lambda x, y, m: np.sort(x[m]), r"np\.sort of x.mask. needs"),
    "sort, method": (lambda x, y, m: x[m].sort(), r"\.sort of x.mask. needs"),
    "concatenate": (lambda x, y, m: np.concatenate([x[m], y]), "this use of x.mask. needs"),
    "concatenate behind": (lambda x, y, m: np.concatenate([y, x[m]]), "this use of x.mask. needs"),
    "reshape": (lambda x, y, m: x[m].reshape(-1), r"\.reshape of x.mask. needs"),
    "argmax": (lambda x, y, m: np.argmax(x[m]), r"np\.argmax of x.mask. needs(.|\n)*position in x"),
    "cumsum": (lambda x, y, m: np.cumsum(x[m]), r"np\.cumsum of x.mask. needs"),
    "accumulate": (lambda x, y, m: np.add.accumulate(x[m]), r"np\.add\.accumulate of x.mask. needs"),
    "median": (lambda x, y, m: np.median(x[m]), "nanmedian"),
    "item": (lambda x, y, m: x[m][0], r"an index needs(.|\n)*mask & other"),
    "item by a mask": (lambda x, y, m: x[m][x[m] > 1], "an index needs"),
    "len": (lambda x, y, m: len(x[m]), r"len\(\) of x.mask. needs(.|\n)*np\.sum\(mask\)"),
    "if": (lambda x, y, m: 1.0 if x[m] > 0 else 0.0, r"a condition .* of x.mask. needs"),
    "float": (lambda x, y, m: float(x[m]), r"float\(\) of x.mask. needs"),
    "loop": (lambda x, y, m: list(x[m]), "iteration of x.mask. needs"),
    "array": (lambda x, y, m: np.asarray(x[m]), "conversion to an array of x.mask. needs"),
    "item assigned": (lambda x, y, m: x[m].__setitem__(0, 1.0), "assignment to elements of x.mask. needs"),
    "other mask": (lambda x, y, m: np.sum(x[m] * y[~m]), r"by another mask needs(.|\n)*one mask"),
    "other mask, product": (lambda x, y, m: x[m] @ y[y > 1], "by another mask needs"),
    "other mask, assigned": (lambda x, y, m: x.__setitem__(m, y[~m]), "by another mask needs"),
    "array beside": (lambda x, y, m: np.sum(x[m] * y), "an array of extent 24 where x.mask. has its chosen"),
    "array beside, first": (lambda x, y, m: np.sum(y - x[m]), "an array of extent 24 where x.mask. has its chosen"),
    "array assigned": (lambda x, y, m: x.__setitem__(m, y), "as many values as a boolean mask has True"),
    "assigned without a mask": (lambda x, y, m: x.__setitem__(slice(3), y[m]), "this use of x.mask. needs"),
    "added to an array": (lambda x, y, m: x.__iadd__(y[m]), "this use of x.mask. needs"),
    "where=": (lambda x, y, m: np.sum(x[m], where=y[m] > 1), r"with where= needs"),
    "outer": (lambda x, y, m: np.outer(x[m], x[m]), r"np\.outer of x.mask. needs"),
    "product of all": (lambda x, y, m: x[m] @ y, "such a product of x.mask. needs"),
    "norm": (lambda x, y, m: np.linalg.norm(x[m], -1), "a norm of order -1 of x.mask. needs"),
    "scan": (lambda x, y, m: jg.scan(lambda c, v: (c, v), 0.0, x[m]), "this use of x.mask. needs"),
    "compiled": (lambda x, y, m: jg.compile(np.sin)(x[m]), "this use of x.mask. needs"),
    "number": (lambda x, y, m: x[m[0]], "an index True or False needs"),
    "apart": (lambda x, y, m: np.stack([np.stack([x, y])])[0, :, m], "an integer apart from the mask in an index"),
    "item of NumPy's array": (lambda x, y, m: np.ones(N)[m], r"an index into an array(.|\n)*np\.compress"),
    "out=": (lambda x, y, m: np.sum(x, out=x[m]), "this use of x.mask. needs"),
    "stored": (lambda x, y, m: np.add(x, y, out=x[m]), "an array of extent 24 where x.mask. has its chosen"),
    "axes": (lambda x, y, m: np.transpose(x[m], (0,)), r"np\.transpose of x.mask. with axes= needs"),
    "product, in place": (lambda x, y, m: np.stack([x, y]).T[m].__imatmul__(np.eye(2)), r"np\.matmul .* with out="),
    "two masks": (lambda x, y, m: np.stack([x, y])[x[:2] > 0, m], "a boolean mask beside other arrays"),
    "function of a graph": (lambda x, y, m: jg.function(np.sin)(x[m]), "this use of x.mask. needs"),
    "argwhere": (lambda x, y, m: x[np.argwhere(m)], r"np\.argwhere needs"),
    "positions counted": (lambda x, y, m: len(np.nonzero(m)[0]), r"this use of np\.nonzero, whose length"),
    "positions returned": (lambda x, y, m: np.nonzero(m), r"this use of np\.nonzero, whose length"),
    "positions in sums": (lambda x, y, m: y + np.flatnonzero(m), r"this use of np\.flatnonzero, whose length"),
    "positions compared": (lambda x, y, m: np.where(m)[0] == 1, r"this use of np\.nonzero, whose length"),
    "positions elsewhere": (lambda x, y, m: np.take(x, np.nonzero(m)[0]), r"this use of np\.nonzero, whose length"),
    "positions of an axis": (lambda x, y, m: np.outer(x, y)[np.nonzero(np.outer(m, m))[0]], r"this use of np\.nonzero"),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, words = REFUSED[name]
    with pytest.raises(jg.TracedValueError, match=rf"(?s){words}") as caught:
        jg.compile(fn)(X, Y, MASK)
    text = str(caught.value)
    assert "test_selections.py:" in text and "needed:" in text and "hint:" in text


@pytest.mark.quick
def test_of_extents_that_are_fed() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (None,))
        y = np.sum(np.log(x[x > 1]))
        (g,) = jg.gradients(y, x)
        found = jg.Session().run([y, g], {x: X})
    np.testing.assert_allclose(found[0], np.sum(np.log(X[X > 1])))
    np.testing.assert_allclose(found[1], np.where(X > 1, 1 / X, 0.0))


@pytest.mark.quick
def test_a_mask_of_another_shape() -> None:
    with pytest.raises(IndexError, match=r"size of axis is 24 but .* is 5"):
        jg.compile(lambda x, m: np.sum(x[m]))(X, MASK[:5])
    for mask in (MASK[:5], MASK[:1]):  # of which the second would broadcast
        with pytest.raises(IndexError, match=r"size of axis is 24 but"):
            jg.compile(lambda x, m: x.__setitem__(m, 0.0))(X, mask)


@pytest.mark.quick
def test_a_selection_that_leaks() -> None:
    kept = []
    jg.compile(lambda x, m: kept.append(x[m]) or np.sum(x))(X, MASK)
    with pytest.raises(jg.LeakedTracerError):
        len(kept[0])


@pytest.mark.quick
def test_in_a_scope_around_eager_operations() -> None:
    x = jg.asarray(X)
    with jg.jit_scope(), pytest.raises(jg.TracedValueError, match="needs the number of chosen elements"):
        np.exp(x)[np.exp(x) > 1.5]
    assert np.sum(x[x > 1]) == np.sum(X[X > 1])


def test_kernels_are_those_of_two_where() -> None:
    selected = jg.compile(jg.value_and_grad(CASES["sum of logarithms"][0]))
    spelled = jg.compile(jg.value_and_grad(lambda x, m: np.sum(np.where(m, np.log(np.where(m, x, 1.0)), 0.0))))
    assert selected.explain(X, MASK).kernels == spelled.explain(X, MASK).kernels


@pytest.mark.quick
def test_what_is_wider_than_the_chosen_elements_is_refused() -> None:
    """An assignment changes no shape, whether values broadcast or are chosen themselves."""

    def assigned(x: Any, value: Any, m: Any) -> Any:
        out = x * 0.0
        out[m] = value[m] if value.shape[0] == N else value
        return out

    for x, value in ((X, np.ones((2, 1))), (ROWS[:, :1], np.ones(3)), (ROWS[:, :1], ROWS)):
        with pytest.raises(jg.errors.ShapeError, match="too wide"):
            jg.compile(assigned)(x, value, MASK)


@pytest.mark.quick
def test_conditions_of_ufuncs_are_chosen_too() -> None:
    def doubled(x: Any, condition: Any, m: Any) -> Any:
        y = x[m]
        np.multiply(y, 2.0, out=y, where=condition(x, m))
        return y.sum()

    expected = np.sum(np.where(X > 1.0, 2.0 * X, X)[MASK])
    chosen = jg.compile(lambda x, m: doubled(x, lambda x, m: (x > 1.0)[m], m))
    np.testing.assert_allclose(chosen(X, MASK), expected)
    with pytest.raises(jg.errors.TracedValueError, match="index it with the mask"):
        jg.compile(lambda x, m: doubled(x, lambda x, m: x > 1.0, m))(X, MASK)


VIEWS = {
    "slice": lambda s: s[:],
    "transpose": lambda s: s.T,
    "function": np.transpose,
    "real": lambda s: s.real,
    "part": np.real,
    "no copy": lambda s: s.astype(float, copy=False),
}


@pytest.mark.quick
@pytest.mark.parametrize("name", VIEWS)
def test_changes_in_place_beside_views_are_refused(name: str) -> None:
    """A view would not see them; what is no view any more may be changed."""

    def source_changed(x: Any, m: Any) -> Any:
        s = x[m]
        t = VIEWS[name](s)
        s += 1.0
        return t.sum()

    def view_changed(x: Any, m: Any) -> Any:
        s = x[m]
        t = VIEWS[name](s)
        t += 1.0
        return s.sum()

    for fn in (source_changed, view_changed):
        with pytest.raises(jg.errors.TracedValueError, match="in place beside a view"):
            jg.compile(fn)(X, MASK)

    def copied(x: Any, m: Any) -> Any:
        t = VIEWS[name](x[m]) * 1.0
        t += 1.0
        return t.sum()

    np.testing.assert_allclose(jg.compile(copied)(X, MASK), np.sum(X[MASK] + 1.0))


@pytest.mark.quick
def test_products_over_no_elements_of_matrices() -> None:
    w, r = np.ones((2, 0)), np.ones((0, 3, 3))
    f = jg.compile(lambda w, r, m: (w @ r[:, m]).sum())
    assert f(w, r, np.eye(3, dtype=bool)) == 0.0


@pytest.mark.quick
@pytest.mark.parametrize(
    "chosen",
    [lambda x: np.nonzero(x > 0), lambda x: np.where(x > 0), lambda x: (x > 0).nonzero(), lambda x: x.nonzero(),
     lambda x: (slice(None), np.flatnonzero(x[0] > 0)), lambda x: (1, np.where(x[1] > 0)[0])],
)  # fmt: skip
def test_positions_by_nonzero_stand_for_the_mask(chosen: Any) -> None:
    """Read, assigned to, and with gradients; a later change of the mask does not matter, as in NumPy."""
    x = np.arange(12.0).reshape(3, 4) - 5

    def read(x: Any) -> Any:
        return np.sum(np.exp(x[chosen(x)] * 0.1))

    def written(x: Any) -> Any:
        y = x * 1
        index = chosen(y)
        y[index] = -1
        y[index] *= 2
        return y

    value, slope = jg.compile(jg.value_and_grad(read))(x)
    expected = np.zeros_like(x)
    expected[chosen(x)] = 0.1 * np.exp(x[chosen(x)] * 0.1)
    np.testing.assert_allclose(value, read(x), rtol=1e-13)
    np.testing.assert_allclose(slope, expected, rtol=1e-13)
    np.testing.assert_array_equal(jg.compile(written)(x), written(x))


@pytest.mark.quick
def test_a_selection_is_viewed_in_its_own_dtype_alone() -> None:
    x = np.array([1.0, -2.0, 3.0])
    assert jg.compile(lambda x: np.sum(x[x > 0].view()))(x) == 4
    assert jg.compile(lambda x: np.sum(x[x > 0].view(float)))(x) == 4
    with pytest.raises(jg.UnsupportedOpError, match="the method view of an array with dtype="):
        jg.compile(lambda x: np.sum(x[x > 0].view(np.int64)))(x)


def test_the_size_asks_for_no_more_extents_than_it_counts() -> None:
    graph = jg.Graph()
    with graph.as_default():
        x, y = jg.placeholder(np.float64, (None,)), jg.placeholder(np.float64, (None, 3))
        sizes = x[x > 1].size, y[y[:, 0] > 1].size
        wide = jg.placeholder(np.float64, (None, None))
        with pytest.raises(jg.ShapeError, match=r"needs an extent that is not known\n  needed: at test_selections"):
            wide[wide[:, 0] > 1].size  # noqa: B018
    fed = {x: np.arange(4.0), y: np.arange(9.0).reshape(3, 3)}
    assert jg.Session(graph).run(sizes, fed) == (2, 6)
