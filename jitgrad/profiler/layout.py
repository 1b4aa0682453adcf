"""Layered layout of a directed graph of boxes: where each box stands and how each edge runs; it draws nothing.

The method is that of Sugiyama, Tagawa and Toda (IEEE Trans. SMC 11, 1981): boxes are put in layers so that edges point
down, edges that cross several layers get a bend in each, and the boxes of a layer are ordered by the middle of their
neighbours, in sweeps down and up, to have few crossings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from jitgrad.records import dataclass

GAP, LAYER_GAP, BEND_WIDTH, BEND_GAP = 24.0, 56.0, 4.0, 4.0
_SWEEPS = 8

Point = tuple[float, float]
Edge = tuple[Hashable, Hashable]
Chain = tuple[Hashable, ...]  # the ends of an edge with its bends between them
Neighbours = Mapping[Hashable, Sequence[Hashable]]


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of a box, in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """The upper left corner of each box, the points that each edge passes, and the size of the whole."""

    corners: Mapping[Hashable, Point]
    paths: Mapping[Edge, tuple[Point, ...]]
    size: Size


def lay_out(sizes: Mapping[Any, Size], edges: Sequence[Edge]) -> Layout:
    """Places boxes so that every edge points down. The edges must not form a cycle: ValueError names a box in one."""
    wanted = [(a, b) for a, b in dict.fromkeys(edges) if a != b]
    layer_of = _layers(list(sizes), wanted)
    chains = {edge: _chain(edge, layer_of) for edge in wanted}
    layers = _ordered(layer_of, chains)
    return _placed(sizes, layers, chains)


def _layers(boxes: Sequence[Hashable], edges: Sequence[Edge]) -> dict[Hashable, int]:
    """The number of edges on the longest way to each box; those without one stand above their readers."""
    after: dict[Hashable, list[Hashable]] = {box: [] for box in boxes}
    for a, b in edges:
        after[a].append(b)
    layer = dict.fromkeys(boxes, 0)
    for box in _in_order(boxes, after):
        for reader in after[box]:
            layer[reader] = max(layer[reader], layer[box] + 1)
    for box in set(boxes) - {b for _, b in edges}:
        if after[box]:
            layer[box] = min(layer[reader] for reader in after[box]) - 1
    return layer


def _in_order(boxes: Sequence[Hashable], after: Mapping[Hashable, Sequence[Hashable]]) -> Iterator[Hashable]:
    """The boxes, each after all those that it reads. ValueError where they form a cycle."""
    waiting = Counter(reader for readers in after.values() for reader in readers)
    ready = [box for box in boxes if not waiting[box]]
    while ready:
        box = ready.pop()
        yield box
        for reader in after[box]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if waiting.total():
        raise ValueError(f"the edges form a cycle through {next(box for box in boxes if waiting[box])!r}")


def _chain(edge: Edge, layer_of: Mapping[Hashable, int]) -> Chain:
    """The edge's ends with a bend in each layer between them."""
    a, b = edge
    bends = [("bend", a, b, layer) for layer in range(layer_of[a] + 1, layer_of[b])]
    return (a, *bends, b)


def _ordered(layer_of: Mapping[Hashable, int], chains: Mapping[Edge, Chain]) -> list[list[Hashable]]:
    """The boxes and bends of each layer, from left to right."""
    layers: list[list[Hashable]] = [[] for _ in range(max(layer_of.values(), default=-1) + 1)]
    for box, layer in layer_of.items():
        layers[layer].append(box)
    for (a, _), chain in chains.items():
        for step, bend in enumerate(chain[1:-1], 1):
            layers[layer_of[a] + step].append(bend)
    above, below = _neighbours(chains.values())
    for _ in range(_SWEEPS):
        for k in range(1, len(layers)):
            _sort_by_neighbours(layers[k], layers[k - 1], above)
        for k in range(len(layers) - 2, -1, -1):
            _sort_by_neighbours(layers[k], layers[k + 1], below)
    return layers


def _neighbours(chains: Iterable[Chain]) -> tuple[Neighbours, Neighbours]:
    """What each box and bend is joined to above it, and below it."""
    above: dict[Hashable, list[Hashable]] = {}
    below: dict[Hashable, list[Hashable]] = {}
    for chain in chains:
        for x, y in pairwise(chain):
            below.setdefault(x, []).append(y)
            above.setdefault(y, []).append(x)
    return above, below


def _sort_by_neighbours(
    layer: list[Hashable], other: Sequence[Hashable], neighbours: Neighbours
) -> None:
    place = {box: k / max(1, len(other) - 1) for k, box in enumerate(other)}
    own = {box: k / max(1, len(layer) - 1) for k, box in enumerate(layer)}

    def middle(box: Hashable) -> float:
        near = [place[n] for n in neighbours.get(box, ()) if n in place]
        return sum(near) / len(near) if near else own[box]

    layer.sort(key=middle)


def _placed(
    sizes: Mapping[Any, Size], layers: Sequence[Sequence[Hashable]], chains: Mapping[Edge, Chain]
) -> Layout:
    bend = Size(BEND_WIDTH, 0.0)
    size_of = {box: sizes.get(box, bend) for layer in layers for box in layer}
    widths = [sum(size_of[box].width + _gap(box, sizes) for box in layer) for layer in layers]
    width = max(widths, default=0.0)
    corners: dict[Hashable, Point] = {}
    y = 0.0
    for layer, used in zip(layers, widths, strict=True):
        height = max(size_of[box].height for box in layer)
        x = (width - used) / 2
        for box in layer:
            corners[box] = (x, y if box in sizes else y + height / 2)
            x += size_of[box].width + _gap(box, sizes)
        y += height + LAYER_GAP
    paths = {edge: _path(chain, corners, size_of) for edge, chain in chains.items()}
    return Layout({box: corners[box] for box in sizes}, paths, Size(width, max(0.0, y - LAYER_GAP)))


def _gap(box: Hashable, sizes: Mapping[Any, Size]) -> float:
    """The room to the right of a box; the bends of long edges run close together."""
    return GAP if box in sizes else BEND_GAP


def _path(chain: Chain, corners: Mapping[Hashable, Point], sizes: Mapping[Any, Size]) -> tuple[Point, ...]:
    def middle(box: Hashable, at_bottom: bool) -> Point:
        x, y = corners[box]
        return x + sizes[box].width / 2, y + sizes[box].height * at_bottom

    return (middle(chain[0], True), *(middle(box, False) for box in chain[1:]))
