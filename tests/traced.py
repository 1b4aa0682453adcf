"""Programs of functions, before any pass, and their texts without source lines; no tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.graph import Graph
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
