"""The interpreter's use of memory: results are made in arrays that nothing else refers to, and in no others."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.quick

LARGE = 200_000


def _run(fn: Any, *arrays: Any) -> Any:
    return jg.compile(fn).interpret(*arrays)


def test_a_view_keeps_the_memory_of_its_base() -> None:
    def fn(x: Any) -> Any:
        y = x + 1
        return y[::2], y * 2

    x = np.arange(float(LARGE))
    part, twice = _run(fn, x)
    np.testing.assert_array_equal(part, (x + 1)[::2])
    np.testing.assert_array_equal(twice, (x + 1) * 2)


def test_what_is_read_again_is_kept() -> None:
    x = np.linspace(0, 1, LARGE)
    y = _run(lambda x: (np.exp(x) + np.sin(np.exp(x))) - x, x)
    np.testing.assert_array_equal(y, np.exp(x) + np.sin(np.exp(x)) - x)


def test_arguments_and_outputs_are_kept() -> None:
    x = np.linspace(0, 1, LARGE)
    before = x.copy()
    y, z = _run(lambda x: ((y := x * 3), np.sqrt(y)), x)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(y, before * 3)
    np.testing.assert_array_equal(z, np.sqrt(before * 3))


def test_the_same_argument_twice() -> None:
    x = np.linspace(0, 1, LARGE)
    np.testing.assert_array_equal(_run(lambda x: (x + 1) * (x + 1), x), (x + 1) * (x + 1))
    np.testing.assert_array_equal(_run(lambda x: (y := x + 1) * y, x), (x + 1) * (x + 1))


def test_a_chain_takes_the_memory_of_one_array() -> None:
    fn = jg.compile(lambda x: np.cos(np.sin(np.exp(np.negative(x + 1)))))
    x = np.linspace(0, 1, LARGE)
    fn.interpret(x)
    tracemalloc.start()
    fn.interpret(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * x.nbytes


def test_a_program_is_interpreted_again_with_other_arrays() -> None:
    fn = jg.compile(lambda x: np.tanh(x + 2.0) * 0.5)
    for x in (np.zeros(LARGE), np.ones(LARGE)):
        np.testing.assert_array_equal(fn.interpret(x), np.tanh(x + 2.0) * 0.5)
