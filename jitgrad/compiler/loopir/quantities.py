"""Quantities: the run-time integers of a kernel (extents, strides, offsets) as products of extent classes or
plain numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Quantity:
    """``number`` times the extents of ``classes``."""

    classes: tuple[int, ...] = ()
    number: int = 1

    def value(self, extents: Mapping[int, int]) -> int:
        """The integer, for these extents per class."""
        return self.number * math.prod([extents[c] for c in self.classes])


def product(classes: tuple[int, ...], number: int = 1) -> Quantity:
    """The product of extents, in one canonical order."""
    return Quantity(tuple(sorted(classes)), number)
