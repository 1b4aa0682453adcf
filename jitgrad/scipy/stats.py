"""scipy.stats: densities of traced values, of some distributions what they integrate to; all else is SciPy's own.

Arguments are SciPy's: the point, the shape parameters, loc and scale, by position or name.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.operators import call, has_selection
from jitgrad.scipy.lifting import like_scipy, of_scipy, rest_of

_LOG_2PI = math.log(2 * math.pi)
Density = Callable[..., Any]


class Frozen:
    """A distribution with its parameters, ``norm(0.5, 2.0)``."""

    def __init__(self, distribution: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._distribution, self._args, self._kwargs = distribution, args, kwargs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        own = vars(self._distribution).get(name)
        if callable(own):
            return lambda *point, **named: own(*point, *named.values(), *self._args, **self._kwargs)
        return getattr(of_scipy("stats", self._distribution.name)(*self._args, **self._kwargs), name)

    def __repr__(self) -> str:
        return f"<frozen {self._distribution!r}>"


class Distribution:
    """A distribution of SciPy's, whose densities also take traced values.

    ``log_density(z, *shapes)`` is that of the standard one: loc 0 and scale 1.
    """

    def __init__(self, name: str, log_density: Density, is_discrete: bool = False) -> None:
        self.name = name
        parameters = [p.replace(annotation=p.empty) for p in inspect.signature(log_density).parameters.values()]
        parameters += [inspect.Parameter("loc", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=0)]
        if not is_discrete:
            parameters += [inspect.Parameter("scale", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=1)]
        self._signature = inspect.Signature(parameters)
        self._log_density = log_density
        kind = "pmf" if is_discrete else "pdf"
        self._enter(f"log{kind}", self._log)
        self._enter(kind, lambda *args, **kwargs: np.exp(self._log(*args, **kwargs)))

    def integrated(self, **standard: Density) -> Distribution:
        """The distribution, with functions as ``cdf`` that are those of the standard one at ``(x - loc) / scale``."""
        for name, fn in standard.items():
            self._enter(name, functools.partial(self._at_standard, fn))
        return self

    def inverted(self, **standard: Density) -> Distribution:
        """The distribution, with functions as ``ppf``: those of the standard one, times scale, plus loc."""
        for name, fn in standard.items():
            self._enter(name, functools.partial(self._from_standard, fn))
        return self

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """The arguments by their names; TypeError, with the names that there are, where they do not fit."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"stats.{self.name}{self._signature}: {error}") from None

    def _at_standard(self, fn: Density, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        x, *shapes, loc, scale = bound.arguments.values()
        return _of_scale(scale, fn((x - loc) / scale, *shapes))

    def _from_standard(self, fn: Density, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        q, *shapes, loc, scale = bound.arguments.values()
        is_inside = (q >= 0) & (q <= 1)
        made = np.where(is_inside, loc + scale * fn(np.where(is_inside, q, 0.5), *shapes), np.nan)
        return _of_scale(scale, made)

    def _enter(self, name: str, fn: Callable[..., Any]) -> None:
        def density(*args: Any, **kwargs: Any) -> Any:
            if has_selection((*args, *kwargs.values())):
                return call("elementwise_of_selections", fn, args, kwargs)
            return fn(*args, **kwargs)

        density.__name__ = density.__qualname__ = name
        density.__doc__ = f"As scipy.stats.{self.name}.{name}."
        density.__signature__ = self._signature  # type: ignore[attr-defined]
        setattr(self, name, like_scipy(f"stats.{self.name}")(density))

    def _log(self, *args: Any, **kwargs: Any) -> Any:
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        x, *shapes = list(bound.arguments.values())
        if "scale" not in bound.arguments:
            *shapes, loc = shapes
            return self._log_density(x - loc, *shapes)
        *shapes, loc, scale = shapes
        return self._log_density((x - loc) / scale, *shapes) - np.log(scale)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return of_scipy(f"stats.{self.name}", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        return Frozen(self, args, kwargs)

    def __reduce__(self) -> str:
        return self.name  # of this module

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"


def _inside(condition: Any, log_density: Any) -> Any:
    """Minus infinity outside of the support."""
    return np.where(condition, log_density, -np.inf)


# -- continuous --------------------------------------------------------------------------------------------------------


def _beta(x: Any, a: Any, b: Any) -> Any:
    log = call("xlogy", a - 1.0, x) + call("xlog1py", b - 1.0, -x) - call("betaln", a, b)
    return _inside((x >= 0) & (x <= 1), log)


def _gamma(x: Any, a: Any) -> Any:
    return _inside(x >= 0, call("xlogy", a - 1.0, x) - x - call("gammaln", a))


def _invgamma(x: Any, a: Any) -> Any:
    return _inside(x > 0, -(a + 1.0) * np.log(x) - 1 / x - call("gammaln", a))


def _laplace(x: Any) -> Any:
    return -np.abs(x) - math.log(2)


def _lognorm(x: Any, s: Any) -> Any:
    return _inside(x > 0, -0.5 * (np.log(x) / s) ** 2 - np.log(x * s) - 0.5 * _LOG_2PI)


def _pareto(x: Any, b: Any) -> Any:
    return _inside(x >= 1, np.log(b) - (b + 1.0) * np.log(x))


def _t(x: Any, df: Any) -> Any:
    constant = call("gammaln", 0.5 * (df + 1.0)) - call("gammaln", 0.5 * df) - 0.5 * np.log(df * math.pi)
    return constant - 0.5 * (df + 1.0) * np.log1p(x * x / df)


def _weibull_min(x: Any, c: Any) -> Any:
    return _inside(x >= 0, np.log(c) + call("xlogy", c - 1.0, x) - x**c)


def _cauchy_quantile(q: Any) -> Any:
    """``-1 / tan(pi q)``, by the part that is less than one half: near 1 the tangent has no digits."""
    part = np.where(q < 0.5, q, 1.0 - q)
    is_end = part <= 0.0
    far = np.where(is_end, np.inf, 1.0 / np.tan(math.pi * np.where(is_end, 0.25, part)))
    return np.where(q < 0.5, -far, far)


def _of_scale(scale: Any, made: Any) -> Any:
    """What there is of a distribution whose scale is positive."""
    return made if isinstance(scale, int | float) and scale > 0 else np.where(scale > 0, made, np.nan)


def _surviving(log_sf: Density, start: float = 0.0) -> dict[str, Density]:
    """What a distribution of values from ``start`` on integrates to, by the logarithm of who is left."""

    def logsf(x: Any, *shapes: Any) -> Any:
        return log_sf(np.maximum(x, start), *shapes)

    return {
        "cdf": lambda *args: -np.expm1(logsf(*args)),
        "sf": lambda *args: np.exp(logsf(*args)),
        "logcdf": lambda *args: _log_of_rest(logsf(*args)),
        "logsf": logsf,
    }


def _log_of_rest(log_part: Any) -> Any:
    """``log(1 - exp(log_part))``: M. Maechler, "Accurately computing log(1 - exp(-|a|))", 2012."""
    is_most = log_part > -math.log(2)
    most, few = np.where(is_most, log_part, -1.0), np.where(is_most, -1.0, log_part)
    return np.where(is_most, np.log(-np.expm1(most)), np.log1p(-np.exp(few)))


def _of_normal(normal_at: Density) -> dict[str, Density]:
    """What a distribution integrates to whose values are normal ones behind a rising function."""
    return {
        "cdf": lambda *args: call("ndtr", normal_at(*args)),
        "sf": lambda *args: call("ndtr", -normal_at(*args)),
        "logcdf": lambda *args: call("log_ndtr", normal_at(*args)),
        "logsf": lambda *args: call("log_ndtr", -normal_at(*args)),
    }


def _logs_of_positive(x: Any, s: Any) -> Any:
    """``log(x) / s``, minus infinity for what is not positive, without a gradient there."""
    return np.where(x <= 0, -np.inf, np.log(np.where(x <= 0, 1.0, x))) / s


norm = (
    Distribution("norm", lambda x: -0.5 * x * x - 0.5 * _LOG_2PI)
    .integrated(**_of_normal(lambda x: x))
    .inverted(ppf=lambda q: call("ndtri", q), isf=lambda q: -call("ndtri", q))
)
beta = Distribution("beta", _beta)
cauchy = (
    Distribution("cauchy", lambda x: -np.log1p(x * x) - math.log(math.pi))
    .integrated(cdf=lambda x: np.arctan2(1.0, -x) / math.pi, sf=lambda x: np.arctan2(1.0, x) / math.pi)
    .inverted(ppf=_cauchy_quantile)
)
chi2 = Distribution("chi2", lambda x, df: _gamma(0.5 * x, 0.5 * df) - math.log(2))
expon = (
    Distribution("expon", lambda x: _inside(x >= 0, -x))
    .integrated(**_surviving(lambda x: -x))
    .inverted(ppf=lambda q: -np.log1p(-q))
)
gamma = Distribution("gamma", _gamma)
gumbel_r = (
    Distribution("gumbel_r", lambda x: -x - np.exp(-x))
    .integrated(cdf=lambda x: np.exp(-np.exp(-x)), sf=lambda x: -np.expm1(-np.exp(-x)), logcdf=lambda x: -np.exp(-x))
    .inverted(ppf=lambda q: -np.log(-np.log(q)))
)
halfcauchy = Distribution("halfcauchy", lambda x: _inside(x >= 0, math.log(2 / math.pi) - np.log1p(x * x)))
halfnorm = Distribution("halfnorm", lambda x: _inside(x >= 0, 0.5 * math.log(2 / math.pi) - 0.5 * x * x)).integrated(
    cdf=lambda x: call("erf", np.maximum(x, 0.0) * math.sqrt(0.5)),
    sf=lambda x: call("erfc", np.maximum(x, 0.0) * math.sqrt(0.5)),
)
invgamma = Distribution("invgamma", _invgamma)
laplace = Distribution("laplace", _laplace)
logistic = (
    Distribution("logistic", lambda x: -x - 2.0 * call("softplus", -x))
    .integrated(
        cdf=lambda x: call("sigmoid", x),
        sf=lambda x: call("sigmoid", -x),
        logcdf=lambda x: -call("softplus", -x),
        logsf=lambda x: -call("softplus", x),
    )
    .inverted(ppf=lambda q: call("logit", q))
)
lognorm = Distribution("lognorm", _lognorm).integrated(**_of_normal(_logs_of_positive))
pareto = Distribution("pareto", _pareto).integrated(**_surviving(lambda x, b: -b * np.log(x), 1.0))
t = Distribution("t", _t)
uniform = (
    Distribution("uniform", lambda x: _inside((x >= 0) & (x <= 1), 0.0 * x))
    .integrated(cdf=lambda x: np.clip(x, 0.0, 1.0), sf=lambda x: 1.0 - np.clip(x, 0.0, 1.0))
    .inverted(ppf=lambda q: q)
)
weibull_min = (
    Distribution("weibull_min", _weibull_min)
    .integrated(**_surviving(lambda x, c: -(x**c)))
    .inverted(ppf=lambda q, c: (-np.log1p(-q)) ** (1.0 / c))
)

# -- discrete ----------------------------------------------------------------------------------------------------------


def _is_count(k: Any) -> Any:
    return (k >= 0) & (np.floor(k) == k)


def _log_choices(n: Any, k: Any) -> Any:
    return call("gammaln", n + 1.0) - call("gammaln", k + 1.0) - call("gammaln", n - k + 1.0)


def _bernoulli(k: Any, p: Any) -> Any:
    return _inside((k == 0) | (k == 1), call("xlogy", k, p) + call("xlog1py", 1 - k, -p))


def _binom(k: Any, n: Any, p: Any) -> Any:
    log = _log_choices(n, k) + call("xlogy", k, p) + call("xlog1py", n - k, -p)
    return _inside(_is_count(k) & (k <= n), log)


def _geom(k: Any, p: Any) -> Any:
    return _inside(_is_count(k - 1), call("xlog1py", k - 1.0, -p) + np.log(p))


def _nbinom(k: Any, n: Any, p: Any) -> Any:
    log = call("gammaln", n + k) - call("gammaln", k + 1.0) - call("gammaln", n)
    return _inside(_is_count(k), log + n * np.log(p) + call("xlog1py", k, -p))


def _poisson(k: Any, mu: Any) -> Any:
    return _inside(_is_count(k), call("xlogy", k, mu) - call("gammaln", k + 1.0) - mu)


bernoulli = Distribution("bernoulli", _bernoulli, is_discrete=True)
binom = Distribution("binom", _binom, is_discrete=True)
geom = Distribution("geom", _geom, is_discrete=True)
nbinom = Distribution("nbinom", _nbinom, is_discrete=True)
poisson = Distribution("poisson", _poisson, is_discrete=True)

# -- of several variables ----------------------------------------------------------------------------------------------


class _Multivariate:
    """A distribution of vectors, by its two densities."""

    def __init__(self, name: str, log: Callable[..., Any], density: Callable[..., Any]) -> None:
        self.name = name
        self.logpdf = like_scipy(f"stats.{name}")(log)
        self.pdf = like_scipy(f"stats.{name}")(density)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return of_scipy(f"stats.{self.name}", name)

    def __call__(self, *args: Any, **kwargs: Any) -> Frozen:
        return Frozen(self, args, kwargs)

    def __reduce__(self) -> str:
        return self.name  # of this module

    def __repr__(self) -> str:
        return f"<distribution {self.name}>"


def _normal_density(x: Any, mean: Any = None, cov: Any = 1, allow_singular: bool = False) -> Any:
    n = np.shape(x)[-1] if np.ndim(x) else 1
    x = x if np.ndim(x) else np.reshape(x, (1,))
    d = x if mean is None else x - mean
    if np.ndim(cov) < 2:
        scales = np.broadcast_to(cov, (n,))
        return -0.5 * (np.sum(d * d / scales + np.log(scales), axis=-1) + n * _LOG_2PI)
    factor = np.linalg.cholesky(cov)
    z = call("linalg.solve_triangular", factor, np.moveaxis(np.atleast_2d(d), -1, 0).reshape(n, -1), lower=True)
    logs = np.sum(np.log(np.diagonal(factor)))
    squares = np.sum(z * z, axis=0).reshape(d.shape[:-1])
    return -0.5 * squares - logs - 0.5 * n * _LOG_2PI


def _dirichlet_density(x: Any, alpha: Any) -> Any:
    if np.shape(x)[0] == np.shape(alpha)[0] - 1:
        x = np.concatenate([x, np.expand_dims(1.0 - np.sum(x, axis=0), 0)])
    weights = np.reshape(alpha - 1.0, (-1, *[1] * (np.ndim(x) - 1)))
    constant = call("gammaln", np.sum(alpha)) - np.sum(call("gammaln", alpha))
    return np.sum(call("xlogy", weights, x), axis=0) + constant


def _exponential(log: Callable[..., Any]) -> Callable[..., Any]:
    def pdf(*args: Any, **kwargs: Any) -> Any:
        return np.exp(log(*args, **kwargs))

    return pdf


def _multivariate(name: str, density: Callable[..., Any]) -> _Multivariate:
    density.__name__ = "logpdf"
    return _Multivariate(name, density, _exponential(density))


multivariate_normal = _multivariate("multivariate_normal", _normal_density)
dirichlet = _multivariate("dirichlet", _dirichlet_density)

__all__ = [
    "bernoulli", "beta", "binom", "cauchy", "chi2", "dirichlet", "expon", "gamma", "geom", "gumbel_r", "halfcauchy",
    "halfnorm", "invgamma", "laplace", "logistic", "lognorm",
    "multivariate_normal", "nbinom", "norm", "pareto", "poisson", "t", "uniform",
    "weibull_min",
]  # fmt: skip

__getattr__, __dir__ = rest_of("stats", globals())
