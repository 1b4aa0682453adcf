"""Routines of LAPACK and BLAS on stacks of matrices: what NumPy has no function for, or a slower one.

They are those of the library that NumPy has loaded (blas_library.py); SciPy's wrappers of the same routines take 60 ms
and more to import. Microseconds for one float64 matrix of 300 x 300, with as many right sides, two processors:

    cholesky (our own)     180   np.linalg.cholesky     1070
    its gradient (our own) 260   three products          2200
    solve_triangular       640   np.linalg.solve        2660
    of one column (our own) 10   dtrsm                   103
    factor + inverse      1500   np.linalg.inv          2560

The library divides work among its threads, and bits follow how many there are. So its routines run on one from more
than `_ALONE` rows on, and many right sides are shared out among threads of our own (compiler/library_triangles.py).

As in NumPy, float32 and complex64 are computed in double precision. Routines read and write matrices by columns: the
memory of one by rows is its transpose.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any, TypeVar, cast

import numpy as np

from jitgrad import bare
from jitgrad.blas_library import blas_address, lapack_address

Array = np.ndarray[Any, np.dtype[Any]]
Routine = TypeVar("Routine", bound=Callable[..., Any])

DOUBLE = {"f": np.dtype("f8"), "d": np.dtype("f8"), "F": np.dtype("c16"), "D": np.dtype("c16")}
"""The dtypes that there are routines for, by their characters, and what is computed in."""

_ALONE = 32
"""Matrices with more rows or columns are the library's on one thread. Milliseconds with one and with two, for 1000 rows
in float64, two Zen 4 cores: LU factors 22 and 18, eigh 160 and 125, svd 324 and 291, singular values 133 and 135, QR
95 and 121. Products of up to 128 rows have the same bits; other builds may divide smaller ones.
"""
_SMALL = 32
"""Stacks of triangles with fewer rows are solved row by row, all at once. Microseconds for a thousand of 3 and of 31
rows with one right side, on Zen 4: 40 and 640, by np.linalg.solve 150 and 6100.
"""
_ROW, _CALL = 4, 10
"""Microseconds for a row of all triangles of such a stack, and for one triangle by the library."""
_SMALL_CHOLESKY = 80
"""Matrices with fewer rows are as fast in NumPy, when asked from Python. Microseconds there and by our own code, on Zen
4, 9 of these for the call: 48 rows 11 and 15, 64 rows 18 and 17, 96 rows 33 and 21, 128 rows 98 and 33.
"""
_SMALL_STEP, _SMALL_QUESTION = 33, 80
"""From so many rows on factors are our own in clusters (kernels have smaller ones), and one `solve` or `inv` that is
asked from Python. Microseconds of LU factors so, 9 of these for the call, and of np.linalg.solve, on Zen 4: 33 rows 14
and 11, 64 rows 22 and 28, 100 rows 44 and 76, 300 rows 517 and 871, 1000 rows 17,300 and 19,900.
"""
_OWN = {
    "cholesky": (_SMALL_STEP, math.inf), "cholesky_cotangent": (1, math.inf),
    "solve_triangular": (_SMALL, math.inf), "solve_turned": (_SMALL, math.inf), "lu": (_SMALL_STEP, math.inf),
    "lu_solve": (_SMALL, math.inf),
}  # fmt: skip
"""From and up to how many rows routines are our own, solutions with one right side. Milliseconds of a factor by our own
code, by LAPACK on one thread, and by LAPACK on two, whose bits are others, two Zen 4 cores: 1100 rows 5.3, 15.2 and
11.3, 1536 rows 24, 37 and 22, 2048 rows 54, 79 and 45.
"""
_MANY_COLUMNS, _MANY_ELEMENTS = 64, 4096
"""From so many right sides of so many elements on, solutions are our own; they take 25 microseconds by themselves."""
_MOST_ROWS = {"triangle": 1024, "factors": 512}
"""Up to so many rows of one triangle, or of both factors. Microseconds by LAPACK and by our own code, two Zen 4 cores:

    rows, columns   16, 64    16, 20000    64, 2000     128, 200    300, 300     512, 1024     1024, 1024
    triangle        23, 27    5961, 189    305, 130     122, 101    2603, 573    15998, 7969   31991, 26746
    factors         22, 36    16890, 398   1900, 248    279, 202    4634, 1195   30510, 12870  79008, 109997
"""


def on_one_thread(routine: Routine) -> Routine:
    """A routine of the library on stacks of matrices, its first argument: the same bits for any number of threads."""

    @wraps(routine)
    def run(a: Array, *arguments: Any, **settings: Any) -> Any:
        if max(a.shape[-2:]) <= _ALONE:
            return routine(a, *arguments, **settings)
        with _alone(*a.shape[-2:]):
            return routine(a, *arguments, **settings)

    return cast("Routine", run)


def ready(routine: Routine, shape: Sequence[int]) -> Routine:
    """The routine for stacks of matrices of this shape, made for many calls."""
    return cast("Routine", routine.__wrapped__) if max(shape[-2:]) <= _ALONE else routine  # type: ignore[attr-defined]


def _alone(*extents: int) -> AbstractContextManager[None]:
    """The library on one thread, for matrices of such extents."""
    if max(extents, default=0) <= _ALONE:
        return nullcontext()
    from jitgrad.compiler.library_triangles import one_thread

    return one_thread()


det: Callable[..., Any] = on_one_thread(bare.det)
slogdet: Callable[..., Any] = on_one_thread(bare.slogdet)
pinv: Callable[..., Any] = on_one_thread(np.linalg.pinv)
eigh: Callable[..., Any] = on_one_thread(bare.eigh)
eigvalsh: Callable[..., Any] = on_one_thread(bare.eigvalsh)
svd: Callable[..., Any] = on_one_thread(np.linalg.svd)
svdvals: Callable[..., Any] = on_one_thread(bare.svdvals)
reduced_svd: Callable[..., Any] = on_one_thread(bare.svd)
qr: Callable[..., Any] = on_one_thread(bare.qr)
_product: Callable[..., Any] = on_one_thread(np.matmul)
_inv: Callable[..., Any] = on_one_thread(bare.inv)
_solve: Callable[..., Any] = on_one_thread(bare.solve)


def inv(a: Array) -> Array:
    """The inverse of each matrix; of larger ones by our own factors. LinAlgError if one is singular."""
    return inverse_of_factors(*factor(a), a.dtype) if _is_by_factors(a) else np.asarray(_inv(a))


def solve(a: Array, b: Array) -> Array:
    """``x`` [..., n, k] with ``a @ x == b`` for each matrix, likewise."""
    return solve_factored(*factor(a), b, False) if _is_by_factors(a) else np.asarray(_solve(a, b))


def _is_by_factors(a: Array) -> bool:
    """Whether one question about such matrices is answered by factors of our own, or for our threads."""
    is_own = a.shape[-1] >= _SMALL_QUESTION and uses_own("lu", a) and _own_triangles() is not None
    return is_own or _is_shared(a)


def _is_shared(a: Array) -> bool:
    """Whether our threads share in solutions with the factors of such matrices."""
    return a.shape[-1] > _MOST_ROWS["factors"] and a.dtype.kind == "f"


def cholesky(a: Array) -> Array:
    """The lower triangular factor of each matrix, of which the lower triangle is read, with zeros above its diagonal.

    LinAlgError unless all are positive definite.
    """
    if a.shape[-1] < _SMALL_CHOLESKY or a.dtype.char not in "fd" or not a.size:
        return np.asarray(bare.cholesky(a))
    own = _own_cholesky() if uses_own("cholesky", a) else None
    if own is not None:
        factors = [own.cholesky(matrix) for matrix in _each(np.ascontiguousarray(a, np.float64))]
    else:
        factors = [_library_cholesky(matrix) for matrix in _each(np.array(a, np.float64, order="C"))]
    if any(factor is None for factor in factors):
        raise np.linalg.LinAlgError("Matrix is not positive definite")
    return _stacked(factors, a)


@on_one_thread
def _library_cholesky(matrix: Array) -> Array | None:
    """A matrix becomes its lower factor; None: it is not positive definite."""
    n, zero = matrix.shape[0], np.zeros(1)
    if _run("potrf", matrix.dtype, b"U", n, matrix, n):
        return None
    _run("laset", matrix.dtype, b"L", n - 1, n - 1, zero, zero, matrix[0, 1:], n)
    return matrix


def cholesky_cotangent(factor: Array, g: Array) -> Array:
    """The symmetric cotangent of each matrix [..., n, n] from that of its lower factor; of both the lower
    triangle is read. I. Murray, "Differentiation of the Cholesky decomposition", 2016.
    """
    own = _own_cholesky() if uses_own("cholesky_cotangent", factor) else None
    if own is None:
        upper = np.swapaxes(np.tril(factor), -1, -2)
        inner = _product(upper, np.tril(g))
        left = solve_triangular(upper, (np.tril(inner) + np.tril(inner, -1)) * 0.5, False)
        whole = solve_triangular(upper, np.swapaxes(left, -1, -2), False)
        return np.asarray((whole + np.swapaxes(whole, -1, -2)) * 0.5, g.dtype)
    pairs = zip(*(_each(np.ascontiguousarray(x, np.float64)) for x in (factor, g)), strict=True)
    return _stacked([own.cholesky_cotangent(*pair) for pair in pairs], g)


def uses_own(name: str, matrices: Any) -> bool:
    """Whether a routine of this name is our own for matrices of such shape and dtype, on a machine that has code."""
    return matrices.dtype.char in "fd" and 0 not in matrices.shape and has_own_rows(name, matrices.shape[-1])


def has_own_rows(name: str, rows: int) -> bool:
    """Whether a routine of this name is our own for matrices of so many rows."""
    return name in _OWN and _OWN[name][0] <= rows <= _OWN[name][1]


def _own_cholesky() -> Any:
    """The module of our own code; None where there is none for the machine."""
    from jitgrad.compiler import cholesky as own

    return own if _own_triangles() is not None else None


def _own_triangles() -> Any:
    """The same of solutions with one right side."""
    from jitgrad.compiler import triangles as own

    return own if own.lanes() else None


def is_wide(n: int, k: int) -> bool:
    """Whether right sides [n, k] are so many that our own code solves for them."""
    return k >= _MANY_COLUMNS and n * k >= _MANY_ELEMENTS


def fits_columns(are_factors: bool, n: int, k: int) -> bool:
    """Whether our own code solves with factors [n, n], or a triangle, for so many right sides as a step of a cluster;
    smaller systems are a kernel's.
    """
    most = _MOST_ROWS["factors" if are_factors else "triangle"]
    return n > 0 and k > 0 and max(n, k) > _SMALL and (n <= most or k < _MANY_COLUMNS)


def _by_columns(name: str, dtype: np.dtype[Any], n: int, k: int) -> Any:
    """The same of solutions with many right sides: by our own code, or by the library on our threads where that is
    faster.
    """
    if dtype.kind != "f" or not is_wide(n, k):
        return None
    from jitgrad.compiler import columns, library_triangles

    return columns if n <= _MOST_ROWS[name] and columns.width() else library_triangles


def _stacked(made: Sequence[Array | None], like: Array) -> Array:
    """Matrices as a stack of the shape and dtype of another."""
    if like.ndim == 2 and like.size and made[0] is not None:
        return made[0].astype(like.dtype, copy=False)
    return np.array(made, like.dtype).reshape(like.shape)


def solve_triangular(a: Array, b: Array, lower: bool, transposed: bool = False) -> Array:
    """``x`` with ``a @ x == b``, or ``a.T @ x == b``, where only one triangle of ``a`` [..., n, n] is read; ``b`` is
    [..., n, k].

    LinAlgError when there is a zero on a diagonal, TypeError for a dtype that NumPy's linear algebra does not take.
    """
    if a.dtype.char not in DOUBLE:
        raise TypeError(f"array type {a.dtype} is unsupported in linalg")
    n, k = b.shape[-2:]
    _refuse_zeros(a)
    if not b.size:
        return np.empty(b.shape, b.dtype)
    dtype = DOUBLE[a.dtype.char]
    matrices = np.ascontiguousarray(a, dtype)
    is_small = n < _SMALL and _ROW * n < _CALL * math.prod(a.shape[:-2])
    if a.ndim > 2 and is_small and not (is_wide(n, k) and dtype.kind == "f"):
        return _substituted(np.swapaxes(matrices, -1, -2) if transposed else matrices, b, lower != transposed)
    own = _own_triangles() if k == 1 and uses_own("solve_triangular", a) else _by_columns("triangle", dtype, n, k)
    if own is not None:
        pairs = zip(_each(matrices), _each(np.ascontiguousarray(b, dtype)), strict=True)
        return _stacked([own.solve_triangle(*pair, lower, transposed) for pair in pairs], b)
    solved, one = np.array(b, dtype, order="C"), np.ones(1, dtype)
    turned = b"T" if transposed else b"N"
    with _alone(n, k):
        for matrix, x in zip(_each(matrices), _each(solved), strict=True):
            _run("trsm", dtype, b"R", b"U" if lower else b"L", turned, b"N", k, n, one, matrix, n, x, k)
    return solved.astype(b.dtype, copy=False)


def _substituted(triangles: Array, b: Array, lower: bool) -> Array:
    """The solutions [..., n, k], a row of all of them at a time: a NaN or an infinity stays in the rows that depend on
    it, where a factorization with pivots would spread it.
    """
    n = b.shape[-2]
    x = np.array(b, triangles.dtype)
    with np.errstate(all="ignore"):
        for i in range(n) if lower else reversed(range(n)):
            known = slice(0, i) if lower else slice(i + 1, n)
            sums = np.matmul(triangles[..., i, None, known], x[..., known, :])[..., 0, :]
            x[..., i, :] = (x[..., i, :] - sums) / triangles[..., i, i, None]
    return x.astype(b.dtype, copy=False)


# -- factors that several routines share -------------------------------------------------------------------------------


def factor(a: Array) -> tuple[Array, Array]:
    """``P L U`` of each matrix [..., n, n], in double precision: both factors in one matrix, transposed, and the row,
    counted from 1, that was exchanged with each, int64 [..., n]. A singular matrix has zeros on the diagonal of U.
    """
    if uses_own("lu", a) and _own_triangles() is not None:
        from jitgrad.compiler import lu as own

        made = [own.factor(matrix) for matrix in _each(np.ascontiguousarray(a, np.float64))]
        if a.ndim == 2:
            return made[0]
        factors, exchanged = (np.array(part) for part in zip(*made, strict=True))
        return factors.reshape(a.shape), exchanged.reshape(a.shape[:-1])
    return _library_factor(a)


@on_one_thread
def _library_factor(a: Array) -> tuple[Array, Array]:
    """The same by the library."""
    n = a.shape[-1]
    factors = np.array(np.swapaxes(a, -1, -2), DOUBLE[a.dtype.char], order="C")
    exchanged = np.zeros(a.shape[:-1], _integer())
    for matrix, rows in zip(_each(factors), _rows(exchanged), strict=True):
        _run("getrf", factors.dtype, n, n, matrix, n, rows)
    return factors, exchanged.astype(np.int64, copy=False)


def solve_factored(factors: Array, exchanged: Array, b: Array, transposed: bool) -> Array:
    """``x`` with ``a @ x == b``, or ``a.T @ x == b``, for factors of ``a``; ``b`` is [..., n, k].

    LinAlgError if a matrix is singular.
    """
    n, k = b.shape[-2:]
    _refuse_zeros(factors)
    if not b.size:
        return np.empty(b.shape, b.dtype)
    is_vector = k == 1 and uses_own("lu_solve", factors)
    own = _own_triangles() if is_vector else _by_columns("factors", factors.dtype, n, k)
    if own is not None:
        right = np.ascontiguousarray(b, factors.dtype)
        each = zip(_each(factors), _each(exchanged[..., None]), _each(right), strict=True)
        return _stacked([own.solve_factors(lu, rows[:, 0], x, transposed) for lu, rows, x in each], b)
    solved = np.array(np.swapaxes(b, -1, -2), factors.dtype, order="C")
    with _alone(n, k):
        for matrix, rows, x in zip(_each(factors), _rows(exchanged), _each(solved), strict=True):
            _run("getrs", factors.dtype, b"T" if transposed else b"N", n, k, matrix, n, rows, x, n)
    return np.array(np.swapaxes(solved, -1, -2), b.dtype, order="C")


def inverse_of_factors(factors: Array, exchanged: Array, dtype: np.dtype[Any]) -> Array:
    """The inverse of each matrix [..., n, n], in ``dtype``, from its factors. LinAlgError if one is singular."""
    n = factors.shape[-1]
    _refuse_zeros(factors)
    if _is_shared(factors):
        from jitgrad.compiler import library_triangles as shared

        pairs = zip(_each(factors), _each(exchanged[..., None]), strict=True)
        return _stacked([shared.inverse(lu, rows[:, 0]) for lu, rows in pairs], np.empty(factors.shape, dtype))
    own = _by_columns("factors", factors.dtype, n, n)
    if own is not None:
        pairs = zip(_each(factors), _each(exchanged[..., None]), strict=True)
        made = [own.solve_factors(lu, rows[:, 0], np.eye(n), False) for lu, rows in pairs]
        return _stacked(made, np.empty(factors.shape, dtype))
    inverses, space = factors.copy(), np.empty(64 * n, factors.dtype)
    with _alone(n):
        for matrix, rows in zip(_each(inverses), _rows(exchanged), strict=True):
            _run("getri", factors.dtype, n, matrix, n, rows, space, space.size)
    return np.array(np.swapaxes(inverses, -1, -2), dtype, order="C")


def slogdet_of_factors(factors: Array, exchanged: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Sign, in ``dtype``, and logarithm of the absolute value of each determinant, real, both [...] for factors
    [..., n, n]: 0 and -inf of a singular matrix.
    """
    diagonal = np.diagonal(factors, axis1=-2, axis2=-1)
    size = np.abs(diagonal)
    is_odd = np.count_nonzero(exchanged != np.arange(1, factors.shape[-1] + 1), axis=-1) % 2
    with np.errstate(divide="ignore", invalid="ignore"):
        signs = np.where(diagonal < 0, -1.0, 1.0) if diagonal.dtype.kind == "f" else diagonal / size
        sign = np.prod(np.where(size == 0, 0, signs), axis=-1)
        sign, logarithm = np.where(is_odd, -sign, sign), np.sum(np.log(size), axis=-1)
    return sign.astype(dtype), np.asarray(logarithm.astype(np.empty(0, dtype).real.dtype))


def det_of_factors(factors: Array, exchanged: Array, dtype: np.dtype[Any]) -> Array:
    """Each determinant [...], in ``dtype``, from its logarithm as NumPy's: no product of the diagonal overflows on the
    way.
    """
    sign, logarithm = slogdet_of_factors(factors, exchanged, factors.dtype)
    with np.errstate(over="ignore"):
        return np.asarray(sign * np.exp(logarithm), dtype)


# -- calls -------------------------------------------------------------------------------------------------------------


def _each(stack: Array) -> Iterator[Array]:
    """The matrices of a stack in C order, which can be written; none of those without elements."""
    if stack.ndim == 2 and stack.size:
        return iter((stack,))
    return iter(stack.reshape(math.prod(stack.shape[:-2]), *stack.shape[-2:]) if stack.size else ())


def _rows(exchanged: Array) -> Iterator[Array]:
    """The rows exchanged in each matrix of a stack, in the library's integers."""
    return _each(exchanged.astype(_integer(), copy=False)[..., None])


def _refuse_zeros(triangles: Array) -> None:
    if not triangles.diagonal(0, -2, -1).all():
        raise np.linalg.LinAlgError("Singular matrix")


def _run(name: str, dtype: np.dtype[Any], *arguments: bytes | int | Array) -> int:
    """Call a routine with arguments by reference, as Fortran does; gives what it says of its success."""
    info = ctypes.c_int64(0)
    given = [_reference(argument) for argument in arguments]
    lengths = [ctypes.c_size_t(1) for argument in arguments if isinstance(argument, bytes)]
    _routine({"d": "d", "D": "z"}[dtype.char] + name)(*given, ctypes.byref(info), *lengths)
    return info.value


def _reference(argument: bytes | int | Array) -> Any:
    if isinstance(argument, bytes):
        return ctypes.c_char_p(argument)
    if isinstance(argument, int):
        return ctypes.byref(ctypes.c_int64(argument))
    return ctypes.c_void_p(argument.ctypes.data)


@cache
def _routine(name: str) -> Callable[..., None]:
    address = blas_address(name) if name.endswith("trsm") else lapack_address(name)
    return ctypes.CFUNCTYPE(None)(address)


@cache
def _integer() -> np.dtype[Any]:
    """The integers in arrays of the library: of 32 or of 64 bits. It tells by the exchange of two rows."""
    swapped, rows = np.array([[0.0, 1.0], [1.0, 0.0]]), np.zeros(2, np.int64)
    _run("getrf", swapped.dtype, 2, 2, swapped, 2, rows)
    return np.dtype(np.int64 if rows[0] == 2 else np.int32)
