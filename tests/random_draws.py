"""Draw: the choices that random programs are made of, and how their moves call ops; the moves are in
random_moves.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from jitgrad import operators
from jitgrad.graph import Tensor

T = TypeVar("T")
DTYPES = ("f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")


@dataclass(frozen=True)
class Draw:
    """The source of all choices, and the tensors made so far."""

    rng: np.random.Generator
    pool: Sequence[Tensor]

    def one(self, *choices: T) -> T:
        """One of these."""
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, lo: int, hi: int) -> int:
        """An integer of [lo, hi)."""
        return int(self.rng.integers(lo, hi))

    def chance(self, p: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < p)

    def axis(self, x: Tensor) -> int:
        """An axis of a tensor that has one."""
        return self.between(0, x.ndim)

    def other(self, fits: Callable[[Tensor], bool]) -> Tensor:
        """A tensor of the pool that fits; there is one."""
        return self.one(*filter(fits, self.pool))


def op(name: str, *args: Any, **params: Any) -> Tensor:
    """A call of the op's public function."""
    return cast(Tensor, operators.functions[name](*args, **params))


def as_float(d: Draw, x: Tensor) -> Tensor:
    """A float of either width."""
    return x if x.dtype.kind == "f" else op("astype", x, np.dtype(d.one("f4", "f8")))


def tame(x: Tensor) -> Tensor:
    """Floats in [-1, 1], so that products stay finite."""
    return op("tanh", x) if x.dtype.kind == "f" else x


def are_compatible(x: Tensor, y: Tensor) -> bool:
    """Whether the shapes broadcast."""
    return all(1 in (a, b) or a == b for a, b in zip(x.shape[::-1], y.shape[::-1], strict=False))
