"""The transpose of a square of registers, as LLVM IR text: blocks of 1, 2, 4, ... lanes of pairs of them change places.

Where 16 lanes make it a third of the code of a product, and an instruction of AVX-512 picks lanes of two registers by a
third one, it is loops over pairs of rows in the first cache; else it is written out.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.products.registers import Numbers, at_ir, loop_ir


def turn_ir(kind: Numbers) -> str:
    """The function `turn_<type>(ptr %square)`: rows of one register, one after another, transposed in place."""
    return _turn_in_loops(kind) if kind.bytes == 64 else _turn_written_out(kind)


def _turn_in_loops(kind: Numbers) -> str:
    n, v = kind.lanes, kind.vector
    word = 8 * kind.size
    places = f"<{n} x i{word}>"
    permute = f"llvm.x86.avx512.vpermi2var.{'ps' if kind.size == 4 else 'pd'}.512"
    rounds = n.bit_length() - 1
    masks = ", ".join(f"{places} <{_mask(n, 1 << r, side, word)}>" for r in range(rounds) for side in (0, 1))
    pair = f"""
  %inside = and i64 %pair, %low_bits
  %outside = sub i64 %pair, %inside
  %doubled = shl i64 %outside, 1
  %first = or i64 %doubled, %inside
  %second = or i64 %first, %half
  %first_offset = mul i64 %first, {n}
  %second_offset = mul i64 %second, {n}
{at_ir("first_at", kind, "%square", "%first_offset")}
{at_ir("second_at", kind, "%square", "%second_offset")}
  %x = load {v}, ptr %first_at, align 64
  %y = load {v}, ptr %second_at, align 64
  %upper = call {v} @{permute}({v} %x, {places} %take_upper, {v} %y)
  %lower = call {v} @{permute}({v} %x, {places} %take_lower, {v} %y)
  store {v} %upper, ptr %first_at, align 64
  store {v} %lower, ptr %second_at, align 64"""
    turn = f"""
  %half = shl i64 1, %round
  %low_bits = sub i64 %half, 1
  %number = shl i64 %round, 1
  %upper_at = getelementptr {places}, ptr @turn_masks_{kind.type}, i64 %number
  %lower_at = getelementptr {places}, ptr %upper_at, i64 1
  %take_upper = load {places}, ptr %upper_at, align 64
  %take_lower = load {places}, ptr %lower_at, align 64
{loop_ir("pair", str(n // 2), "1", pair)}"""
    return f"""
@turn_masks_{kind.type} = internal constant [{2 * rounds} x {places}] [{masks}], align 64

declare {v} @{permute}({v}, {places}, {v}) #0

define internal void @turn_{kind.type}(ptr %square) noinline #0 {{
{loop_ir("round", str(rounds), "1", turn)}
  ret void
}}"""


def _turn_written_out(kind: Numbers) -> str:
    places = [at_ir(f"at{r}", kind, "%square", str(r * kind.lanes)) for r in range(kind.lanes)]
    loads = [f"  %x{r} = load {kind.vector}, ptr %at{r}, align {kind.bytes}" for r in range(kind.lanes)]
    lines, turned = turned_ir(kind, [f"%x{r}" for r in range(kind.lanes)])
    stores = [f"  store {kind.vector} {name}, ptr %at{r}, align {kind.bytes}" for r, name in enumerate(turned)]
    return f"""
define internal void @turn_{kind.type}(ptr %square) noinline #0 {{
{chr(10).join((*places, *loads, *lines, *stores))}
  ret void
}}"""


def turned_ir(kind: Numbers, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The transpose of a square of registers, by names: its code, and the names of the new ones."""
    n, half, lines, names = kind.lanes, 1, [], list(names)
    while half < n:
        made = list(names)
        for first in (r for r in range(n) if not r & half):
            second = first | half
            for side, r in enumerate((first, second)):
                made[r] = f"%turned{half}_{r}"
                lines.append(
                    f"  {made[r]} = shufflevector {kind.vector} {names[first]}, {kind.vector} {names[second]}, "
                    f"<{n} x i32> <{_mask(n, half, side, 32)}>"
                )
        names, half = made, 2 * half
    return lines, names


def _mask(n: int, half: int, side: int, word: int) -> str:
    """Which lanes of two rows make the upper (0) or the lower (1) one; those of the second count from n on."""
    if side == 0:
        lanes = [t if not t & half else n + (t ^ half) for t in range(n)]
    else:
        lanes = [t | half if not t & half else n + t for t in range(n)]
    return ", ".join(f"i{word} {lane}" for lane in lanes)
