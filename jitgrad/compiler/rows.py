"""Rows added to a table in place, or subtracted, by machine code: a row given several times in the order given.

NumPy's ``ufunc.at`` does so element by element of an index that it takes apart. These are the same operations in the
same order, so the same bits, a row at a time on vectors of lanes. No thread shares the work: two might meet in a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from jitgrad.compiler.machine.cache import compile_cached

Array = np.ndarray[Any, Any]
_LANES = 8
_KINDS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
_OPERATIONS = {"add": "fadd", "subtract": "fsub"}


def change_rows(how: str, table: Array, values: Array, rows: Array) -> bool:
    """Add ("add") or subtract ``values[k]`` to the row ``rows[k]`` of ``table``, k after k; False where there is no
    code for the dtype, and nothing is done. The arrays are C-contiguous, rows int64 and inside the table.
    """
    kind = _KINDS.get(table.dtype)
    if kind is None or how not in _OPERATIONS:
        return False
    width = table.size // table.shape[0]
    _function(how, kind)(table.ctypes.data, values.ctypes.data, rows.ctypes.data, rows.size, width)
    return True


@cache
def _function(how: str, kind: str) -> Callable[..., None]:
    names = [_name(how, kind) for how in _OPERATIONS for kind in _KINDS.values()]
    code = compile_cached("rows", rows_ir, names)
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, pointer, pointer, pointer, number, number)(code[_name(how, kind)])


def _name(how: str, kind: str) -> str:
    return f"jitgrad_rows_{how}_{kind}"


def rows_ir() -> str:
    """A function for each operation and kind of number: (table, values, rows, count of rows, width of a row)."""
    parts = [_rows(how, kind) for how in _OPERATIONS for kind in _KINDS.values()]
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\n"


def _rows(how: str, kind: str) -> str:
    lanes, size = f"<{_LANES} x {kind}>", 4 if kind == "float" else 8
    return f"""
define void @{_name(how, kind)}(ptr %table, ptr %values, ptr %rows, i64 %count, i64 %width) #0 {{
entry:
  %whole = and i64 %width, {-_LANES}
  %some = icmp sgt i64 %count, 0
  br i1 %some, label %row, label %done
row:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %place = getelementptr i64, ptr %rows, i64 %k
  %at = load i64, ptr %place, align 8
  %to = mul i64 %at, %width
  %from = mul i64 %k, %width
  %target = getelementptr {kind}, ptr %table, i64 %to
  %source = getelementptr {kind}, ptr %values, i64 %from
  %wide = icmp sgt i64 %whole, 0
  br i1 %wide, label %vector, label %rest
{_elements("vector", "rest", lanes, kind, size, _LANES, "row", "0", "%whole", _OPERATIONS[how])}
rest:
  %left = icmp slt i64 %whole, %width
  br i1 %left, label %single, label %next
{_elements("single", "next", kind, kind, size, 1, "rest", "%whole", "%width", _OPERATIONS[how])}
next:
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %count
  br i1 %more, label %row, label %done
done:
  ret void
}}
"""


def _elements(
    block: str, after: str, kind: str, element: str, size: int, step: int, before: str, first: str, last: str, do: str
) -> str:
    """A loop over elements of a row, so many at a time."""
    return f"""{block}:
  %i_{block} = phi i64 [ {first}, %{before} ], [ %i1_{block}, %{block} ]
  %t_{block} = getelementptr {element}, ptr %target, i64 %i_{block}
  %s_{block} = getelementptr {element}, ptr %source, i64 %i_{block}
  %x_{block} = load {kind}, ptr %t_{block}, align {size}
  %y_{block} = load {kind}, ptr %s_{block}, align {size}
  %z_{block} = {do} {kind} %x_{block}, %y_{block}
  store {kind} %z_{block}, ptr %t_{block}, align {size}
  %i1_{block} = add i64 %i_{block}, {step}
  %more_{block} = icmp slt i64 %i1_{block}, {last}
  br i1 %more_{block}, label %{block}, label %{after}"""
