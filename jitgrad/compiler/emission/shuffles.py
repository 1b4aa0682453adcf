"""Shuffles of registers: what lies in memory by turns, apart and together again; it touches no memory.

Places of a stride are those of its elements that neighbouring lanes read or store: lane j has the element ``j * stride
+ place``. A stride is taken apart by one of its prime factors after the other. For an odd one the elements of a place
lie in different lanes of the registers that hold them, so that the registers are blended, and moved once: three
registers of 64 bytes become three places by six blends, which any port of a processor does, and three moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jitgrad.compiler import llvmir as ir

_INT32 = ir.IntType(32)


def deinterleave(b: ir.IRBuilder, registers: Sequence[ir.Value], places: Iterable[int]) -> dict[int, ir.Value]:
    """The lanes of some places, out of the registers in which they lie one behind the other: as many as the stride."""
    stride, found = len(registers), dict[int, ir.Value]()
    if stride == 1:
        return {0: registers[0]}
    factor = _prime_factor(stride)
    for side in sorted({place % factor for place in places}):
        inner = {place // factor for place in places if place % factor == side}
        parts = [_taken(b, registers[first : first + factor], side) for first in range(0, stride, factor)]
        found |= {factor * place + side: value for place, value in deinterleave(b, parts, inner).items()}
    return found


def interleave(b: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    """The registers in which the lanes of all places, one value for each, lie one behind the other."""
    if len(values) == 1:
        return list(values)
    factor = _prime_factor(len(values))
    sides = [interleave(b, values[side::factor]) for side in range(factor)]
    return [register for parts in zip(*sides, strict=True) for register in _by_turns(b, parts)]


def transposed(b: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The columns of a square, a register for each: blocks of 1, 2, 4, ... lanes of pairs of rows change places."""
    count, step, made = len(rows), 1, list(rows)
    while step < count:
        for first in (row for row in range(count) if not row & step):
            pair = made[first], made[first | step]
            for side, row in enumerate((first, first | step)):
                made[row] = b.shuffle_vector(*pair, _picks(_exchanged(count, step, side)))
        step *= 2
    return made


def _exchanged(count: int, step: int, side: int) -> list[int]:
    """Which lanes of two rows make the upper (0) or the lower (1) one; those of the second count from ``count`` on."""
    if side == 0:
        return [k if not k & step else count + (k ^ step) for k in range(count)]
    return [k | step if not k & step else count + k for k in range(count)]


def _picks(lanes: Sequence[int]) -> ir.Value:
    return ir.Constant(ir.VectorType(_INT32, len(lanes)), list(lanes))


def _prime_factor(stride: int) -> int:
    return next(factor for factor in range(2, stride + 1) if stride % factor == 0)


def _taken(b: ir.IRBuilder, registers: Sequence[ir.Value], place: int) -> ir.Value:
    """The lanes of one place of a stride that is prime."""
    stride, lanes = len(registers), registers[0].type.count
    elements = range(place, stride * lanes, stride)
    if stride == 2:
        return picked(b, registers[0], registers[1], elements)
    holder = {element % lanes: element // lanes for element in elements}
    blend = _blended(b, registers, [holder[lane] for lane in range(lanes)])
    return picked(b, blend, blend, [element % lanes for element in elements])


def _by_turns(b: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    """The registers of all places of a stride that is prime."""
    stride, lanes = len(values), values[0].type.count
    numbers = [range(first, first + lanes) for first in range(0, stride * lanes, lanes)]
    if stride == 2:
        return [picked(b, values[0], values[1], [n // 2 + lanes * (n % 2) for n in part]) for part in numbers]
    moved: list[ir.Value] = []
    for place, value in enumerate(values):
        there = {(lane * stride + place) % lanes: lane for lane in range(lanes)}
        moved.append(picked(b, value, value, [there[lane] for lane in range(lanes)]))
    return [_blended(b, moved, [n % stride for n in part]) for part in numbers]


def _blended(b: ir.IRBuilder, registers: Sequence[ir.Value], holders: Sequence[int]) -> ir.Value:
    """Each lane from the register that holds it, in its own place."""
    lanes = len(holders)
    first, *others = sorted(set(holders))
    blend = registers[first]
    for register in others:
        picks = [lane + lanes * (holder == register) for lane, holder in enumerate(holders)]
        blend = picked(b, blend, registers[register], picks)
    return blend


def picked(b: ir.IRBuilder, first: ir.Value, second: ir.Value, picks: Sequence[int]) -> ir.Value:
    """Some lanes of two registers, those of the second one counted behind those of the first."""
    return b.shuffle_vector(first, second, ir.Constant(ir.VectorType(_INT32, len(picks)), list(picks)))


def joined(b: ir.IRBuilder, registers: Sequence[ir.Value]) -> ir.Value:
    """The lanes of all registers, a power of two of them, one behind the other."""
    while len(registers) > 1:
        lanes = 2 * registers[0].type.count
        registers = [picked(b, registers[k], registers[k + 1], range(lanes)) for k in range(0, len(registers), 2)]
    return registers[0]
