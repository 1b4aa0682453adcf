"""Sums over an outer axis, for rows of every length: the last lanes of a row are stored beside the next row."""

from __future__ import annotations

import numpy as np
import pytest

import jitgrad as jg


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_rows_of_sums(dtype: str) -> None:
    """Small integers, so that every order of addition gives the same bits; rows of many lengths."""
    fn = jg.compile(lambda x, y: (np.sum(x * y, axis=0), np.sum(x[:, 1:], axis=0), np.max(x, axis=0)))
    rng = np.random.default_rng(5)
    for columns in (1, 2, 3, 7, 8, 9, 10, 15, 16, 17, 30, 31, 33, 47, 63, 65):
        for rows in (1, 40, 3000):
            x, y = (rng.integers(-9, 9, (rows, 3, columns)).astype(dtype) for _ in range(2))
            for ours, expected in zip(fn(x, y), fn.interpret(x, y), strict=True):
                np.testing.assert_array_equal(ours, expected)


def test_einsum_orders_its_operands_by_the_output() -> None:
    rng = np.random.default_rng(6)
    a, b = rng.standard_normal((3, 4, 5)), rng.standard_normal((7, 3, 5))
    for subscripts in ("kij,nkj->nki", "kij,nkj->kin", "kij,nkj->ink", "kij,nkj->ik", "kij,nkj->kni"):
        fn = jg.compile(lambda a, b, s=subscripts: np.einsum(s, a, b))
        np.testing.assert_allclose(fn(a, b), np.einsum(subscripts, a, b), rtol=1e-13, atol=1e-13)
    text = jg.compile(lambda a, b: np.einsum("kij,nkj->nki", a, b)).explain(a, b).program
    assert "transpose" in text.split("matmul")[-1]
