"""The checks of every row of the table of cases; what is special to one op is in test_edges.py."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from cases import Array, OpCase
from oracles import compiled_results, python_results

from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Tensor, apply
from jitgrad.interpreter import interpret
from jitgrad.opdef import Elementwise, Interpreted, definitions, find
from jitgrad.operators import call
from jitgrad.program import Program, slice_graph, verify
from jitgrad.spec import TensorSpec, is_inexact, spec_of
from jitgrad.testing import assert_close, check_derivatives, directional_derivatives

Run = Callable[[Program, Sequence[Array]], list[Array]]
rows: list[OpCase] = [
    row for module in ("cases", "cases_shape") for row in importlib.import_module(module).cases
]
native_rows = [row for row in rows if not isinstance(find(row.op).kind, Interpreted)]
each_row = pytest.mark.parametrize("row", rows, ids=str)
each_native_row = pytest.mark.parametrize("row", native_rows, ids=str)

# Ops that are not a function of their inputs alone: they hold a value, a state or the users own code.
without_case = {
    "constant", "placeholder", "read_variable", "assign", "scatter_variable", "no_op",
    "custom_gradient", "prevent_gradient", "py_func",
    "cond", "call", "scan", "while_loop", "while_gradient",  # tests/test_control.py
    "random_uniform", "random_normal", "random_position", "random_uniform_of_step", "random_normal_of_step",
    "zeros_of_shape",  # whose shape is a value: tests/test_slices.py
    "pair_of", "complex_of",  # of numbers in pairs: tests/test_complex_pairs.py
    "solve_turned",  # which stands for solve_triangular in compiled programs: tests/test_lapack.py
    "lu", "lu_solve", "lu_inv", "lu_det", "lu_slogdet",  # which are of one another's results: tests/test_lapack.py
}  # fmt: skip

edges = (
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.75, -2.5, 7.0, 100.0,
    5e-324, -1e-310, 1e-45, 3e38, -1e308,
)  # fmt: skip


def program_of(row: OpCase, specs: tuple[TensorSpec, ...]) -> Program:
    """The op alone, as a program of the row's inputs."""
    with Graph().as_default():
        inputs = [call("placeholder", spec.dtype, spec.shape) for spec in specs]
        outputs = outputs_of(row, inputs)
        return verify(slice_graph(outputs, dict(zip(inputs, specs, strict=True))))


def outputs_of(row: OpCase, inputs: Any) -> tuple[Tensor, ...]:
    out = apply(find(row.op), *inputs, **row.params)
    return out if isinstance(out, tuple) else (out,)


def gradient_program(row: OpCase) -> Program:
    """The gradients of the outputs' sum, and the gradients of their sum."""
    with Graph().as_default():
        inputs = [call("placeholder", spec.dtype, spec.shape) for spec in row.specs]
        ys = [y for y in outputs_of(row, inputs) if is_inexact(y.dtype)]
        first = [g for g in gradients(ys, inputs) if g is not None]
        weights = [
            np.linspace(0.5, k + 1.5, g.spec.size).reshape(g.spec.known_shape) for k, g in enumerate(first)
        ]
        second = [g for g in gradients(first, inputs, weights) if g is not None] if row.order > 1 else []
        return verify(slice_graph([*first, *second], dict(zip(inputs, row.specs, strict=True))))


@pytest.mark.quick
def test_every_op_has_a_case() -> None:
    missing = {op.name for op in definitions()} - {row.op for row in rows} - without_case
    assert not missing, f"no row in the table of cases for {sorted(missing)}"


@pytest.mark.quick
def test_row_names_are_unique() -> None:
    names = list(map(str, rows))
    assert len(set(names)) == len(names), sorted(name for name in names if names.count(name) > 1)


@pytest.mark.quick
@each_row
def test_inferred_specs_are_numpys(row: OpCase) -> None:
    for specs in row.variants():
        arrays = row.sample(specs)
        inferred = find(row.op).infer(specs, row.params)
        with np.errstate(all="ignore"):
            found = find(row.op).impl(*arrays, **row.params)
        results = found if isinstance(found, tuple | list) else (found,)
        assert tuple(spec_of(np.asarray(r)) for r in results) == inferred
        assert tuple(spec_of(np.asarray(r)) for r in interpret(program_of(row, specs), arrays)) == inferred


@pytest.mark.quick
@pytest.mark.parametrize("row", [row for row in rows if row.order and row.specs], ids=str)
def test_gradients_are_numerical_derivatives(row: OpCase) -> None:
    arrays = row.sample(row.specs)
    if not any(array.dtype == np.float64 for array in arrays):
        return
    found = directional_derivatives(
        lambda xs: outputs_of(row, xs), arrays, row.order, np.random.default_rng(1)
    )
    check_derivatives(found, row.rtol)


@each_native_row
@pytest.mark.parametrize("run", [compiled_results, python_results])
def test_compiled_equals_interpreted(row: OpCase, run: Run) -> None:
    for specs in row.variants():
        program = program_of(row, specs)
        feeds = row.sample(specs)
        _compare(run(program, feeds), feeds, program, row)


@pytest.mark.parametrize("row", [row for row in native_rows if row.order and find(row.op).vjp], ids=str)
@pytest.mark.parametrize("run", [compiled_results, python_results])
def test_compiled_gradients_equal_interpreted(row: OpCase, run: Run) -> None:
    if any(spec.dtype == np.float64 for spec in row.specs):
        program = gradient_program(row)
        feeds = row.sample(row.specs)
        for ours, expected in zip(run(program, feeds), interpret(program, feeds), strict=True):
            assert_close(np.asarray(ours), np.asarray(expected), 1e-11)


@pytest.mark.parametrize(
    "row", [row for row in native_rows if isinstance(find(row.op).kind, Elementwise)], ids=str
)
@pytest.mark.parametrize("run", [compiled_results, python_results])
def test_special_values_are_interpreted_equally(row: OpCase, run: Run) -> None:
    for specs in row.variants():
        if any(spec.dtype.kind == "f" for spec in specs) and row.edges:
            feeds = _all_edges(specs)
            program = program_of(row, tuple(map(spec_of, feeds)))
            _compare(run(program, feeds), feeds, program, row)


def _all_edges(specs: Sequence[TensorSpec]) -> list[Array]:
    """Every combination of special values, one flat array per input."""
    with np.errstate(all="ignore"):
        choices = [
            np.array(edges, spec.dtype) if spec.dtype.kind == "f" else np.array([0, 1]).astype(spec.dtype)
            for spec in specs
        ]
    return [np.ascontiguousarray(grid.ravel()) for grid in np.meshgrid(*choices, indexing="ij")]


def _compare(ours: Sequence[Any], feeds: Sequence[Array], program: Program, row: OpCase) -> None:
    for a, b in zip(ours, map(np.asarray, interpret(program, feeds)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if b.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
        elif isinstance(find(row.op).kind, Elementwise):
            assert_within_ulp(a, b, row.ulps, row.zeros)
        else:
            rounding = 32 * float(np.finfo(b.dtype).eps)
            largest = max((float(np.abs(x).max(initial=1.0)) for x in feeds), default=1.0)
            np.testing.assert_allclose(a, b, rtol=rounding, atol=rounding * largest)


def assert_within_ulp(ours: Array, expected: Array, ulps: float, zeros: bool) -> None:
    """Floats at most so many units in the last place apart; infinities, and with ``zeros`` the signs of
    zeros, equal.
    """
    same = (ours == expected) | (np.isnan(ours) & np.isnan(expected))
    with np.errstate(all="ignore"):
        apart = np.abs(ours - expected) / np.spacing(np.abs(expected))
    wrong = ~(same | (apart <= ulps))
    if zeros:
        wrong |= (expected == 0) & (ours == 0) & (np.signbit(ours) != np.signbit(expected))
    assert not wrong.any(), (
        f"ours {ours[wrong][:5]}, interpreted {expected[wrong][:5]}, {apart[wrong][:5]} ulp apart"
    )
