"""Loops over numbers: a scan with four numbers as its state, the likelihood of a GARCH model, an ordinary differential
equation with adaptive steps, whose number is not known before it runs, and a table that two loops fill cell by cell.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Array, Workload, rows

# -- two coupled oscillators, Euler's method: 1000 steps ---------------------------------------------------------------


def oscillators(p: Any) -> Any:
    import jitgrad as jg

    return _oscillators(p, lambda step, start: jg.fori_loop(0, 1000, lambda i, s: step(s), start), np)


def jax_oscillators(p: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def loop(step: Any, start: Any) -> Any:
        start = tuple(jnp.asarray(x, p.dtype) for x in start)
        return jax.lax.scan(lambda s, _: (step(s), None), start, None, length=1000)[0]

    return _oscillators(p, loop, jnp)


def _oscillators(p: Any, loop: Any, xp: Any) -> Any:
    k, coupling, damping, force = p[0], p[1], p[2], p[3]

    def step(state: Any) -> Any:
        x, v, y, w = state
        pull = coupling * (y - x)
        return (
            x + 0.01 * v, v + 0.01 * (pull - k * xp.sin(x) - damping * v),
            y + 0.01 * w, w + 0.01 * (force - pull - k * xp.sin(y) - damping * w),
        )  # fmt: skip

    x, v, y, w = loop(step, (0.5, 0.0, -0.3, 0.0))
    return x * x + v * v + y * y + w * w


# -- GARCH(1, 1): Bollerslev, Journal of Econometrics 31 (1986) --------------------------------------------------------


def garch(p: Any, returns: Any) -> Any:
    import jitgrad as jg

    def step(variance: Any, r: Any) -> Any:
        return p[0] + p[1] * r * r + p[2] * variance, np.log(variance) + r * r / variance

    return 0.5 * np.sum(jg.scan(step, p[0] / (1 - p[1] - p[2]), returns)[1])


def jax_garch(p: Any, returns: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def step(variance: Any, r: Any) -> Any:
        return p[0] + p[1] * r * r + p[2] * variance, jnp.log(variance) + r * r / variance

    return 0.5 * jnp.sum(jax.lax.scan(step, p[0] / (1 - p[1] - p[2]), returns)[1])


def _garch_arguments(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    return np.array([0.1, 0.1, 0.8]), rng.normal(size=rows(5000, scale))


# -- Lotka-Volterra by the pair of orders 2 and 3 of Bogacki and Shampine, Applied Mathematics Letters 2 (1989) --------

END, TOLERANCE = 10.0, 1e-8


def predators(p: Any) -> Any:
    """Prey at the end; no gradient goes through the choice of steps. JAX cannot differentiate such a loop."""
    import jitgrad as jg

    def rates(u: Any, v: Any) -> Any:
        return p[0] * u - p[1] * u * v, p[3] * u * v - p[2] * v

    def step(state: Any) -> Any:
        t, u, v, h = state
        h = np.minimum(h, END - t)
        a, b = rates(u, v)
        c, d = rates(u + h / 2 * a, v + h / 2 * b)
        e, f = rates(u + 0.75 * h * c, v + 0.75 * h * d)
        un, vn = u + h * (2 * a + 3 * c + 4 * e) / 9, v + h * (2 * b + 3 * d + 4 * f) / 9
        g, k = rates(un, vn)
        eu, ev = h * (-5 * a / 72 + c / 12 + e / 9 - g / 8), h * (-5 * b / 72 + d / 12 + f / 9 - k / 8)
        size = jg.stop_gradient(np.maximum(np.sqrt((eu * eu + ev * ev) / 2) / TOLERANCE, 1e-10))
        longer = jg.stop_gradient(h * np.clip(0.9 * size ** (-1 / 3), 0.2, 5.0))
        is_good = size <= 1.0
        return np.where(is_good, t + h, t), np.where(is_good, un, u), np.where(is_good, vn, v), longer

    return jg.while_loop(lambda state: state[0] < END, step, (0.0, 1.0, 1.0, 0.01))[1]


# -- soft dynamic time warping: Cuturi and Blondel, ICML 2017 ----------------------------------------------------------

FAR = 1e3
"""More than any way costs: what stands around the table."""


def soft_dtw(x: Any, y: Any) -> Any:
    import jitgrad as jg

    def row(i: Any, table: Any) -> Any:
        def cell(j: Any, table: Any) -> Any:
            table[i, j] = (x[i - 1] - y[j - 1]) ** 2 - _soft(table, i, j, np)
            return table

        return jg.fori_loop(1, len(y) + 1, cell, table)

    table = np.full((len(x) + 1, len(y) + 1), FAR)
    table[0, 0] = 0.0
    return jg.fori_loop(1, len(x) + 1, row, table)[-1, -1]


def jax_soft_dtw(x: Any, y: Any) -> Any:
    import jax
    import jax.numpy as jnp

    def row(i: Any, table: Any) -> Any:
        def cell(j: Any, table: Any) -> Any:
            return table.at[i, j].set((x[i - 1] - y[j - 1]) ** 2 - _soft(table, i, j, jnp))

        return jax.lax.fori_loop(1, len(y) + 1, cell, table)

    table = jnp.full((len(x) + 1, len(y) + 1), FAR).at[0, 0].set(0.0)
    return jax.lax.fori_loop(1, len(x) + 1, row, table)[-1, -1]


def _soft(table: Any, i: Any, j: Any, xp: Any) -> Any:
    return xp.logaddexp(xp.logaddexp(-table[i - 1, j], -table[i, j - 1]), -table[i - 1, j - 1])


def _series(rng: np.random.Generator, scale: float) -> tuple[Array, ...]:
    return rng.normal(size=rows(60, scale)), rng.normal(size=80)


WORKLOADS = (
    Workload(
        "oscillators",
        "scan, 1000 steps of four numbers f64",
        {"numpy": oscillators, "jax": jax_oscillators},
        lambda rng, scale: (np.array([1.0, 0.5, 0.1, 0.2]),),
        (0,),
    ),
    Workload(
        "garch", "GARCH likelihood, 5000 returns f64", {"numpy": garch, "jax": jax_garch}, _garch_arguments, (0,)
    ),
    Workload(
        "ode",
        "Lotka-Volterra, adaptive steps f64",
        {"numpy": predators},
        lambda rng, scale: (np.array([1.5, 1.0, 3.0, 1.0]),),
        (0,),
    ),
    Workload(
        "soft_dtw", "soft-DTW, a table of 60 × 80 f64", {"numpy": soft_dtw, "jax": jax_soft_dtw}, _series, (0, 1)
    ),
)
