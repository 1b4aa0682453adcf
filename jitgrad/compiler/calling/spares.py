"""Results that the caller has dropped, given out again, as LLVM IR text; which results are kept is decided elsewhere
(entries.py).

    spare(record)           an array nobody else has, with a reference for the caller; or null
    keep(record, array)     notes a new array in place of the one kept longest

NumPy takes 80 ns to make a small array and let it go: memory by way of a context variable and two named capsules, the
object, its extents. A description keeps the last arrays of each small output, and gives one out again when the only
reference to it is the description's. Whoever can still see its numbers has a reference: variables, containers, views,
buffers, tensors of other libraries. An array that was changed otherwise than in its numbers (shape, strides, dtype,
flags), or that somebody watches through a weak reference, is let go.
"""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.calling.entry_layout import OUTPUT_WORDS, RANK_WORD, SPARES, SPARES_WORD
from jitgrad.compiler.calling.patterns import ALIGNED, C_CONTIGUOUS, OWNS_DATA, WRITEABLE
from jitgrad.compiler.machine.ir_text import (
    BASE,
    COUNT,
    DESCR,
    DIMENSIONS,
    FLAGS,
    RANK,
    STRIDES,
    load,
    load_item,
    load_word,
)

_F_CONTIGUOUS = 0x2
_WEAK_REFERENCES = np.ndarray.__weakrefoffset__
_FRESH_FLAGS = C_CONTIGUOUS | OWNS_DATA | ALIGNED | WRITEABLE


def spares_ir() -> str:
    """The functions."""
    return f"{_is_fresh()}\n{_spare()}\n{_keep()}"


def _is_fresh() -> str:
    """Whether an array is as NumPy would make it now. Contiguous in the other order is what its extents make it."""
    return f"""
define internal i1 @is_fresh(ptr %record, ptr %array) #0 {{
entry:
{load("descr", "%array", DESCR)}
{load_word("dtype", "%record", 2, "ptr")}
  %dtype_ok = icmp eq ptr %descr, %dtype
{load("flags", "%array", FLAGS, "i32")}
  %told = and i32 %flags, {~_F_CONTIGUOUS}
  %flags_ok = icmp eq i32 %told, {_FRESH_FLAGS}
{load("base", "%array", BASE)}
  %baseless = icmp eq ptr %base, null
{load("watchers", "%array", _WEAK_REFERENCES)}
  %unwatched = icmp eq ptr %watchers, null
{load("nd32", "%array", RANK, "i32")}
  %nd = sext i32 %nd32 to i64
{load_word("rank", "%record", RANK_WORD)}
  %rank_ok = icmp eq i64 %nd, %rank
  %ok1 = and i1 %dtype_ok, %flags_ok
  %ok2 = and i1 %baseless, %unwatched
  %ok3 = and i1 %ok1, %rank_ok
  %ok4 = and i1 %ok2, %ok3
{load("dims", "%array", DIMENSIONS)}
{load("strides", "%array", STRIDES)}
  %wanted_dims = getelementptr i64, ptr %record, i64 {OUTPUT_WORDS}
  %wanted_strides = getelementptr i64, ptr %wanted_dims, i64 %rank
  br i1 %ok4, label %axis, label %no
axis:
  %j = phi i64 [ 0, %entry ], [ %j1, %look ]
  %more = icmp slt i64 %j, %rank
  br i1 %more, label %look, label %yes
look:
{load_item("dim", "%dims", "%j", "i64")}
{load_item("wanted_dim", "%wanted_dims", "%j", "i64")}
{load_item("stride", "%strides", "%j", "i64")}
{load_item("wanted_stride", "%wanted_strides", "%j", "i64")}
  %dim_ok = icmp eq i64 %dim, %wanted_dim
  %stride_ok = icmp eq i64 %stride, %wanted_stride
  %both_ok = and i1 %dim_ok, %stride_ok
  %j1 = add i64 %j, 1
  br i1 %both_ok, label %axis, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def _spare() -> str:
    """Of the lower half of a count alone: the upper one is something else in newer CPythons. None, with which places
    begin, has many references.
    """
    return f"""
define internal ptr @spare(ptr %record) #0 {{
entry:
{load_word("places", "%record", SPARES_WORD, "ptr")}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp slt i64 %k, {SPARES}
  br i1 %more, label %look, label %none
look:
{load_item("object", "%places", "%k")}
{load("count", "%object", COUNT, "i32")}
  %alone = icmp eq i32 %count, 1
  br i1 %alone, label %compare, label %next
compare:
  %fresh = call i1 @is_fresh(ptr %record, ptr %object)
  br i1 %fresh, label %take, label %forget
take:
  call void @Py_IncRef(ptr %object)
  ret ptr %object
forget:
  call void @Py_IncRef(ptr @jitgrad_none)
  store ptr @jitgrad_none, ptr %object_at
  call void @Py_DecRef(ptr %object)
  br label %next
next:
  %k1 = add i64 %k, 1
  br label %head
none:
  ret ptr null
}}
"""


def _keep() -> str:
    """The newest stands first: it is looked at first, and its numbers are in the cache."""
    last = SPARES - 1
    return f"""
define internal void @keep(ptr %record, ptr %array) #0 {{
{load_word("places", "%record", SPARES_WORD, "ptr")}
{load_word("oldest", "%places", last, "ptr")}
  %second = getelementptr ptr, ptr %places, i64 1
  call void @llvm.memmove.p0.p0.i64(ptr %second, ptr %places, i64 {8 * last}, i1 false)
  call void @Py_IncRef(ptr %array)
  store ptr %array, ptr %places
  call void @Py_DecRef(ptr %oldest)
  ret void
}}
"""
