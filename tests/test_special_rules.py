"""Special functions that are made of others when they are compiled: SciPy's values and edges, in one cluster."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

import jitgrad as jg

pytestmark = pytest.mark.quick
EDGES = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-300, -1e-300, 5.0, -5.0, 40.0, -1e6])


def points(dtype: Any) -> Any:
    return np.concatenate([EDGES, np.linspace(-45, 12, 4001), [-30.0, -10.0]]).astype(dtype)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["ndtr", "log_ndtr"])
def test_the_normal_distribution_is_scipys(name: str, dtype: Any) -> None:
    """A tail near 0 changes by x**2 times what x does: so much of the rounding of x sqrt(1/2) is in it, SciPy's too.

    Single precision is computed in double. A logarithm far from 0 has it to rounding. Below the normal numbers bits go.
    """
    x = points(dtype)
    wanted = getattr(special, name)(x.astype(np.float64))
    f = jg.compile(getattr(special, name))
    found, info = f(x), np.finfo(dtype)
    grows = np.where(np.isfinite(x) & ((x > 0) | (name == "ndtr")), x.astype(np.float64) ** 2, 0.0)
    room = 8 + grows if dtype == np.float64 else 0.51
    is_close = np.abs(found - wanted) <= info.eps * room * np.abs(wanted) + 10 * info.tiny
    assert np.all(is_close | (found == wanted) | (np.isnan(found) & np.isnan(wanted))), x[~is_close]
    assert found.dtype == dtype and "not compiled" not in f.explain(x).clusters


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["xlogy", "xlog1py"])
def test_products_with_logarithms_are_scipys(name: str) -> None:
    x, y = (side.ravel() for side in np.meshgrid(EDGES, EDGES))
    f = jg.compile(getattr(special, name))
    np.testing.assert_allclose(f(x, y), getattr(special, name)(x, y), 1e-14)
    assert "not compiled" not in f.explain(x, y).clusters


def test_gradients_of_the_tail_do_not_underflow() -> None:
    """The hazard of the normal distribution is -x - 1/x + 2/x**3 far below."""
    x = np.array([-100.0, -35.0, -1.0, 0.0, 3.0])
    slope = jg.compile(jg.grad(lambda x: np.sum(special.log_ndtr(x))))(x)
    wanted = np.exp(-0.5 * x * x - special.log_ndtr(x)) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(slope, wanted, 1e-11)
    bend = jg.compile(jg.grad(jg.grad(lambda x: special.log_ndtr(x))))(-1.0)
    assert np.isclose(bend, wanted[2] * (1.0 - wanted[2]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_hazard_far_below_is_exact(dtype: Any) -> None:
    """Its logarithms cancelled: -1e8 had no digit, in single precision -1000 had none; nor had second derivatives."""
    x = np.array([-1e8, -1e5, -1000.0, -100.0, -40.0, -15.5], dtype)

    def slope(x: Any) -> Any:
        return jg.grad(lambda x: np.sum(special.log_ndtr(x)))(x)

    with mpmath.workdps(60):
        places = [mpmath.mpf(float(v)) for v in x]
        hazards = [mpmath.npdf(v) * 2 / mpmath.erfc(-v / mpmath.sqrt(2)) for v in places]
        bends = [float(-h * (v + h)) for h, v in zip(hazards, places, strict=True)]
    ulp = np.finfo(dtype).eps
    np.testing.assert_allclose(jg.compile(slope)(x), np.array(hazards, float), 2 * ulp)
    np.testing.assert_allclose(jg.compile(slope).interpret(x), np.array(hazards, float), 2 * ulp)
    np.testing.assert_allclose(jg.compile(jg.grad(lambda x: np.sum(slope(x))))(x), bends, 30 * ulp)


def test_derivatives_of_the_hazard_keep_their_digits() -> None:
    """The second one was 5886 ulp off at -10, the third 3e7."""
    x = np.array([-15.0, -14.9, -10.0, -6.0, -3.0, -1.0, -0.1, -1e-9, 0.0, 0.1, 3.0])
    with mpmath.workdps(60):
        places = [mpmath.mpf(float(v)) for v in x]
        hazards = [mpmath.npdf(v) / mpmath.ncdf(v) for v in places]
        bends = [-h * (v + h) for h, v in zip(hazards, places, strict=True)]
        thirds = [float(-b * (v + h) - h * (1 + b)) for h, b, v in zip(hazards, bends, places, strict=True)]

    def slope_of(f: Any) -> Any:
        return lambda x: np.sum(jg.grad(f)(x))

    second = slope_of(lambda x: np.sum(special.log_ndtr(x)))
    for run in (lambda f: jg.compile(f)(x), lambda f: jg.compile(f).interpret(x)):
        np.testing.assert_allclose(run(jg.grad(second)), np.array(bends, float), 4e-16)
        np.testing.assert_allclose(run(jg.grad(slope_of(second))), thirds, 5e-12)


def test_single_precision_has_its_hazard_to_rounding() -> None:
    """Computed from single logarithms it was 72 ulp off at -12."""
    x = np.linspace(-14, 5, 101).astype(np.float32)
    wanted = special.erfcx(x.astype(np.float64) * -(0.5**0.5))
    found = jg.compile(jg.grad(lambda x: np.sum(special.log_ndtr(x))))(x)
    np.testing.assert_allclose(found, (2 / np.pi) ** 0.5 / wanted, 1e-7)
    assert found.dtype == np.float32
