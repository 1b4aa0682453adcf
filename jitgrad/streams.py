"""Streams of random numbers: from which key each comes, and how far each owner (a session, say) has read it; the bits
are made elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType, TracebackType

import numpy as np

from jitgrad.forking import renew_when_forked
from jitgrad.threefry import threefry2x32

_WORD = (1 << 64) - 1
_NUMBERS = 0x9E3779B97F4A7C15


def stream_key(graph_seed: int | None, op_seed: int | None, number: int) -> int:
    """The 64-bit key of an operation's stream: ``number`` stands in for the seed of an operation that has none.

    A graph without a seed has the seed 0. Seeds count modulo 2**64. That of the graph is the key for the operation's,
    and with other bits turned for a number, which is no seed.
    """
    key = (graph_seed or 0) & _WORD
    if op_seed is None:
        return int(threefry2x32(np.uint64(number), np.uint64(key ^ _NUMBERS)))
    return int(threefry2x32(np.uint64(op_seed & _WORD), np.uint64(key)))


class Streams:
    """How many numbers have been read from each stream. A stream is told by its key and its number among its like.

    A stream that as many as ``most`` others have been read after is forgotten, and begins again.
    """

    most = 1 << 16

    def __init__(self) -> None:
        self._positions: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        renew_when_forked(self)

    def take(self, key: int, number: int, count: int) -> int:
        """The position of the next ``count`` numbers of a stream, which are then behind it."""
        with self._lock:
            position = self._positions.pop((key, number), 0)
            self._positions[key, number] = (position + count) & _WORD
            if len(self._positions) > self.most:
                del self._positions[next(iter(self._positions))]
            return position

    def positions(self) -> dict[tuple[int, int], int]:
        """How far each stream has been read."""
        with self._lock:
            return dict(self._positions)

    def restart(self, positions: Mapping[tuple[int, int], int] = MappingProxyType({})) -> None:
        """Read every stream from these positions, or from its beginning."""
        with self._lock:
            self._positions = dict(positions)


class _Local(threading.local):
    streams: Streams


shared = Streams()
"""What is drawn outside of graphs, sessions and compiled functions reads from these."""
_local = _Local()


def current() -> Streams:
    """The streams that what runs on this thread reads from: those of its owner, else one for the whole process."""
    return getattr(_local, "streams", shared)


class reading:  # noqa: N801  used like a keyword
    """``with reading(streams):`` what runs inside, on this thread, reads from these."""

    __slots__ = ("_before", "_streams")

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def __enter__(self) -> None:
        self._before = current()
        _local.streams = self._streams

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _local.streams = self._before
