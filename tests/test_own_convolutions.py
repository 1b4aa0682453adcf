"""Our own convolutions as steps, against sums over windows: odd sizes, bands, parts, bits; and where products serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from step_kernels import Call

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler.driver.runtime import runtime
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.products import conv
from jitgrad.compiler.products.conv import ConvPlan, Geometry
from jitgrad.compiler.products.conv_steps import convolution_steps
from jitgrad.compiler.simplify import simplify
from jitgrad.interpreter import interpret
from tests.processors import needs_registers

TOLERANCE = {"float32": 3e-6, "float64": 1e-14}
Pads = tuple[tuple[int, int], tuple[int, int]]
# Examples, channels, results, extents, window, distances, padding.
CASES: tuple[tuple[int, int, int, tuple[int, int], tuple[int, int], tuple[int, int], Pads], ...] = (
    (32, 16, 16, (28, 28), (3, 3), (1, 1), ((1, 1), (1, 1))),
    (2, 3, 5, (9, 7), (3, 2), (1, 1), ((1, 0), (1, 1))),
    (1, 40, 21, (17, 33), (3, 3), (2, 1), ((2, 1), (0, 2))),
    (3, 130, 70, (8, 8), (3, 3), (1, 1), ((1, 1), (1, 1))),
    (1, 3, 8, (200, 130), (5, 5), (1, 1), ((2, 2), (2, 2))),
    (2, 1, 1, (1, 500), (1, 9), (1, 1), ((0, 0), (8, 8))),
    (2, 7, 9, (5, 5), (3, 3), (2, 2), ((4, 4), (4, 4))),
    (1, 1, 1, (2, 2), (2, 2), (1, 1), ((0, 0), (0, 0))),
)


def geometry(case: Any) -> Geometry:
    n, c, o, size, kernel, gaps, pads = case
    out = tuple(s + sum(p) - (k - 1) * d for s, p, k, d in zip(size, pads, kernel, gaps, strict=True))
    return Geometry(n, c, o, size, (out[0], out[1]), kernel, gaps, (pads[0][0], pads[1][0]))


def arrays(g: Geometry, dtype: str) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """An image, weights, and an element for each window."""
    rng = np.random.default_rng(0)
    shapes = (g.n, g.channels, *g.size), (g.outputs, g.channels, *g.kernel), (g.n, g.outputs, *g.out)
    x, w, y = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return x, w, y


def _memory(nbytes: int) -> NDArray[Any]:
    raw = np.full(nbytes + 64, 255, np.uint8)
    return raw[-raw.ctypes.data % 64 :]


def run(form: str, g: Geometry, a: NDArray[Any], b: NDArray[Any], shape: Any, threads: int = 2) -> NDArray[Any]:
    plan: ConvPlan = (conv.plan_windows if form == "windows" else conv.plan_filters)(a.dtype, g)
    out = np.full(shape, np.nan, a.dtype)
    kept = [a, b, out, _memory(plan.worker_bytes * threads), _memory(plan.parts_bytes)]
    kept = kept if form == "filters" else kept[:4]
    steps = convolution_steps(a.dtype, form, dict(plan.words), plan.cells, plan.chunks, range(len(kept)))
    call = Call(kept, [(s.address, s.block, s.extent, s.nchunks) for s in steps])
    runtime().run_steps(*call.arguments, 0, threads, 0)
    return out


def seen(x: NDArray[Any], g: Geometry, pads: Pads) -> NDArray[Any]:
    wide = np.pad(x.astype(float), ((0, 0), (0, 0), *pads))
    reach = g.halo
    return sliding_window_view(wide, (reach[0] + 1, reach[1] + 1), axis=(2, 3))[..., :: g.gaps[0], :: g.gaps[1]]


@needs_registers
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_over_windows(case: Any, dtype: str) -> None:
    check(case, dtype)


@needs_registers
@pytest.mark.parametrize("pads", [(2, 2), (0, 3), (3, 0), (1, 2)], ids=str)
@pytest.mark.parametrize("widths", [range(1, 20), range(29, 36)], ids=str)
def test_rows_share_the_zeros_between_them(widths: range, pads: tuple[int, int]) -> None:
    for width in widths:
        check((2, 3, 4, (3, width), (3, 4), (1, 1), ((1, 1), pads)), "float32")


def check(case: Any, dtype: str) -> None:
    """Both steps against sums over windows, each element within what its terms allow."""
    g = geometry(case)
    x, w, y = arrays(g, dtype)
    windows = seen(x, g, case[-1])
    for form, b, other, spec in (("windows", w, w, "ncyxij,ocij->noyx"), ("filters", y, y, "ncyxij,noyx->ocij")):
        expected = np.einsum(spec, windows, other.astype(float), optimize=True)
        most = np.einsum(spec, np.abs(windows), np.abs(other.astype(float)), optimize=True)
        found = run(form, g, x, b, expected.shape)
        assert (np.abs(found - expected) <= TOLERANCE[dtype] * most + 1e-30).all(), form


@needs_registers
@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_bits_do_not_depend_on_threads(case: Any) -> None:
    g = geometry(case)
    x, w, y = arrays(g, "float32")
    for form, b, shape in (("windows", w, y.shape), ("filters", y, w.shape)):
        assert len({run(form, g, x, b, shape, threads).tobytes() for threads in (1, 2, 3)}) == 1


@needs_registers
def test_nan_and_infinity_reach_their_windows_only() -> None:
    g = geometry((1, 2, 3, (6, 20), (3, 3), (1, 1), ((1, 1), (1, 1))))
    x, w, y = (np.ones_like(a) for a in arrays(g, "float32"))
    x[0, 0, 0, 0], x[0, 1, 5, 19] = np.nan, np.inf
    out = run("windows", g, x, w, y.shape)
    expected = np.einsum("ncyxij,ocij->noyx", seen(x, g, ((1, 1), (1, 1))), w)
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(out).sum() == 3 * 4
    y[0, 1, 2, 2] = np.nan
    filters = run("filters", g, np.ones_like(x), y, w.shape)
    assert np.isnan(filters[1]).all()
    assert np.isfinite(filters[::2]).all()


@pytest.mark.parametrize("lanes", [32, 64])
def test_plans_depend_on_sizes_alone_and_stay_small(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    monkeypatch.setattr(compilation, "has_fma", lambda: True)
    monkeypatch.setattr(compilation, "vector_bytes", lambda: lanes)
    large = Geometry(1, 64, 64, (224, 224), (224, 224), (3, 3), (1, 1), (1, 1))
    for plan in (conv.plan_windows(np.dtype("f4"), large), conv.plan_filters(np.dtype("f4"), large)):
        assert plan.cells > (8 if lanes == 64 else 7)
        assert plan.worker_bytes < 1_000_000
    many = Geometry(256, 16, 16, (28, 28), (28, 28), (3, 3), (1, 1), (1, 1))
    assert conv.plan_filters(np.dtype("f4"), many).chunks == 16
    assert dict(conv.plan_windows(np.dtype("f4"), many).words)["bands"] == 1


def layer(x: Any, w: Any) -> Any:
    return np.sum(np.sin(nn.conv2d(x, w, padding=1)))


def _names(f: Any, *args: Any) -> list[str]:
    (stage, given), *_ = f.stages(*args)
    steps = stage.executable(given).bound.steps
    return [name for step in steps if isinstance(step, BoundCluster) for name in step.names]


@needs_registers
def test_value_and_gradients_are_three_steps() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((4, 8, 9, 9)), rng.standard_normal((5, 8, 3, 3))
    f = jg.compile(jg.value_and_grad(layer, (0, 1)))
    value, slopes = f(x, w)
    expected, expected_slopes = f.interpret(x, w)
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    for a, b in zip(slopes, expected_slopes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12)
    names = [name.split("_")[0] for name in _names(f, x, w)]
    assert (names.count("windows"), names.count("filters"), names.count("product")) == (2, 1, 0)
    assert "3 convolutions" in f.explain(x, w).fusion


@pytest.mark.parametrize("lanes", [16, 32, 64])
def test_what_products_serve_for(monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
    """Where registers are short, or tiles would be empty, convolutions become products; the values are the same."""
    rng = np.random.default_rng(2)
    for channels, is_filled in ((16, lanes > 16), (3, lanes == 32), (1, False)):
        x, w = rng.standard_normal((2, channels, 6, 7)), rng.standard_normal((8, channels, 3, 2))
        f = jg.compile(jg.grad(lambda x, w: np.sum(np.sin(nn.conv2d(x, w, padding=1))), (0, 1)))
        (stage, given), *_ = f.stages(x.astype("f4"), w.astype("f4"))
        program = stage.executable(given).source
        with monkeypatch.context() as patch:
            patch.setattr(compilation, "has_fma", lambda: True)
            patch.setattr(compilation, "vector_bytes", lambda: lanes)
            simple = simplify(program)
        ops = [ins.op.name for ins in simple.instructions]
        assert ops.count("convolve_windows") == (2 if lanes > 16 else 0)
        assert ops.count("convolve_filters") == is_filled
        for a, b in zip(interpret(simple, given), interpret(program, given), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch", [1, 0])
def test_nothing_to_sum(batch: int) -> None:
    x, w = np.ones((batch, 2, 4, 4), "f4"), np.ones((0 if batch else 3, 2, 3, 3), "f4")
    f = jg.compile(jg.grad(layer, (0, 1)))
    for a, b in zip(f(x, w), f.interpret(x, w), strict=True):
        np.testing.assert_array_equal(a, b)


def test_derivatives_in_all_directions_at_once_are_convolutions() -> None:
    """Jacobians fold the directions into examples or channels."""
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 2, 3, 4)), rng.standard_normal((3, 2, 2, 2))
    for argument in (0, 1):
        for derivative in (jg.jacrev, jg.jacfwd):
            f = jg.compile(derivative(lambda x, w: np.sin(nn.conv2d(x, w, padding=1)), argument))
            np.testing.assert_allclose(f(x, w), f.interpret(x, w), rtol=1e-11, atol=1e-12)
            assert "batched_" not in f.explain(x, w).program
    hessian = jg.compile(jg.hessian(layer, (0, 1)))
    for a, b in zip(hessian(x, w), hessian.interpret(x, w), strict=True):
        for c, d in zip(a, b, strict=True):
            np.testing.assert_allclose(c, d, rtol=1e-11, atol=1e-12)
