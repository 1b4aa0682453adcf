"""Memory for outputs, used again when the user has dropped the array, and for temporaries; not the plan of
who uses what.

Fresh memory costs a page fault every 4 KiB (or every 2 MiB), more than most kernels need to fill it, and the
C library gives memory back sooner than one thinks. An output of at least `SMALL_BYTES` is therefore laid in a
block that the pool knows. The block is the base of the array and of all its views, so its reference count
says whether anybody still uses it: no finaliser, nothing to run when an array dies. The pool knows blocks up
to a fixed number of bytes; beyond that the block used longest ago is forgotten, and goes back to the system
with its array.

Figures (Zen 4, one thread, the array is written once). 40 MB dropped at once: np.empty 4.0 ms, from this pool
0.95 ms, as fast as one kept array; without huge pages 26 ms (NumPy asks for them by itself). Eight outputs a
call, replacing those of the call before, us per array, np.empty / this pool: 64 KiB 1.7 to 11 (as the heap
happens to lie) / 4.0, 256 KiB 49 / 7.6, 1 MiB 201 / 22, 4 MiB 617 / 119. Finding a block takes 1.0 us,
np.empty of a small array 0.13 us.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import recording
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    from mmap import mmap

    from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
HUGE_BYTES = 2 << 20
LARGE_BYTES = 1 << 20
"""From so many bytes on it is worth a thread to have the pages of an output before it is taken."""
SMALL_BYTES = 64 * 1024
_PAGE_BYTES = 4096
_MAX_KNOWN_BYTES = 1 << 30
_CLASSES_PER_OCTAVE = 8
_LOOKS = 64


class PoolStatistics(NamedTuple):
    """Blocks and bytes the pool knows, how many of them nobody uses, and takes served by old blocks (hits) or
    new ones.
    """

    blocks: int
    nbytes: int
    idle_bytes: int
    hits: int
    misses: int


class Block(NamedTuple):
    """An array that owns its memory, which NumPy therefore makes the base of every view; where aligned use
    begins.
    """

    memory: NDArray[np.uint8]
    offset: int


def _references(block: Block) -> int:
    return getrefcount(block[0])


_IDLE_REFERENCES = _references(Block(np.empty(0, np.uint8), 0))
"""How often the memory of an idle block is referred to: by its block, and by the act of counting."""


class OutputPool:
    """Blocks of memory in size classes, at most `max_bytes` of them known. Safe for several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._classes: OrderedDict[int, list[Block]] = OrderedDict()  # least recently used class first
        self._prepared: dict[int, list[Block]] = {}  # by size class; not known before they are taken
        self._is_taken = np.zeros(1, np.int64)  # whether one of those was, or all were forgotten
        self.is_taken_address = int(self._is_taken.ctypes.data)
        self.has_slow_huge_pages = False  # when some were asked for last
        self._nbytes = self._hits = self._misses = 0
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised array: writable, C-contiguous, 64-byte aligned from `SMALL_BYTES` on."""
        return self.taker(shape, np.dtype(dtype))()

    def taker(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[[], NDArray[Any]]:
        """`take` for one shape and dtype, made once and called often: 1.0 us instead of 1.9, small arrays
        0.13 us.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if not is_pooled(nbytes):
            return partial(np.empty, shape, dtype)
        return partial(self._lay, shape, dtype, block_bytes(nbytes), nbytes)

    def _lay(self, shape: tuple[int, ...], dtype: np.dtype[Any], size: int, nbytes: int) -> NDArray[Any]:
        with self._lock:
            memory, offset = self._find(size, nbytes)
            return np.ndarray(shape, dtype, memory, offset)

    def statistics(self) -> PoolStatistics:
        """Figures of this moment."""
        with self._lock:
            blocks = sum(len(known) for known in self._classes.values())
            idle = sum(size * sum(map(_is_idle, known)) for size, known in self._classes.items())
            return PoolStatistics(blocks, self._nbytes, idle, self._hits, self._misses)

    def release(self) -> None:
        """Forget all blocks; the idle ones go back to the system at once."""
        with self._lock:
            self._classes.clear()
            self._prepared.clear()
            self._nbytes = 0

    def prepare(self, requests: Iterable[int]) -> list[tuple[Block, int]]:
        """Have a block for each array of so many bytes that will probably be taken soon; those that were made for it
        now, and how many bytes of each are wanted at most.
        """
        made: list[tuple[Block, int]] = []
        wanted: dict[int, list[int]] = {}
        for nbytes in filter(is_pooled, requests):
            wanted.setdefault(block_bytes(nbytes), []).append(nbytes)
        with self._lock:
            self._is_taken[0] = 0
            for size, all_bytes in wanted.items():
                prepared, most = self._prepared.setdefault(size, []), max(all_bytes)
                count = len(all_bytes) - len(prepared) - sum(map(_is_idle, self._classes.get(size, ())))
                new = [_new_block(size, most) for _ in range(count)]
                prepared += new
                made += [(block, most) for block in new]
        return made

    def forget_prepared(self) -> None:
        """Give back what was prepared and not taken."""
        if self._prepared:
            with self._lock:
                self._prepared.clear()
                self._is_taken[0] = 1

    def _find(self, size: int, nbytes: int) -> Block:
        """An idle block of the class, the one used last (its lines may still be in cache), or a new one."""
        classes = self._classes
        known = classes.get(size)
        if known is None:
            known = classes[size] = []
        classes.move_to_end(size)
        k = len(known)
        for block in known[: -_LOOKS - 1 : -1]:
            k -= 1
            if getrefcount(block[0]) <= _IDLE_REFERENCES:
                self._hits += 1
                if k < len(known) - 1:
                    known.append(known.pop(k))
                return block
        self._misses += 1
        prepared = self._prepared.get(size)
        if prepared:
            block = prepared.pop()
            self._is_taken[0] = 1  # who asks for its pages leaves the rest to the run
        else:
            with recording.span("allocate", f"{size} bytes"):
                block = _new_block(size, nbytes)
        known.append(block)
        self._nbytes += size
        self._forget_oldest()
        return block

    def _forget_oldest(self) -> None:
        while self._nbytes > self._max_bytes:
            size, known = next(iter(self._classes.items()))
            if known:
                del known[0]
                self._nbytes -= size
            if not known:
                del self._classes[size]

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def is_pooled(nbytes: int) -> bool:
    """Whether an array of that size is laid in a block; smaller ones are NumPy's own."""
    return nbytes >= SMALL_BYTES


def _is_idle(block: Block) -> bool:
    return _references(block) <= _IDLE_REFERENCES


def block_bytes(nbytes: int) -> int:
    """The size class of a request: whole pages, at most 12.5 % more than asked for."""
    step = max(_PAGE_BYTES, (1 << (nbytes - 1).bit_length()) // (2 * _CLASSES_PER_OCTAVE))
    return -(-nbytes // step) * step


def _new_block(size: int, nbytes: int) -> Block:
    """Fresh memory, of which so many bytes are used at first. Large blocks begin at a huge page, and so does their last
    part where it fills three quarters of one: as small pages, both together took longer than all huge ones of 8 MB.
    """
    if size < HUGE_BYTES:
        memory = np.empty(size + ALIGNMENT, np.uint8)
        return Block(memory, -memory.ctypes.data % ALIGNMENT)
    memory = np.empty((size // HUGE_BYTES + 2) * HUGE_BYTES, np.uint8)
    address = int(memory.ctypes.data)
    offset = -address % HUGE_BYTES
    used = address + offset + nbytes + HUGE_BYTES // 4
    have_small_pages(used // HUGE_BYTES * HUGE_BYTES, address + memory.nbytes)
    return Block(memory, offset)


def have_small_pages(start: int, end: int) -> None:
    """Have small pages from the start of a page to that which holds the end."""
    import mmap

    room = end // _PAGE_BYTES * _PAGE_BYTES - start
    if room > 0 and hasattr(mmap, "MADV_NOHUGEPAGE"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(room), mmap.MADV_NOHUGEPAGE)


def _known_limit() -> int:
    """A quarter of the machine's memory, at most 1 GiB."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return _MAX_KNOWN_BYTES // 4
    return min(_MAX_KNOWN_BYTES, memory // 4)


outputs = OutputPool(_known_limit())
"""The pool of the process."""

if sys.platform != "win32":
    os.register_at_fork(after_in_child=outputs._renew_lock)


class Arena:
    """Memory for the temporaries of one running call: `nbytes`, 64-byte aligned, at `address`, contents undefined.

    A call takes it and gives it back; `busy_address` is that of the word that tells, which machine code uses too.
    """

    __slots__ = (
        "__weakref__", "_busy", "_huge_bytes", "_mapping", "_memory", "_start", "address", "busy_address", "nbytes"
    )  # fmt: skip

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._huge_bytes = 0
        self._mapping = _small_pages(nbytes + ALIGNMENT + HUGE_BYTES) if nbytes > HUGE_BYTES else None
        alignment = HUGE_BYTES if self._mapping else ALIGNMENT
        room = self._mapping or np.empty(nbytes + 2 * ALIGNMENT, np.uint8)
        self._memory = np.frombuffer(room, np.uint8)
        self._start = -self._memory.ctypes.data % alignment
        self._busy = self._memory[self._start : self._start + 8].view(np.int64)
        if self._mapping is None:
            self._busy[0] = 0  # of fresh memory it is, and to touch that would have small pages to the next huge one
        self.busy_address = int(self._busy.ctypes.data)
        self.address = self.busy_address + ALIGNMENT

    def reach(self, nbytes: int) -> None:
        """Have huge pages where a call fills all of one, unless they are slow; what it fills of the next would make
        memory of the whole.
        """
        whole = (nbytes + ALIGNMENT) // HUGE_BYTES * HUGE_BYTES
        if self._mapping and whole > self._huge_bytes and not outputs.has_slow_huge_pages:
            from mmap import MADV_HUGEPAGE

            self._mapping.madvise(MADV_HUGEPAGE, self._start, whole)
            self._huge_bytes = whole

    def take(self) -> bool:
        """Whether no call was using it; then this one does."""
        is_free = not self._busy[0]
        if is_free:
            self._busy[0] = 1
        return bool(is_free)

    def begin(self, nbytes: int) -> None:
        """The first call takes it, for so many bytes."""
        self.reach(nbytes)
        self._busy[0] = 1

    def give_back(self) -> None:
        """The call is over."""
        self._busy[0] = 0


def _small_pages(nbytes: int) -> mmap | None:
    """Fresh memory in small pages, also where the system would choose; None where it has no others."""
    import mmap

    try:
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapping.madvise(mmap.MADV_NOHUGEPAGE)
    except (AttributeError, OSError):
        return None
    return mapping


_shared: dict[int, list[weakref.ref[Arena]]] = {}


def arena_for(nbytes: int) -> Arena:
    """An arena of at least so many bytes, taken. Large ones are shared by all functions and shapes.

    A shared one is as large as a power of two; what no call has touched of it is no memory yet. It goes when the last
    function that has used it goes. So a function that was called with 64 batch sizes keeps memory for the largest.
    """
    if nbytes < SMALL_BYTES:
        arena = Arena(nbytes)
        arena.begin(nbytes)
        return arena
    size = 1 << (nbytes - 1).bit_length()
    known = _shared.setdefault(size, [])
    for reference in known:
        found = reference()
        if found is not None and found.take():
            found.reach(nbytes)
            return found
    arena = Arena(size)
    arena.begin(nbytes)
    _shared[size] = [reference for reference in known if reference() is not None] + [weakref.ref(arena)]
    return arena
