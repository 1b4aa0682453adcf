"""The argument unboxer: which arguments it takes, what it writes, and that it refuses all others quietly."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgrad.compiler.calling.patterns import Array, Number
from jitgrad.compiler.calling.unbox import pack_arguments, unboxer

Argument = Array | Number

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def unbox(arguments: list[Argument], *values: Any) -> tuple[bool, NDArray[np.int64]]:
    spec, table = pack_arguments(arguments), np.full(16, -7, np.int64)
    return unboxer()(spec.address, table.ctypes.data, *values), table


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", "i4", "i8", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 0), (2, 3, 4, 5)])
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    taken, table = unbox([Array(3, array.dtype, shape)], array)
    assert taken
    assert table[3] == array.ctypes.data
    assert (np.delete(table, 3) == -7).all()


def test_several_arguments_in_order() -> None:
    arrays = [np.zeros((2, k)) for k in range(1, 6)]
    arguments: list[Argument] = [Array(9 - k, FLOAT64, a.shape) for k, a in enumerate(arrays)]
    taken, table = unbox(arguments, *arrays)
    assert taken
    assert [table[9 - k] for k in range(5)] == [a.ctypes.data for a in arrays]


class Subclass(np.ndarray[Any, Any]):
    """Not exactly numpy.ndarray."""


def unaligned() -> NDArray[Any]:
    return np.zeros(49, np.uint8)[1:].view(FLOAT32).reshape(3, 4)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((3, 4)),
        np.zeros((4, 3), FLOAT32),
        np.zeros((12,), FLOAT32),
        np.zeros((3, 4, 1), FLOAT32),
        np.zeros((4, 3), FLOAT32).T,
        np.zeros((3, 8), FLOAT32)[:, ::2],
        np.zeros((3, 4), ">f4"),
        np.zeros((3, 4), np.int32),
        np.zeros((3, 4), FLOAT32).view(Subclass),
        np.ma.zeros((3, 4), dtype=FLOAT32),
        unaligned(),
        [[0.0] * 4] * 3,
        1.0,
        None,
    ],
)
def test_other_values_are_refused(value: Any) -> None:
    assert unbox([Array(0, FLOAT32, (3, 4))], value)[0] is False


def test_outputs_must_be_writable() -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    assert unbox([Array(0, FLOAT64, (4,))], array)[0]
    assert not unbox([Array(0, FLOAT64, (4,), writeable=True)], array)[0]


def test_equal_dtypes_that_are_other_objects() -> None:
    array = np.ones((3, 4), FLOAT32).view(np.dtype("f4", metadata={"a": 1}))
    assert array.dtype is not FLOAT32
    assert unbox([Array(0, FLOAT32, (3, 4))], array)[0]


def test_numbers() -> None:
    """A float and a complex number are read where they lie, an int and a bool are written to their cells."""
    kinds = (float, complex, int, int, bool, bool)
    arguments: list[Argument] = [Number(k, kind, 8 + k) for k, kind in enumerate(kinds)]
    values = (1.1, 2.0 - 3.5j, -1, 2**62, True, False)
    taken, table = unbox(arguments, *values)
    assert taken
    assert ctypes.c_double.from_address(int(table[0])).value == 1.1
    assert list((ctypes.c_double * 2).from_address(int(table[1]))) == [2.0, -3.5]
    first = table.ctypes.data
    assert [table[k] for k in range(2, 6)] == [first + 8 * (8 + k) for k in range(2, 6)]
    assert list(table[10:14]) == [-1, 2**62, 1, 0]


@pytest.mark.parametrize("kind", [float, complex, int, bool])
@pytest.mark.parametrize("value", [True, 1, 1.0, 1j, np.float64(1), np.int64(1), "1", 2**63, -(2**63) - 1, np.ones(())])
def test_other_numbers_are_refused(kind: type, value: Any) -> None:
    fits = type(value) is kind and not (kind is int and abs(value) > 2**62)
    assert unbox([Number(0, kind, 1)], value)[0] is fits


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "?", "c16", "u8", "f2"])
def test_scalars_of_numpy_are_arrays_without_axes(dtype: str) -> None:
    scalar = np.dtype(dtype).type(1)
    taken, table = unbox([Array(2, np.dtype(dtype), ())], scalar)
    assert taken
    assert ctypes.string_at(int(table[2]), scalar.nbytes) == scalar.tobytes()
    assert not unbox([Array(2, np.dtype(dtype), (1,))], scalar)[0]
    assert not unbox([Array(2, np.dtype(dtype), (), writeable=True)], scalar)[0]
    assert not unbox([Array(2, np.dtype("i8"), ())], scalar)[0]


def test_wrong_counts_and_addresses_are_refused() -> None:
    array = np.zeros(3)
    argument = Array(0, FLOAT64, (3,))
    assert not unbox([argument], array, array)[0]
    assert not unbox([argument])[0]
    assert unbox([])[0]
    for arguments in ((), (1,), ("a", "b"), (2**80, 1), (0, 0)):
        assert unboxer()(*arguments) is False


def test_no_reference_is_lost_or_kept() -> None:
    array, number = np.zeros(3), 1234567.5
    arguments: list[Argument] = [Array(0, FLOAT64, (3,)), Number(1, float)]
    before = sys.getrefcount(array), sys.getrefcount(number)
    for _ in range(100):
        unbox(arguments, array, number)
        unbox(arguments, number, array)
    assert (sys.getrefcount(array), sys.getrefcount(number)) == before


@pytest.mark.parametrize("dtype", ["O", "S4", ">f8", "M8[s]", "V8"])
def test_specs_of_other_dtypes_raise(dtype: str) -> None:
    with pytest.raises(ValueError, match="machine code"):
        pack_arguments([Array(0, np.dtype(dtype), (2,))])
