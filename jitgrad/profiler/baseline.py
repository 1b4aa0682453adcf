"""The interpreter at its best: NumPy's BLAS on one thread or on all, whichever is faster here; no other tuning.

Small products are faster on one thread, and a busy machine can make them slower a hundred times on several: OpenBLAS's
threads wait for one another in a spin, and while another process has the processor they wait in vain. A digits step
(products of 128x128x64, two processors, one of them busy) took 0.44 ms on one thread, and from 0.56 to 95 ms on two.
A comparison with that would say nothing of what is compared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from jitgrad.config import get_num_threads
from jitgrad.profiler.timing import Around, time_in_turns

_TURNS = 7


def best_blas_threads(call: Callable[[], Any], repeat: int | None = None) -> tuple[int, Around]:
    """With how many threads of BLAS the call is faster, in at most ``repeat`` turns, and the context for that."""
    from threadpoolctl import ThreadpoolController

    single: Around = partial(ThreadpoolController().limit, limits=1, user_api="blas")
    threads = get_num_threads()
    if threads == 1:
        return 1, single
    one, several = time_in_turns([call, call], min(repeat or _TURNS, _TURNS), around=[single, contextlib.nullcontext])
    return (1, single) if one.median <= several.median else (threads, contextlib.nullcontext)
