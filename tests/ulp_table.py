"""Prints the table of docs/accuracy.md: the largest error found of every vector function, in ulp.

Usage: PYTHONPATH=. python tests/ulp_table.py [float64 points] [float32 points]
"""

from __future__ import annotations

import sys

import numpy as np
from vecmath_oracle import FUNCTIONS, Function, errors_against_float64, errors_against_mpmath, samples


def row(function: Function, doubles: int, singles: int) -> str:
    """One line of the table."""
    rng = np.random.default_rng(1)
    worst = [
        f"{errors.max():.2f} at {', '.join(repr(float(arg[errors.argmax()])) for arg in args)}"
        for errors, args in (
            (errors_against_float64(function.name, args), args)
            for args in [samples(function, np.float32, singles, rng)]
        )
    ]
    args = samples(function, np.float64, doubles, rng)
    errors = errors_against_mpmath(function.name, args)
    worst.append(f"{errors.max():.2f} at {', '.join(repr(float(arg[errors.argmax()])) for arg in args)}")
    return f"| {function.name} | {function.limit:g} | {worst[0]} | {worst[1]} |"


def main(doubles: int = 3000, singles: int = 1_000_000) -> None:
    """Print all rows."""
    print("| function | limit | float32 | float64 |\n|---|---|---|---|")
    for function in FUNCTIONS:
        print(row(function, doubles, singles), flush=True)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
