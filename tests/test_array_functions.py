"""NumPy functions that shape, join, index, sort and multiply: traced, they give what NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import jitgrad as jg
from jitgrad.errors import UnsupportedOpError
from jitgrad.graph import Graph, Tensor
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import slice_graph, verify
from jitgrad.spec import spec_of

Array = npt.NDArray[Any]
rng = np.random.default_rng(1)


def r(*shape: int) -> Array:
    """Normal numbers."""
    return rng.normal(size=shape)


def n(*shape: int) -> Array:
    """Integers from 0 to 4."""
    return rng.integers(0, 5, size=shape)


A = r(3, 4, 5)
SMALL = np.arange(-40, 56, 6, np.int8).reshape(4, 4)
up = np.sort(r(6))
HOLES = np.where(r(3, 4) > 0.5, np.nan, r(3, 4))
masks = [np.array([True, False, True, False, False]), np.array([False, True, True, False, False])]


def spd(*shape: int) -> Array:
    """Positive definite matrices."""
    a = r(*shape)
    return a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])


Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def c(name: str, *args: Any, **kwargs: Any) -> Call:
    """A call of the function of that name."""
    return name, args, kwargs


calls: list[Call] = [
    # shapes
    c("transpose", A), c("transpose", A, (1, 0, 2)), c("transpose", A, (-1, 0, 1)), c("swapaxes", A, 0, -1),
    c("moveaxis", A, 0, -1), c("moveaxis", A, (0, 1), (-1, -2)), c("rollaxis", A, 2), c("rollaxis", A, 0, 3),
    c("rollaxis", A, 1, 0), c("matrix_transpose", A), c("expand_dims", A, 0), c("expand_dims", A, (0, -1)),
    c("squeeze", r(1, 3, 1)), c("squeeze", r(1, 3, 1), 0), c("ravel", A), c("ravel", A, "F"),
    c("reshape", A, (5, -1)), c("reshape", A, -1), c("reshape", A, (4, 15), "F"), c("atleast_1d", r()),
    c("atleast_2d", r(3)), c("atleast_2d", r()), c("atleast_3d", r(3)), c("atleast_3d", r(3, 2)),
    c("atleast_3d", r()),
    c("flip", A), c("flip", A, 1), c("flip", A, (0, 2)), c("flipud", A), c("fliplr", A),
    *(c("rot90", r(2, 3), k) for k in range(-1, 5)), c("rot90", A, 1, (1, 2)), c("rot90", A, 3, (2, 0)),
    c("broadcast_to", r(3, 1), (2, 3, 4)), c("broadcast_to", r(), (2,)), c("meshgrid", r(2), r(3)),
    c("meshgrid", r(2), r(3), r(4)), c("meshgrid", r(2), r(3), indexing="ij"),
    c("meshgrid", r(2), r(3), sparse=True),
    # padding
    c("pad", A, 1), c("pad", A, ((1, 2), (0, 0), (3, 0))), c("pad", r(4), (2, 1)),
    c("pad", A, 2, constant_values=3),
    c("pad", A, 1, constant_values=((1, 2), (3, 4), (5, 6))),
    *(c("pad", A, 1, mode=mode) for mode in ("edge", "reflect", "symmetric", "wrap")),
    *(c("pad", r(3), (7, 5), mode=mode) for mode in ("edge", "reflect", "symmetric", "wrap")),
    *(c("pad", A, ((0, 2), (1, 0), (4, 3)), mode=mode) for mode in ("edge", "reflect", "symmetric", "wrap")),
    # joining, splitting, repeating
    c("concatenate", [A, A]), c("concatenate", [A, A[:, :2]], 1), c("concatenate", [A, n(3, 4, 5)], -1),
    c("concatenate", [A, r(2)], None), c("stack", [A, A]), c("stack", [A, A, A], -1), c("stack", [A, A], 1),
    c("vstack", [r(3), r(2, 3)]), c("hstack", [r(3), r(2)]), c("hstack", [A, A]),
    c("dstack", [r(2, 3), r(2, 3)]),
    c("column_stack", [r(3), r(3, 2)]), c("append", A, r(2)), c("append", A, A, 1),
    c("split", A, 3), c("split", A, 2, 1), c("split", A, [1, 2], -1), c("array_split", A, 3, 2),
    c("array_split", A, 7, 2), c("split", A, [3, 1], 2), c("split", A, [2, 9], 2), c("vsplit", A, 3),
    c("hsplit", A, 2), c("dsplit", A, 5), c("hsplit", r(4), 2),
    c("tile", A, 2), c("tile", A, (2, 1, 3)), c("tile", r(3), (2, 2)), c("tile", A, (2, 1, 1, 2)),
    c("tile", A, ()),
    c("repeat", A, 2), c("repeat", A, 3, 1), c("repeat", A, [1, 0, 2], 0), c("repeat", A, 0, 2),
    c("roll", A, 2), c("roll", A, -1, 1), c("roll", A, (1, 2), (0, 2)), c("roll", A, 7, (0, 2)),
    # diagonals, triangles, differences
    c("diagonal", A), c("diagonal", A, 1, 2, 0), c("diagonal", A, -2, 1, 2), c("trace", A), c("diag", r(3)),
    c("diag", r(3), 2), c("diag", r(3), -1), c("diag", r(3, 5), 1), c("diag", r(3, 5), -9),
    c("diagflat", r(2, 2)),
    c("tril", A), c("tril", A, -1), c("triu", A, 1), c("triu", r(3)), c("tril", n(3, 3)),
    c("linalg.diagonal", A),
    c("linalg.trace", A), c("diff", A), c("diff", A, 2, 0), c("diff", r(5) > 0),
    c("diff", r(5), 1, -1, 0.5, 2.0),
    c("ediff1d", A), c("ediff1d", r(4), r(2), r(1)), c("delete", A, 1), c("delete", A, [0, 2], 1),
    c("delete", A, slice(0, 2), -1), c("vander", r(4)), c("vander", r(4), 2, True),
    *(c("vander", x) for x in (SMALL[0], SMALL[0] > 3, SMALL[0].astype(np.uint64), r(3).astype(np.float32))),
    # products and sums of small integers keep their dtype and wrap
    *(
        c(name, *args, **options)
        for small in (SMALL, SMALL.astype(np.uint8), SMALL > 3)
        for name, args, options in (
            ("dot", (small[0], small[1]), {}), ("vdot", (small, small), {}), ("inner", (small, small), {}),
            ("vecdot", (small, small), {}), ("einsum", ("ii->", small), {}),
            ("einsum", ("i,i", small[0], small[1]), {}),
            ("einsum", ("ij->j", small), {}), ("einsum", ("ij,jk->ki", small, small), {}),
            ("einsum", ("ij,jk,kl", small, small, small), {}), ("sum", (small,), {"dtype": np.int8}),
            ("sum", (small,), {"dtype": bool, "axis": 0}), ("prod", (small, 1), {"dtype": small.dtype}),
            ("cumsum", (small,), {"dtype": small.dtype}), ("cumprod", (small, 0), {"dtype": np.int8}),
            ("sum", (small,), {"dtype": np.int8, "initial": 3}),
        )
    ),
    # positions and order
    c("take", A, n(2, 2)), c("take", A, n(2, 2) % 3, 0), c("take", A, np.array(-1), 1),
    c("take", A, n(2, 2) * 3, mode="wrap"), c("take", A, n(2, 2) * 9 - 8, 1, mode="clip"),
    c("take_along_axis", A, n(3, 4, 2), 2), c("take_along_axis", A, n(3, 1, 2), 2),
    c("take_along_axis", A, n(7), None),
    c("compress", [True, False, True], A, 0), c("extract", [True, False, True], r(3)),
    c("bincount", n(9), minlength=5),
    c("bincount", n(9), r(9), minlength=5), c("sort", A), c("sort", A, None), c("argsort", A, 1),
    c("searchsorted", up, r(3, 2)), c("searchsorted", up, 0.3, "right"), c("digitize", r(5), up),
    c("digitize", n(5), [3, 2, 1]), c("digitize", n(5), [3, 2, 1], True), c("interp", r(7) * 3, up, r(6)),
    c("interp", r(7) * 3, up, r(6), -5.0, 5.0), c("choose", n(4) % 3, [r(4), r(4), r(1)]),
    c("select", [r(4) > 0, r(4) > 1], [r(4), r(4)], 3.0),
    c("piecewise", r(5), masks, [1.0, lambda x: x * x, lambda x: -x]),
    # products
    *(
        c("matmul", a, b)
        for a, b in (
            (r(3, 4), r(4, 5)), (r(2, 3, 4), r(4, 5)), (r(2, 3, 4), r(2, 4, 5)), (r(3, 4), r(2, 4, 5)),
            (r(4), r(4, 5)),
            (r(3, 4), r(4)), (r(4), r(4)), (r(2, 3, 4), r(4)), (r(4), r(2, 4, 5)),
            (r(5, 1, 3, 4), r(7, 4, 5)),
            (n(3, 4), n(4, 5)), (n(3, 4), r(4, 5)), (r(3, 4) > 0, r(4, 5) > 0), (r(0, 4), r(4, 5)),
            (r(3, 0), r(0, 5)),
        )
    ),
    c("dot", r(3, 4), r(4, 5)), c("dot", r(4), r(4)), c("dot", n(4), n(4)), c("dot", r(2, 3, 4), r(5, 4, 6)),
    c("dot", r(3), 2.0), c("dot", r(2, 3, 4), r(4)), c("vdot", r(3, 4), r(3, 4)), c("vecdot", r(4, 3), r(3)),
    c("inner", r(2, 3), r(4, 3)), c("inner", r(3), r(3)), c("outer", r(2, 2), r(3)),
    c("tensordot", r(3, 4, 5), r(4, 5, 2)), c("tensordot", r(3, 4, 5), r(4, 3, 2), axes=([1, 0], [0, 1])),
    c("tensordot", r(3, 4, 5), r(2, 5, 4), axes=([1, 2], [2, 1])), c("tensordot", r(3, 4), r(5), axes=0),
    c("kron", r(2, 3), r(4, 5)), c("kron", r(3), r(4, 5)), c("kron", r(2, 1, 3), r(4, 5)),
    c("cross", r(4, 3), r(4, 3)),
    c("cross", r(3), r(5, 3)), c("cross", r(3, 4), r(3, 4), axis=0),
    c("linalg.multi_dot", [r(3), r(3, 4), r(4, 5), r(5)]),
    c("linalg.multi_dot", [r(2, 3), r(3, 40), r(40, 5)]),
    # factorizations
    c("linalg.matrix_power", r(3, 3), 5), c("linalg.matrix_power", r(2, 3, 3), 0),
    c("linalg.matrix_power", r(3, 3), -2),
    c("linalg.inv", r(3, 3)), c("linalg.inv", n(3, 3) + 5 * np.eye(3, dtype=int)),
    c("linalg.solve", r(3, 3), r(3)),
    c("linalg.solve", r(2, 3, 3), r(3, 2)), c("linalg.det", r(3, 3)), c("linalg.det", r(2, 3, 3)),
    c("linalg.slogdet", r(2, 3, 3)), c("linalg.cholesky", spd(2, 3, 3)),
    c("linalg.cholesky", spd(3, 3), upper=True),
    c("linalg.eigh", spd(3, 3)), c("linalg.eigvalsh", spd(3, 3)), c("linalg.svd", r(3, 3)),
    c("linalg.svd", r(3, 4), False),
    c("linalg.svdvals", r(2, 3)), c("linalg.qr", r(4, 3)), c("linalg.qr", r(3, 4)), c("linalg.pinv", r(4, 3)),
    *(c("linalg.norm", r(4, 5), order) for order in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
    *(c("linalg.norm", A, order, (2, 0), True) for order in (None, "nuc", 1, 2, -np.inf)),
    *(c("linalg.norm", r(5), order) for order in (None, 0, 1, 2, 3, -1, np.inf, -np.inf)),
    c("linalg.norm", A), c("linalg.norm", A, axis=1), c("linalg.norm", A, keepdims=True), c("linalg.cond", r(4, 3)),
    # sequences, quantiles and covariances
    *(c("convolve", r(a), r(b), mode) for a, b in ((7, 3), (3, 7), (6, 4), (1, 1))
      for mode in ("full", "same", "valid")),
    *(c("correlate", r(a), r(b), mode) for a, b in ((7, 3), (3, 6), (6, 4)) for mode in ("full", "same", "valid")),
    c("convolve", n(5), r(2)), c("correlate", r(5) + 1j * r(5), r(3) + 1j), c("convolve", n(5), n(2)),
    c("gradient", r(6)), c("gradient", r(6), 0.5), c("gradient", r(6), np.cumsum(r(6) ** 2)),
    c("gradient", A, 2.0, axis=1),
    c("gradient", A), c("gradient", r(2, 3), 0.1, np.array([0.0, 1.0, 3.0])), c("gradient", n(5)),
    c("polyval", [1.0, -2.0, 3.0], A), c("polyval", r(3), r(5)), c("polyval", (2, 1), n(4)),
    *(c("quantile", A, q, axis) for q in (0.3, [0.0, 0.25, 1.0]) for axis in (None, 0, -1, (0, 2))),
    c("quantile", np.array([1.0, np.nan]), 0.5),
    c("percentile", A, 40, axis=1, keepdims=True), c("percentile", n(7), [10, 90]), c("quantile", r(1), 0.7),
    c("cov", r(3, 8)), c("cov", r(8, 3), rowvar=False), c("cov", r(8)), c("cov", r(3, 8), r(8), ddof=0),
    c("cov", n(2, 5)),
    c("corrcoef", r(3, 8)), c("corrcoef", r(8), r(8)), c("corrcoef", r(8)),
    c("insert", r(5), 2, 7.0), c("insert", A, 0, [1.0, 2.0]), c("insert", r(5), [1, 1, 4], r(3)),
    c("insert", r(5), [0, -1], 0),
    c("insert", n(4), slice(0, 4, 2), 9), c("block", [r(2), r(3)]), c("block", [r(2, 3), r(2, 1)]),
    *(c("quantile", A, [0.2, 0.5, 0.9], 1, method=method) for method in (
        "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
        "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest",
    )),
    *(c("quantile", n(7), 0.4, method=method) for method in ("lower", "nearest", "hazen", "closest_observation")),
    c("quantile", r(5).astype(np.float32), [0.2, 0.7]), c("median", A, (0, 2)), c("median", A, (0, -1), keepdims=True),
    *(c(f"nan{name}", HOLES, *args, **kwargs) for name, args, kwargs in (
        ("quantile", (0.3,), {}), ("quantile", ([0.1, 0.8], 1), {"keepdims": True}), ("percentile", (40, 0), {}),
        ("quantile", (0.6, 1), {"method": "weibull"}), ("quantile", (0.6, 0), {"method": "higher"}),
        ("median", (), {}), ("median", (1,), {}), ("median", ((0, 1),), {"keepdims": True}),
        ("argmax", (), {}), ("argmin", (1,), {}), ("argmax", (0,), {"keepdims": True}),
    )),
    c("nanquantile", n(7), 0.3), c("nanmedian", np.array([1.0, np.inf, np.inf])), c("nanargmax", n(7)),
    c("cov", r(3, 8), fweights=n(8) + 1), c("cov", r(3, 8), aweights=r(8) ** 2, bias=True),
    c("cov", r(3, 8), r(8), fweights=n(8) + 1, aweights=r(8) ** 2, ddof=2), c("average", r(3, 4), 1, n(4) + 1),
    c("average", n(3, 4), 1, n(4) + 1, True),
    c("correlate", r(3) + 1j * r(3), r(6) + 1j * r(6), "full"), c("correlate", r(3) + 1j, r(6) - 1j * r(6), "same"),
    c("gradient", r(6), edge_order=2), c("gradient", r(6), np.cumsum(r(6) ** 2), edge_order=2),
    c("gradient", A, 2.0, axis=(0, 2), edge_order=2),
    c("gradient", n(5).astype(np.float32), np.array([0.0, 1.0, 2.0, 4.0, 8.0])),
    c("interp", r(7) * 9, up, r(6), period=1.7), c("interp", r(7) * 9, r(6) * 9, r(6), period=-2.5),
    *(c(name, a, 0, initial=0.5) for name in ("sum", "prod", "max", "min") for a in (n(3, 4), SMALL, SMALL > 0, A)),
    c("sum", n(3, 4).astype(np.float32), 1, initial=np.float64(0.25)), c("max", np.zeros((0, 3), int), 0, initial=2.7),
    # inserting, repeating, padding
    c("insert", A, 1, 5.0, 1), c("insert", A, [0, 2, 2], r(4, 1), -1), c("insert", A, -1, r(4, 5), 0),
    c("insert", A, [1], r(3, 2, 5), 1), c("insert", r(3, 2), slice(0, 2), r(2), 0), c("insert", r(3, 2), [1], 4.0, 1),
    c("insert", A, 2, r(3, 4), 2),
    c("resize", A, (7, 11)), c("resize", A, 5), c("resize", n(4), (0, 3)),
    *(c("pad", x, ((1, 2), (0, 1)), mode=mode, **told) for x in (r(3, 4), SMALL) for mode, told in (
        ("mean", {}), ("maximum", {}), ("minimum", {"stat_length": 2}), ("median", {"stat_length": ((1, 2), (3, 9))}),
        ("linear_ramp", {}), ("linear_ramp", {"end_values": ((1, 2), (3, 4))}), ("reflect", {"reflect_type": "odd"}),
        ("symmetric", {"reflect_type": "odd"}),
    )),
    # positions and membership
    c("unravel_index", n(3, 2), (2, 3)), c("unravel_index", n(4), (5, 2), order="F"),
    c("ravel_multi_index", [n(4), n(4)], (5, 6)), c("ravel_multi_index", [n(4), n(4)], (5, 6), order="F"),
    c("ravel_multi_index", [n(4) * 3, n(4) - 2], (5, 3), mode="wrap"),
    c("ravel_multi_index", [n(4) * 3, n(4) - 2], (5, 3), mode=("clip", "wrap")),
    c("lexsort", [n(9), n(9), n(9)]), c("lexsort", n(3, 4, 5)), c("lexsort", n(3, 4, 5), 0),
    c("isin", n(3, 4), [1, 3]), c("isin", r(5), up, invert=True), c("isin", n(4), np.zeros(0)), c("array_equiv", A, A),
    c("array_equiv", A, A[0]), c("array_equiv", A, r(2)), c("array_equiv", np.broadcast_to(A[0], (3, 4, 5)), A[0]),
    c("real_if_close", A),
    # windows, phases, histograms
    c("lib.stride_tricks.sliding_window_view", r(6), 3),
    c("lib.stride_tricks.sliding_window_view", A, (2, 3), (0, 2)),
    c("lib.stride_tricks.sliding_window_view", A, (1, 2, 5)),
    c("lib.stride_tricks.sliding_window_view", r(9), (3, 2), (0, 0)),
    c("unwrap", r(9) * 9), c("unwrap", A * 9, axis=1, period=2.0), c("unwrap", r(9) * 9, 4.0),
    c("unwrap", n(9), period=4),
    c("unwrap", n(9) * 3, period=5), c("unwrap", r(9).astype(np.float32) * 9), c("unwrap", np.array([0.0, np.pi, 0.0])),
    c("geomspace", np.array(1.0), np.array(9.0), 5), c("geomspace", r(3) ** 2, r(3) ** 2, 4, endpoint=False, axis=1),
    c("geomspace", -r(3) ** 2, -r(3) ** 2, 1), c("geomspace", np.float32(r(2) ** 2), np.float32(r(2) ** 2), 3),
    c("geomspace", np.array(2), np.array(32), 5, dtype=int),
    c("histogram", r(30)), c("histogram", r(30), 4, (-1, 1)), c("histogram", r(30), up), c("histogram", n(30), 5),
    c("histogram", r(30), up, weights=r(30)), c("histogram", r(30), 3, density=True),
    c("histogram", np.ones(4), 2), c("histogram_bin_edges", r(30), 7),
    # polynomials
    c("polyadd", r(3), r(5)), c("polysub", r(5), n(3)), c("polymul", r(3), r(4)), c("polyder", r(5)),
    c("polyder", n(5), 2),
    c("polyder", r(5), 0), c("polyint", r(4)), c("polyint", n(4), 2, [1.0, 2.0]), c("polyint", r(4), 2, 3.0),
    c("polyfit", r(9), r(9), 2), c("polyfit", r(9), r(9, 2), 3), c("polyfit", r(9), n(9), 1, w=r(9) ** 2),
    # singular values
    c("linalg.svd", r(3, 4)), c("linalg.svd", r(2, 4, 3)), c("linalg.pinv", r(4, 3), 1e-9),
    c("linalg.pinv", r(2, 3, 4), rtol=1e-9),
    c("linalg.pinv", np.outer(r(4), r(3)), 1e-9),
    c("linalg.lstsq", r(3, 5), r(3)), c("linalg.lstsq", r(3, 3), r(3)), c("linalg.matrix_rank", r(4, 3)),
    c("linalg.matrix_rank", np.outer(r(4), r(3))), c("linalg.matrix_rank", r(2, 4, 3), 1e-3),
    c("linalg.matrix_rank", r(4)),
    c("linalg.matrix_rank", spd(3, 3), hermitian=True), c("linalg.matrix_rank", r(2, 4, 3), rtol=1e-3),
    *(c("linalg.cond", r(3, 3), p) for p in (2, -2, 1, -1, np.inf, -np.inf, "fro", "nuc")),
    c("linalg.tensorinv", r(4, 2, 2), 1), c("linalg.tensorinv", r(2, 3, 6)),
    c("linalg.tensorsolve", r(2, 3, 6), r(2, 3)),
    c("linalg.tensorsolve", r(6, 2, 3), r(2, 3), (0,)),
    c("vecdot", r(3, 4), r(3, 4), axis=0),
]  # fmt: skip
if hasattr(np, "matvec"):  # since NumPy 2.2; 2.0 rounds quantiles of float32 otherwise
    calls += [c("quantile", r(4, 3).astype(np.float32), 0.4, axis=0)]
    calls += [c("matvec", r(2, 3, 4), r(4)), c("matvec", r(3, 4), r(2, 4)), c("vecmat", r(3), r(2, 3, 4))]
    calls += [c("vecmat", r(3) + 1j, r(3, 4))]

# What gives a result of another shape, or no gradient, where extents are others.
by_extents: list[Call] = [
    c("linalg.lstsq", r(5, 3), r(5)), c("linalg.lstsq", r(5, 3), r(5, 2)), c("linalg.lstsq", n(6, 2), n(6)),
    c("resize", r(0), (2, 2)), c("histogram", r(0), 3),
]  # fmt: skip

contractions = [
    ("ij,jk", (3, 4), (4, 5)), ("ij,jk->ki", (3, 4), (4, 5)), ("ii->i", (3, 3)), ("ii", (3, 3)),
    ("iij->j", (3, 3, 4)),
    ("ij->", (3, 4)), ("ij->ji", (3, 4)), ("ji", (3, 4)), ("i,i", (3,), (3,)), ("i,j", (3,), (4,)),
    ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("...ij,...jk", (2, 1, 3, 4), (6, 4, 5)), ("i...,i...->...", (3, 2), (3, 1)),
    ("ij,jk,kl->il", (3, 4), (4, 5), (5, 6)),
    ("ij,ij->i", (3, 4), (3, 4)), ("ij,ij->ij", (3, 4), (3, 4)), ("iij,jkk->ik", (3, 3, 4), (4, 5, 5)),
    ("ijk,ilm,njm,nlk,abc->", (2, 3, 4), (2, 5, 6), (7, 3, 6), (7, 5, 4), (2, 2, 2)),
    ("ab,bc,ca->", (2, 3), (3, 4), (4, 2)),
    ("ij,j->i", (3, 4), (4,)), ("i,ij->j", (3,), (3, 4)), ("ij,k->", (2, 3), (4,)),
    ("a,ab,abc->abc", (2,), (2, 3), (2, 3, 4)),
    ("ij,jk", (3, 1), (4, 5)), (" i j , j k -> i k ", (3, 4), (4, 5)), ("...,...", (3,), (3,)),
    ("ij,ij,ij->j", (3, 4), (3, 4), (3, 4)), ("ij,jk->ik", (3, 0), (0, 5)),
]  # fmt: skip
calls += [c("einsum", subscripts, *(r(*shape) for shape in shapes)) for subscripts, *shapes in contractions]
calls += [
    c("einsum", r(3, 4), [0, 1], r(4, 5), [1, 2]),
    c("einsum", r(3, 4), [0, 1], r(4, 5), [1, 2], [2, 0]),
]
calls += [c("einsum", r(2, 3, 4), [Ellipsis, 1], [Ellipsis]), c("einsum", "ij,jk->ik", n(3, 4), n(4, 5))]


def traced(value: Any, feeds: dict[Tensor, Array]) -> Any:
    """Arrays, also in lists, as placeholders."""
    if isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        return [traced(item, feeds) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    t = call("placeholder", value.dtype, value.shape)
    feeds[t] = value
    return t


def label(entry: Call) -> str:
    name, args, kwargs = entry
    shown = [getattr(a, "shape", a) if not isinstance(a, list) else len(a) for a in args]
    return f"{name}({', '.join(map(str, [*shown, *kwargs.values()]))})"


@pytest.mark.quick
@pytest.mark.parametrize("entry", [*calls, *by_extents], ids=label)
def test_function_is_numpys(entry: Call) -> None:
    name, args, kwargs = entry
    fn: Any = np
    for part in name.split("."):
        fn = getattr(fn, part)
    expected = fn(*args, **kwargs)
    feeds: dict[Tensor, Array] = {}
    with Graph().as_default():
        out = call(name, *(traced(arg, feeds) for arg in args), **kwargs)
    several = isinstance(expected, list | tuple)
    outputs, wanted = (list(out), list(expected)) if several else ([out], [expected])
    assert [(t.shape, t.dtype) for t in outputs] == [(np.shape(w), np.asarray(w).dtype) for w in wanted]
    program = verify(slice_graph(outputs, {t: spec_of(array) for t, array in feeds.items()}))
    for found, value in zip(interpret(program, list(feeds.values())), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-11, atol=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("name", ["unique", "union1d", "setdiff1d"])
def test_shapes_that_depend_on_values_are_refused_by_name(name: str) -> None:
    with Graph().as_default():
        x = call("placeholder", np.dtype(float), (3,))
        with pytest.raises(UnsupportedOpError, match=rf"(?s){name}.*py_func"):
            call(name, x)


def test_positions_that_numpy_refuses_or_drops() -> None:
    """Indices of reduceat out of bounds; slices of insert beyond the end; what is no number in a histogram."""
    with pytest.raises(IndexError, match=r"from 0 to 5, got \[0, 7\]"):
        jg.compile(lambda a: np.add.reduceat(a, [0, 7]))(np.arange(6.0))
    for wrong in ([[0], [1]], [0.5], 1):
        with pytest.raises(IndexError, match=r"a vector of integers"):
            jg.compile(lambda a, at=wrong: np.add.reduceat(a, at))(np.arange(6.0))
    empty = jg.compile(lambda a: np.add.reduceat(a, []))(np.arange(6.0))
    assert empty.shape == (0,)
    slices = ((1, slice(0, 2), [9.0]), (4, slice(None, None, 2), 5.0), (3, slice(None, None, -1), [1.0, 2, 3]))
    for n, places, values in slices:
        line = np.arange(float(n))
        inserted = jg.compile(lambda a, where=places, v=values: np.insert(a, where, v))(line)
        np.testing.assert_array_equal(inserted, np.insert(line, places, values))
    edges = np.array([-1.0, 0, 1])
    counts, _ = jg.compile(lambda a: np.histogram(a, edges))(np.array([0.5, np.nan, 7.0, -3.0, 1.0]))
    np.testing.assert_array_equal(counts, [0, 2])
