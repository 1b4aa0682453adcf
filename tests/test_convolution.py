"""Convolutions, their transposes and pooling: held against sums over windows written out, compiled and not; layouts,
gradients, errors.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.testing import check_gradients

rng = np.random.default_rng(0)


def windows_of(x: Any, kernel: Any, stride: Any, pads: Any, dilation: Any, fill: float = 0.0) -> Any:
    """(N, C, H, W) as (N, C, oh, ow, kh, kw), one window after another."""
    x = np.pad(x, ((0, 0), (0, 0), *pads), constant_values=fill)
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    counts = [(n - span) // s + 1 for n, span, s in zip(x.shape[2:], spans, stride, strict=True)]
    out = np.empty((*x.shape[:2], *counts, *kernel))
    for i, j in itertools.product(*map(range, counts)):
        y, z = i * stride[0], j * stride[1]
        out[:, :, i, j] = x[:, :, y : y + spans[0] : dilation[0], z : z + spans[1] : dilation[1]]
    return out


def convolved(
    x: Any, w: Any, stride: Any = (1, 1), pads: Any = ((0, 0),) * 2, dilation: Any = (1, 1), groups: int = 1
) -> Any:
    seen = windows_of(x, w.shape[2:], stride, pads, dilation)
    parts = zip(np.split(seen, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("ncyxij,ocij->noyx", s, part) for s, part in parts], 1)


x, w = rng.normal(size=(2, 4, 7, 9)), rng.normal(size=(6, 4, 3, 2))
cases: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"stride": 2}, {"stride": (2, 2)}),
    ({"stride": (1, 3)}, {"stride": (1, 3)}),
    ({"padding": 1}, {"pads": ((1, 1), (1, 1))}),
    ({"padding": (2, 1), "dilation": (1, 2)}, {"pads": ((2, 2), (1, 1)), "dilation": (1, 2)}),
    ({"padding": ((0, 2), (1, 0)), "stride": 2}, {"pads": ((0, 2), (1, 0)), "stride": (2, 2)}),
    ({"padding": "valid", "dilation": 2}, {"dilation": (2, 2)}),
    ({"padding": "same"}, {"pads": ((1, 1), (0, 1))}),
    ({"padding": "same", "stride": 2}, {"pads": ((1, 1), (0, 1)), "stride": (2, 2)}),
    ({"groups": 2, "padding": 1}, {"groups": 2, "pads": ((1, 1), (1, 1))}),
]


@pytest.mark.parametrize(("ours", "theirs"), cases, ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_conv2d(ours: dict[str, Any], theirs: dict[str, Any], last: bool) -> None:
    weight = w[:, : 4 // theirs.get("groups", 1)]
    bias = rng.normal(size=6)

    def f(x: Any, weight: Any, bias: Any) -> Any:
        if not last:
            return nn.conv2d(x, weight, bias, **ours)
        return np.moveaxis(nn.conv2d(np.moveaxis(x, 1, -1), weight, bias, data_format="NHWC", **ours), -1, 1)

    expected = convolved(x, weight, **theirs) + bias[:, None, None]
    np.testing.assert_allclose(f(x, weight, bias), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jg.compile(f)(x, weight, bias), expected, rtol=1e-12, atol=1e-12)

    def loss(x: Any, weight: Any, bias: Any) -> Any:
        return np.sum(np.sin(f(x, weight, bias)))

    slopes = jg.compile(jg.grad(loss, (0, 1, 2)))
    for a, b in zip(slopes(x, weight, bias), slopes.interpret(x, weight, bias), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)


def all_forms() -> dict[str, Any]:
    small, kernel = rng.normal(size=(1, 2, 4, 3)), rng.normal(size=(2, 2, 2, 2))
    line, taps = rng.normal(size=(2, 2, 5)), rng.normal(size=(2, 2, 3))
    own = rng.normal(size=(2, 1, 2, 2))
    return {
        "conv1d": (lambda x, w: nn.conv1d(x, w, padding=1), line, taps),
        "conv1d, stride": (lambda x, w: nn.conv1d(x, w, stride=2, padding="same"), line, taps),
        "conv2d": (lambda x, w: nn.conv2d(x, w, padding=1), small, kernel),
        "conv2d, stride": (lambda x, w: nn.conv2d(x, w, padding=1, stride=2), small, kernel),
        "channel by channel": (lambda x, w: nn.conv2d(x, w, padding=1, groups=2), small, own),
        "channel by channel, stride": (lambda x, w: nn.conv2d(x, w, stride=2, groups=2), small, own),
        "conv_transpose1d": (lambda x, w: nn.conv_transpose1d(x, w, padding=1), line, taps),
        "conv_transpose2d": (lambda x, w: nn.conv_transpose2d(x, w, stride=2, output_padding=1), small, kernel),
        "avg_pool1d": (lambda x: nn.avg_pool1d(x, 2, padding=1), line),
        "avg_pool2d": (lambda x: nn.avg_pool2d(x, 2, 1, padding=1, count_include_pad=False), small),
        "max_pool1d": (lambda x: nn.max_pool1d(x, 2, 1), line),
        "max_pool2d": (lambda x: nn.max_pool2d(x, 2, padding=1), small),
    }


forms = all_forms()


@pytest.mark.quick
@pytest.mark.parametrize("name", forms)
def test_gradients_to_order_two(name: str) -> None:
    f, *arguments = forms[name]
    check_gradients(lambda *xs: np.sum(np.sin(f(*xs))), *arguments, order=2)


@pytest.mark.parametrize("name", forms)
def test_second_derivatives_compiled(name: str) -> None:
    f, *arguments = forms[name]
    product = jg.compile(lambda x, *ws: jg.hvp(lambda x: np.sum(np.sin(f(x, *ws))), x, np.cos(x)))
    np.testing.assert_allclose(product(*arguments), product.interpret(*arguments), rtol=1e-11, atol=1e-12)


# -- the transpose -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
@pytest.mark.parametrize("padding", [0, 1, ((1, 0), (0, 1))])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("last", [False, True])
def test_transpose_is_the_gradient_of_the_convolution(stride: Any, padding: Any, groups: int, last: bool) -> None:
    weight, dense = rng.normal(size=(6, 4 // groups, 3, 2)), rng.normal(size=(2, 4, 8, 7))
    options = {"stride": stride, "padding": padding, "groups": groups}
    out, pull = jg.vjp(lambda x: nn.conv2d(x, weight, **options), dense)
    g = rng.normal(size=out.shape)
    (expected,) = pull(g)
    pairs = padding if isinstance(padding, tuple) else ((padding, padding),) * 2
    steps = np.broadcast_to(stride, 2)
    missing = tuple((n + sum(p) - k) % s for n, p, k, s in zip((8, 7), pairs, (3, 2), steps, strict=True))

    def transposed(g: Any, weight: Any) -> Any:
        if not last:
            return nn.conv_transpose(g, weight, output_padding=missing, **options)
        back = nn.conv_transpose2d(
            np.moveaxis(g, 1, -1), weight, output_padding=missing, data_format="NHWC", **options
        )
        return np.moveaxis(back, -1, 1)

    np.testing.assert_allclose(transposed(g, weight), expected, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(jg.compile(transposed)(g, weight), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.quick
def test_transpose_that_keeps_the_size() -> None:
    out = nn.conv_transpose2d(rng.normal(size=(1, 2, 5, 4)), rng.normal(size=(2, 3, 3, 4)), stride=2, padding="same")
    assert out.shape == (1, 3, 10, 8)


# -- pooling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(2, None, 0), (3, 2, 1), ((2, 3), 1, (1, 0)), (3, 3, "same")]
)
def test_pooling(kernel: Any, stride: Any, padding: Any, compiled: bool, last: bool) -> None:
    sizes = tuple(np.broadcast_to(kernel, 2))
    steps = sizes if stride is None else tuple(np.broadcast_to(stride, 2))
    if padding == "same":
        totals = [max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip(x.shape[2:], steps, sizes, strict=True)]
        pads = [(total // 2, total - total // 2) for total in totals]
    else:
        pads = [(p, p) for p in np.broadcast_to(padding, 2)]

    def pooled(pool: Any) -> Any:
        def f(x: Any) -> Any:
            if not last:
                return pool(x, kernel, stride, padding)
            return np.moveaxis(pool(np.moveaxis(x, 1, -1), kernel, stride, padding, data_format="NHWC"), -1, 1)

        return (jg.compile(f) if compiled else f)(x)

    largest = windows_of(x, sizes, steps, pads, (1, 1), -math.inf).max(axis=(-2, -1))
    np.testing.assert_array_equal(pooled(nn.max_pool2d), largest)
    mean = windows_of(x, sizes, steps, pads, (1, 1)).mean(axis=(-2, -1))
    np.testing.assert_allclose(pooled(nn.avg_pool2d), mean, rtol=1e-12, atol=1e-14)


@pytest.mark.quick
def test_windows_over_the_end() -> None:
    line = np.arange(1.0, 6.0).reshape(1, 1, 5)
    assert nn.max_pool1d(line, 2, ceil_mode=True).tolist() == [[[2, 4, 5]]]
    assert nn.avg_pool1d(line, 2, ceil_mode=True).tolist() == [[[1.5, 3.5, 5]]]
    assert nn.avg_pool1d(line, 2, ceil_mode=True, divisor_override=1).tolist() == [[[3, 7, 5]]]
    assert nn.avg_pool1d(line, 2, padding=1).tolist() == [[[0.5, 2.5, 4.5]]]
    assert nn.avg_pool1d(line, 2, padding=1, count_include_pad=False).tolist() == [[[1, 2.5, 4.5]]]


@pytest.mark.quick
def test_equal_maxima_share() -> None:
    slope = jg.grad(lambda x: np.sum(nn.max_pool2d(x, 2)))(np.ones((1, 2, 2)))
    np.testing.assert_array_equal(slope, np.full((1, 2, 2), 0.25))


# -- everywhere --------------------------------------------------------------------------------------------------------


def test_batch_of_unknown_extent() -> None:
    with jg.Graph().as_default():
        images, weight = jg.placeholder(np.float64, (None, 4, 7, 9)), jg.placeholder(np.float64, (4, 4, 3, 3))
        with jg.jit_scope():
            hidden = nn.max_pool2d(nn.relu(nn.conv2d(images, weight, padding=1)), 2)
            back = nn.conv_transpose2d(hidden, weight, stride=2)
            loss = np.sum(back**2)
        slopes = jg.gradients(loss, [images, weight])
        assert hidden.shape == (None, 4, 3, 4)
        kernel = rng.normal(size=(4, 4, 3, 3))
        for count in (1, 3):
            feeds = {images: x[:1].repeat(count, 0), weight: kernel}
            hidden_, *found = jg.Session().run([hidden, *slopes], feeds)
            assert hidden_.shape == (count, 4, 3, 4)
            one = jg.Session().run(slopes, {images: x[:1], weight: kernel})
            np.testing.assert_allclose(found[1], one[1] * count, rtol=1e-9)


@pytest.mark.quick
def test_one_example_and_integers() -> None:
    assert nn.conv2d(x[0], w).shape == (6, 5, 8)
    assert nn.conv1d(np.arange(5).reshape(1, 5), np.ones((1, 1, 2))).tolist() == [[1, 3, 5, 7]]
    assert nn.max_pool2d(x[0], 2).shape == (4, 3, 4)
    assert nn.conv2d(x.astype(np.float32), w).dtype == np.float32
    eager = nn.conv2d(jg.asarray(x), w)
    np.testing.assert_array_equal(eager.numpy(), nn.conv2d(x, w))


def test_a_convolution_is_one_cluster() -> None:
    layer = jg.compile(lambda x, w: nn.relu(nn.conv2d(x, w, padding=1)))
    explanation = layer.explain(x, w)
    assert explanation.clusters.count("cluster") == 1
    assert "interpreted" not in explanation.clusters


@pytest.mark.quick
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.conv2d(x, w[:, :3]), ValueError, "take 3 channels, got 4"),
        (lambda: nn.conv2d(x, w, groups=3), ValueError, "in 3 groups"),
        (lambda: nn.conv2d(x[0, 0], w), ValueError, "3 or 4 dimensions"),
        (lambda: nn.conv2d(x, w[0]), ValueError, "weights of 4"),
        (lambda: nn.conv2d(x[:, :, :2], w), ValueError, "does not fit"),
        (lambda: nn.conv2d(x, w, np.ones(w.shape[0] + 1)), ValueError, "one number per channel"),
        (lambda: nn.conv2d(x, w, np.ones(1)), ValueError, "one number per channel"),
        (lambda: nn.max_pool2d(x, 2, padding=2), ValueError, "at most half"),
        (lambda: nn.conv2d(x, w, padding="full"), ValueError, "valid"),
        (lambda: nn.conv2d(x, w, padding=(1, 2, 3)), ValueError, "padding must be"),
        (lambda: nn.conv2d(x, w, padding=-1), ValueError, "padding must be"),
        (lambda: nn.conv2d(x, w, stride=0), ValueError, "stride must be"),
        (lambda: nn.conv2d(x, w, dilation=(1, 1, 1)), ValueError, "dilation must be"),
        (lambda: nn.conv2d(x, w, data_format="HWCN"), ValueError, "NCHW, NHWC"),
        (lambda: nn.conv_transpose2d(x, w), ValueError, "take 6 channels, got 4"),
        (lambda: nn.conv_transpose(x, w[0, 0]), ValueError, "3 or 4 dimensions"),
        (lambda: nn.max_pool2d(x, (2, 2, 2)), ValueError, "kernel_size"),
        (lambda: nn.avg_pool2d(x, 2, divisor_override=0), ValueError, "divisor_override"),
    ],
)
def test_errors(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


@pytest.mark.quick
@pytest.mark.parametrize("shape", [(2, 4, None, None), (None, 4, None, 7), (None, None, None, None), None])
def test_images_of_unknown_extents(shape: Any) -> None:
    image, kernel = rng.normal(size=(2, 4, 6, 7)), rng.normal(size=(3, 4, 3, 3))
    layer = lambda x, w: np.sum(nn.max_pool2d(nn.relu(nn.conv2d(x, w, padding=1)), 2) ** 2)  # noqa: E731
    expected = jg.value_and_grad(layer, argnums=(0, 1))(image, kernel)
    for compiled in (False, True):
        with jg.Graph().as_default(), jg.jit_scope(compiled):
            images, weights = jg.placeholder(np.float64, shape), jg.placeholder(np.float64, kernel.shape)
            loss = layer(images, weights)
            slopes = jg.gradients(loss, [images, weights])
            value, grads = jg.Session().run((loss, slopes), {images: image, weights: kernel})
        np.testing.assert_allclose(value, expected[0], rtol=1e-13)
        for ours, reference in zip(grads, expected[1], strict=True):
            np.testing.assert_allclose(ours, reference, rtol=1e-12, atol=1e-12)


def test_another_size_of_images_compiles_nothing() -> None:
    layer = jg.compile(lambda x, w: nn.max_pool2d(nn.relu(nn.conv2d(x, w, padding=1)), 2))
    kernel = rng.normal(size=(4, 3, 3, 3))
    layer(np.zeros((2, 3, 8, 8)), kernel)
    before = layer.cache_info()
    for shape in ((5, 3, 8, 8), (5, 3, 10, 12)):
        layer(np.zeros(shape), kernel)
    after = layer.cache_info()
    assert (after.traces, after.compiles, after.disk_hits) == (3, before.compiles, before.disk_hits)
