"""The signature of a kernel while it is lowered: its buffers, ints and constants, and what each stands for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jitgrad.compiler.likeness import EXACT
from jitgrad.compiler.loopir.nests import OWN, Argument, Buffer, Constant, Kernel, Literal, Statement
from jitgrad.compiler.loopir.quantities import Quantity
from jitgrad.spec import DType

# Numbers that stand in the code. All others are given at run time, each at its own place: where a number comes from
# an extent (the n of a mean, 1/n of its gradient), another extent must not make another kernel.
BAKED = frozenset((0.0, 1.0, -1.0))


class Signature:
    """Names for the memory and the numbers of a kernel, in the order in which they are first asked for."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], Buffer] = {}
        self._ints: dict[str, Quantity] = {}
        self._names: dict[object, str] = {}
        self._constants: list[Literal] = []
        self._count = 0
        self.moves = False  # whether an offset depends on extents that are part of no pattern

    def fresh(self) -> int:
        """The next number for a name."""
        self._count += 1
        return self._count - 1

    def buffer(self, role: str, value: int, dtype: DType, extent: str | None = None) -> str:
        """The buffer of a value in a role."""
        key = (role, value)
        if key not in self._buffers:
            name = f"{role}{sum(1 for r, _ in self._buffers if r == role)}"
            self._buffers[key] = Buffer(name, dtype, role, extent)
        return self._buffers[key].name

    def product(self, quantity: Quantity) -> str:
        """The int that holds a product of extents: one name for one product."""
        return self._int(quantity, quantity, "n")

    def number(self, key: object, number: int, strides: Iterable[int] = ()) -> str:
        """An int for a plain number that belongs to ``key``: numbers that happen to be equal today are not one.

        ``strides`` are extents that an offset was multiplied with.
        """
        self.moves = self.moves or any(n > EXACT for n in strides)
        return self._int(key, Quantity((), number), "o")

    def _int(self, key: object, quantity: Quantity, letter: str) -> str:
        if key not in self._names:
            self._names[key] = f"{letter}{sum(1 for name in self._ints if name[0] == letter)}"
            self._ints[self._names[key]] = quantity
        return self._names[key]

    def constant(self, literal: Literal) -> Argument:
        """A number as it stands in the code, or as a run-time constant of its own."""
        if literal.dtype.kind == "b" or not np.isfinite(literal.value) or float(literal.value) in BAKED:
            return literal
        self._constants.append(literal)
        return f"c{len(self._constants) - 1}"

    def kernel(self, body: Sequence[Statement]) -> Kernel:
        """The kernel with this signature."""
        constants = tuple(Constant(f"c{k}", literal.dtype) for k, literal in enumerate(self._constants))
        return Kernel(tuple(self._buffers.values()), tuple(self._ints), constants, tuple(body))

    @property
    def values(self) -> tuple[int | None, ...]:
        """The value behind each buffer; None for what each worker has of its own and the status."""
        own = (*OWN, "status")
        return tuple(None if role in own else value for role, value in self._buffers)

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The quantity behind each int."""
        return tuple(self._ints.values())

    @property
    def constants(self) -> tuple[Literal, ...]:
        """The number behind each constant."""
        return tuple(self._constants)
