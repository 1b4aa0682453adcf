"""jitgrad.scipy: the values of SciPy's functions on traced and eager values, gradients, and what is loaded when."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.integrate
import scipy.linalg
import scipy.signal
import scipy.special
import scipy.stats

import jitgrad as jg
from jitgrad.testing import check_gradients

rng = np.random.default_rng(0)
V, W, K = rng.normal(size=9), rng.normal(size=8), rng.normal(size=4)
A = rng.normal(size=(4, 4))
B = rng.normal(size=(4, 3))
S = A @ A.T + 4 * np.eye(4)
C = rng.normal(size=(5, 6)) + 1j * rng.normal(size=(5, 6))
P, Q = np.array([0.2, 0.5, 0.9]), np.array([1.5, 2.0, 0.7])
COUNTS = np.array([0.0, 1.0, 3.0])

Case = tuple[str, Callable[..., Any], tuple[Any, ...]]


def case(path: str, *args: Any, **kwargs: Any) -> Case:
    """A call of a function of that path: of SciPy itself, and of jitgrad's."""

    def call(root: Any, *arrays: Any) -> Any:
        for name in path.split("."):
            root = getattr(root, name)
        return root(*arrays, **kwargs)

    return f"{path}-{'-'.join(map(str, kwargs.values()))}", call, args


LINALG = [
    case("linalg.det", A), case("linalg.inv", A), case("linalg.pinv", B), case("linalg.norm", A),
    case("linalg.norm", V, 3), case("linalg.solve", A, B), case("linalg.solve", A, B, transposed=True),
    case("linalg.solve", S, B, assume_a="pos"), case("linalg.solve", S, B, assume_a="sym", lower=True),
    case("linalg.solve_triangular", A, B), case("linalg.solve_triangular", A, B, lower=True, trans=1),
    case("linalg.solve_triangular", A, B, lower=True, unit_diagonal=True),
    case("linalg.cholesky", S), case("linalg.cholesky", S, lower=True), case("linalg.eigvalsh", S),
    case("linalg.eigvalsh", S, S + A @ A.T), case("linalg.svdvals", B), case("linalg.expm", A),
    case("linalg.expm", 30 * A), case("linalg.block_diag", A, B, K), case("linalg.toeplitz", K),
    case("linalg.toeplitz", K, W),
]  # fmt: skip
SPECIAL = [
    case("special.logsumexp", A), case("special.logsumexp", A, axis=1), case("special.logsumexp", A, 1, B[:, :1] ** 2),
    case("special.softmax", A, axis=0), case("special.log_softmax", A, axis=-1), case("special.polygamma", 2, Q),
    case("special.multigammaln", Q + 2, 3), case("special.beta", Q, P), case("special.factorial", Q),
    case("special.erf", A), case("special.gammaln", Q),
]  # fmt: skip
SIGNAL = [
    *[case("signal.convolve", V, K, mode=mode) for mode in ("full", "same", "valid")],
    *[case("signal.convolve", K, V, mode=mode) for mode in ("full", "same", "valid")],
    *[case("signal.correlate", V, K, mode=mode) for mode in ("full", "same", "valid")],
    *[case("signal.correlate", K, V, mode=mode) for mode in ("full", "same", "valid")],
    case("signal.convolve", A, B), case("signal.convolve2d", B, A, mode="same"),
    case("signal.correlate2d", A, B, mode="valid"), case("signal.fftconvolve", A, B, mode="same"),
    case("signal.lfilter", K, [1.0, 0.5, 0.2], V), case("signal.lfilter", [2.0], [2.0, 0.5], A, axis=0),
    case("signal.lfilter", K, [1.0], V),
]  # fmt: skip
INTEGRATE = [
    case("integrate.trapezoid", A), case("integrate.trapezoid", V, np.cumsum(V**2)), case("integrate.simpson", V),
    case("integrate.simpson", W), case("integrate.simpson", W, x=np.cumsum(W**2)), case("integrate.simpson", W[:2]),
    case("integrate.simpson", A, axis=0, dx=0.5), case("integrate.cumulative_trapezoid", V, dx=2.0),
    case("integrate.cumulative_trapezoid", A, np.cumsum(K**2), axis=0, initial=0),
]  # fmt: skip
FFT = [
    *[case(f"fft.{name}", C) for name in ("fft", "ifft", "irfft", "hfft", "fft2", "ifft2", "fftn", "ifftn", "irfft2",
                                          "irfftn", "fftshift", "ifftshift")],
    *[case(f"fft.{name}", A) for name in ("fft", "rfft", "ihfft", "rfft2", "rfftn")],
    *[case("fft.fft", C, norm=norm) for norm in ("ortho", "forward")],
    *[case("fft.irfft", C, n=n, norm="ortho") for n in (7, 12)], case("fft.fft", C, n=3, axis=0),
    case("fft.rfft", V, n=12), case("fft.ifftn", C, s=(3, 8), axes=(1, 0)), case("fft.fftshift", C, axes=1),
]  # fmt: skip
STATS = [
    *[case(f"stats.{name}.logpdf", A, 0.5, Q[:1]) for name in ("norm", "cauchy", "laplace", "logistic", "gumbel_r")],
    *[case(f"stats.{name}.logpdf", 3 * P, loc=0.2, scale=0.7) for name in ("expon", "uniform")],
    *[case(f"stats.{name}.logpdf", np.append(P, -1.0), 1.7) for name in ("gamma", "chi2", "invgamma", "lognorm",
                                                                         "weibull_min", "t")],
    case("stats.pareto.logpdf", np.array([0.5, 1.5, 4.0]), 2.5), case("stats.beta.logpdf", P, 1.5, 2.5),
    *[case(f"stats.norm.{name}", A, 0.5, Q[:1]) for name in ("cdf", "sf", "logcdf", "logsf")],
    *[case(f"stats.{name}.logpdf", A) for name in ("halfnorm", "halfcauchy")],
    *[case(f"stats.{law}.{name}", 2 * A, 0.25, 0.5) for law in ("cauchy", "uniform") for name in ("cdf", "sf")],
    *[case(f"stats.logistic.{name}", A, 0.5, Q[:1]) for name in ("cdf", "sf", "logcdf", "logsf")],
    *[case(f"stats.gumbel_r.{name}", A, 0.5, Q[:1]) for name in ("cdf", "sf", "logcdf")],
    *[case(f"stats.halfnorm.{name}", A, 0.1) for name in ("cdf", "sf")],
    *[case(f"stats.expon.{name}", A, 0.1, Q[:1]) for name in ("cdf", "sf", "logcdf", "logsf")],
    *[case(f"stats.{law}.{name}", np.append(Q, -1.0), 1.7) for law in ("weibull_min", "lognorm", "pareto")
      for name in ("cdf", "sf", "logcdf", "logsf")],
    *[case(f"stats.{law}.ppf", np.append(P, [-0.5, 1.5]), loc=0.5, scale=2.0)
      for law in ("norm", "cauchy", "expon", "gumbel_r", "logistic", "uniform")],
    case("stats.norm.isf", P), case("stats.weibull_min.ppf", np.append(P, -0.5), 1.7),
    case("stats.norm.pdf", A), case("stats.t.pdf", A, df=3.0),
    case("stats.bernoulli.logpmf", np.array([0.0, 1.0]), np.array(0.3)),
    case("stats.binom.logpmf", COUNTS, 5.0, np.array(0.3)), case("stats.geom.logpmf", COUNTS + 1, np.array(0.3)),
    case("stats.nbinom.logpmf", COUNTS, 2.5, np.array(0.3)),
    case("stats.poisson.pmf", np.append(COUNTS, [-1.0, 0.5]), np.array(1.5)),
    case("stats.multivariate_normal.logpdf", K, K - 1, S), case("stats.multivariate_normal.logpdf", A, K, S),
    case("stats.multivariate_normal.pdf", A, K, 2.0), case("stats.dirichlet.logpdf", np.array([0.2, 0.3, 0.5]), Q),
]  # fmt: skip
CASES = [*LINALG, *SPECIAL, *SIGNAL, *INTEGRATE, *FFT, *STATS]


def split(args: tuple[Any, ...]) -> tuple[list[Any], Callable[[list[Any]], list[Any]]]:
    """The arrays among some arguments, and what puts others in their places."""
    places = [k for k, x in enumerate(args) if isinstance(x, np.ndarray)]

    def filled(arrays: list[Any]) -> list[Any]:
        whole = list(args)
        for k, x in zip(places, arrays, strict=True):
            whole[k] = x
        return whole

    return [args[k] for k in places], filled


@pytest.mark.parametrize(("call", "args"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_values_are_scipys(call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    arrays, filled = split(args)
    with np.errstate(all="ignore"):
        expected = call(scipy, *args)
    of_arrays = call(jg.scipy, *args)
    assert type(of_arrays) is type(expected)
    np.testing.assert_array_equal(of_arrays, expected)
    traced = jg.compile(lambda *arrays: call(jg.scipy, *filled(list(arrays))))
    eager = call(jg.scipy, *filled([jg.asarray(x) for x in arrays]))
    assert isinstance(eager, jg.EagerTensor)
    scale = np.max(np.abs(np.where(np.isfinite(expected), expected, 0.0)), initial=1e-300)
    for got in (traced(*arrays), traced.interpret(*arrays), eager.numpy()):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12 * scale)


SMOOTH = [c for c in CASES if not any(np.iscomplexobj(x) for x in c[2])]
SYMMETRIC = ("cholesky", "eigvalsh", "pos")  # which read one triangle, and give the gradient of the symmetric problem


@pytest.mark.parametrize(("name", "call", "args"), SMOOTH, ids=[c[0] for c in SMOOTH])
def test_gradients(name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """With respect to the first array, of probabilities of counts to the last."""
    arrays, filled = split(args)
    at = len(arrays) - 1 if "pmf" in name else 0
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(call(scipy, *args))

    def f(x: Any) -> Any:
        x = 0.5 * (x + x.T) if any(part in name for part in SYMMETRIC) else x
        out = call(jg.scipy, *filled([*arrays[:at], x, *arrays[at + 1 :]]))
        return np.where(is_finite, np.real(out) + np.imag(out) if out.dtype.kind == "c" else out, 0.0)

    check_gradients(f, arrays[at], order=1, rtol=1e-5)


@pytest.mark.quick
def test_frozen_distributions() -> None:
    """Their densities take traced values whoever has been given one, and the rest is SciPy's."""

    def f(stats: Any, x: Any, s: Any, c: Any) -> Any:
        of_one = stats.norm(0.5, scale=s).logpdf(x) + stats.norm.logsf(x) + stats.poisson(2.0).logpmf(3)
        return np.sum(of_one * stats.beta(2.0, 3.0).pdf(x)) + stats.multivariate_normal(np.zeros(3), c).logpdf(x)

    args = P, np.array(1.5), np.cov(A[:3])
    np.testing.assert_allclose(jg.compile(lambda *a: f(jg.scipy.stats, *a))(*args), f(scipy.stats, *args))
    check_gradients(lambda x: f(jg.scipy.stats, x, *args[1:]), P, order=1)
    assert jg.scipy.stats.gamma(2.0, scale=3.0).mean() == 6.0


def test_distributions_of_what_a_mask_chooses() -> None:
    """Survival times, some of them censored."""

    def f(stats: Any, z: Any, was_seen: Any) -> Any:
        return stats.norm.logpdf(z[was_seen]).sum() + stats.norm.logsf(z[~was_seen]).sum() + np.sum(
            stats.gamma.logpdf(z[was_seen] ** 2, 2.0) + stats.weibull_min(1.7).logsf(z[was_seen] ** 2)
        )  # fmt: skip

    compiled = jg.compile(jg.value_and_grad(lambda z: f(jg.scipy.stats, z, z > 0.1)))
    value, slope = compiled(V)
    np.testing.assert_allclose(value, f(scipy.stats, V, V > 0.1))
    h = 1e-6 * W[:1] * V
    numeric = f(scipy.stats, V + h, V > 0.1) - f(scipy.stats, V - h, V > 0.1)
    np.testing.assert_allclose(2 * np.sum(slope * h), numeric, rtol=1e-6)


def test_factors_and_vectors() -> None:
    """Functions whose results are tuples, by what they are made for."""

    def whole(s: Any, b: Any, a: Any) -> Any:
        linalg = jg.scipy.linalg
        by_factor = linalg.cho_solve(linalg.cho_factor(s), b), linalg.cho_solve(linalg.cho_factor(s, lower=True), b)
        values, vectors = linalg.eigh(s, s + a @ a.T)
        u, d, vt = linalg.svd(a)
        q, r = linalg.qr(a)
        return by_factor, values, vectors, (u * d) @ vt, q @ r, linalg.qr(a, mode="r")[0]

    (first, second), values, vectors, a, again, r = jg.compile(whole)(S, B, A)
    np.testing.assert_allclose(first, scipy.linalg.solve(S, B), rtol=1e-12)
    np.testing.assert_allclose(second, first, rtol=1e-12)
    np.testing.assert_allclose(S @ vectors, (S + A @ A.T) @ vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ (S + A @ A.T) @ vectors, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(a, A, atol=1e-12)
    np.testing.assert_allclose(again, A, atol=1e-12)
    np.testing.assert_allclose(np.abs(r), np.abs(scipy.linalg.qr(A, mode="r")[0]), atol=1e-12)
    log, sign = jg.compile(lambda x: jg.scipy.special.logsumexp(x, b=-1.0 * x, return_sign=True))(V)
    np.testing.assert_allclose([log, sign], scipy.special.logsumexp(V, b=-V, return_sign=True), rtol=1e-12)
    zi = scipy.signal.lfilter_zi([1.0, 0.4], [1.0, -0.5])
    y, last = jg.compile(lambda x: jg.scipy.signal.lfilter([1.0, 0.4], [1.0, -0.5], x, zi=zi * x[0]))(V)
    expected, state = scipy.signal.lfilter([1.0, 0.4], [1.0, -0.5], V, zi=zi * V[0])
    np.testing.assert_allclose(y, expected, rtol=1e-12)
    np.testing.assert_allclose(last, state, rtol=1e-12)


def test_expm_is_right_for_large_matrices() -> None:
    slope = jg.grad(lambda t: np.sum(jg.scipy.linalg.expm(t * A)))(10.0)
    np.testing.assert_allclose(slope, np.sum(A @ scipy.linalg.expm(10.0 * A)), rtol=1e-9)


def test_quadrature_and_differential_equations() -> None:
    quad = jg.grad(lambda b: jg.scipy.integrate.fixed_quad(lambda x: np.exp(-x * b), 0.0, b, n=12)[0])
    b = 0.7
    exact = (2 * b * b * np.exp(-b * b) - (1 - np.exp(-b * b))) / b**2
    np.testing.assert_allclose(quad(b), exact, rtol=1e-12)
    times = np.linspace(0.0, 2.0, 5)

    def solution(k: Any) -> Any:
        return jg.scipy.integrate.odeint(lambda y, t: -k * y + 0.0 * t, np.array([1.0, 3.0]), times)

    plain = jg.scipy.integrate.odeint(lambda y, t: -y, [1.0, 3.0], times)
    np.testing.assert_array_equal(plain, scipy.integrate.odeint(lambda y, t: -y, [1.0, 3.0], times))
    np.testing.assert_allclose(jg.compile(solution)(1.5), np.exp(-1.5 * times)[:, None] * [1.0, 3.0], atol=1e-7)
    slopes = jg.compile(jg.jacobian(solution))(1.5)
    np.testing.assert_allclose(slopes, (-times * np.exp(-1.5 * times))[:, None] * [1.0, 3.0], atol=1e-6)
    by_start = jg.grad(lambda y0: jg.scipy.integrate.odeint(lambda y, t, c: c * y * (1 - y), y0, times, (0.8,))[-1])
    e = np.exp(1.6)
    np.testing.assert_allclose(by_start(0.3), e / (1 - 0.3 + 0.3 * e) ** 2, rtol=1e-6)


def test_transforms_to_order_two() -> None:
    f = lambda x: np.sum(np.abs(np.fft.rfft(x)[1:3]) ** 2)  # noqa: E731
    check_gradients(f, V)
    np.testing.assert_allclose(jg.compile(jg.hessian(f))(V), jg.jacfwd(jg.grad(f))(V), atol=1e-9)
    for transform in (np.fft.fft, np.fft.ifftn, np.fft.irfft, np.fft.hfft):
        check_gradients(lambda c, t=transform: t(c * c) * t(c), C)


def test_what_is_refused_is_named() -> None:
    with pytest.raises(jg.UnsupportedOpError, match="assume_a='banded'"):
        jg.compile(lambda a: jg.scipy.linalg.solve(a, B, assume_a="banded"))(A)
    with pytest.raises(jg.UnsupportedOpError, match="economic"):
        jg.compile(lambda a: jg.scipy.linalg.qr(a))(B)
    with pytest.raises(ValueError, match="mode"):
        jg.compile(lambda a: jg.scipy.signal.convolve(a, K, mode="some"))(V)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        jg.scipy.optimise  # noqa: B018


def test_the_rest_is_scipys() -> None:
    assert jg.scipy.special.erf is scipy.special.erf and jg.scipy.linalg.lu is scipy.linalg.lu
    assert jg.scipy.stats.norm.cdf(0.0) == 0.5 and jg.scipy.stats.norm(1.0).mean() == 1.0
    assert set(jg.scipy.signal.__all__) <= set(dir(jg.scipy.signal)) and "butter" in dir(jg.scipy.signal)
    assert dir(jg.scipy) == ["fft", "integrate", "linalg", "signal", "special", "stats"]


def test_nothing_is_loaded_before_it_is_used() -> None:
    code = (
        "import sys, numpy as np, jitgrad as jg; jg.scipy; "
        "f = jg.grad(lambda x: np.sum(jg.scipy.stats.norm.logpdf(x, 1.0, 2.0))); "
        "assert np.allclose(f(np.zeros(3)), 0.25); assert 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


TAILS = np.array([-np.inf, -1e17, -1e10, -50, -1e-9, 0, 1e-300, 1e-9, 0.3, 30, 40, 60, 1e9, 1e17, np.inf, np.nan])
ENDS = np.array([0, 1e-300, 1e-20, 1e-12, 1e-5, 0.3, 0.7, 1 - 1e-5, 1 - 1e-12, 1, -0.1, 1.1, np.nan])


LAWS = ("norm", "cauchy", "expon", "gumbel_r", "halfnorm", "logistic", "lognorm", "pareto", "uniform", "weibull_min")
INTEGRATED = ("cdf", "sf", "logcdf", "logsf", "ppf")


@pytest.mark.parametrize(
    ("law", "method"), [(x, f) for x in LAWS for f in INTEGRATED if f in vars(getattr(jg.scipy.stats, x))]
)
def test_distributions_keep_their_digits_in_the_tails(law: str, method: str) -> None:
    own, scipys = getattr(jg.scipy.stats, law), getattr(scipy.stats, law)
    shapes = {"lognorm": (0.7,), "pareto": (2.0,), "weibull_min": (1.7,)}.get(law, ())
    points = ENDS if method == "ppf" else TAILS
    for place in ((0.0, 1.0), (0.3, 2.0)):
        found = jg.compile(lambda x, *place: getattr(own, method)(x, *shapes, *place))(points, *place)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(found, getattr(scipys, method)(points, *shapes, *place), rtol=1e-11)
    assert np.isnan(jg.compile(lambda s: getattr(own, method)(0.5, *shapes, 0.0, s))(-1.0))


def test_frozen_distributions_take_names_and_are_pickled() -> None:
    law = pickle.loads(pickle.dumps(jg.scipy.stats.norm(0.5, 2.0)))
    assert law.ppf(q=0.3) == pytest.approx(scipy.stats.norm(0.5, 2.0).ppf(0.3))
    assert jg.scipy.stats.poisson(3).pmf(k=2) == pytest.approx(scipy.stats.poisson(3).pmf(2))
    assert jg.compile(jg.grad(lambda q: jg.scipy.stats.cauchy.ppf(q)))(0.5) == pytest.approx(np.pi)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "rfftn"])
def test_a_transform_of_no_points_is_refused(name: str) -> None:
    compiled = jg.compile(lambda x: getattr(np.fft, name)(x))
    for run in (compiled, compiled.interpret):
        with pytest.raises(ValueError, match=r"at least 1 point, got -?\d(?s:.*)at test_scipy\.py"):
            run(np.zeros((4, 0)))


def test_wrong_arguments_of_a_distribution_are_told_the_right_ones() -> None:
    with pytest.raises(TypeError, match=r"stats\.norm\(x, loc=0.*, scale=1.*\): .*'scael'"):
        jg.compile(lambda x: jg.scipy.stats.norm.cdf(x, scael=2.0))(A)


@pytest.mark.parametrize(
    "fn", [lambda x: scipy.linalg.solve_triangular(S, x), scipy.special.logsumexp, scipy.stats.norm.logpdf]
)
def test_scipys_own_functions_name_jitgrads(fn: Callable[..., Any]) -> None:
    with pytest.raises(jg.TracedValueError, match=r"hint: .*use jitgrad\.scipy\.[a-z_.]+, which takes"):
        jg.compile(fn)(np.ones(4))
