"""Extent classes: which dimensions of a program are one and the same extent, whatever its number is.

Kernels are keyed by structure, so two extents may only be treated as one when the program says that they are (an
elementwise op of the two, a kept axis of a reduction), never because their numbers happen to agree today. Dimensions
of extent 1 have no class: broadcasting makes them structure.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator

from jitgrad.compiler.fusing.factors import RECTANGULAR, TRANSFORMS
from jitgrad.compiler.likeness import exact_in
from jitgrad.opdef import (
    AxisIndex,
    Contract,
    Control,
    Convolve,
    Elementwise,
    Gather,
    IndexMap,
    Library,
    Pairs,
    Reduce,
    Reindex,
    Scan,
    Scatter,
    Sweep,
    Update,
    View,
)  # fmt: skip
from jitgrad.program import Instruction, Program
from jitgrad.spec import normalize_axes, normalize_axis

ONE = -1
Dim = tuple[int, int]


class ExtentClasses:
    """``classes[value]`` gives one class number per dimension; ONE for an extent of 1."""

    def __init__(self, program: Program, numbers: Iterable[int]) -> None:
        self._program = program
        self._parent: dict[Dim, Dim] = {}
        self._count = len(program.specs)
        self._numbers: dict[Dim, int] = {}
        for number in numbers:
            for a, b in equal_dims(program, program.instructions[number]):
                if self._extent(a) == self._extent(b) != 1:
                    above, below = self._root(a), self._root(b)  # what is new goes below, so that trees stay flat
                    if above != below:
                        self._parent[below] = above

    def _extent(self, dim: Dim) -> int:
        return self._program.specs[dim[0]].known_shape[dim[1]]

    def _root(self, dim: Dim) -> Dim:
        parent = self._parent
        while (above := parent.get(dim, dim)) != dim:
            parent[dim] = parent.get(above, above)
            dim = above
        return dim

    @functools.cached_property
    def exact(self) -> int:
        """Up to where extents are part of what all programs of a pattern share."""
        return exact_in(self._program)

    def of(self, value: int) -> tuple[int, ...]:
        """The classes of the dimensions of a value."""
        shape = self._program.specs[value].known_shape
        return tuple(
            ONE if n == 1 else self._numbers.setdefault(self._root((value, d)), len(self._numbers))
            for d, n in enumerate(shape)
        )

    def fresh(self) -> int:
        """A class of its own: the number of chunks of a kernel."""
        self._count += 1
        return self._numbers.setdefault((self._count, 0), len(self._numbers))


def equal_dims(program: Program, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that an instruction makes equal."""
    out = ins.outputs[0]
    match ins.op.kind:
        case Elementwise() | Scan():
            for x in ins.inputs:
                for d in range(len(program.specs[out].known_shape)):
                    yield (x, d), (out, d)
        case Reindex(maps):
            specs = tuple(program.specs[v] for v in ins.inputs)
            for v, per_input in zip(ins.outputs, maps(specs, ins.params), strict=True):
                for x, index_map in zip(ins.inputs, per_input, strict=True):
                    if index_map is not None:
                        yield from _through_map(program, x, v, index_map)
        case Reduce():
            yield from _kept(program, ins.inputs[0], out, ins)
        case Pairs():
            x = ins.inputs[0]
            for d in range(min(len(program.specs[v].known_shape) for v in (x, out))):
                yield (x, d), (out, d)
        case View():
            yield from _through_view(program, ins.inputs[0], out)
        case Contract():
            yield from _through_contract(program, ins)
        case Convolve(form):
            yield from _through_convolution(ins, form)
        case Sweep("search"):
            for d in range(len(program.specs[out].known_shape)):
                yield (ins.inputs[1], d), (out, d)
        case Gather(form):
            yield from _through_gather(program, ins.inputs[0], ins.inputs[1], out, ins, form)
        case Control():
            yield from _through_bodies(program, ins)
        case Library(routine) if routine in TRANSFORMS:
            rows = range(min(len(program.specs[v].known_shape) for v in (ins.inputs[0], out)) - 1)
            yield from (((ins.inputs[0], d), (out, d)) for d in rows)
        case Library(routine) if routine in RECTANGULAR:
            yield from _through_decomposition(program, ins)
        case Library():
            yield from _through_library(program, ins)
        case Scatter(form):
            for d in range(len(program.specs[out].known_shape)):
                yield (ins.inputs[0], d), (out, d)
            yield from _through_gather(program, ins.inputs[0], ins.inputs[2], ins.inputs[1], ins, form)
        case Update():
            axes, rank = ins.params["axes"], len(program.specs[out].known_shape)
            yield from (((ins.inputs[0], d), (out, d)) for d in range(rank))
            others = [d for d in range(rank) if d not in axes]
            yield from (((ins.inputs[1], k), (out, d)) for k, d in enumerate(others))
        case _:
            return


def _through_map(program: Program, x: int, out: int, index_map: IndexMap) -> Iterator[tuple[Dim, Dim]]:
    for d, index in enumerate(index_map.dims):
        if index.axis is not None and index.scale in (1, -1) and covers(program, x, d, out, index):
            yield (x, d), (out, index.axis)


def covers(program: Program, x: int, d: int, out: int, index: AxisIndex) -> bool:
    """Whether an index runs over the whole of dimension ``d`` of ``x``, in either direction."""
    if index.axis is None or index.divisor != 1:
        return False
    n = program.specs[x].known_shape[d]
    start = 0 if index.scale == 1 else n - 1
    return index.offset == start and program.specs[out].known_shape[index.axis] == n


def _kept(program: Program, x: int, out: int, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    rank = len(program.specs[x].known_shape)
    axes = normalize_axes(ins.params["axis"], rank)
    kept = [d for d in range(rank) if d not in axes]
    keepdims = ins.params.get("keepdims", False)
    for position, d in enumerate(kept):
        yield (x, d), (out, d if keepdims else position)


def _through_view(program: Program, x: int, out: int) -> Iterator[tuple[Dim, Dim]]:
    """Leading and trailing dimensions that a reshape leaves alone; extents of 1 may come, go and move."""
    pair = [
        [(d, n) for d, n in enumerate(program.specs[v].known_shape) if n != 1] for v in (x, out)
    ]
    for a, b in (pair, (pair[0][::-1], pair[1][::-1])):
        for (d, m), (e, n) in zip(a, b, strict=False):
            if m != n:
                break
            yield (x, d), (out, e)


def _through_contract(program: Program, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    (a, b), out = ins.inputs, ins.outputs[0]
    rank = len(program.specs[out].known_shape)
    ta, tb = ins.params.get("transpose_a", False), ins.params.get("transpose_b", False)
    for d in range(rank - 2):
        yield (a, d), (out, d)
        yield (b, d), (out, d)
    m, k = (rank - 1, rank - 2) if ta else (rank - 2, rank - 1)
    k2, n = (rank - 1, rank - 2) if tb else (rank - 2, rank - 1)
    yield (a, m), (out, rank - 2)
    yield (b, n), (out, rank - 1)
    yield (a, k), (b, k2)


def _through_convolution(ins: Instruction, form: str) -> Iterator[tuple[Dim, Dim]]:
    """Examples and channels of images, and the channels of weights."""
    image = ins.inputs[0]
    weights, result = (ins.inputs[1], ins.outputs[0]) if form == "windows" else (ins.outputs[0], ins.inputs[1])
    yield (image, 0), (result, 0)
    yield (image, 1), (weights, 1)
    yield (weights, 0), (result, 1)


def _through_library(program: Program, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    """A square matrix, right sides with as many rows, and results with what they have of these axes."""
    a, rank = ins.inputs[0], len(program.specs[ins.inputs[0]].known_shape)
    yield (a, rank - 2), (a, rank - 1)
    for v in (*ins.inputs[1:], *ins.outputs):
        for d in range(min(rank - 1, len(program.specs[v].known_shape))):
            yield (a, d), (v, d)
    columns = next(v for v in reversed(ins.inputs) if len(program.specs[v].known_shape) >= rank)  # not the pivots
    for v in ins.outputs:
        if len(program.specs[v].known_shape) == rank:
            yield (columns, rank - 1), (v, rank - 1)


def _through_decomposition(program: Program, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    """The stack of all results; the rows of the first of several, the columns of the last, and what is between them."""
    a, last = ins.inputs[0], len(program.specs[ins.inputs[0]].known_shape) - 1
    yield from (((a, d), (v, d)) for v in ins.outputs for d in range(last - 1))
    first, *others = ins.outputs
    if others:
        yield (a, last - 1), (first, last - 1)
        yield (a, last), (others[-1], last)
        yield from (((first, last), (v, last - 1)) for v in others)


def _through_bodies(program: Program, ins: Instruction) -> Iterator[tuple[Dim, Dim]]:
    """The state before and after a loop, and the rows of all that a scan takes apart or puts together."""
    assert isinstance(ins.op.kind, Control)
    form = ins.op.kind.form
    if form in ("cond", "call"):
        return
    first = ins.params["n_consts"]
    if form == "scan":
        last = first + ins.params["n_carry"]
        rows = [(v, 0) for v in (*ins.inputs[last:], *ins.outputs[last - first :])]
        yield from itertools.pairwise(rows)
    else:
        first += ins.params.get("n_carry", 0)
        last = len(ins.inputs)
    for before, after in zip(ins.inputs[first:last], ins.outputs, strict=False):
        for d in range(len(program.specs[before].known_shape)):
            yield (before, d), (after, d)


def _through_gather(
    program: Program, x: int, index: int, out: int, ins: Instruction, form: str
) -> Iterator[tuple[Dim, Dim]]:
    x_rank = len(program.specs[x].known_shape)
    index_rank = len(program.specs[index].known_shape)
    if form == "take_along":
        axis = normalize_axis(ins.params["axis"], x_rank)
        for d in range(x_rank):
            yield (index, d), (out, d)
            if d != axis:
                yield (x, d), (out, d)
        return
    axes = [normalize_axis(ins.params["axis"], x_rank)] if form == "take" else list(ins.params["axes"])
    for d in range(index_rank):
        yield (index, d), (out, axes[0] + d)
    for d in range(x_rank):
        if d not in axes:
            yield (x, d), (out, d if d < axes[0] else d - len(axes) + index_rank)
