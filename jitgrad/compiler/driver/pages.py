"""Pages of memory for outputs, asked of the system by a thread in a first call, before the run; how memory is used
again is decided elsewhere (pools.py).

A first run would wait for them: 40 MB take 4 ms in pages of 2 MiB and 17 in pages of 4 KiB; and where the machine is a
virtual one whose memory has gone back to its host, 80 ms. The thread writes to the pages, in one call of the driver: a
system call that asks for them would keep others from mapping memory, and to come back from many that ask for a few, the
thread would need the GIL each time. It ends when the run has the memory, whose threads ask for the rest themselves.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from jitgrad.compiler.driver.pools import Block, outputs
from jitgrad.compiler.driver.runtime import runtime

_PAGE = 4096


def begin_outputs(sizes: Iterable[int]) -> None:
    """Have memory for outputs of so many bytes, which are probably taken soon."""
    blocks = outputs.prepare(sizes)
    if blocks:
        places = [(block, block.memory.ctypes.data + block.offset, nbytes) for block, nbytes in blocks]
        touch = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * 4, ctypes.c_int8)(runtime().touch_address)
        with suppress(RuntimeError):  # no more threads: the run asks for pages
            threading.Thread(target=_touch, args=(touch, places), name="jitgrad-pages").start()


def _touch(touch: Callable[[int, int, int, int, int], None], places: Iterable[tuple[Block, int, int]]) -> None:
    """Ask for all pages at addresses. It keeps the blocks, but never refers to their memory, which would be in use."""
    for _, address, nbytes in places:
        touch(address, address + nbytes, _PAGE, outputs.is_taken_address, 0)
