"""Batching: for every row of the table of cases, the batched op equals the op on one example after
another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases import OpCase
from test_ops import outputs_of, rows

import jitgrad as jg
from jitgrad.batching import batch
from jitgrad.gradients import gradients
from jitgrad.graph import Graph
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import slice_graph, verify
from jitgrad.spec import is_inexact, spec_of

pytestmark = pytest.mark.quick

n = 3


def check(row: OpCase, batched_inputs: tuple[int, ...], order: int) -> None:
    """The batched outputs (order 0), or their gradients (order 1), against a loop over the examples."""
    samples = [row.sample(row.specs, seed) for seed in range(n)]
    with Graph().as_default():
        inputs = [call("placeholder", spec.dtype, spec.shape) for spec in row.specs]
        wide = {i: call("placeholder", inputs[i].dtype, (n, *inputs[i].shape)) for i in batched_inputs}
        ys = list(outputs_of(row, inputs))
        batched = batch(ys, {inputs[i]: wide[i] for i in batched_inputs}, n)
        fetches, batched_fetches = ys, batched
        if order:
            smooth = [i for i in batched_inputs if is_inexact(inputs[i].dtype)]
            fetches = _gradients(ys, [inputs[i] for i in smooth])
            batched_fetches = _gradients(batched, [wide[i] for i in smooth])
        single = verify(slice_graph(fetches, {x: x.spec for x in inputs}))
        fed = [wide.get(i, x) for i, x in enumerate(inputs)]
        feeds = {x: x.spec for x in fed}
        whole = verify(slice_graph(batched_fetches, feeds))
    arrays = [np.stack([s[i] for s in samples]) if i in wide else samples[0][i] for i in range(len(inputs))]
    got = interpret(whole, arrays)
    for number in range(n):
        expected = interpret(single, [samples[number if i in wide else 0][i] for i in range(len(inputs))])
        for ours, one in zip(got, expected, strict=True):
            assert spec_of(np.asarray(ours[number])) == spec_of(np.asarray(one))
            np.testing.assert_allclose(ours[number], one, rtol=1e-6, atol=1e-9)


def _gradients(ys: Any, xs: Any) -> list[Any]:
    targets = [y for y in ys if is_inexact(y.dtype)]
    seeds = [np.full(y.shape, 1 + 0.5j if y.dtype.kind == "c" else 1, y.dtype) for y in targets]
    return [g for g in gradients(targets, xs, seeds) if g is not None] if targets and xs else []


MADE_LATER = ("pairs_fft", "pairs_rfft", "pairs_irfft", "eigh_joined")
"""Ops that compiled programs are given, when gradients are done: they have no rules."""


@pytest.mark.parametrize(
    ("row", "order"),
    [(row, order) for order in (0, 1) for row in rows if row.specs and not (order and row.op in MADE_LATER)],
    ids=str,
)
def test_batch_equals_loop(row: OpCase, order: int) -> None:
    everything = tuple(range(len(row.specs)))
    choices = dict.fromkeys([everything, *((i,) for i in everything)])
    for batched_inputs in choices:
        check(row, batched_inputs, order)


def test_what_does_not_depend_on_the_stand_in_is_repeated() -> None:
    with Graph().as_default():
        x, y = jg.placeholder(np.float64, ()), jg.placeholder(np.float64, (2,))
        wide = jg.placeholder(np.float64, (n,))
        (out,) = batch([y * 2.0], {x: wide}, n)
        assert out.shape == (n, 2)


def test_the_batch_of_an_operation_is_in_its_scope() -> None:
    with Graph().as_default() as graph:
        x = jg.placeholder(np.float64, (2,))
        wide = jg.placeholder(np.float64, (n, 2))
        with jg.jit_scope():
            y = np.sum(np.sin(x)[::-1])
        before = len(graph)
        batch([y], {x: wide}, n)
        made = graph.operations[before:]
        assert {op.attrs.get("_XlaScope") for op in made} == {"jit_scope_0"}


def test_a_compiled_jacobian_has_no_interpreted_op() -> None:
    f = jg.compile(lambda x, w: np.concatenate([np.tanh(w @ x)[::-1], np.cumsum(x) * x[0]]))
    x, w = np.arange(1.0, 4.0), np.ones((2, 3)) / 7
    for jacobian in (jg.jacrev, jg.jacfwd):
        compiled = jg.compile(jacobian(f))
        np.testing.assert_allclose(compiled(x, w), jacobian(f).interpret(x, w), rtol=1e-12)
        assert "not compiled" not in compiled.explain(x, w).text
