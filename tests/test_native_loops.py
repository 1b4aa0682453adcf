"""Control ops as native loops: compiled equals interpreted, in all forms and nested, and what a loop may not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop_programs import call, cond, program_of, scan, while_gradient, while_loop

from jitgrad.executable import Executable, make_executable
from jitgrad.interpreter import interpret


def compiled(function: Any, arrays: Sequence[Any]) -> Executable:
    """The function, compiled to one native call."""
    executable = make_executable(program_of(function, arrays))
    assert len(executable.compiled.steps) == 1, executable.compiled.clustering.text
    return executable


def check(function: Any, *arrays: Any) -> Executable:
    """The function gives, in one native call and more than once, what the interpreter does."""
    arrays = tuple(np.asarray(x) for x in arrays)
    executable = compiled(function, arrays)
    given = [x.copy() for x in arrays]
    expected = interpret(executable.source, arrays)
    for _ in range(3):
        for got, want in zip(executable(arrays), expected, strict=True):
            want = np.asarray(want)
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-6 if want.dtype == np.float32 else 1e-13)
    for array, before in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(array, before)
    return executable


X = np.linspace(-1, 1, 30).reshape(10, 3)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 7])
def test_scan(length: int, reverse: bool) -> None:
    def body(w: Any, h: Any, x: Any) -> Any:
        h = np.tanh(h * w + x)
        return h, h * 2, x + w

    def function(w: Any, h: Any, xs: Any) -> Any:
        return scan(body, [h], [xs], [w], reverse=reverse)

    check(function, np.array([0.5, 2.0, -1.0]), np.zeros(3), X[:length])


