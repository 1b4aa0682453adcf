"""Pages of memory for outputs, asked of the system by a thread in a first call, before the run; how memory is used
again is decided elsewhere (pools.py).

A first run would wait for them: 40 MB take 4 ms in pages of 2 MiB and 17 in pages of 4 KiB; and where the machine is a
virtual one whose memory has gone back to its host, 80 ms. The thread writes to the pages, in one call of machine code:
a system call that asks for them would keep others from mapping memory, and to come back from many that ask for a few,
the thread would need the GIL each time. It ends when the run has the memory, whose threads ask for the rest themselves.
It begins when nobody looks at files for the stamp, for three threads share two processors badly; and where a thread is
looking, that one does it afterwards: two that are woken at once are put on one processor at times (stamp.py).

A virtual machine whose host has taken memory back has small pages at hand, which processes that have ended gave back,
but hardly a huge one: each takes 2 to 4 ms then, 80 MB 90 to 170 and in small pages 30 (with memory, 14). The steady
calls of a gelu of 10 million, which writes all of it, take 3 to 14 % longer with small pages. So the first two are
timed; where both are slow the others are small, and so are those of temporaries. The thread is begun as the
interpreter's own module begins one: `threading` waits until a new thread runs, 0.2 ms, and 1 to 4 where other processes
keep the processors busy.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from time import perf_counter

from jitgrad.compiler.driver.pools import HUGE_BYTES, Block, have_small_pages, outputs
from jitgrad.compiler.machine.early import have_early
from jitgrad.compiler.machine.stamp import do_after_look, wait_for_look

_Touch = Callable[[int, int, int, int, int], None]

_PAGE = 4096
_SLOW = 1e-3  # seconds for a huge page, which take 0.1 to 0.4 ms where there is memory


at_work: set[object] = set()
"""Something for each thread that has not ended."""


def begin_outputs(sizes: Iterable[int]) -> None:
    """Have memory for outputs of so many bytes, which are probably taken soon."""
    blocks = outputs.prepare(sizes)
    if blocks:
        places = [(block, block.memory.ctypes.data + block.offset, nbytes) for block, nbytes in blocks]
        token = object()
        at_work.add(token)
        work = partial(_work, token, have_early().touch, places)
        if not do_after_look(work):
            try:
                start_new_thread(work, ())
            except RuntimeError:  # no more threads: the run asks for pages
                at_work.discard(token)


def _work(token: object, touch: _Touch, places: Sequence[tuple[Block, int, int]]) -> None:
    """The life of a thread, of which ``token`` says that it has not ended."""
    try:
        wait_for_look()
        _touch(touch, places)
    finally:
        at_work.discard(token)


def _touch(touch: _Touch, places: Sequence[tuple[Block, int, int]]) -> None:
    """Ask for all pages at addresses. It keeps the blocks, but never refers to their memory, which would be in use."""
    ends = [(address, address + nbytes) for _, address, nbytes in places]
    whole = (page for first, end in ends for page in range(_next_huge(first), end - HUGE_BYTES + 1, HUGE_BYTES))
    tried = list(islice(whole, 2))
    if len(tried) == 2:
        outputs.has_slow_huge_pages = min([_seconds(touch, page) for page in tried]) > _SLOW
    if outputs.has_slow_huge_pages:
        for first, end in ends:
            behind = [page + HUGE_BYTES for page in tried if first <= page < end]
            have_small_pages(max([_next_huge(first), *behind]), end)
    for first, end in ends:
        touch(first, end, _PAGE, outputs.is_taken_address, 0)


def _next_huge(address: int) -> int:
    return -(-address // HUGE_BYTES) * HUGE_BYTES


def _seconds(touch: _Touch, page: int) -> float:
    start = perf_counter()
    touch(page, page + 1, _PAGE, outputs.is_taken_address, 0)
    return perf_counter() - start
