"""Random programs with control flow: compiled equals interpreted, at first and second order; J v agrees with u J."""

from __future__ import annotations

import numpy as np
import pytest
from random_control import EXTENT, random_program

import jitgrad as jg

SEEDS = range(12)


def check(seed: int) -> None:
    """All that is claimed of one program."""
    f = random_program(seed)
    rng = np.random.default_rng(seed)
    x, y, v, w = rng.uniform(-1, 1, size=(4, EXTENT))
    first = jg.compile(jg.value_and_grad(f, (0, 1)))
    value, (dx, dy) = first.interpret(x, y)
    got, grads = first(x, y)
    np.testing.assert_allclose(got, value, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(grads, (dx, dy), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(f(x, y), value, rtol=1e-10, atol=1e-12)
    along = jg.compile(lambda x, y, v, w: jg.jvp(f, (x, y), (v, w))[1])
    np.testing.assert_allclose(along.interpret(x, y, v, w), dx @ v + dy @ w, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(along(x, y, v, w), dx @ v + dy @ w, rtol=1e-9, atol=1e-11)
    second = jg.compile(lambda x, y, v, w: jg.hvp(f, (x, y), (v, w)))
    expected = second.interpret(x, y, v, w)
    np.testing.assert_allclose(second(x, y, v, w), expected, rtol=1e-8, atol=1e-10)
    moved = lambda x, y, v, w: jg.jvp(jg.grad(f, (0, 1)), (x, y), (v, w))[1]  # noqa: E731
    np.testing.assert_allclose(jg.compile(moved).interpret(x, y, v, w), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed: int) -> None:
    check(seed)
