"""The table of cases of the ops that move elements, index, multiply and factorize. No checks are here."""

from __future__ import annotations

from cases import Domain, OpCase, apart, case, everything, floats, numbers

# Positive definite, and far from it: matrices at which all factorizations are smooth.
definite = Domain(values=(4.0, 1.0, -0.5, 1.0, 3.0, 0.25, -0.5, 0.25, 2.0))
regular = Domain(values=(2.0, -1.0, 0.5, 0.25, 1.5, -0.75, 1.0, 0.5, -2.5))
tall = Domain(values=(2.0, -1.0, 0.5, 0.25, 1.5, -0.75))
any_float = Domain()

cases: list[OpCase] = [
    # broadcasting
    case("broadcast_to", "f64[3,1]", dtypes=everything, shape=(2, 3, 4)),
    case("broadcast_to", "f64[]", shape=(2, 3)),
    case("broadcast_to", "f64[2,3]", shape=(2, 3)),
    case("broadcast_to", "f64[1,3]", shape=(0, 3)),
    case("broadcast_like", "f64[3,1] f64[2,1,4] f64[4]", dtypes=everything),
    case("sum_to_like", "f64[2,3,4] f64[3,1]"),
    case("sum_to_like", "f64[2,3] f64[]"),
    # other shapes
    case("reshape", "f64[2,6]", dtypes=everything, shape=(3, -1)),
    case("reshape", "f64[2,6]", shape=(2, 2, 3)),
    case("reshape", "f64[0,6]", shape=(3, 0)),
    case("reshape", "f64[1]", shape=()),
    case("reshape_like", "f64[2,6] f64[3,4]", dtypes=everything),
    case("merge_axes", "f64[2,3,4]", dtypes=everything, axis=1),
    case("transpose", "f64[2,3,4]", dtypes=everything, axes=(2, 0, 1)),
    case("transpose", "f64[]", axes=()),
    case("expand_dims", "f64[2,3]", dtypes=everything, axes=(0, 2)),
    case("squeeze", "f64[1,2,1,3]", dtypes=everything, axes=(0, 2)),
    case("flip", "f64[2,3,4]", dtypes=everything, axes=(0, 2)),
    # slices and padding
    case("getslice", "f64[5,6]", dtypes=everything, start=(1, None), stop=(4, -1), step=(1, 2), drop=()),
    case("getslice", "f64[5,6]", start=(None, 4), stop=(None, None), step=(-1, -2), drop=()),
    case("getslice", "f64[5,6,2]", start=(3, -2, None), stop=(4, -1, None), step=(1, 1, 1), drop=(0, 1)),
    case("getslice", "f64[5]", start=(4,), stop=(2,), step=(1,), drop=()),
    case(
        "unslice",
        "f64[2,3]",
        dtypes=everything,
        shape=(5, 4),
        start=(1, 0),
        stop=(3, 3),
        step=(1, 1),
        drop=(),
    ),
    case("unslice", "f64[2]", shape=(5, 3, 4), start=(3, 0, 1), stop=(1, 1, 2), step=(-1, 1, 1), drop=(1, 2)),
    case("unslice", "f64[3] f64[5]", shape=None, start=(None,), stop=(1,), step=(-1,), drop=()),
    # what windows hold
    case("held", "f64[3,2]", dtypes=everything, first=0, extents=(7, 5), stride=(2, 3), before=(1, 0), back=(0, 0)),
    case("held", "f64[2,3,4]", first=1, extents=(5, 9), stride=(2, 2), before=(1, 2), back=(1, 0)),
    case("held", "f64[2,40]", first=1, extents=(163,), stride=(4,), before=(3,), back=(0,)),
    case("largest_of_windows", "f64[2] f64[4] f64[2] f64[2]", apart, order=0, first=0, extents=(4,), kernel=(2,),
         stride=(2,), before=(0,)),
    case("total_of_windows", "f64[2] f64[4]", order=0, first=0, extents=(4,), kernel=(2,), stride=(2,), before=(0,)),
    case(
        "unslice_strided",
        "f64[3] f64[6]",
        dtypes=everything,
        shape=None,
        start=(None,),
        stop=(None,),
        step=(-2,),
        drop=(),
    ),
    case("pad", "f64[2,3]", dtypes=everything, pad_width=((1, 2), (0, 3)), fill=0),
    case("pad", "f64[2,3]", pad_width=((0, 0), (2, 0)), fill=1.5),
    case("pad", "f64[0]", pad_width=((1, 1),), fill=2.0),
    # joining and splitting
    case("concatenate", "f64[2,3] f64[2,1] f64[2,0]", dtypes=everything, axis=1),
    case("concatenate", "f64[4]", axis=0),
    case("split_like", "f64[5,2] f64[2,2] f64[3,2]", dtypes=everything, axis=0),
    case("split_like", "f64[5] f64[5]", axis=0),
    case("stack", "f64[2,3] f64[2,3] f64[2,3]", dtypes=everything, axis=1),
    case("split", "f64[5,3]", dtypes=everything, axis=0, at=(1, 3)),
    case("split", "f64[5]", axis=0, at=(3, 1)),
    case("split", "f64[3]", axis=0, at=(2, 7)),
    # diagonals
    case("diagonal", "f64[3,4]", dtypes=everything, offset=0, axis1=0, axis2=1),
    case("diagonal", "f64[3,2,4]", offset=-1, axis1=2, axis2=0),
    # positions
    case("take", "f64[3,4] i64[2,2]", [any_float, (-4, 3)], dtypes=everything, axis=1),
    case("take", "f64[3,4] i64[]", [any_float, (-3, 2)], axis=0),
    case("read_element", "f64[3,4] i64[2]", [any_float, (-3, 2)], axis=0),
    case(
        "scatter_take",
        "f64[3,4] f64[3,2,2] i64[2,2]",
        [any_float, any_float, (-4, 3)],
        dtypes=numbers,
        axis=1,
    ),
    case("scatter_take", "f64[3,2] f64[5,2] i64[5]", [any_float, any_float, (0, 1)], axis=0),
    case(
        "index", "f64[2,3,4,2] i64[5] i64[5]", [any_float, (-3, 2), (-4, 3)], dtypes=everything, axes=(1, 2)
    ),
    case("index", "f64[3,4] i64[] i64[]", [any_float, (-3, 2), (-4, 3)], axes=(0, 1)),
    case(
        "scatter_index",
        "f64[2,3,4] f64[2,5] i64[5] i64[5]",
        [any_float, any_float, (0, 1), (-1, 0)],
        dtypes=numbers,
        axes=(1, 2),
    ),
    case("update", "f64[3,4] f64[4] i64[]", [any_float, any_float, (-1, 2)], dtypes=everything, axes=(0,),
         known=(None,)),
    case("update", "f64[2,3,4,2] f64[2,2] i64[]", [any_float, any_float, (-1, 11)], axes=(1, 2), known=(None, None)),
    case("take_along_axis", "f64[2,3] i64[2,5]", [any_float, (-3, 2)], dtypes=everything, axis=1),
    case(
        "scatter_take_along_axis",
        "f64[2,3] f64[2,5] i64[2,5]",
        [any_float, any_float, (0, 1)],
        dtypes=numbers,
        axis=1,
    ),
    *(
        case(
            name,
            "f64[2,3,4] f64[2,5] i64[5] i64[5]",
            [any_float, any_float, (0, 1), (-1, 0)],
            dtypes=numbers,
            axes=(1, 2),
        )
        for name in ("maximum_at", "minimum_at")
    ),
    case("last_writer", "i64[6] i64[6]", (-3, 2), dtypes="", extents=(3, 4)),
    # order and search
    case("sort", "f64[3,4]", apart, dtypes=everything, axis=0),
    case("argsort", "f64[3,4]", apart, dtypes=everything, axis=1),
    case("searchsorted", "f64[4] f64[2,3]", [Domain(values=(-1.0, 0.0, 0.5, 1.0)), any_float], side="right"),
    # products and factorizations
    *(
        case("matmul", specs, dtypes=everything, transpose_a=ta, transpose_b=tb)
        for specs, ta, tb in (
            ("f64[2,3] f64[3,4]", False, False),
            ("f64[3,2] f64[3,4]", True, False),
            ("f64[2,3] f64[4,3]", False, True),
            ("f64[3,2] f64[4,3]", True, True),
            ("f64[2,2,3] f64[2,3,4]", False, False),
            ("f64[5,2,3,2] f64[5,2,4,3]", True, True),
        )
    ),
    case("matmul", "f64[2,0] f64[0,4]", transpose_a=False, transpose_b=False),
    *(
        case(name, specs, dtypes=floats, padding=padding, dilation=dilation, **kernel)
        for padding, dilation, counts in ((((0, 1), (1, 1)), (1, 1), "4,5"), (((2, 0), (0, 1)), (2, 1), "4,4"))
        for name, specs, kernel in (
            ("convolve_windows", "f64[2,3,4,5] f64[2,3,2,3]", {}),
            ("convolve_filters", f"f64[2,3,4,5] f64[2,2,{counts}]", {"kernel": (2, 3)}),
        )
    ),
    case("inv", "f64[3,3]", regular, dtypes=floats),
    case("solve", "f64[3,3] f64[3,2]", [regular, any_float], dtypes=floats),
    case("solve", "f64[2,3,3] f64[2,3,1]", [regular, any_float], dtypes=floats),
    case("solve_triangular", "f64[3,3] f64[3,2]", [regular, any_float], dtypes=floats, lower=True),
    case("solve_triangular", "f64[3,3] f64[3,2]", [regular, any_float], dtypes=floats, lower=False),
    case("det", "f64[3,3]", regular, dtypes=floats),
    case("det", "f64[2,2,2]", regular, dtypes=floats),
    case("slogdet", "f64[3,3]", regular, dtypes=floats),
    case("svd", "f64[3,3]", regular, dtypes=floats),
    case("svd", "f64[3,2]", tall, dtypes=floats),
    case("svd", "f64[2,3]", tall, dtypes=floats),
    case("svdvals", "f64[3,2]", tall, dtypes=floats),
    case("svdvals", "f64[2,3]", tall, dtypes=floats),
    case("svd_full", "f64[3,2]", tall, dtypes=floats),
    case("svd_full", "f64[2,3]", tall, dtypes=floats),
    case("pinv", "f64[3,2]", tall, dtypes=floats, rcond=1e-6),
    case("pinv", "f64[2,3]", tall, dtypes=floats, rcond=1e-6),
    case("pinv", "f64[3,3]", regular, dtypes=floats, rcond=1e-6),
    case("qr", "f64[3,3]", regular, dtypes=floats),
    case("qr", "f64[3,2]", tall, dtypes=floats),
    case("qr", "f64[2,4]", Domain(values=(2.0, 0.3, -1.0, 0.7, 0.4, 1.5, 0.8, -0.6)), dtypes=floats),
    # The gradients of these hold for symmetric changes only: test_linalg.py has them.
    case("cholesky", "f64[3,3]", definite, dtypes=floats, order=0),
    case("eigh", "f64[3,3]", definite, dtypes=floats, order=0, UPLO="L"),
    case("eigvalsh", "f64[3,3]", definite, dtypes=floats, order=0, UPLO="L"),
    case("cholesky_cotangent", "f64[3,3] f64[3,3]", [definite, any_float], dtypes=floats),
]
