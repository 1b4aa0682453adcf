"""What builds on the default graph by name: scopes, devices, control dependencies and ties between
operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from jitgrad.graph import Tensor, default_graph
from jitgrad.ops.creation import identity
from jitgrad.ops.state import group


def name_scope(name: str | None) -> contextlib.AbstractContextManager[str]:
    """Operations made inside are named ``name/...``."""
    return default_graph().name_scope(name)


def control_dependencies(ops: Sequence[Any] | None) -> contextlib.AbstractContextManager[None]:
    """Operations made inside run after ``ops``; None drops the dependencies of the enclosing scopes."""
    return default_graph().control_dependencies(ops)


def colocate_with(op: Any) -> contextlib.AbstractContextManager[None]:
    """Operations made inside carry the device and the colocation groups of ``op``."""
    return default_graph().colocate_with(op)


def device(name: str | None) -> contextlib.AbstractContextManager[None]:
    """Operations made inside carry this device string."""
    return default_graph().device(name)


def tie(tensors: Sequence[Tensor | None], name: str | None = None) -> list[Tensor | None]:
    """The tensors again, each available only when all of them are; None stays None."""
    present = [t for t in tensors if t is not None]
    graph = present[0].graph if present else default_graph()
    with graph.as_default(), graph.name_scope(name or "tuple"):
        gate = group(*present)
        with graph.control_dependencies([gate]):
            return [None if t is None else identity(t) for t in tensors]
