"""simplify() on every op of the table of cases with gradients to order 2; one model at several extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import OpCase
from graphs import op_names
from test_ops import rows

import jitgrad as jg
from jitgrad.compiler.simplify import simplify
from jitgrad.gradients import gradients
from jitgrad.graph import Graph, Tensor, apply
from jitgrad.inlining import inlined
from jitgrad.interpreter import interpret
from jitgrad.opdef import Shaped, find
from jitgrad.operators import call
from jitgrad.program import Program, slice_graph, verify

pytestmark = pytest.mark.quick


def with_gradients(row: OpCase) -> Program:
    """The op of a row, the gradients of a function of its outputs, and the gradients of those."""
    with Graph().as_default():
        xs = [call("placeholder", spec.dtype, spec.shape) for spec in row.specs]
        made = apply(find(row.op), *xs, **row.params)
        fetches: list[Tensor] = list(made) if isinstance(made, tuple) else [made]
        floats = [x for x in xs if x.dtype.kind == "f"]
        ys = [y for y in fetches if y.dtype.kind == "f"]
        for fn in ("sin", "square")[: row.order]:
            if ys and floats:
                ys = [g for g in gradients([call(fn, y) for y in ys], floats) if g is not None]
                fetches += ys
        return verify(slice_graph(fetches, dict(zip(xs, row.specs, strict=True))))


@pytest.mark.parametrize("row", rows, ids=str)
def test_every_op_with_its_gradients(row: OpCase) -> None:
    program = with_gradients(row)
    result = verify(simplify(program), "simplify")
    assert simplify(result) is result
    assert not any(isinstance(ins.op.kind, Shaped) for ins in result.instructions)
    arrays = row.sample(row.specs)
    for got, expected in zip(interpret(result, arrays), interpret(program, arrays), strict=True):
        got, expected = np.asarray(got), np.asarray(expected)
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        if expected.dtype.kind in "fc":
            eps = np.finfo(expected.dtype).eps
            np.testing.assert_allclose(got, expected, rtol=1e4 * eps, atol=1e5 * eps)
        else:
            np.testing.assert_array_equal(got, expected)


def classifier(batch: int, known: bool) -> Program:
    """Softmax cross-entropy of a layer with bias, and its gradients, for so many examples."""
    with jg.Graph().as_default():
        x = jg.placeholder(np.float32, (batch if known else None, 64))
        labels = jg.placeholder(np.int64, (batch if known else None,))
        w, b = jg.placeholder(np.float32, (64, 10)), jg.placeholder(np.float32, (10,))
        z: Any = np.tanh(x) @ w + b
        z = z - z.max(axis=1, keepdims=True)
        log_p = z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))
        loss = -np.mean(np.take_along_axis(log_p, labels[:, None], axis=1))
        inputs = [x, labels, w, b]
        fetches = [loss, *gradients(loss, [w, b])]
        fed = [jg.placeholder(t.dtype, (batch, *t.shape[1:])) if None in t.shape else t for t in inputs]
        return inlined(slice_graph(fetches, {t: f.spec for t, f in zip(inputs, fed, strict=True)}))


@pytest.mark.parametrize("known", [True, False])
def test_the_structure_does_not_depend_on_extents(known: bool) -> None:
    """A kernel made for one batch size is to do for every other, whatever numbers it divides by."""
    structures = []
    for batch in (128, 29, 64, 2, 1000):
        result = simplify(classifier(batch, known))
        structures.append((op_names(result), [ins.inputs for ins in result.instructions]))
    assert all(structure == structures[0] for structure in structures)
