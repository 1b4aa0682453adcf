"""Four nonlinear regressions of the Statistical Reference Datasets (NIST, itl.nist.gov/div898/strd): data and
certified results.

A work of the United States government, in the public domain. Per problem: the model, observations, the two
starting points that NIST gives (the first far from the solution, the second near), and the certified
parameters and residual sum of squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Problem:
    """A regression with certified results; ``model(b, x)`` is written in NumPy."""

    name: str
    model: Callable[[Any, Any], Any]
    x: Array
    y: Array
    starts: tuple[tuple[float, ...], tuple[float, ...]]
    certified: tuple[float, ...]
    certified_rss: float


def misra1a(b: Any, x: Any) -> Any:
    """Monomolecular adsorption."""
    return b[0] * (1 - np.exp(-b[1] * x))


def eckerle4(b: Any, x: Any) -> Any:
    """Circular interference transmittance."""
    return b[0] / b[1] * np.exp(-0.5 * ((x - b[2]) / b[1]) ** 2)


def thurber(b: Any, x: Any) -> Any:
    """Semiconductor electron mobility."""
    return (b[0] + x * (b[1] + x * (b[2] + x * b[3]))) / (1 + x * (b[4] + x * (b[5] + x * b[6])))


def mgh10(b: Any, x: Any) -> Any:
    """Thermistor resistance."""
    return b[0] * np.exp(b[1] / (x + b[2]))


def _numbers(text: str) -> Array:
    return np.array(text.split(), dtype=np.float64)


PROBLEMS = (
    Problem(
        "Misra1a",
        misra1a,
        _numbers("77.6 114.9 141.1 190.8 239.9 289.0 332.8 378.4 434.8 477.3 536.8 593.1 689.1 760.0"),
        _numbers("10.07 14.73 17.94 23.93 29.61 35.18 40.02 44.82 50.76 55.05 61.01 66.40 75.47 81.78"),
        ((500.0, 0.0001), (250.0, 0.0005)),
        (2.3894212918e02, 5.5015643181e-04),
        1.2455138894e-01,
    ),
    Problem(
        "Thurber",
        thurber,
        _numbers(
            "-3.067 -2.981 -2.921 -2.912 -2.840 -2.797 -2.702 -2.699 -2.633 -2.481 -2.363 -2.322 -1.501 "
            "-1.460 -1.274 -1.212 -1.100 -1.046 -0.915 -0.714 -0.566 -0.545 -0.400 -0.309 -0.109 -0.103 "
            "0.010 0.119 0.377 0.790 0.963 1.006 1.115 1.572 1.841 2.047 2.200"
        ),
        _numbers(
            "80.574 84.248 87.264 87.195 89.076 89.608 89.868 90.101 92.405 95.854 100.696 101.060 "
            "401.672 390.724 567.534 635.316 733.054 759.087 894.206 990.785 1090.109 1080.914 1122.643 "
            "1178.351 1260.531 1273.514 1288.339 1327.543 1353.863 1414.509 1425.208 1421.384 1442.962 "
            "1464.350 1468.705 1447.894 1457.628"
        ),
        ((1000.0, 1000.0, 400.0, 40.0, 0.7, 0.3, 0.03), (1300.0, 1500.0, 500.0, 75.0, 1.0, 0.4, 0.05)),
        (
            1.2881396800e03,
            1.4910792535e03,
            5.8323836877e02,
            7.5416644291e01,
            9.6629502864e-01,
            3.9797285797e-01,
            4.9727297349e-02,
        ),
        5.6427082397e03,
    ),
    Problem(
        "Eckerle4",
        eckerle4,
        np.concatenate([np.arange(400.0, 436.0, 5.0), np.arange(436.5, 465.1, 1.5), np.arange(470.0, 501.0, 5.0)]),
        _numbers(
            "0.0001575 0.0001699 0.0002350 0.0003102 0.0004917 0.0008710 0.0017418 0.0046400 0.0065895 "
            "0.0097302 0.0149002 0.0237310 0.0401683 0.0712559 0.1264458 0.2073413 0.2902366 0.3445623 "
            "0.3698049 0.3668534 0.3106727 0.2078154 0.1164354 0.0616764 0.0337200 0.0194023 0.0117831 "
            "0.0074357 0.0022732 0.0008800 0.0004579 0.0002345 0.0001586 0.0001143 0.0000710"
        ),
        ((1.0, 10.0, 500.0), (1.5, 5.0, 450.0)),
        (1.5543827178e00, 4.0888321754e00, 4.5154121844e02),
        1.4635887487e-03,
    ),
    Problem(
        "MGH10",
        mgh10,
        np.arange(50.0, 126.0, 5.0),
        _numbers("34780 28610 23650 19630 16370 13720 11540 9744 8261 7030 6005 5147 4427 3820 3307 2872"),
        ((2.0, 400000.0, 25000.0), (0.02, 4000.0, 250.0)),
        (5.6096364710e-03, 6.1813463463e03, 3.4522363462e02),
        8.7945855171e01,
    ),
)
