"""The checks that every row of the table of cases goes through; what is special to one op is in test_edges.py."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
from cases import OpCase

from jitgrad.graph import Graph, Tensor, apply
from jitgrad.interpreter import interpret
from jitgrad.opdef import Interpreted, definitions, find
from jitgrad.operators import call
from jitgrad.program import Program, slice_graph, verify
from jitgrad.spec import TensorSpec, spec_of
from jitgrad.testing import check_derivatives, directional_derivatives

rows: list[OpCase] = [
    row
    for module in ("cases", "cases_shape")
    if importlib.util.find_spec(module)
    for row in importlib.import_module(module).cases
]
native_rows = [row for row in rows if not isinstance(find(row.op).kind, Interpreted)]
each_row = pytest.mark.parametrize("row", rows, ids=str)
each_native_row = pytest.mark.parametrize("row", native_rows, ids=str)

# Ops that are not a function of their inputs alone: they hold a value, a state or the users own code.
without_case = {
    "constant", "placeholder", "read_variable", "assign", "no_op", "custom_gradient", "prevent_gradient", "py_func",
}  # fmt: skip

edge_values = (
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -2.5,
    5e-324,
    1e-310,
    1e-45,
    3e38,
    1e308,
    -7.0,
    100.0,
)


def program_of(row: OpCase, specs: tuple[TensorSpec, ...]) -> Program:
    """The op alone, as a program of the row's inputs."""
    with Graph().as_default():
        inputs = [call("placeholder", spec.dtype, spec.shape) for spec in specs]
        outputs = outputs_of(row, inputs)
        return verify(slice_graph(outputs, dict(zip(inputs, specs, strict=True))))


def outputs_of(row: OpCase, inputs: Any) -> tuple[Tensor, ...]:
    out = apply(find(row.op), *inputs, **row.params)
    return out if isinstance(out, tuple) else (out,)


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
