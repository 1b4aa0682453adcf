"""Kernels run as the Python that their text is: the oracle of the machine code."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jitgrad.compiler.loopir.nests import ALONE, COLUMNS, LANES, OWN, PARALLEL, PARALLEL_VECTOR, Kernel
from jitgrad.compiler.loopir.routines import python_routines
from jitgrad.compiler.loopir.scalar_ops import python_namespace


def run_in_python(
    kernel: Kernel, buffers: Mapping[str, np.ndarray[Any, Any]], numbers: Mapping[str, Any], nchunks: int = 1
) -> None:
    """Run a kernel in plain Python on flat arrays, chunk after chunk; outputs and partials are written in place.

    ``numbers`` are the ints and the constants by name. A partial buffer holds ``nchunks`` parts; scratch buffers are
    made here.
    """
    namespace = python_namespace() | python_routines()
    exec(compile(kernel.text, "<kernel>", "exec"), namespace)
    for chunk in range(nchunks):
        chunked = functools.partial(_chunk_range, chunk, nchunks)
        namespace |= dict.fromkeys((PARALLEL, PARALLEL_VECTOR, LANES, ALONE, COLUMNS), chunked)
        arguments = dict(buffers)
        for b in kernel.buffers:
            part = numbers[b.extent] if b.extent else 1
            if b.role == "status":
                arguments[b.name] = np.zeros(1, b.dtype)
            elif b.role in OWN:
                arguments[b.name] = np.zeros(part, b.dtype)
            elif b.role == "partial":
                arguments[b.name] = buffers[b.name][chunk * part : (chunk + 1) * part]
        with np.errstate(all="ignore"):
            namespace["kernel"](**arguments, **numbers)


def _chunk_range(chunk: int, nchunks: int, extent: int) -> range:
    return range(extent * chunk // nchunks, extent * (chunk + 1) // nchunks)
