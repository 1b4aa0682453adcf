"""Fits NIST's certified nonlinear regressions: SciPy's trust-region optimiser, with the gradient and Hessian
of a NumPy function.

Each problem is started from the two points that NIST gives, the far one and the near one. The number of
digits that agree with the certified parameters (which have 11) is printed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nist_data import PROBLEMS, Array, Problem
from scipy.optimize import minimize

import jitgrad as jg


def functions_of(problem: Problem, scale: Array) -> tuple[Any, Any]:
    """The residual sum of squares of parameters in units of ``scale``: value and gradient, and Hessian."""

    def residual_sum(u: Any, x: Array, y: Array) -> Any:
        return np.sum((y - problem.model(u * scale, x)) ** 2)

    return jg.compile(jg.value_and_grad(residual_sum)), jg.compile(jg.hessian(residual_sum))


def fit(problem: Problem, start: Array) -> tuple[Array, int]:
    """The parameters of the least residual sum of squares, and the iterations. Rounding of the sum ends them, where its
    gradient still tells the way: two steps of Newton's go to where that is zero.
    """
    value_and_gradient, hessian = functions_of(problem, start)
    found = minimize(
        value_and_gradient,
        np.ones_like(start),
        args=(problem.x, problem.y),
        method="trust-exact",
        jac=True,
        hess=hessian,
        options={"gtol": 0.0, "maxiter": 2000},
    )
    u = found.x
    for _ in range(2):
        u = u - np.linalg.solve(hessian(u, problem.x, problem.y), value_and_gradient(u, problem.x, problem.y)[1])
    return u * start, int(found.nit)


def matching_digits(value: Any, certified: Any) -> float:
    """Decimal digits that agree, the fewest of all parameters, at most the 11 that are certified."""
    error = np.abs(np.asarray(value) / np.asarray(certified) - 1)
    return float(np.min(-np.log10(np.maximum(error, 1e-11))))


def example_args() -> tuple[Array, Array, Array]:
    """Arguments for ``step``: the last problem, near its solution."""
    problem = PROBLEMS[-1]
    return np.array(problem.starts[1]), problem.x, problem.y


@jg.compile
def step(b: Array, x: Array, y: Array) -> tuple[Any, Any, Any]:
    """What one iteration of an optimiser needs of the last problem: value, gradient and Hessian."""

    def residual_sum(b: Any) -> Any:
        return np.sum((y - PROBLEMS[-1].model(b, x)) ** 2)

    return *jg.value_and_grad(residual_sum)(b), jg.hessian(residual_sum)(b)


def main() -> None:
    print("problem    start  iterations  digits  residual sum of squares (certified)")
    for problem in PROBLEMS:
        for name, start in zip(("far", "near"), problem.starts, strict=True):
            b, iterations = fit(problem, np.array(start))
            rss = np.sum((problem.y - problem.model(b, problem.x)) ** 2)
            digits = matching_digits(b, problem.certified)
            row = f"{problem.name:10} {name:5} {iterations:11} {digits:7.1f}"
            print(f"{row}  {rss:.10e} ({problem.certified_rss:.10e})")


if __name__ == "__main__":
    main()
