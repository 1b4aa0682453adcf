"""Output memory: never handed out twice while alive, used again when dropped, bounded, aligned."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from jitgrad.compiler.driver.pools import ALIGNMENT, HUGE_BYTES, SMALL_BYTES, OutputPool, block_bytes
from tests.leaks import page_flags

LARGE = (SMALL_BYTES // 4 + 5, 2)
FLOAT = np.dtype(np.float32)


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), LARGE, (2, 3, SMALL_BYTES)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?"])
def test_arrays_are_as_numpy_makes_them(shape: tuple[int, ...], dtype: str) -> None:
    array = OutputPool(1 << 30).take(shape, np.dtype(dtype))
    assert type(array) is np.ndarray
    assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.flags.aligned
    if array.nbytes >= SMALL_BYTES:
        assert address(array) % ALIGNMENT == 0
    array.fill(1)


def test_dropped_memory_is_used_again() -> None:
    pool = OutputPool(1 << 30)
    take = pool.taker(LARGE, FLOAT)
    first = take()
    where = address(first)
    second = take()
    assert address(second) != where
    del first
    assert address(take()) == where
    assert pool.statistics().hits == 1


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[3:],
        lambda a: a[::-1, 1].reshape(-1, 1),
        lambda a: a.view(np.int32).T,
        lambda a: memoryview(a),
        lambda a: np.asarray(memoryview(a))[:2],
        lambda a: a.view(np.recarray)[1:],
        lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, 0),
        lambda a: a.ravel()[5:].data,
    ],
)
def test_a_view_keeps_the_block(view: Any) -> None:
    pool = OutputPool(1 << 30)
    take = pool.taker(LARGE, FLOAT)
    array = take()
    where = address(array)
    part = view(array)
    del array
    assert address(take()) != where
    del part
    assert where in {address(x) for x in [take(), take()]}


def test_idle_memory_is_counted_and_released() -> None:
    pool = OutputPool(1 << 30)
    arrays = [pool.take(LARGE, FLOAT) for _ in range(3)]
    size = block_bytes(arrays[0].nbytes)
    statistics = pool.statistics()
    assert (statistics.blocks, statistics.nbytes, statistics.idle_bytes) == (3, 3 * size, 0)
    del arrays[0]
    assert pool.statistics().idle_bytes == size
    pool.release()
    assert pool.statistics().nbytes == 0
    arrays[0].fill(2)


def test_known_bytes_are_bounded() -> None:
    size = block_bytes(SMALL_BYTES)
    pool = OutputPool(4 * size)
    kept = [pool.take((SMALL_BYTES,), np.uint8) for _ in range(10)]
    for number, array in enumerate(kept):
        array.fill(number)
    assert pool.statistics().nbytes <= 4 * size
    assert all((array == number).all() for number, array in enumerate(kept))
    too_large = pool.take((8 * size,), np.uint8)
    assert pool.statistics().nbytes <= 4 * size
    too_large.fill(1)


def test_the_class_used_longest_ago_goes_first() -> None:
    size = block_bytes(SMALL_BYTES)
    pool = OutputPool(4 * size)
    pool.take((SMALL_BYTES,), np.uint8)
    where = address(pool.take((2 * SMALL_BYTES,), np.uint8))
    pool.take((3 * SMALL_BYTES // 2,), np.uint8)
    assert address(pool.take((2 * SMALL_BYTES,), np.uint8)) == where
    assert pool.statistics().misses == 3


def test_threads_never_share_memory() -> None:
    pool = OutputPool(1 << 30)
    errors: list[str] = []

    def work(number: int) -> None:
        for _ in range(300):
            arrays = [pool.take((SMALL_BYTES,), np.uint8) for _ in range(2)]
            for k, array in enumerate(arrays):
                array[::4096] = 10 * number + k
            if any((array[::4096] != 10 * number + k).any() for k, array in enumerate(arrays)):
                errors.append(f"thread {number} found foreign values")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("nbytes", [1, 4096, 70_000, 1 << 20, (1 << 20) + 1, 40_000_000])
def test_size_classes_waste_little(nbytes: int) -> None:
    size = block_bytes(nbytes)
    assert size >= nbytes
    assert size <= max(nbytes + 4096, nbytes * 1.125)
    assert block_bytes(size) == size


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells of its pages")
@pytest.mark.parametrize(("nbytes", "is_small"), [(7 << 20, True), ((8 << 20) - (300 << 10), False), (8 << 20, False)])
def test_large_memory_begins_at_a_huge_page_and_ends_with_small_ones(nbytes: int, is_small: bool) -> None:
    taken = OutputPool(1 << 30).take((nbytes,), np.uint8)
    assert address(taken) % HUGE_BYTES == 0
    assert ("nh" in page_flags(address(taken) + nbytes - 1)) == is_small
    assert "nh" not in page_flags(address(taken))
