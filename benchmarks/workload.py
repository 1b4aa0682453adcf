"""What a workload is: one loss written once per framework, and its arguments; it knows no framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Loss = Callable[..., Any]
SEED = 20_250_301


@dataclass(frozen=True)
class Contraction:
    """``batch`` products of an [m, k] with a [k, n] matrix."""

    m: int
    k: int
    n: int
    batch: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.m * self.k * self.n

    def with_gradients(self, count: int = 2) -> tuple[Contraction, ...]:
        """This product and those that the gradients of both operands (``count=2``), or of one, take."""
        m, k, n, batch = self.m, self.k, self.n, self.batch
        return (self, Contraction(k, m, n, batch), Contraction(m, n, k, batch))[: count + 1]


@dataclass(frozen=True)
class Workload:
    """Value and gradient of a loss.

    ``losses`` has one function per framework (``numpy``, ``jax``, ``torch``, ``pytensor``); a framework that
    is not there is not run. ``arguments(rng, scale)`` makes the arrays, with ``scale`` times as many rows as
    usual; ``argnums`` are those that gradients are taken of. With ``has_aux`` the loss returns the value and
    an array to be given out as well. ``products(*arrays)`` are the large matrix products that no
    implementation can do without, ``tolerance`` the largest difference allowed to the float64 reference,
    relative to the largest magnitude of each array; None for that of the dtype.
    """

    name: str
    title: str
    losses: dict[str, Loss]
    arguments: Callable[[np.random.Generator, float], tuple[Array, ...]]
    argnums: tuple[int, ...]
    has_aux: bool = False
    products: Callable[..., Sequence[Contraction]] = field(default=lambda *arrays: ())
    tolerance: float | None = None

    def make(self, scale: float) -> tuple[Array, ...]:
        """The arguments; the same ones each time."""
        return self.arguments(np.random.default_rng(SEED), scale)

    def least_bytes(self, arrays: Sequence[Array]) -> int:
        """Bytes of all arguments, read once, and all gradients, written once."""
        return sum(a.nbytes for a in arrays) + sum(arrays[k].nbytes for k in self.argnums)


def rows(count: int, scale: float) -> int:
    """``count`` times ``scale``, at least 2."""
    return max(2, round(count * scale))


def normal32(rng: np.random.Generator, *shape: int) -> Array:
    """Standard normal numbers in float32."""
    return rng.standard_normal(shape, dtype=np.float32)


def weight32(rng: np.random.Generator, *shape: int) -> Array:
    """Normal numbers in float32 over the root of the first extent, as a layer begins."""
    return normal32(rng, *shape) / np.float32(math.sqrt(shape[0]))
