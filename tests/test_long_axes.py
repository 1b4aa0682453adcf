"""long_axes_last(): which products are made with their long axis last, that results stay, what extents decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad.compiler.long_axes import long_axes_last
from jitgrad.compiler.simplify import simplify
from jitgrad.interpreter import interpret
from jitgrad.nn import logsumexp
from jitgrad.program import Program, verify
from tests.cases import Array


def mixture(means: Any, factors: Any, x: Any) -> Any:
    """Logarithms of sums of normals, for each point."""
    centred = x[:, None, :] - means
    scaled = np.einsum("kij,nkj->nki", factors, centred)
    return logsumexp(-0.5 * np.sum(scaled**2, axis=2), axis=1)


def total(means: Any, factors: Any, x: Any) -> Any:
    return np.sum(mixture(means, factors, x))


def moments(means: Any, factors: Any, x: Any) -> Any:
    """Other reductions than sums, along each axis, with and without extents of 1, and arrays of constants."""
    scaled = np.einsum("kij,nkj->nki", factors, x[:, None, :] - means)
    least = np.min(scaled, axis=2, keepdims=True)
    places = np.arange(3.0)[:, None] + np.zeros((3, 5))
    most = np.max(scaled + places, axis=0, keepdims=True)
    return np.sum(np.where(scaled > least, scaled * most, -scaled), axis=(0, 2)), least.astype(np.float32)


def distances(means: Any, x: Any) -> Any:
    """Sums of squares without products."""
    return np.exp(-np.sum((x[:, None, :] - means) ** 2, axis=2))


def given(n: int = 100, k: int = 3, d: int = 5, dtype: Any = np.float64) -> list[Array]:
    rng = np.random.default_rng(n + k + d)
    shapes = (k, d), (k, d, d), (n, d)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def program_of(f: Any, arrays: list[Array]) -> Program:
    """The simplified program, before axes are moved."""
    (stage, taken), *_ = jg.compile(f).stages(*arrays)
    return simplify(stage.executable(taken).source)


def products_of(program: Program) -> list[tuple[int, ...]]:
    found = [ins.outputs[0] for ins in program.instructions if ins.op.name == "matmul"]
    return [program.specs[v].known_shape for v in found]


def transposed(program: Program) -> list[tuple[int, ...]]:
    found = [ins.outputs[0] for ins in program.instructions if ins.op.name == "transpose"]
    return [program.specs[v].known_shape for v in found]


def test_products_have_points_last_and_only_points_are_transposed() -> None:
    before = program_of(jg.value_and_grad(total, argnums=(0, 1)), given())
    after = simplify(long_axes_last(before))
    assert products_of(before) == [(3, 100, 5), (3, 100, 5), (3, 5, 5)]
    assert products_of(after) == [(3, 5, 100), (3, 5, 100), (3, 5, 5)]
    assert transposed(after) == [(5, 100)]
    assert {(3, 100, 5), (100, 3, 5)} <= set(transposed(before))
    made = [after.specs[ins.outputs[0]].known_shape for ins in after.instructions]
    assert {shape for shape in made if 100 in shape and len(shape) == 3} == {(3, 5, 100), (3, 1, 100)}


def test_what_is_combined_along_a_short_axis_has_points_last() -> None:
    means, _, x = given(d=8)
    before = program_of(jg.value_and_grad(lambda means, x: np.sum(distances(means, x)), argnums=(0, 1)), [means, x])
    after = simplify(long_axes_last(before))
    made = [after.specs[ins.outputs[0]].known_shape for ins in after.instructions]
    assert {shape for shape in made if 100 in shape and len(shape) == 3} == {(3, 8, 100), (3, 1, 100)}
    compiled = jg.compile(jg.value_and_grad(lambda means, x: np.sum(distances(means, x) ** 2), argnums=(0, 1)))
    for n in (100, 9, 8, 300):
        arrays = [means, given(n, d=8)[2]]
        for got, expected in zip(_flat(compiled(*arrays)), _flat(compiled.interpret(*arrays)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("f", [mixture, total, moments, jg.value_and_grad(total, argnums=(0, 1, 2))])
@pytest.mark.parametrize("special", [0.0, np.nan, np.inf])
def test_results_stay(f: Any, special: float) -> None:
    arrays = given()
    if special:
        arrays[2][7, 2] = special
    before = program_of(f, arrays)
    after = long_axes_last(before)
    assert after is not before
    verify(after, "long axes")
    for program in (after, simplify(after)):
        for got, expected in zip(interpret(program, arrays), interpret(before, arrays), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("f", [mixture, moments, jg.value_and_grad(total, argnums=(0, 1, 2))])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_compiled_is_interpreted(f: Any, dtype: Any) -> None:
    arrays = given(dtype=dtype)
    compiled = jg.compile(f)
    bound = 2e-4 if dtype == np.float32 else 1e-11
    for got, expected in zip(_flat(compiled(*arrays)), _flat(compiled.interpret(*arrays)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=bound, atol=bound)


def _flat(result: Any) -> list[Array]:
    return [a for part in result for a in _flat(part)] if isinstance(result, tuple) else [np.asarray(result)]


def test_further_extents_are_planned_alike() -> None:
    """With ``verify`` the plan of each is compared with what the stages make."""
    compiled = jg.compile(jg.value_and_grad(total, argnums=(0, 1)))
    for n in (100, 65, 1000, 64, 3, 129):
        for got, expected in zip(_flat(compiled(*given(n))), _flat(compiled.interpret(*given(n))), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def _all_given(factors: Any, x: Any) -> Any:
    """What is multiplied is as large as the products."""
    return np.sum((x @ factors) ** 2)


def _also_rows(means: Any, factors: Any, x: Any, rows: Any) -> Any:
    """Points have a further axis, which the products do not have."""
    return np.sum(mixture(means, factors, x) * np.sum(np.tanh(rows), axis=1))


def _returned(means: Any, factors: Any, x: Any) -> Any:
    """All that the products make is wanted as it is."""
    return np.einsum("kij,nkj->nki", factors, x[:, None, :] - means)


@pytest.mark.parametrize(
    ("f", "arrays"),
    [
        (total, given(n=64)),
        (total, given(d=16)),
        (total, given(d=1)),
        (_all_given, [np.ones((3, 5, 5)), np.ones((3, 100, 5))]),
        (lambda w, x: np.sum((x @ w) ** 2), [np.ones((5, 5)), np.ones((100, 5))]),
        (_also_rows, [*given(), np.ones((100, 70))]),
        (_returned, given()),
        (jnp.exp, [np.ones((100, 3, 5))]),
        (distances, [np.ones((3, 9)), np.ones((100, 9))]),
        (distances, [np.ones((3, 5)), np.ones((8, 5))]),
        (lambda x: np.sum(np.exp(x), axis=2), [np.ones((100, 3, 5))]),
        (lambda x, y: np.sum(np.exp(x) * y, axis=1), [np.ones((100, 5)), np.ones(5)]),
    ],
)
def test_others_stay(f: Any, arrays: list[Array]) -> None:
    program = program_of(f, arrays)
    assert long_axes_last(program) is program


def among(x: Any) -> Any:
    """Sums of squares of the differences among points of one set."""
    return np.sum(np.exp(-np.sum((x[:, None, :] - x[None, :, :]) ** 2, axis=-1)))


def beside(x: Any, means: Any) -> Any:
    """Distances, and a matrix whose rows and columns are both the points."""
    return np.sum(distances(means, x)) + np.sum(np.tanh(x[:, None, 0] * x[None, :, 1] + x[:, None, 2]))


@pytest.mark.parametrize("f", [among, beside])
def test_of_two_axes_of_the_same_points_neither_is_made_the_last(f: Any) -> None:
    means, _, x = given(n=120, k=20, d=3)
    arrays = [x] if f is among else [x, means]
    step = jg.compile(jg.value_and_grad(f, argnums=tuple(range(len(arrays)))))
    value, slopes = step(*arrays)
    expected, others = step.interpret(*arrays)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for slope, other in zip(slopes, others, strict=True):
        np.testing.assert_allclose(slope, other, rtol=1e-10, atol=1e-10)


def test_beside_factors_of_a_matrix() -> None:
    """Pivots have one axis less than what is made of them."""
    means, _, x = given()
    a = np.eye(70) * 3 + 0.1
    inverse, sums = jg.compile(lambda a, means, x: (np.linalg.inv(a), distances(means, x)))(a, means, x)
    np.testing.assert_allclose(inverse, np.linalg.inv(a), atol=1e-14)
    np.testing.assert_allclose(sums, distances(means, x), rtol=1e-11)
