"""Every op of kind Reindex: its index maps, applied element by element, give what NumPy gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import OpCase
from cases_shape import cases

from jitgrad.opdef import IndexMap, Reindex, find
from jitgrad.spec import spec_of

Array = npt.NDArray[Any]
rows = [row for row in cases if isinstance(find(row.op).kind, Reindex)]


def read(maps: Sequence[IndexMap | None], arrays: Sequence[Array], at: tuple[int, ...], fill: Any) -> Any:
    """The element of the output at ``at``; at most one input may be read."""
    values = []
    for index_map, array in zip(maps, arrays, strict=True):
        if index_map is not None and all(g.lo <= at[g.axis] < g.hi for g in index_map.guards):
            place = tuple(d.offset + (0 if d.axis is None else d.scale * at[d.axis]) for d in index_map.dims)
            assert all(0 <= i < n for i, n in zip(place, array.shape, strict=True)), (
                f"{place} is outside {array.shape}"
            )
            values.append(array[place])
    assert len(values) <= 1, f"{len(values)} inputs are read at {at}"
    return values[0] if values else fill


@pytest.mark.quick
@pytest.mark.parametrize("row", rows, ids=str)
def test_index_maps_say_what_the_op_does(row: OpCase) -> None:
    arrays = row.sample(row.specs)
    op = find(row.op)
    assert isinstance(op.kind, Reindex)
    found = op.impl(*arrays, **row.params)
    outputs = found if isinstance(found, tuple) else (found,)
    maps = op.kind.maps(row.specs, row.params)
    assert len(maps) == len(outputs)
    for output, index_maps in zip(outputs, maps, strict=True):
        rebuilt = np.empty_like(output)
        for at in np.ndindex(output.shape):
            rebuilt[at] = read(index_maps, arrays, at, row.params.get("fill", 0))
        np.testing.assert_array_equal(rebuilt, output)


@pytest.mark.quick
@pytest.mark.parametrize("row", rows, ids=str)
def test_maps_have_an_index_per_dimension_and_guards_inside(row: OpCase) -> None:
    arrays = row.sample(row.specs)
    op = find(row.op)
    assert isinstance(op.kind, Reindex)
    outputs = op.infer(tuple(map(spec_of, arrays)), row.params)
    for spec, index_maps in zip(outputs, op.kind.maps(row.specs, row.params), strict=True):
        for array, index_map in zip(arrays, index_maps, strict=True):
            if index_map is not None:
                assert len(index_map.dims) == array.ndim
                assert all(d.axis is None or d.axis < len(spec.known_shape) for d in index_map.dims)
                assert all(0 <= g.lo <= g.hi <= spec.known_shape[g.axis] for g in index_map.guards)
