"""What builds on the default graph by name: scopes, devices, control dependencies and ties between
operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from jitgrad.graph import default_graph, graph_of
from jitgrad.ops.common import as_tensor
from jitgrad.ops.creation import identity
from jitgrad.ops.slices import IndexedSlices
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


def tie(tensors: Sequence[Any], name: str | None = None) -> list[Any]:
    """The tensors again, each available only when all of them are; None stays None, and slices stay slices."""
    if not isinstance(tensors, Iterable):
        raise TypeError(f"tuple takes tensors in a list, got {tensors!r}")
    given = [t if t is None or isinstance(t, IndexedSlices) else as_tensor(t) for t in tensors]
    present = [_awaited(t) for t in given if t is not None]
    graph = graph_of(present)
    with graph.as_default(), graph.name_scope(name or "tuple"):
        gate = group(*present)
        with graph.control_dependencies([gate]):
            return [None if t is None else _again(t) for t in given]


def _awaited(t: Any) -> Any:
    return t.values if isinstance(t, IndexedSlices) else t


def _again(t: Any) -> Any:
    if isinstance(t, IndexedSlices):
        return IndexedSlices(identity(t.values), t.indices, t.dense_shape)
    return identity(t)
