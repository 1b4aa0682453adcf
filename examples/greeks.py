"""Prices and Greeks of a million European options: gradients of a price written in NumPy, held against closed
forms.

The price is the formula of Black and Scholes (1973) in Merton's form (1973). Its first derivatives are one
gradient; the second ones are gradients of delta and vega. All seven come out of one compiled function, in a
few passes over the options.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from scipy.special import erfc

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]
COUNT = 1_000_000


# -- the model: NumPy and SciPy ------------------------------------------------------------------------------


def cdf(x: Array) -> Array:
    """The normal distribution function; written with erfc it keeps its digits in the left tail."""
    return erfc(-x / math.sqrt(2)) / 2


def price(spot: Array, strike: Array, years: Array, rate: Array, sigma: Array) -> Array:
    """The price of a call."""
    spread = sigma * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + sigma**2 / 2) * years) / spread
    return spot * cdf(d1) - strike * np.exp(-rate * years) * cdf(d1 - spread)


# -- what jitgrad adds ---------------------------------------------------------------------------------------


def total(*market: Array) -> Array:
    """The sum of all prices: its gradient holds the derivatives of each option, which touch no other."""
    return np.sum(price(*market))


def delta(*market: Array) -> Array:
    """The sum of the derivatives by the spot price."""
    return np.sum(jg.grad(total, 0)(*market))


def vega(*market: Array) -> Array:
    """The sum of the derivatives by the volatility."""
    return np.sum(jg.grad(total, 4)(*market))


@jg.compile
def greeks(*market: Array) -> dict[str, Array]:
    """Derivatives of the price to the first and second order."""
    by_spot, by_years, by_rate, by_sigma = jg.grad(total, (0, 2, 3, 4))(*market)
    gamma, vanna = jg.grad(delta, (0, 4))(*market)
    volga = jg.grad(vega, 4)(*market)
    return {
        "price": price(*market), "delta": by_spot, "vega": by_sigma, "theta": -by_years, "rho": by_rate,
        "gamma": gamma, "vanna": vanna, "volga": volga,
    }  # fmt: skip


# -- the closed forms, to check against ----------------------------------------------------------------------


def closed_forms(spot: Array, strike: Array, years: Array, rate: Array, sigma: Array) -> dict[str, Array]:
    """The same from textbook formulas (Hull, Options, Futures, and Other Derivatives: the Greek letters)."""
    root = np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + sigma**2 / 2) * years) / (sigma * root)
    d2 = d1 - sigma * root
    density = np.exp(-(d1**2) / 2) / np.sqrt(2 * np.pi)
    discounted = strike * np.exp(-rate * years)
    return {
        "price": spot * cdf(d1) - discounted * cdf(d2),
        "delta": cdf(d1),
        "vega": spot * density * root,
        "theta": -spot * density * sigma / (2 * root) - rate * discounted * cdf(d2),
        "rho": years * discounted * cdf(d2),
        "gamma": density / (spot * sigma * root),
        "vanna": -density * d2 / sigma,
        "volga": spot * density * root * d1 * d2 / sigma,
    }


def market(count: int = COUNT) -> tuple[Array, ...]:
    """Spot, strike, years, rate and volatility of options around the money."""
    rng = np.random.default_rng(0)
    bounds = ((80.0, 120.0), (80.0, 120.0), (0.1, 2.0), (0.0, 0.05), (0.1, 0.5))
    return tuple(rng.uniform(lo, hi, count) for lo, hi in bounds)


def example_args() -> tuple[Array, ...]:
    """Arguments for ``greeks``: a hundred thousand options."""
    return market(COUNT // 10)


def seconds(call: Any, repeat: int = 5) -> float:
    """The median time of a call."""
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def main() -> None:
    options = market()
    found, expected = greeks(*options), closed_forms(*options)
    print(f"{COUNT:,} options, largest error relative to the largest value:")
    for name, exact in expected.items():
        error = np.max(np.abs(found[name] - exact)) / np.max(np.abs(exact))
        print(f"  {name:6} {error:.1e}")
    fused = seconds(lambda: greeks(*options))
    interpreted = seconds(lambda: greeks.interpret(*options), 3)
    by_hand = seconds(lambda: closed_forms(*options), 3)
    print(f"price and seven Greeks: {1e3 * fused:.1f} ms fused, {1e3 * interpreted:.0f} ms interpreted")
    print(f"                        {1e3 * by_hand:.0f} ms for the closed forms, written by hand in NumPy")


if __name__ == "__main__":
    main()
