"""Pages of memory for outputs, asked of the system by a thread in a first call, before the run; how memory is used
again is decided elsewhere (pools.py).

A first run would wait for them: 40 MB take 4 ms in pages of 2 MiB and 17 in pages of 4 KiB; and where the machine is a
virtual one whose memory has gone back to its host, 80 ms. The thread writes to the pages, in one call of the driver: a
system call that asks for them keeps others from mapping memory, and to come back from many that ask for a few, the
thread needs the GIL each time. But the driver is loaded 3 to 5 ms after a process has begun its first call. Where there
is more memory than is asked for from then to the run, the system is asked before that, for 2 MB at a time. What else
runs takes up to twice as long meanwhile, so where there is less, the thread begins when the driver is there. It ends
when the run has the memory, whose threads ask for the rest themselves.

A virtual machine whose host has taken memory back has small pages at hand, which processes that have ended gave back,
but hardly a huge one: each takes 2 to 4 ms then, 80 MB 90 to 170 and in small pages 30 (with memory, 14). The steady
calls of a gelu of 10 million, which writes all of it, take 3 to 14 % longer with small pages. So the first two are
timed; where both are slow the others are small, and so are those of temporaries. The thread is begun as the
interpreter's own module begins one: `threading` waits until a new thread runs, 0.2 ms, and 1 to 4 where other processes
keep the processors busy.
"""

from __future__ import annotations

import ctypes
from _thread import start_new_thread
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice
from time import perf_counter

from jitgrad.compiler.driver.pools import HUGE_BYTES, Block, have_small_pages, outputs
from jitgrad.compiler.driver.runtime import has_runtime, is_loaded, runtime

_PAGE = 4096
_MUCH = 64 << 20
_POPULATE_WRITE = 23  # of madvise, in Linux from 5.14 on
_SLOW = 1e-3  # seconds for a huge page, which take 0.1 to 0.4 ms where there is memory


at_work: set[object] = set()
"""Something for each thread that has not ended."""


def begin_outputs(sizes: Iterable[int]) -> None:
    """Have memory for outputs of so many bytes, which are probably taken soon: much of it, or what the driver can ask
    for that need not be compiled first.
    """
    wanted = list(sizes)
    if sum(wanted) < _MUCH or not _system_has_pages():
        if not has_runtime():
            return
        runtime()
    blocks = outputs.prepare(wanted)
    if blocks:
        places = [(block, block.memory.ctypes.data + block.offset, nbytes) for block, nbytes in blocks]
        token = object()
        at_work.add(token)
        try:
            start_new_thread(_work, (token, places))
        except RuntimeError:  # no more threads: the run asks for pages
            at_work.discard(token)


def _work(token: object, places: Sequence[tuple[Block, int, int]]) -> None:
    """The life of a thread, of which ``token`` says that it has not ended."""
    try:
        _ask(places)
    finally:
        at_work.discard(token)


def _ask(places: Sequence[tuple[Block, int, int]]) -> None:
    """Ask for all pages at addresses. It keeps the blocks, but never refers to their memory, which would be in use."""
    ends = [(address, address + nbytes) for _, address, nbytes in places]
    whole = (page for first, end in ends for page in range(_next_huge(first), end - HUGE_BYTES + 1, HUGE_BYTES))
    tried = list(islice(whole, 2))
    if len(tried) == 2:
        outputs.has_slow_huge_pages = min([_seconds(page) for page in tried]) > _SLOW
    if outputs.has_slow_huge_pages:
        for first, end in ends:
            behind = [page + HUGE_BYTES for page in tried if first <= page < end]
            have_small_pages(max([_next_huge(first), *behind]), end)
    for first, end in ends:
        while first < end and not outputs.is_one_taken:
            first = _ask_for_some(first, end)


def _ask_for_some(first: int, end: int) -> int:
    """Ask for pages from an address on, to the end if the driver is there; where the next ones begin."""
    if is_loaded():
        touch = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * 4, ctypes.c_int8)(runtime().touch_address)
        touch(first, end, _PAGE, outputs.is_taken_address, 0)
        return end
    behind = min(end, _next_huge(first + 1))
    start = first // _PAGE * _PAGE
    ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(behind - start), _POPULATE_WRITE)
    return behind


@cache
def _system_has_pages() -> bool:
    """Whether the system can be asked for pages."""
    try:
        return not ctypes.CDLL(None).madvise(None, ctypes.c_size_t(0), _POPULATE_WRITE)
    except (AttributeError, OSError, TypeError):  # another system
        return False


def _next_huge(address: int) -> int:
    return -(-address // HUGE_BYTES) * HUGE_BYTES


def _seconds(page: int) -> float:
    start = perf_counter()
    _ask_for_some(page, page + 1)
    return perf_counter() - start
