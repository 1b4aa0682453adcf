"""Random bits without a state: Threefry-2x32 of 20 rounds, in NumPy; for each key a bijection of 64-bit counters.

J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Whoever
knows the counter knows the bits, in any order and on any thread. Kernels have the same as instructions
(compiler/emission/threefry.py); where in a stream of numbers a run is, streams.py keeps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROUNDS = 20
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = 0x1BD11BDA
_BLOCK = 1 << 13  # counters at a time: what they become on the way stays in the cache


def threefry2x32(counters: Any, keys: Any) -> Any:
    """64 random bits per counter, for uint64 arrays (or numbers) of one shape: the low words come first."""
    counters, keys = np.broadcast_arrays(counters, keys)
    out = np.empty(counters.shape, np.uint64)
    flat, key, bits = counters.reshape(-1), keys.reshape(-1), out.reshape(-1)
    with np.errstate(over="ignore"):
        for start in range(0, flat.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            bits[part] = _bits(flat[part], key[part])
    return out if out.ndim else out[()]


def _bits(counters: Any, keys: Any) -> Any:
    x0, x1 = _words(counters)
    k0, k1 = _words(keys)
    schedule = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    x0, x1 = x0 + k0, x1 + k1
    for number in range(ROUNDS):
        count = ROTATIONS[number % len(ROTATIONS)]
        x0 = x0 + x1
        x1 = ((x1 << np.uint32(count)) | (x1 >> np.uint32(32 - count))) ^ x0
        if number % 4 == 3:
            turn = number // 4 + 1
            x0 = x0 + schedule[turn % 3]
            x1 = x1 + schedule[(turn + 1) % 3] + np.uint32(turn)
    return x0.astype(np.uint64) | x1.astype(np.uint64) << np.uint64(32)


def _words(x: Any) -> tuple[Any, Any]:
    """The low and the high half of 64-bit numbers."""
    return (x & np.uint64(0xFFFFFFFF)).astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)
