"""What an eager computation may leave behind: nothing. Tensors, tapes and Variables alive, by identity."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import jitgrad as jg
from jitgrad.eager.pending import Collector, PendingTensor

KINDS = (jg.EagerTensor, jg.GradientTape, jg.Variable, PendingTensor, Collector)


def living() -> dict[int, Any]:
    """The tensors, tapes, Variables and scopes that are alive, or wait to be collected."""
    return {id(x): x for x in gc.get_objects() if type(x) in KINDS}


def left_since(before: set[int]) -> Counter[str]:
    """How many of each kind are alive, after a collection, that were not there before."""
    if living().keys() - before:
        gc.collect()
    return Counter(type(x).__name__ for key, x in living().items() if key not in before)
