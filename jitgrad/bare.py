"""NumPy's linear algebra and Fourier transforms without what its functions in Python do around the compiled ones: the
same numbers to the bit, and the same errors. What they mean is said by the ops (ops/linalg.py, ops/fourier.py).

Of small arrays that is most of the time. Microseconds by NumPy's functions and so, for one float64 matrix of n rows,
and for n points (Zen 4):

    n          33           64                n          16           128          1024
    solve      9.8, 6.7     25.8, 22.4        rfft       4.0, 1.6     4.4, 1.9     7.8, 5.0
    cholesky   7.6, 5.6     17.9, 15.2

The compiled functions are no part of NumPy's interface: where they are not found, its functions do it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from jitgrad.error_states import IGNORED, State, error_state

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, ...]
Transform = Callable[[Array], Any]


def _found(name: str) -> Any:
    """A module that may not be there."""
    try:
        return import_module(name)
    except ImportError:
        return None


# -- linear algebra ----------------------------------------------------------------------------------------------------

_LINALG = _found("numpy.linalg._umath_linalg")
_DOUBLE = {"f": "d", "d": "d", "F": "D", "D": "D"}
"""The dtypes that NumPy's linear algebra takes, by their characters, and in which it computes."""


def _without_result(what: str) -> State | None:
    """The state in which a matrix without a result raises: compiled functions tell it as an invalid value."""

    def refuse(error: str, flag: int) -> None:
        raise np.linalg.LinAlgError(what)

    return error_state(call=refuse, invalid="call", over="ignore", divide="ignore", under="ignore")


_SINGULAR = _without_result("Singular matrix")
_NOT_DEFINITE = _without_result("Matrix is not positive definite")
_NOT_CONVERGED = _without_result("Eigenvalues did not converge")


def _matrices(name: str, results: str, numpys: Callable[..., Any], state: State | None) -> Callable[..., Any]:
    """A function of stacks of matrices; ``results`` has a letter for each of its results, "d" for a real one and "D"
    for one of the dtype of the matrices. ``state`` holds meanwhile.
    """
    compiled = getattr(_LINALG, name, None)
    if compiled is None or state is None:
        return numpys
    kind = (2 * "D" if name == "solve" else "D") + "->" + results
    signatures = {char: kind.replace("D", double) for char, double in _DOUBLE.items()}
    variable, value = state

    def call(a: Array, *right: Array) -> Any:
        dtype = a.dtype
        signature = signatures.get(dtype.char)
        if signature is None or (right and right[0].dtype != dtype):
            return numpys(a, *right)
        token = variable.set(value)
        try:
            made = compiled(a, *right, signature=signature)
        finally:
            variable.reset(token)
        return made if dtype.char in "dD" else _narrowed(made)

    return call


def _narrowed(made: Any) -> Any:
    """Results of single precision."""
    if type(made) is tuple:
        return tuple(map(_narrowed, made))
    return made.astype(np.complex64 if made.dtype.kind == "c" else np.float32)


solve = _matrices("solve", "D", np.linalg.solve, _SINGULAR)
inv = _matrices("inv", "D", np.linalg.inv, _SINGULAR)
cholesky = _matrices("cholesky_lo", "D", np.linalg.cholesky, _NOT_DEFINITE)
slogdet = _matrices("slogdet", "Dd", np.linalg.slogdet, IGNORED)
det = _matrices("det", "D", np.linalg.det, IGNORED)
_eigh_of_lower = _matrices("eigh_lo", "dD", np.linalg.eigh, _NOT_CONVERGED)
_eigh_of_upper = _matrices("eigh_up", "dD", partial(np.linalg.eigh, UPLO="U"), _NOT_CONVERGED)
_eigvalsh_of_lower = _matrices("eigvalsh_lo", "d", np.linalg.eigvalsh, _NOT_CONVERGED)
_eigvalsh_of_upper = _matrices("eigvalsh_up", "d", partial(np.linalg.eigvalsh, UPLO="U"), _NOT_CONVERGED)
_NO_SINGULAR_VALUES = _without_result("SVD did not converge")
svd = _matrices("svd_s", "DdD", partial(np.linalg.svd, full_matrices=False), _NO_SINGULAR_VALUES)
svdvals = _matrices("svd", "d", partial(np.linalg.svd, compute_uv=False), _NO_SINGULAR_VALUES)


def eigh(a: Array, UPLO: str = "L") -> Any:
    """Eigenvalues and eigenvectors; of a matrix the lower triangle is read, or the upper one."""
    return _eigh_of_lower(a) if UPLO == "L" else _eigh_of_upper(a)


def eigvalsh(a: Array, UPLO: str = "L") -> Any:
    """Eigenvalues alone, by the same triangle."""
    return _eigvalsh_of_lower(a) if UPLO == "L" else _eigvalsh_of_upper(a)


_NO_FACTORS = _without_result("Incorrect argument found while performing QR factorization")


def qr(a: Array) -> Any:
    """The orthogonal factor [..., m, k] and the upper triangular one [..., k, n], k the smaller of m and n."""
    raw, reduced = (getattr(_LINALG, name, None) for name in ("qr_r_raw", "qr_reduced"))
    double = _DOUBLE.get(a.dtype.char)
    if raw is None or reduced is None or double is None or _NO_FACTORS is None:
        return np.linalg.qr(a)
    variable, value = _NO_FACTORS
    work = a.astype(double)
    token = variable.set(value)
    try:
        made = reduced(work, raw(work, signature=f"{double}->{double}"), signature=f"{2 * double}->{double}")
    finally:
        variable.reset(token)
    k, n = min(work.shape[-2:]), work.shape[-1]
    factors = made, np.where(_upper(k, n), work[..., :k, :], _ZERO[double])
    return factors if a.dtype.char in "dD" else _narrowed(factors)


_ZERO = {char: np.zeros((), char) for char in "dD"}


@lru_cache(maxsize=64)
def _upper(k: int, n: int) -> Array:
    """Where the upper triangle of a matrix is."""
    return np.asarray(np.logical_not(np.tri(k, n, -1, dtype=bool)))


# -- Fourier transforms ------------------------------------------------------------------------------------------------
# Along an axis that counts from the end. NumPy's make a new array for the result first, and so do these.

_FOURIER = _found("numpy.fft._pocketfft_umath")
_REAL = {"f": "f", "d": "d", "F": "f", "D": "d"}
_COMPLEX = {"f": "F", "d": "D", "F": "F", "D": "D"}


def fft(x: Array, axis: int, inverse: bool = False) -> Any:
    """The transform, or the inverse one, which divides by the number of points; complex."""
    return ready_fft(x.dtype, x.shape, axis, inverse)(x)


def rfft(x: Array, axis: int, divided: bool = False) -> Any:
    """The transform of real numbers, the first half of the frequencies."""
    return ready_rfft(x.dtype, x.shape, axis, divided)(x)


def irfft(x: Array, n: int, axis: int, divided: bool = False) -> Any:
    """``n`` real numbers by the first half of their frequencies."""
    return ready_irfft(x.dtype, x.shape, n, axis, divided)(x)


def ready_fft(dtype: np.dtype[Any], shape: Shape, axis: int, inverse: bool = False) -> Transform:
    """`fft` of arrays of this dtype and shape, made for many calls."""
    numpys, points = np.fft.ifft if inverse else np.fft.fft, shape[axis]
    made = _transform(numpys.__name__, dtype, shape, points, axis, _COMPLEX, points if inverse else 1)
    return partial(numpys, axis=axis) if made is None else made


def ready_rfft(dtype: np.dtype[Any], shape: Shape, axis: int, divided: bool = False) -> Transform:
    """`rfft`, likewise."""
    n = shape[axis]
    name = "rfft_n_odd" if n % 2 else "rfft_n_even"
    made = _transform(name, dtype, shape, n // 2 + 1, axis, _COMPLEX, n if divided else 1)
    return partial(np.fft.rfft, axis=axis, norm="forward" if divided else "backward") if made is None else made


def ready_irfft(dtype: np.dtype[Any], shape: Shape, n: int, axis: int, divided: bool = False) -> Transform:
    """`irfft`, likewise."""
    made = _transform("irfft", dtype, shape, n, axis, _REAL, n if divided else 1)
    if made is not None:
        return made
    return partial(np.fft.irfft, n=n, axis=axis, norm="backward" if divided else "forward")


LOOPS = {
    "fft": ("fft", "fft"), "ifft": ("ifft", "ifft"), "rfft": ("rfft_n_even", "rfft_n_odd"), "irfft": ("irfft", "irfft"),
}  # fmt: skip
"""NumPy's functions for even and for odd numbers of points."""


@lru_cache
def transform_loops(name: str, char: str = "d") -> tuple[int, ...]:
    """The addresses of the loops over rows of points of a real dtype that NumPy's functions for a transform run, for
    even and odd numbers of points, each with that of its data; none where they are not found. They are as
    `PyUFuncGenericFunction` in NumPy's C interface: arguments, dimensions, steps, data.
    """
    found: list[int] = []
    for function in LOOPS[name]:
        ufunc = getattr(_FOURIER, function, None)
        found += () if ufunc is None else _loop_of(ufunc, (2 * char, char.upper() + char))
    return tuple(found) if len(found) == 2 * len(LOOPS[name]) else ()


_MATRIX_FUNCTIONS = {
    "eigh": ("eigh_up", "eigh_lo"), "eigvalsh": ("eigvalsh_up", "eigvalsh_lo"), "svd": ("svd_s", "svd_s"),
    "svdvals": ("svd", "svd"),
}  # fmt: skip
"""NumPy's functions for matrices of which the upper triangle is read, or the lower one."""


@lru_cache
def matrix_loop(routine: str, lower: bool) -> tuple[int, ...]:
    """The address of the loop over float64 matrices of NumPy's function for a routine, with that of its data, and those
    of the C functions by which it is asked whether it found all results, and first told that nothing has happened; none
    where one of them is not found.
    """
    ufunc = getattr(_LINALG, _MATRIX_FUNCTIONS[routine][lower], None)
    found = () if ufunc is None else _loop_of(ufunc, ("d",))
    try:
        asked = [getattr(ctypes.CDLL(None), name) for name in ("fetestexcept", "feclearexcept")]
    except (AttributeError, OSError, TypeError):
        return ()
    return (*found, *(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in asked)) if found else ()


@lru_cache
def qr_loops() -> tuple[int, ...]:
    """The loops of NumPy's functions that factor matrices in their places, with the scalars of reflections, and that
    make Q of both, each with its data; none where one is not found. They tell of no results that are missing.
    """
    found: list[int] = []
    for name, kind in (("qr_r_raw", "d"), ("qr_reduced", "dd")):
        ufunc = getattr(_LINALG, name, None)
        found += () if ufunc is None else _loop_of(ufunc, (kind,))
    return tuple(found) if len(found) == 4 else ()


def _loop_of(ufunc: np.ufunc, wanted: tuple[str, ...]) -> tuple[int, ...]:
    """The loop for one of the wanted kinds of arguments and its data, out of the head of a `PyUFuncObject`: three
    counts, which are compared, and behind another number the addresses of loops and of their data.
    """
    at, kinds = id(ufunc) + object.__basicsize__, [text.split("->")[0] for text in ufunc.types]
    counts = tuple((ctypes.c_int * 3).from_address(at))
    kind = next((kind for kind in kinds if kind in wanted), None)
    if counts != (ufunc.nin, ufunc.nout, ufunc.nargs) or kind is None:
        return ()
    loops, data = (ctypes.c_void_p * 2).from_address(at + 16)
    number = kinds.index(kind)
    each = [0 if array is None else (ctypes.c_void_p * len(kinds)).from_address(array)[number] or 0
            for array in (loops, data)]  # fmt: skip
    return tuple(each) if each[0] else ()


@lru_cache(maxsize=256)
def _factor(divisor: int, char: str) -> Array:
    """What a result of this precision is multiplied with. NumPy transforms float32 in double precision where that is
    the integer 1, and so do these.
    """
    if divisor == 1 and char == "f":
        return np.asarray(1)
    return np.asarray(np.reciprocal(divisor, dtype=char))


def _transform(
    name: str, dtype: np.dtype[Any], shape: Shape, points: int, axis: int, chars: dict[str, str], divisor: int
) -> Transform | None:
    """The compiled function, which divides its result; None where there is none for a dtype, or no point."""
    compiled, char = getattr(_FOURIER, name, None), dtype.char
    if compiled is None or char not in chars or not shape[axis]:
        return None
    factor, made, empty = _factor(divisor, _REAL[char]), np.dtype(chars[char]), np.empty
    if axis == -1:
        of_rows = (*shape[:-1], points)
        return lambda x: compiled(x, factor, empty(of_rows, made))
    along, axes = (*shape[:axis], points, *shape[axis + 1 :]), [(axis,), (), (axis,)]
    return lambda x: compiled(x, factor, empty(along, made), axes=axes)
