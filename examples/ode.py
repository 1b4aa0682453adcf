"""Solves the Lotka-Volterra equations with an adaptive Runge-Kutta method, and differentiates the end point by the
parameters: the number of steps is not known before it runs.

The pair of orders 4 and 5 is that of Dormand and Prince (J. Comput. Appl. Math. 6, 1980). The gradient is compared with
the solution of the sensitivity equations by SciPy, and timed beside a Python loop under HIPS autograd, where that is
installed.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg

Array = np.ndarray[Any, np.dtype[Any]]
State = tuple[Any, ...]  # the time, both populations, the next step

PARAMETERS = np.array([1.5, 1.0, 3.0, 1.0])
START = (1.0, 1.0)
END = 10.0
TOLERANCE = 1e-11

STAGES = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERRORS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def field(u: Any, v: Any, p: Any) -> tuple[Any, Any]:
    """How prey and predators change."""
    return p[0] * u - p[1] * u * v, p[3] * u * v - p[2] * v


def advance(state: State, p: Any, xp: Any, fixed: Callable[[Any], Any]) -> State:
    """One attempt at a step; it counts when its error is small enough, and tells how long the next one may be.

    ``xp`` is NumPy or what stands for it; the length of a step is ``fixed``: no gradient goes through its choice.
    """
    t, u, v, h = state
    h = xp.minimum(h, END - t)
    rates = [field(u, v, p)]
    for weights in STAGES:
        du, dv = (sum(w * rate[k] for w, rate in zip(weights, rates, strict=True) if w) for k in (0, 1))
        un, vn = u + h * du, v + h * dv
        rates.append(field(un, vn, p))
    eu, ev = (h * sum(w * rate[k] for w, rate in zip(ERRORS, rates, strict=True) if w) for k in (0, 1))
    size = xp.sqrt((eu / (1 + xp.abs(un))) ** 2 / 2 + (ev / (1 + xp.abs(vn))) ** 2 / 2) / TOLERANCE
    size = fixed(xp.maximum(size, 1e-10))
    is_good = size <= 1.0
    longer = fixed(h * xp.minimum(5.0, xp.maximum(0.2, 0.9 * size**-0.2)))
    return xp.where(is_good, t + h, t), xp.where(is_good, un, u), xp.where(is_good, vn, v), longer


def end_point(p: Any) -> Any:
    """Prey at the end, as a function of the parameters."""
    step = lambda state: advance(state, p, np, jg.stop_gradient)  # noqa: E731
    return jg.while_loop(lambda state: state[0] < END, step, (0.0, *START, 0.01), maximum_iterations=100_000)[1]


gradient = jg.compile(jg.value_and_grad(end_point))


def by_sensitivities(p: Array) -> tuple[float, Array]:
    """Value and gradient from the equations of the solution and its derivatives together."""
    from scipy.integrate import solve_ivp

    def rates(t: float, y: Array) -> Array:
        (u, v), s = y[:2], y[2:].reshape(2, 4)
        by_state = np.array([[p[0] - p[1] * v, -p[1] * u], [p[3] * v, p[3] * u - p[2]]])
        by_p = np.array([[u, -u * v, 0.0, 0.0], [0.0, 0.0, -v, u * v]])
        return np.concatenate([field(u, v, p), (by_state @ s + by_p).ravel()])

    found = solve_ivp(rates, (0.0, END), [*START, *np.zeros(8)], method="DOP853", rtol=1e-13, atol=1e-13)
    return float(found.y[0, -1]), found.y[2:6, -1]


def by_autograd() -> Callable[[Array], tuple[Any, Array]]:
    """The same solver as a Python loop, differentiated by HIPS autograd."""
    import autograd
    import autograd.numpy as anp
    from autograd.tracer import getval

    def end_point(p: Any) -> Any:
        state: State = (0.0, *START, 0.01)
        while getval(state[0]) < END:
            state = advance(state, p, anp, getval)
        return state[1]

    differentiated: Callable[[Array], tuple[Any, Array]] = autograd.value_and_grad(end_point)
    return differentiated


def example_args() -> tuple[Array]:
    """Arguments for ``gradient``."""
    return (PARAMETERS,)


def milliseconds(fn: Callable[[Array], Any], repeat: int) -> float:
    """The shortest of some calls."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        fn(PARAMETERS)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def main() -> None:
    value, grad = gradient(PARAMETERS)
    exact, sensitivities = by_sensitivities(PARAMETERS)
    error = np.max(np.abs(grad - sensitivities) / np.abs(sensitivities))
    print(f"prey at t = {END:g}: {value:.12f}, {abs(value / exact - 1):.0e} from SciPy's")
    print(f"gradient: {np.array2string(grad, precision=10)}, {error:.0e} from the sensitivity equations")
    print(f"value and gradient: {milliseconds(gradient, 5):.2f} ms compiled,", end=" ")
    print(f"{milliseconds(gradient.interpret, 1):.0f} ms interpreted")
    if importlib.util.find_spec("autograd") is not None:
        print(f"a Python loop under HIPS autograd: {milliseconds(by_autograd(), 1):.0f} ms")


if __name__ == "__main__":
    main()
