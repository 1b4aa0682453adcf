"""Threefry-2x32 as LLVM instructions, in as many lanes as there are; what it is, threefry.py tells."""

from __future__ import annotations

import numpy as np

from jitgrad.compiler.emission.scalar_values import Ops, Value, call_intrinsic
from jitgrad.threefry import PARITY, ROTATIONS, ROUNDS

_UINT32 = np.dtype(np.uint32)


def random_bits(o: Ops, counter: Value, key: Value) -> Value:
    """64 random bits of 64-bit counters and keys."""
    b = o.builder
    (x0, x1), (k0, k1) = _words(o, counter), _words(o, key)
    schedule = (k0, k1, b.xor(b.xor(k0, k1), o.const(PARITY, _UINT32)))
    x0, x1 = b.add(x0, k0), b.add(x1, k1)
    for number in range(ROUNDS):
        count = o.const(ROTATIONS[number % len(ROTATIONS)], _UINT32)
        x0 = b.add(x0, x1)
        x1 = b.xor(call_intrinsic(b, "fshl", (x1, x1, count)), x0)
        if number % 4 == 3:
            turn = number // 4 + 1
            x0 = b.add(x0, schedule[turn % 3])
            x1 = b.add(b.add(x1, schedule[(turn + 1) % 3]), o.const(turn, _UINT32))
    wide = o.shaped(o.dtype)
    return b.or_(b.zext(x0, wide), b.shl(b.zext(x1, wide), o.const(32)))


def _words(o: Ops, x: Value) -> tuple[Value, Value]:
    """The low and the high half of 64-bit lanes."""
    b, half = o.builder, o.shaped(_UINT32)
    return b.trunc(x, half), b.trunc(b.lshr(x, o.const(32)), half)
