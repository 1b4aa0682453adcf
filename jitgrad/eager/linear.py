"""Linear functions of one tensor whose transposes are functions of NumPy too, for options of any value: their gradients
are derived from no trace, so that a shift that is new costs what any call does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.eagerness import settled


class TransposedRule:
    """The gradient of a linear function: its transpose of the cotangent. Kept: the options, by place and by name."""

    __slots__ = ("transpose",)

    def __init__(self, transpose: Callable[..., Any]) -> None:
        self.transpose = transpose

    def places(self, leaves: int) -> Sequence[int]:
        """Nothing: what is kept are no tensors."""
        return ()

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """The cotangent of the tensor; the tapes that are open see the computation."""
        args, kwargs = kept
        return (self.transpose(settled(cotangents[0]), *args, **kwargs),)


def _rolled_back(g: Any, shift: Any, axis: Any = None) -> Any:
    back = tuple(-places for places in shift) if isinstance(shift, tuple) else -shift
    return np.roll(g, back, axis)


linear: dict[Any, TransposedRule] = {
    np.roll: TransposedRule(_rolled_back),
    np.tril: TransposedRule(np.tril),
    np.triu: TransposedRule(np.triu),
    np.flip: TransposedRule(np.flip),
}
"""By function. The first argument is the tensor; the rules hold for all shapes."""
