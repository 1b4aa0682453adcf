"""What kernels read and store: values with an axis less do not count where one is made again, and what is repeated with
its lanes far apart is turned first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from tests.cases import Array


def scaled(x: Any, scale: Any, where: Any) -> Any:
    """All products have to be added before any is divided; a scale and a choice are per column."""
    y = np.where(np.exp(where) > 1, np.sin(x) * scale, 0)
    return x / np.sum(y * y) + y, np.sin(x)


def comparison(x: Any, w: Any, scale: Any) -> Any:
    """A byte per element takes less than the number that it is made of."""
    is_large = (x @ w) * scale > 0.5
    count = np.sum(is_large.astype(np.float64))
    return np.where(is_large, count, -count)


def repeated(x: Any, means: Any) -> Any:
    """Each point with each mean, points last."""
    return np.sum(np.abs(np.transpose(x) - means[:, :, None]), axis=1)


def lines(f: Any, *arrays: Array) -> list[str]:
    """What the kernels make."""
    fusion = jg.compile(f).explain(*arrays).fusion
    return [line.split("): ")[1] for line in fusion.splitlines() if line.strip().startswith("kernel")]


def given(*shapes: tuple[int, ...]) -> list[Array]:
    return [np.random.default_rng(n).standard_normal(shape) for n, shape in enumerate(shapes)]


def test_what_is_made_again_may_read_smaller_arrays() -> None:
    arrays = given((300, 200), (200,), (200,))
    made = lines(scaled, *arrays)
    assert any("multiply" in line and "divide" in line for line in made), made
    _check(scaled, arrays)


def test_comparisons_are_kept() -> None:
    arrays = given((300, 200), (200, 200), (200,))
    made = lines(comparison, *arrays)
    assert not any("greater" in line for line in made[1:]), made
    _check(comparison, arrays)


@pytest.mark.parametrize(("points", "is_turned"), [(100, True), (8, False)])
def test_what_is_repeated_is_turned_first(points: int, is_turned: bool) -> None:
    arrays = given((points, 5), (7, 5))
    assert any(line.startswith("identity ->") for line in lines(repeated, *arrays)) == is_turned
    _check(repeated, arrays)
    _check(jg.value_and_grad(lambda x, means: np.sum(repeated(x, means) ** 2), (0, 1)), arrays)


def test_what_is_read_once_is_not_turned() -> None:
    assert lines(lambda x, y: np.transpose(x) - y, *given((100, 5), (5, 100))) == ["subtract -> %3"]


def _check(f: Any, arrays: list[Array]) -> None:
    compiled = jg.compile(f)
    for got, expected in zip(_flat(compiled(*arrays)), _flat(compiled.interpret(*arrays)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-13)


def _flat(result: Any) -> list[Array]:
    return [a for part in result for a in _flat(part)] if isinstance(result, tuple) else [np.asarray(result)]
