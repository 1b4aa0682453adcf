"""Rows of an array changed in place at positions that may repeat, as ``ufunc.at`` does it, faster; no op is here."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_MANY = 1 << 12  # from here on machine code is called, which is loaded at the first call
_AT_ONCE = 1 << 16  # so many positions of elements are made at a time


def change_rows(change: np.ufunc, table: Array, rows: Array, values: Array) -> None:
    """As ``change.at(table, rows, values)`` for ``np.add`` and ``np.subtract``, C-contiguous arrays of one dtype, with
    the same bits: a row that is given several times is changed so often, in the order given. IndexError for a row that
    the table does not have.
    """
    rows, values = rows.reshape(-1).astype(np.int64, copy=False), np.ascontiguousarray(values)
    extent = table.shape[0]
    if not values.size:
        return
    low, high = rows.min(), rows.max()
    if low < -extent or high >= extent:
        raise IndexError(f"index {low if low < -extent else high} is out of bounds for axis 0 with size {extent}")
    rows = np.ascontiguousarray(np.where(rows < 0, rows + extent, rows) if low < 0 else rows)
    if values.size < _MANY or not _by_machine_code(change.__name__, table, values, rows):
        _change_elements(change, table.reshape(-1), values.reshape(-1), rows, table.size // extent)


def _by_machine_code(how: str, table: Array, values: Array, rows: Array) -> bool:
    from jitgrad.compiler import rows as native

    return native.change_rows(how, table, values, rows)


def _change_elements(change: np.ufunc, table: Array, values: Array, rows: Array, width: int) -> None:
    """By the positions of elements: NumPy is several times as fast with an index that is one vector."""
    columns = np.arange(width)
    step = max(_AT_ONCE // width, 1)
    for k in range(0, rows.size, step):
        places = (rows[k : k + step, None] * width + columns).reshape(-1)
        change.at(table, places, values[k * width : (k + step) * width])
