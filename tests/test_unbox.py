"""The argument unboxer: which arguments it takes, what it writes, and that it refuses all others quietly."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgrad.compiler.unbox import Argument, ArrayArgument, ScalarArgument, pack_arguments, unboxer

FLOAT32, FLOAT64, INT64 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.int64)


def unbox(arguments: list[Argument], *values: Any) -> tuple[bool, NDArray[np.int64]]:
    spec, table = pack_arguments(arguments), np.full(16, -7, np.int64)
    return unboxer()(spec.ctypes.data, table.ctypes.data, *values), table


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "u2", "i4", "i8", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 0), (2, 3, 4, 5)])
def test_arrays(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, dtype)
    taken, table = unbox([ArrayArgument(3, array.dtype, shape)], array)
    assert taken
    assert table[3] == array.ctypes.data
    assert (np.delete(table, 3) == -7).all()


def test_several_arguments_in_order() -> None:
    arrays = [np.zeros((2, k)) for k in range(1, 6)]
    arguments: list[Argument] = [ArrayArgument(9 - k, FLOAT64, a.shape) for k, a in enumerate(arrays)]
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
    assert unbox([ArrayArgument(0, FLOAT32, (3, 4))], value)[0] is False


def test_outputs_must_be_writable() -> None:
    array = np.zeros(4)
    array.flags.writeable = False
    assert unbox([ArrayArgument(0, FLOAT64, (4,))], array)[0]
    assert not unbox([ArrayArgument(0, FLOAT64, (4,), writeable=True)], array)[0]


def test_equal_dtypes_that_are_other_objects() -> None:
    array = pickle.loads(pickle.dumps(np.ones((3, 4), FLOAT32)))
    array.dtype = np.dtype("f4", metadata={"a": 1})
    assert array.dtype is not FLOAT32
    assert unbox([ArrayArgument(0, FLOAT32, (3, 4))], array)[0]


def test_scalars() -> None:
    dtypes = (FLOAT64, FLOAT32, INT64, INT64)
    arguments: list[Argument] = [ScalarArgument(k, 8 + k, dtype) for k, dtype in enumerate(dtypes)]
    taken, table = unbox(arguments, 1.1, 2.2, -1, 2**62)
    assert taken
    first = table.ctypes.data
    assert [table[k] for k in range(4)] == [first + 8 * (8 + k) for k in range(4)]
    assert table[8:9].view(FLOAT64)[0] == 1.1
    assert table[9:10].view(FLOAT32)[0] == np.float32(2.2)
    assert (table[10], table[11]) == (-1, 2**62)


@pytest.mark.parametrize("dtype", [FLOAT64, INT64])
@pytest.mark.parametrize("value", [True, np.float64(1), np.int64(1), "1", 2**63, -(2**63) - 1, np.ones(())])
def test_other_scalars_are_refused(dtype: np.dtype[Any], value: Any) -> None:
    assert unbox([ScalarArgument(0, 1, dtype)], value)[0] is False


def test_wrong_counts_and_addresses_are_refused() -> None:
    array = np.zeros(3)
    argument = ArrayArgument(0, FLOAT64, (3,))
    assert not unbox([argument], array, array)[0]
    assert not unbox([argument])[0]
    assert unbox([])[0]
    for arguments in ((), (1,), ("a", "b"), (2**80, 1), (0, 0)):
        assert unboxer()(*arguments) is False


def test_no_reference_is_lost_or_kept() -> None:
    array, number = np.zeros(3), 1234567.5
    arguments: list[Argument] = [ArrayArgument(0, FLOAT64, (3,)), ScalarArgument(1, 2, FLOAT64)]
    before = sys.getrefcount(array), sys.getrefcount(number)
    for _ in range(100):
        unbox(arguments, array, number)
        unbox(arguments, number, array)
    assert (sys.getrefcount(array), sys.getrefcount(number)) == before


@pytest.mark.parametrize("dtype", ["O", "S4", ">f8", "M8[s]", "V8"])
def test_specs_of_other_dtypes_raise(dtype: str) -> None:
    with pytest.raises(ValueError, match="machine code"):
        pack_arguments([ArrayArgument(0, np.dtype(dtype), (2,))])
    with pytest.raises(ValueError, match="float64, float32 or int64"):
        pack_arguments([ScalarArgument(0, 1, np.dtype(np.int32))])
