"""Every row of the table of cases again, as ops stand in programs: inputs read through moves or made on the spot,
outputs consumed by further ops and not kept. Compiled against interpreted; the ops alone are in test_ops.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cases import Array, OpCase
from oracles import compiled_results
from test_ops import native_rows
from tolerances import assert_same_up_to_rounding

from jitgrad.graph import Graph, Tensor, apply
from jitgrad.opdef import find
from jitgrad.operators import call
from jitgrad.program import slice_graph, verify
from jitgrad.scopes import jit_scope
from jitgrad.spec import TensorSpec, spec_of


@dataclass(frozen=True)
class Way:
    """A way to an op's input: ``feed`` is what to feed, so that ``read`` of it is the array itself, exactly."""

    name: str
    read: Callable[[Any], Any]
    feed: Callable[[Array], Array]

    def __str__(self) -> str:
        return self.name


def _reversed(x: Any) -> Any:
    return x[(slice(None, None, -1),) * x.ndim]


def _padded(x: Any) -> Any:
    return np.pad(x, 1, constant_values=1)[(slice(1, -1),) * x.ndim] if x.ndim else x


def _pieces(x: Any) -> Any:
    return np.concatenate([x[:1], x[1:]]) if x.ndim else x


def _interleaved(x: Any) -> Any:
    return np.stack([x, x[::-1]], axis=1)[:, 0] if x.ndim else x


def _computed(x: Any) -> Any:
    if x.dtype.kind == "b":
        return np.logical_not(x)
    return x * np.asarray(0.5, x.dtype) if x.dtype.kind == "f" else x + np.asarray(1, x.dtype)


def _uncomputed(x: Array) -> Array:
    if x.dtype.kind == "b":
        return ~x
    return np.asarray(x * 2.0 if x.dtype.kind == "f" else x - np.asarray(1, x.dtype), x.dtype)


ways = [
    Way("reversed", _reversed, _reversed),
    Way("transposed", np.transpose, np.transpose),
    Way("slice of a pad", _padded, lambda x: x),
    Way("concatenation of slices", _pieces, lambda x: x),
    Way("slice of a stack", _interleaved, lambda x: x),
    Way("computed", _computed, _uncomputed),
    Way("reversed and computed", lambda x: _computed(_reversed(x)), lambda x: _uncomputed(_reversed(x))),
]


def _consumers(out: Tensor) -> list[Tensor]:
    """An elementwise op and a reduction, neither of which simplify() removes."""
    if out.dtype.kind == "b":
        return [call("logical_not", out), call("any", out, axis=-1 if out.ndim else None)]
    following = out * 0.75 + 1 if out.dtype.kind == "f" else out + np.asarray(3, out.dtype)
    return [following, call("sum", out, axis=-1 if out.ndim else None)]


def _check(row: OpCase, specs: tuple[TensorSpec, ...], way: Way) -> None:
    feeds = [np.ascontiguousarray(way.feed(x)).reshape(way.feed(x).shape) for x in row.sample(specs)]
    with Graph().as_default(), jit_scope():
        inputs = [call("placeholder", feed.dtype, feed.shape) for feed in feeds]
        made = apply(find(row.op), *map(way.read, inputs), **row.params)
        outs = made if isinstance(made, tuple) else (made,)
        fetches = [t for out in outs for t in _consumers(out)]
        program = verify(slice_graph(fetches, {x: spec_of(feed) for x, feed in zip(inputs, feeds, strict=True)}))
    assert_same_up_to_rounding(compiled_results(program, feeds), program, feeds, f"{row}, {way}")


moved_rows = [row for row in native_rows if row.specs]
integer_variants = [
    pytest.param(row, specs, id=f"{row} {specs[0].dtype}")
    for row in moved_rows
    for specs in row.variants()[1:]
    if specs[0].dtype.kind != "f"
]


@pytest.mark.parametrize("row", moved_rows, ids=str)
def test_inputs_read_through_moves_and_outputs_consumed(row: OpCase) -> None:
    for way in ways:
        _check(row, row.specs, way)


@pytest.mark.parametrize(("row", "specs"), integer_variants)
def test_other_dtypes_reversed_and_computed(row: OpCase, specs: tuple[TensorSpec, ...]) -> None:
    _check(row, specs, ways[-1])
