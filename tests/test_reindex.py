"""Every op of kind Reindex: its index maps, applied element by element, give what NumPy gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import OpCase
from cases_shape import cases

import jitgrad as jg
from jitgrad.compiler.fusing.accesses import MOST_LEAVES
from jitgrad.opdef import IndexMap, Reindex, find
from jitgrad.spec import spec_of
from jitgrad.testing import assert_same_results

Array = npt.NDArray[Any]
rows = [row for row in cases if isinstance(find(row.op).kind, Reindex)]


def read(maps: Sequence[IndexMap | None], arrays: Sequence[Array], at: tuple[int, ...], fill: Any) -> Any:
    """The element of the output at ``at``; at most one input may be read."""
    values = []
    for index_map, array in zip(maps, arrays, strict=True):
        if index_map is not None and all(g.lo <= at[g.axis] < g.hi for g in index_map.guards):
            place = tuple(
                (d.offset + (0 if d.axis is None else d.scale * at[d.axis])) // d.divisor for d in index_map.dims
            )
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


def residual(u: Any, f: Any) -> Any:
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return 0.5 * np.sum((around - 4.0 * u[1:-1, 1:-1] - f) ** 2)


@pytest.mark.parametrize("shape", [(3, 3), (5, 4), (4, 37), (20, 70)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_stencil_keeps_its_residual_once(shape: tuple[int, int], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    u, f = (rng.standard_normal((shape[0] - 2 * k, shape[1] - 2 * k)).astype(dtype) for k in (0, 1))
    step = jg.value_and_grad(residual)
    assert_same_results(step, u, f)
    kernels = jg.compile(step).explain(u, f).kernels
    if min(shape) > 4:  # the last kernel reads the residual alone, and makes -4 times it itself
        assert "in1" not in kernels.split("def kernel")[-1]


def test_what_is_made_again_beside_a_pad_is_nothing_outside() -> None:
    def f(x: Any, c: Any) -> Any:
        y = np.tanh(x[1:] * x[:-1])
        return np.pad(y, (2, 0)) + np.pad(y * c, (0, 2)) + np.pad(y + c, (1, 1))

    x = np.linspace(-1, 1, 40)
    for c in (np.float64(3), np.float64(np.inf), np.float64(np.nan)):
        assert_same_results(f, x, c)


# -- joins of many arrays --------------------------------------------------------------------------------------------

JOINS = {
    "concatenate": lambda xs: np.concatenate(xs),
    "stack": lambda xs: np.stack(xs, axis=-1),
    "of joins": lambda xs: np.concatenate([np.concatenate(xs[:20]), np.stack(xs[20:]).ravel(), np.concatenate(xs)])[3:],
}


@pytest.mark.parametrize("name", JOINS)
def test_joins_of_many_arrays(name: str) -> None:
    """Equal to NumPy's, with gradients; no kernel reads more than some pieces, whatever their number."""
    join = JOINS[name]

    def loss(x: Any) -> Any:
        return np.sum(np.tanh(join([x * (k + 0.5) for k in range(100)])) * 0.1)

    step = jg.compile(jg.value_and_grad(loss))
    x = np.linspace(-1.0, 1.0, 4)
    for got, expected in zip(step(x), step.interpret(x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)
    (compiled,) = step.explain(x).compiled
    plans = [made.plan for made in compiled.steps if not isinstance(made, int)]
    nodes = [placed.node for plan in plans for group in plan.steps for placed in getattr(group, "nodes", ())]
    assert nodes and all(len(operand.leaves) <= MOST_LEAVES for node in nodes for operand in node.operands)


def test_a_join_of_four_times_as_many_arrays_needs_no_more_kernels() -> None:
    def kernels(n: int) -> int:
        f = jg.compile(lambda x: np.concatenate([x * (k + 0.5) for k in range(n)]))
        f(np.ones(3))
        return f.cache_info().kernels

    assert kernels(1024) <= kernels(256)


def test_extents_of_one_may_move_in_a_reshape() -> None:
    """The extents around them stay the same ones: the sum of two arrays so reshaped is one kernel."""

    def f(a: Any, b: Any) -> Any:
        return (a.reshape(9, 1, 3) + b.reshape(9, 1, 3)).reshape(1, 9, 3)

    a, b = np.arange(27.0).reshape(1, 9, 3), np.ones((1, 9, 3))
    np.testing.assert_array_equal(jg.compile(f)(a, b), a + b)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
def test_repeated_elements_are_read_where_the_first_lane_is_outside(count: int) -> None:
    """Lane 0 is before the first element, others are inside: what is divided is negative only in lanes that are not."""

    def shifted(x: Any) -> Any:
        wide = np.repeat(x, 3, axis=1)
        return sum(np.pad(wide, ((0, 0), (k, 12 - k))) * (k + 1.0) for k in range(count))

    x = np.random.default_rng(0).normal(size=(5, 9))
    np.testing.assert_allclose(jg.compile(shifted)(x), shifted(x))
