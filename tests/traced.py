"""Programs of functions, before and after simplification, and their texts without source lines; no tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.compiler.simplify import simplify
from jitgrad.graph import Graph
from jitgrad.interpreter import interpret
from jitgrad.ops.creation import placeholder
from jitgrad.program import Program, slice_graph, verify


def traced(fn: Callable[..., Any], *args: Any) -> Program:
    """The program of a function of arrays."""
    with Graph().as_default():
        inputs = [placeholder(np.asarray(a).dtype, np.shape(a)) for a in args]
        outputs = pytree.flatten(fn(*inputs))[0]
    return verify(slice_graph(outputs, {x: x.spec for x in inputs}))


def bare(program: Program) -> str:
    """The text of a program without comments, and without params that say nothing about it."""
    lines = [line.split("  #")[0].rstrip() for line in program.text.splitlines()]
    text = "\n".join(lines)
    text = re.sub(
        r", (maximum_iterations=None|shapes=None|reverse=False|totals=\(\)|n_consts=\d+|n_carry=\d+)", "", text
    )
    return text.replace("<lambda>", "f")


def simplified(fn: Callable[..., Any], *args: Any, exact: bool = True) -> Program:
    """The simplified program of a function, checked: verified, equal in value, a fixed point."""
    program = traced(fn, *args)
    result = verify(simplify(program), "simplify")
    assert simplify(result) is result
    for got, expected in zip(interpret(result, args), interpret(program, args), strict=True):
        if exact:
            np.testing.assert_array_equal(got, expected)
        else:
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    return result


def check_text(fn: Callable[..., Any], args: tuple[Any, ...], text: str, exact: bool = True) -> None:
    """A function's program is simplified to this one."""
    assert bare(simplified(fn, *args, exact=exact)).strip() == text.strip()
