"""Strides that stand in the code: lanes that lie a few elements apart are read and stored in whole registers.

Where neighbouring lanes of a vector loop are 2 to 16 elements apart, by short axes or the step of a slice, that number
is part of what kernels have in common (likeness.py), and stands in the kernel in place of an int. So do the distances
between offsets of one array that differ by less: x[:, 0] and x[:, 2] are two places of one stride.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from jitgrad.compiler.emission.strides import stride_of
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    VECTOR,
    Index,
    Kernel,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    statements,
)
from jitgrad.compiler.loopir.quantities import Quantity
from jitgrad.compiler.verifying import names_read

MOST_APART = 16

Access = Load | Store


def write_strides(kernel: Kernel, quantities: Mapping[str, Quantity], extents: Mapping[int, int]) -> Kernel:
    """The kernel with such numbers in place of its ints, of which those are left that are read; the same object where
    there are none. ``extents`` are those of classes.
    """
    body = _written(kernel.body, _Numbers(quantities, extents))
    if body == kernel.body:
        return kernel
    read = {name for s in statements(body) for name in names_read(s)} | {buffer.extent for buffer in kernel.buffers}
    return replace(kernel, ints=tuple(name for name in kernel.ints if name in read), body=body)


class _Numbers:
    """The numbers behind the ints of a kernel."""

    def __init__(self, quantities: Mapping[str, Quantity], extents: Mapping[int, int]) -> None:
        self._quantities = quantities
        self._extents = extents

    def stride(self, name: str | int) -> str | int:
        """A stride, by its number where that is small and made of small extents; extents may be symbols."""
        if isinstance(name, int):
            return name
        quantity = self._quantities[name]
        extents = [self._extents[c] for c in quantity.classes]
        if not all(type(n) is int and n <= PLAIN_EXACT for n in extents):
            return name
        number = quantity.value(self._extents)
        return number if 1 < abs(number) <= MOST_APART else name

    def offset(self, name: str | None) -> int:
        """The number behind an offset, which may be a symbol."""
        return 0 if name is None else self._quantities[name].number


def _written(body: Sequence[Statement], numbers: _Numbers) -> tuple[Statement, ...]:
    result: list[Statement] = []
    for s in body:
        if isinstance(s, Loop):
            s = s.with_body(_written(s.body, numbers))
            if s.kind in (VECTOR, PARALLEL_VECTOR):
                s = s.with_body(_with_places(s, numbers))
        result.append(s)
    return tuple(result)


def _with_places(loop: Loop, numbers: _Numbers) -> Sequence[Statement]:
    """The body of a vector loop."""
    body: list[Statement] = [_with_stride(s, loop.var, numbers) if isinstance(s, Access) else s for s in loop.body]
    offsets: dict[tuple[str, tuple[Term, ...]], dict[str | None, None]] = {}
    for s in body:
        if isinstance(s, Access) and stride_of(s.index, loop.var) > 1:
            offsets.setdefault((s.buffer, s.index.terms), {})[s.index.offset] = None
    if not offsets:
        return body
    places = {
        (buffer, index): place
        for (buffer, terms), names in offsets.items()
        for index, place in _places(terms, list(names), stride_of(Index(terms), loop.var), numbers)
    }  # fmt: skip
    return [replace(s, index=places.get((s.buffer, s.index), s.index)) if isinstance(s, Access) else s for s in body]


def _with_stride(s: Access, var: str, numbers: _Numbers) -> Access:
    """An access whose lanes are apart by a number, if they are by one that may stand in the code; not on a diagonal,
    nor where lanes share elements.
    """
    along = [t for t in s.index.terms if t.var == var]
    if len(along) != 1 or along[0].divisor > 1:
        return s
    stride = numbers.stride(along[0].stride)
    if stride == along[0].stride:
        return s
    terms = tuple([replace(t, stride=stride) if t is along[0] else t for t in s.index.terms])
    return replace(s, index=replace(s.index, terms=terms))


def _places(
    terms: tuple[Term, ...], names: list[str | None], stride: int, numbers: _Numbers
) -> Iterator[tuple[Index, Index]]:
    """For each index with one of some offsets, that of the same place by the least offset of its stride."""
    names.sort(key=numbers.offset)
    first = names[0]
    for name in names:
        if numbers.offset(name) - numbers.offset(first) >= stride:
            first = name
        yield Index(terms, name), Index(terms, first, int(numbers.offset(name) - numbers.offset(first)))
