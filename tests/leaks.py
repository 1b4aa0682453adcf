"""What a computation may leave behind: nothing. Tensors, tapes and Variables alive, by identity; memory in use, and of
which kind."""

from __future__ import annotations

import gc
from collections import Counter
from itertools import compress
from typing import Any

import jitgrad as jg
from jitgrad.compiler.driver.pools import Arena, outputs
from jitgrad.compiler.freezing.keeping import keep_now
from jitgrad.eager.pending import Collector, PendingTensor

KINDS = frozenset({jg.EagerTensor, jg.GradientTape, jg.Variable, PendingTensor, Collector, Arena})


def living() -> dict[int, Any]:
    """The tensors, tapes, Variables and scopes that are alive, or wait to be collected; arenas in use."""
    objects = gc.get_objects()
    found = compress(objects, map(KINDS.__contains__, map(type, objects)))  # without a step of Python for each object
    return {id(x): x for x in found if type(x) is not Arena or is_taken(x)}


def is_taken(arena: Arena) -> bool:
    """Whether a call has not given it back."""
    if arena.take():
        arena.give_back()
        return False
    return True


def left_since(before: set[int]) -> Counter[str]:
    """How many of each kind are alive, after a collection, that were not there before."""
    if living().keys() - before:
        keep_now()  # what waits to be written may hold functions that others follow
        gc.collect()
    return Counter(type(x).__name__ for key, x in living().items() if key not in before)


def buffers() -> int:
    """How many bytes of the pool of outputs somebody holds."""
    figures = outputs.statistics()
    return figures.nbytes - figures.idle_bytes


def left_in_buffers(before: int) -> int:
    """How many bytes more than ``before`` are held, after a collection."""
    if buffers() > before:
        gc.collect()
    return buffers() - before


def page_flags(address: int) -> list[str]:
    """What Linux knows of the mapping around an address."""
    with open("/proc/self/smaps") as file:
        is_inside = False
        for line in file:
            first, _, rest = line.partition(" ")
            if "-" in first and ":" not in first:
                low, high = (int(word, 16) for word in first.split("-"))
                is_inside = low <= address < high
            elif is_inside and first == "VmFlags:":
                return rest.split()
    return []
