"""Which loops over a row ask for the lines of rows to come, while several loops work on this one; it emits nothing.

A row that several loops go through is read from memory by the first of them alone, and the others would leave the
memory idle. Those with the most work ask: in the first one, which adds a row up, lines are wanted faster than memory
gives them, so that it waits while nothing is computed: written by hand, layer norm of 4096x768 floats takes 1.42 ms so,
and 1.13 where the longest loop asks. Where a turn reads several rows, long loops share them, and ask for what is read
two or more turns later: the memory has longer to give as many lines. That layer norm then takes 0.91 of the time where
others use the memory too, 0.98 where they do not (Zen 4, in turns). What is left over of a row is asked for as well,
since a line that nobody asked for is waited for: 8192 rows of 784 floats take 0.76 of the time so. One row alone one
loop asks for: shared by two, log-softmax with gradient takes 1.24 times as long for 256x16384 floats, 1.12 for
1024x4096, softmax 1.10 for 512x8192, layer norm and cross-entropy as long.

Where a core waits for a dozen lines at a time and no more, loops ask one after the other for parts of the rows to come,
as few lines in a turn as suffice: requests of one loop wait for one another, and between them the memory rests.
Softmax, log-softmax and layer norm with gradient of 2 to 16 million floats take 0.90 of the time so, on two threads,
and as long in cache. The layer norm above, of 32768x768, takes 0.96, and 0.92 on one; by hand 22 ms in place of 25 (Ice
Lake, in turns).

What a loop will store, the loop over the row before it asks for: lines have to be in the first cache before they are
written, and processors ask for them only when the row is stored. Softmax cross-entropy of 4096x1000 takes 0.90 of the
time, in the second cache too, layer norm, whose rows are whole lines, as long as without (AVX-512, in turns).

Rows of a ring are asked for by the loop that makes the one before. While the loop behind it reads the ring alone memory
would rest; so where arrays are larger than the caches it asks for the first array's row behind that. Poisson's residual
takes 0.89 to 0.94 of the time so for 16384x2048 floats, 0.94 to 0.96 for 3000x3000. In the last cache it would take
1.07 (1024x1024), and nine points, which memory does not bound, 1.00 to 1.04: there nothing is asked (Zen 4, in turns).
Where lines are few at a time, each of both loops asks for half of all arrays' rows: 0.91 and 0.95 of the time for
16384x2048 and 2048x2048 (Ice Lake, in turns).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from jitgrad.compiler.emission.interleave import weight_of
from jitgrad.compiler.loopir.nests import VECTOR, Index, Load, Loop, Store, Term
from jitgrad.records import NamedTuple

LINE_CYCLES = 12  # that a line of memory takes a thread beside another: 20 GB/s at 3.7 GHz


class Stream(NamedTuple):
    """Where a loop reads a row: a buffer, the index, the name of the distance between rows, and all offsets with which
    it is read.
    """

    buffer: str
    place: Index
    stride: str
    offsets: tuple[str | None, ...]


class Request(NamedTuple):
    """What a loop asks for of the rows of a stream: of each one of so many equal parts, a power of two, which begins at
    its ``start``-th of `PARTS`.
    """

    stream: Stream
    parts: int = 1
    start: int = 0


PARTS = 8
"""Into how many parts a row is cut at most."""

Asking = Mapping[Loop, tuple[Request, ...]]
"""What the loops over a row, or over several at once, ask for: inputs whose rows are read by loops over their axis."""


def find_asking(
    row: Loop, inputs: Collection[str], others: Sequence[str] = (), lines: Callable[[Loop], int] | None = None
) -> Asking:
    """The loops that ask for rows to come, none where fewer than two go through a row, and it is none of a ring: the
    processor fetches ahead by itself then. ``others`` are the axes of further rows that a turn works on; ``lines``
    gives those of a row that a turn of a loop goes through, 0 for one that cannot ask, where all loops are to ask.
    """
    passes = _passes(row)
    if len(passes) < (1 if row.start else 2):
        return {}
    longest = max(passes, key=weight_of)
    along = [p for p in passes if (p.var, p.extent) == (longest.var, longest.extent)]
    streams = _streams(passes, {row.var, *others}, longest.var, inputs)
    able = {p: min(PARTS, count) for p in along if (count := lines(p))} if lines is not None and not row.start else {}
    if able:
        of_rows = [s for axis in (row.var, *others) for s in streams if axis in {term.var for term in s.place.terms}]
        return _spread_out(of_rows, able)
    long = [p for p in along if 2 * weight_of(p) >= weight_of(longest)] if others else [longest]
    return _shared_out(streams, long)


def find_asking_past(row: Loop, inputs: Collection[str]) -> Asking:
    """The loops over a row that is made of rings which ask as well where stores go past the caches, each for the first
    array of which the rows of its ring are made; none where arithmetic takes longer than memory.
    """
    return {loop: (Request(streams[0]),) for loop, streams in _rings_read(row, inputs).items()}


def find_second_halves(row: Loop, inputs: Collection[str]) -> Asking:
    """The same loops, where each asks for the second half of all rows that the loop before asks for, of which that asks
    for the first (`without_halves`).
    """
    found = _rings_read(row, inputs)
    return {loop: tuple([Request(s, 2, PARTS // 2) for s in streams]) for loop, streams in found.items()}


def without_halves(asking: Asking, around: Asking) -> Asking:
    """What loops ask for but the second halves that others around them ask for."""
    halved = {r.stream for requests in around.values() for r in requests if (r.parts, r.start) == (2, PARTS // 2)}
    return {
        loop: tuple([r._replace(parts=2) if r.stream in halved and r.parts == 1 else r for r in requests])
        for loop, requests in asking.items()
    }


def _rings_read(row: Loop, inputs: Collection[str]) -> dict[Loop, tuple[Stream, ...]]:
    """The loops that read rings, with what the rows of these are made of."""
    found: dict[Loop, tuple[Stream, ...]] = {}
    for maker in (s for s in row.body if isinstance(s, Loop) and s.start):
        passes, readers = _passes(maker), _passes(row)
        lane = max(passes, key=weight_of).var if passes else ""
        streams = _streams(passes, {maker.var}, lane, inputs)
        asking = [p for p in readers if p.var == lane and p not in found]
        work = sum(map(weight_of, (*passes, *readers)))
        if streams and asking and work <= LINE_CYCLES * (len(streams) + 1):
            found[asking[0]] = streams
    return found


def _passes(row: Loop) -> list[Loop]:
    return [s for s in row.body if isinstance(s, Loop) and s.kind == VECTOR]


def _streams(
    passes: Sequence[Loop], rows: Collection[str], lane: str, inputs: Collection[str]
) -> tuple[Stream, ...]:  # fmt: skip
    """What loops along a lane read of the rows with these axes."""
    streams: dict[object, Stream] = {}
    for load in (s for p in passes if p.var == lane for s in p.body if isinstance(s, Load)):
        stride = _stride_of_rows(load.index, rows, lane)
        if stride and load.buffer in inputs and not load.bounds:
            key = load.buffer, load.index.terms
            known = streams.setdefault(key, Stream(load.buffer, load.index, stride, (load.index.offset,)))
            if load.index.offset not in known.offsets:
                streams[key] = known._replace(offsets=(*known.offsets, load.index.offset))
    return tuple(streams.values())


def _shared_out(streams: Sequence[Stream], passes: Sequence[Loop]) -> Asking:
    """Streams, each given to the loop that has the most work for each of its own."""
    found: dict[Loop, tuple[Request, ...]] = {}
    for stream in streams:
        loop = max(passes, key=lambda p: weight_of(p) / (1 + len(found.get(p, ()))))
        found[loop] = (*found.get(loop, ()), Request(stream))
    return found


def _spread_out(streams: Sequence[Stream], lines: Mapping[Loop, int]) -> Asking:
    """Parts of all streams, one stream after the other, given to loops until none is left, as few whole lines in a turn
    of each as suffice for all; ``lines``, powers of two, are those of a row that a turn goes through.

    A loop of two lines asks for half a row at least, also where a quarter is left.
    """
    for most in range(1, len(streams) * PARTS + 1):
        found: dict[Loop, tuple[Request, ...]] = {}
        left = dict.fromkeys(streams, PARTS)
        for loop, count in lines.items():
            room = most
            for stream in (s for s in streams if left[s] > 0):
                fitting = [n for n in (1, 2, 4, PARTS) if n <= min(room, count) and n * PARTS // count <= left[stream]]
                asked = max(fitting, default=min(1, room))
                if asked:
                    found[loop] = (*found.get(loop, ()), Request(stream, count // asked, PARTS - left[stream]))
                    left[stream] -= asked * PARTS // count
                    room -= asked
        if max(left.values(), default=0) <= 0:
            return found
    return {}


def rows_to_write(row: Loop, outputs: Collection[str]) -> dict[Loop, tuple[Store, ...]]:
    """The stores of a row into arrays, by the loop over the row before the one that stores."""
    passes = _passes(row)
    found: dict[Loop, tuple[Store, ...]] = {}
    for before, loop in itertools.pairwise(passes):
        stores = [s for s in loop.body if isinstance(s, Store) and s.buffer in outputs and not s.bounds]
        rows = tuple(s for s in stores if Term(loop.var) in s.index.terms)
        if rows and (before.var, before.extent) == (loop.var, loop.extent):
            found[before] = rows
    return found


def ends_of_rows(row: Loop, others: Sequence[str], outputs: Collection[str]) -> list[tuple[Loop, Store]]:
    """The stores into arrays of a row, and of ``others`` that a turn works on too, with the loops that make them."""
    stores = [(p, s) for p in _passes(row) for s in p.body if isinstance(s, Store) and s.buffer in outputs]
    of_rows = [{rows, p.var} for p in _passes(row) for rows in (row.var, *others)]
    return [(p, s) for p, s in stores if not s.bounds and {term.var for term in s.index.terms} in of_rows]


def _stride_of_rows(index: Index, rows: Collection[str], lane: str) -> str | None:
    """The distance of rows whose elements lie one behind the other; None where an index is not of that kind."""
    if len(index.terms) != 2 or Term(lane) not in index.terms:
        return None
    row = next(t for t in index.terms if t != Term(lane))
    return row.stride if row.var in rows and isinstance(row.stride, str) else None
