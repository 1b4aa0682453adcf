"""Pages of memory for outputs, asked of the system by a thread while a first call compiles; how memory is used again is
decided elsewhere (pools.py).

A first run would wait for them: 40 MB take 4 ms in pages of 2 MiB and 17 in pages of 4 KiB; and where the machine is a
virtual one whose memory has gone back to its host, 80 ms.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress

from jitgrad.compiler.driver.pools import Block, outputs

_LEAST = 1 << 20  # bytes that are worth a thread
_PIECE = 1 << 21  # bytes asked for at a time: meanwhile nobody else gets an address of the system
_PAGE = 4096
_POPULATE_WRITE = 23


def begin_outputs(sizes: Iterable[int]) -> None:
    """Have memory for outputs of so many bytes, which are taken soon, on Linux; elsewhere nothing."""
    if not sys.platform.startswith("linux"):
        return
    blocks = outputs.prepare([size for size in sizes if size >= _LEAST])
    if blocks:
        places = [(block, block.memory.ctypes.data, block.offset + nbytes) for block, nbytes in blocks]
        with suppress(RuntimeError):  # no more threads: the run asks for pages
            threading.Thread(target=_touch, args=(places,), name="jitgrad-pages").start()


def _touch(places: Iterable[tuple[Block, int, int]]) -> None:
    """Ask for all pages at addresses. It keeps the blocks, but never refers to their memory, which would be in use."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for _, address, nbytes in places:
        for piece in range(address // _PAGE * _PAGE, address + nbytes, _PIECE):
            if madvise(piece, min(_PIECE, address + nbytes - piece), _POPULATE_WRITE):
                return  # a system that does not know it
