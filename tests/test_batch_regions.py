"""Regions of batches of products and kernels over the batch: which steps they take, and that results stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.freezing import regions
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.products import blas
from jitgrad.compiler.products.product_code import GUARD_STUBS

pytestmark = pytest.mark.skipif(not blas.set_threads_address(), reason="BLAS keeps its own threads")

Loss = Callable[..., Any]


def normed(x: Any) -> Any:
    """Columns of length 1."""
    return x / np.sqrt(np.sum(x * x, axis=1, keepdims=True))


def own_items(w: Any, x: Any) -> Any:
    """Each product reads what was made for its item of the batch, and so does what comes behind."""
    return np.sum(np.exp(normed(w @ normed(x))))


def reversed_items(w: Any, x: Any) -> Any:
    """What stands behind the product reads the item of another product."""
    y = w @ normed(x)
    return np.sum(np.exp(normed(y * y[::-1])))


def summed_items(w: Any, x: Any) -> Any:
    """A sum over the batch has to be complete before it is read."""
    y = w @ normed(x)
    return np.sum(np.exp(normed(y - np.sum(y, axis=0))))


def in_a_loop(w: Any, x: Any) -> Any:
    """A batch of products in each step."""
    return np.sum(jg.scan(lambda state, _: (normed(w @ normed(state)), None), np.sin(x), length=3)[0])


def given(dtype: str = "float64") -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((12, 20, 20)).astype(dtype), rng.standard_normal((12, 20, 300)).astype(dtype)


def names(loss: Loss) -> list[str]:
    """The steps of the value."""
    (stage, args), *_ = jg.compile(loss).stages(*given())
    clusters = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
    return [name for cluster in clusters for name in cluster.names]


def test_kernel_product_and_kernel_are_one_region_behind_the_guard_of_blas() -> None:
    assert names(own_items)[:3] == [GUARD_STUBS[0], "region_0_1_2", GUARD_STUBS[1]]


@pytest.mark.parametrize("loss", [reversed_items, summed_items])
def test_what_needs_other_items_waits_for_them(loss: Loss) -> None:
    first = next(name for name in names(loss) if name.startswith("region"))
    assert first in ("region_0_1", "region_0_1_2")
    assert not names(loss)[-1].startswith("region")


def test_an_empty_batch_has_no_region() -> None:
    assert jg.compile(own_items)(np.ones((0, 20, 20)), np.ones((0, 20, 300))) == 0


def test_a_kernel_over_nothing_may_stand_before_products() -> None:
    compiled = jg.compile(lambda empty, w, x: (normed(empty), w @ normed(x)))
    nothing, product = compiled(np.ones((0, 30)), *given())
    assert nothing.shape == (0, 30)
    np.testing.assert_allclose(product, given()[0] @ normed(given()[1]), rtol=1e-11, atol=1e-11)


def test_items_beyond_the_cache_are_done_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "ITEM_BYTES", 40_000)
    with jg.config(cache=False):
        assert not any(name.startswith("region") for name in names(own_items))


def test_memory_that_a_region_would_keep_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions, "MOST_LOST_OF_BATCH", 1000)
    with jg.config(cache=False):
        assert not any(name.startswith("region") for name in names(own_items))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("loss", [own_items, reversed_items, summed_items, in_a_loop])
def test_values_and_gradients(loss: Loss, dtype: str) -> None:
    arrays = given(dtype)
    compiled = jg.compile(jg.value_and_grad(loss, (0, 1)))
    value, gradients = compiled(*arrays)
    expected, wanted = compiled.interpret(*arrays)
    tolerance = 3e-4 if dtype == "float32" else 1e-11
    np.testing.assert_allclose(value, expected, rtol=tolerance)
    for got, exact in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(got, exact, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize("loss", [own_items, summed_items])
def test_bits_do_not_depend_on_threads(loss: Loss) -> None:
    compiled = jg.compile(jg.value_and_grad(loss, (0, 1)))
    results = set()
    before = jg.get_num_threads()
    try:
        for threads in (2, 1):
            jg.set_num_threads(threads)
            value, gradients = compiled(*given())
            results.add(np.asarray(value).tobytes() + b"".join(g.tobytes() for g in gradients))
    finally:
        jg.set_num_threads(before)
    assert len(results) == 1
