"""TensorSpec, the shape and dtype of a value, with broadcasting and promotion as pure functions; no graphs here."""

from __future__ import annotations

import functools
import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.errors import AxisError, DTypeError, ShapeError, layout
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

type_names = {
    "bool": "bool", "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64",
    "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "float16": "f16", "float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128",
}  # fmt: skip

Shape = tuple[int | None, ...]
DType = np.dtype[Any]


@functools.lru_cache(maxsize=256)
def dtype_text(dtype: DType) -> str:
    """The short name used in printed programs: ``f32``, ``i64``, ``bool``."""
    return type_names.get(dtype.name, dtype.name)


@functools.lru_cache(maxsize=256)
def dtype_name(dtype: DType) -> str:
    """NumPy's name, ``float32``, which NumPy itself takes a microsecond to make."""
    return dtype.name


class TensorSpec(NamedTuple):
    """Shape and dtype. ``shape`` is None when the rank is unknown; a dimension is None when its extent is."""

    shape: Shape | None
    dtype: DType

    @property
    def is_known(self) -> bool:
        """Whether every extent is known."""
        return self.shape is not None and None not in self.shape

    @property
    def known_shape(self) -> tuple[int, ...]:
        """The shape, all extents known; ShapeError otherwise."""
        if self.shape is None or None in self.shape:
            raise ShapeError(f"the shape {shape_text(self.shape)} is not fully known here")
        return self.shape  # type: ignore[return-value]

    @property
    def rank(self) -> int | None:
        """Number of dimensions, None when unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.known_shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this spec."""
        return self.size * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{dtype_text(self.dtype)}{shape_text(self.shape)}"


def shape_text(shape: Shape | None) -> str:
    """``[128,?]``, or ``[...]`` for an unknown rank."""
    if shape is None:
        return "[...]"
    return "[" + ",".join("?" if n is None else str(n) for n in shape) + "]"


def native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the byte order of this machine, in which everything computes."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def spec_of(array: npt.NDArray[Any]) -> TensorSpec:
    """The spec of a NumPy array."""
    return TensorSpec(array.shape, array.dtype)


@functools.lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: Shape | None) -> Shape | None:
    """NumPy's broadcasting rule, where an unknown extent gives way to a known one other than 1.

    Raises ShapeError when two known extents differ and neither is 1.
    """
    if any(shape is None for shape in shapes):
        return None
    known = [shape for shape in shapes if shape is not None]
    rank = max(map(len, known), default=0)
    out: list[int | None] = []
    for axis in range(-rank, 0):
        extents = {shape[axis] for shape in known if len(shape) >= -axis}
        sized = extents - {1, None}
        if len(sized) > 1:
            shown = " and ".join(map(shape_text, known))
            raise ShapeError(f"operands could not be broadcast together with shapes {shown}")
        out.append(sized.pop() if sized else (None if None in extents else 1))
    return tuple(out)


def fits(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether an array of a shape can be repeated to fill another, by NumPy's rule."""
    return len(given) <= len(shape) and all(n in (1, m) for n, m in zip(given[::-1], shape[::-1], strict=False))


def is_compatible(a: Shape | None, b: Shape | None) -> bool:
    """Whether two partly known shapes may be the same shape."""
    if a is None or b is None or a == b:
        return True
    return len(a) == len(b) and all(m is None or n is None or m == n for m, n in zip(a, b, strict=True))


def normalize_axis(axis: int, rank: int) -> int:
    """``axis`` counted from the front; ShapeError when out of range, TypeError unless it is an integer."""
    axis = operator.index(axis)
    if not -rank <= axis < rank:
        raise AxisError(f"axis {axis} is out of bounds for an array of dimension {rank}")
    return axis % rank


def normalize_axes(axis: Any, rank: int) -> tuple[int, ...]:
    """Sorted axes counted from the front, of an integer, several, or None for all. ShapeError for repeats and out of
    range.
    """
    if axis is None:
        return tuple(range(rank))
    entries = (axis,) if isinstance(axis, int) or not np.ndim(axis) else tuple(axis)
    axes = tuple(normalize_axis(a, rank) for a in entries)
    if len(set(axes)) != len(axes):
        raise ShapeError(f"repeated axis in {axis}")
    return tuple(sorted(axes))


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """``shape`` with ``axes`` dropped, or kept with extent 1."""
    if keepdims:
        return tuple(1 if axis in axes else n for axis, n in enumerate(shape))
    return tuple(n for axis, n in enumerate(shape) if axis not in axes)


def promote(*dtypes: DType) -> DType:
    """NumPy's result type of arrays of these dtypes (NEP 50)."""
    try:
        return np.result_type(*dtypes)
    except TypeError as error:
        names = " and ".join(dtype.name for dtype in dtypes)
        raise DTypeError(layout(f"no common dtype for {names}", hint="convert one with astype")) from error


def is_inexact(dtype: DType) -> bool:
    """Float or complex: the dtypes that carry gradients."""
    return dtype.kind in "fc"
