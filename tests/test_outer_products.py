"""outer_products_by_element(): which matrix products are written so, that results and signs of zeros stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.outer_products import outer_products_by_element
from jitgrad.compiler.simplify import simplify
from jitgrad.interpreter import interpret
from jitgrad.program import Program, verify
from tests.cases import Array
from tests.test_long_axes import program_of

rng = np.random.default_rng(0)


def power_iteration(a: Any, v: Any) -> Any:
    for _ in range(3):
        v = a @ v
        v = v / np.linalg.norm(v)
    return v @ a @ v


def outer_products(x: Any, y: Any) -> Any:
    """As they are, transposed, summed, and of one row or column."""
    column, row = x[:, None], y[None, :]
    product = column @ row
    return product, (column @ row).T @ column, row.T @ column.T, product + row.T @ column.T, column @ row[:, :1]


def recurrent(w: Any, xs: Any) -> Any:
    return np.sum(jg.scan(lambda h, x: (np.tanh(x @ w + h), None), np.zeros((1, 12)), xs)[0])


def count(program: Program, name: str) -> int:
    return sum(ins.op.name == name for ins in program.instructions)


def products_of_one_term(program: Program) -> int:
    found = [ins for ins in program.instructions if ins.op.name == "matmul"]
    shapes = [(program.specs[ins.inputs[0]].known_shape, ins.params["transpose_a"]) for ins in found]
    return sum(shape[-2 if transposed else -1] == 1 for shape, transposed in shapes)


def test_a_sum_of_outer_products_adds_one_zero() -> None:
    before = program_of(jg.grad(power_iteration), [np.eye(12), np.ones(12)])
    after = simplify(outer_products_by_element(before))
    assert (products_of_one_term(before), products_of_one_term(after)) == (6, 0)
    sums = [ins for ins in after.instructions if ins.op.name == "add_n"]
    assert sorted(len(ins.inputs) for ins in sums)[-1] == 5
    zeros = [ins for ins in after.instructions if ins.op.name == "constant" and not np.any(ins.params["value"])]
    assert sum(v in ins.inputs for ins in sums for zero in zeros for v in zero.outputs) == 1


@pytest.mark.parametrize("values", [(1.5, -2.0), (0.0, -1.0), (-0.0, 3.0), (np.nan, 1.0), (np.inf, 0.0)], ids=str)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_results_stay_to_the_bit(values: tuple[float, float], dtype: Any) -> None:
    x, y = (np.full(12, value, dtype) for value in values)
    x[3] = y[5] = 0.25
    before = program_of(outer_products, [x, y])
    after = verify(outer_products_by_element(before), "outer products")
    assert after is not before
    for program in (after, simplify(after)):
        _check(interpret(program, [x, y]), interpret(before, [x, y]))
    f = jg.compile(outer_products)
    _check(f(x, y), f.interpret(x, y))


def _check(made: Any, expected: Any) -> None:
    for got, wanted in zip(made, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6 if wanted.dtype == np.float32 else 1e-14)
        np.testing.assert_array_equal(np.signbit(got[wanted == 0]), np.signbit(wanted[wanted == 0]))


@pytest.mark.parametrize("n", [100, 12, 8, 3, 1, 65])
def test_gradients_for_further_extents(n: int) -> None:
    a, v = rng.standard_normal((n, n)), rng.standard_normal(n)
    f = jg.compile(jg.value_and_grad(power_iteration, argnums=(0, 1)))
    for got, wanted in zip(f(a, v)[1], f.interpret(a, v)[1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-11)


LEFT: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "short rows": (lambda x, y: x @ y, [np.ones((500, 1)), np.ones((1, 3))]),
    "a batch": (lambda x, y: x @ y, [np.ones((5, 20, 1)), np.ones((5, 1, 20))]),
    "two terms": (lambda x, y: x @ y, [np.ones((20, 2)), np.ones((2, 20))]),
    "complex numbers": (lambda x, y: x @ y, [np.ones((20, 1), complex), np.ones((1, 20), complex)]),
    "integers": (lambda x, y: x @ y, [np.ones((20, 1), int), np.ones((1, 20), int)]),
    "the body of a loop": (jg.grad(recurrent), [np.ones((12, 12)), np.ones((4, 1, 12))]),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_to_products(name: str) -> None:
    fn, arrays = LEFT[name]
    program = program_of(fn, arrays)
    assert outer_products_by_element(program) is program
