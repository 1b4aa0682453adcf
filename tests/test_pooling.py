"""Pooling whose gradients are gathered: random windows against sums written out, the interpreter and other numbers of
threads; and reads of what windows hold, behind other moves.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import find
from jitgrad.testing import check_gradients


def _one(rng: Any, *items: Any) -> Any:
    return items[rng.integers(len(items))]


def _windows(rng: Any) -> dict[str, Any]:
    kernel = tuple(int(k) for k in rng.integers(1, 5, 2))
    stride = _one(rng, None, 1, 2, 3, (2, 1))
    padding = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
    return {"kernel_size": kernel, "stride": stride, "padding": _one(rng, 0, padding, "same"),
            "ceil_mode": bool(rng.integers(2))}  # fmt: skip


def _naive(x: Any, g: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool) -> tuple[Any, Any]:
    """Largest elements and the cotangent of the input, window by window."""
    steps = kernel_size if stride is None else tuple(np.broadcast_to(stride, 2))
    lows = _lows(x, kernel_size, steps, padding)
    slope = np.zeros_like(x)
    out = np.empty(g.shape, x.dtype)
    for n, c, i, j in np.ndindex(*g.shape):
        spans = [
            slice(max(0, k * s - low), max(0, k * s - low + size))
            for k, s, low, size in zip((i, j), steps, lows, kernel_size, strict=True)
        ]
        seen = x[n, c, spans[0], spans[1]]
        out[n, c, i, j] = seen.max()
        is_largest = seen == seen.max()
        slope[n, c, spans[0], spans[1]] += np.where(is_largest, g[n, c, i, j] / is_largest.sum(), 0)
    return out, slope


def _lows(x: Any, kernel: Any, steps: Any, padding: Any) -> list[int]:
    if padding != "same":
        return [int(p) for p in np.broadcast_to(padding, 2)]
    extents = zip(x.shape[2:], kernel, steps, strict=True)
    return [max(0, (-(-n // s) - 1) * s + k - n) // 2 for n, k, s in extents]


@pytest.mark.parametrize("seed", range(16))
def test_random_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given, last = _windows(rng), bool(seed % 2)
    dtype = np.float32 if seed % 3 else np.float64
    x = np.round(rng.normal(size=(2, 3, *rng.integers(4, 41, 2))) * 4).astype(dtype)  # rounded: with ties

    def pooled(x: Any) -> Any:
        if not last:
            return nn.max_pool2d(x, **given)
        return np.moveaxis(nn.max_pool2d(np.moveaxis(x, 1, -1), data_format="NHWC", **given), -1, 1)

    weights = np.round(rng.normal(size=pooled(x).shape) * 8).astype(dtype)
    step = jg.compile(jg.value_and_grad(lambda x: np.sum(pooled(np.abs(x)) * weights)))
    out, slope = _naive(np.abs(x), weights, **given)
    value, found = step(x)
    np.testing.assert_array_equal(jg.compile(pooled)(np.abs(x)), out)
    np.testing.assert_allclose(found, slope * np.sign(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(value, np.sum(out * weights), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found, step.interpret(x)[1])


@pytest.mark.parametrize("seed", range(8))
def test_means_of_random_windows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    given, last = _windows(rng) | {"count_include_pad": bool(rng.integers(2))}, bool(seed % 2)
    x = rng.normal(size=(2, 9, 21, 3) if last else (2, 3, 9, 21))
    pool = lambda x: nn.avg_pool2d(x, data_format="NHWC" if last else None, **given)  # noqa: E731
    weights = rng.normal(size=pool(x).shape)
    step = jg.compile(jg.value_and_grad(lambda x: np.sum(pool(x) * weights)))
    value, slope = step(x)
    # Linear: the gradient times any x is the value there.
    np.testing.assert_allclose(np.sum(slope * x), value, rtol=1e-10)
    np.testing.assert_allclose(slope, step.interpret(x)[1], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), ((2, 3), 1)])
def test_derivatives_of_pooling(kernel: Any, stride: Any) -> None:
    x = np.random.default_rng(0).permutation(np.linspace(-2.0, 2.0, 2 * 5 * 6)).reshape(1, 2, 5, 6)
    for pool in (nn.max_pool2d, nn.avg_pool2d):
        check_gradients(lambda x, pool=pool: np.sin(pool(x, kernel, stride)), x, order=2)


def test_a_missing_number_has_no_gradient() -> None:
    x = np.array([[[1.0, np.nan, 3.0, -np.inf, -np.inf, -np.inf]]])
    step = jg.value_and_grad(lambda x: np.sum(nn.max_pool1d(x, 2)[..., 1:]))
    for f in (step, jg.compile(step)):
        value, slope = f(x)
        assert value == -np.inf
        np.testing.assert_array_equal(slope, [[[0, 0, 1, 0, 0.5, 0.5]]])


def test_pooling_and_its_mask_are_one_kernel_without_positions() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 12, 28)).astype(np.float32)
    step = jg.compile(jg.value_and_grad(lambda x: np.mean(nn.max_pool2d(nn.relu(x + 1), 2) ** 2)))
    kernels = step.explain(x).kernels
    assert "i2//2" in kernels
    assert "i2*2" in kernels
    assert "status" not in kernels
    threads, results = jg.get_num_threads(), set()
    try:
        for count in (1, 2, 3):
            jg.set_num_threads(count)
            results.add(b"".join(np.asarray(part).tobytes() for part in step(x)))
    finally:
        jg.set_num_threads(threads)
    assert len(results) == 1


# -- what windows hold, behind other moves -----------------------------------------------------------------------------


def _held(x: Tensor, extents: Any, stride: Any, before: Any, back: Any) -> Tensor:
    return apply_one(find("held"), x, first=0, extents=extents, stride=stride, before=before, back=back)


MOVES = {
    "nothing": lambda x: x,
    "a slice": lambda x: x[1:, 2:],
    "every second": lambda x: x[:, ::2],
    "every third, from behind": lambda x: x[::-1, ::-3],
    "turned": lambda x: np.flip(np.transpose(x), 0),
    "padded": lambda x: np.pad(x, ((2, 0), (1, 3))),
    "held": lambda x: _held(x, tuple(2 * n for n in x.shape), (2, 2), (0, 1), (0, 0)),
    "one row": lambda x: x[1],
}


@pytest.mark.parametrize(("before", "behind"), list(itertools.product(MOVES, MOVES)))
def test_held_between_moves(before: str, behind: str) -> None:
    rng = np.random.default_rng(len(before) * len(behind))
    stride = int(rng.integers(1, 4)), int(rng.integers(1, 5))

    def f(x: Any) -> Any:
        moved = MOVES[before](x)
        moved = moved if moved.ndim == 2 else np.expand_dims(moved, 0)
        extents = tuple(n * s + 1 for n, s in zip(moved.shape, stride, strict=True))
        return np.sin(MOVES[behind](_held(moved, extents, stride, (1, 2), (0, 1)) * 2 + 1))

    compiled = jg.compile(jg.value_and_grad(lambda x: np.sum(f(x) ** 2)))
    x = rng.normal(size=(9, 41)).astype(np.float32)
    for found, expected in zip(compiled(x), compiled.interpret(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(jg.compile(f)(x), jg.compile(f).interpret(x), rtol=1e-6, atol=1e-6)
