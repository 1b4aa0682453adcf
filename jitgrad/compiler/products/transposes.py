"""The transpose of a square of registers in the first cache, as LLVM IR text for AVX-512: loops over pairs of rows,
whose blocks of 1, 2, 4, ... lanes change places. Written out, it is a third of the code of a product.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import Numbers, at_ir, loop_ir


def turn_ir(kind: Numbers) -> str:
    """The function `turn_<type>(ptr %square)`: rows of one register, one after another, transposed in place."""
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


def _mask(n: int, half: int, side: int, word: int) -> str:
    """Which lanes of two rows make the upper (0) or the lower (1) one; those of the second count from n on."""
    if side == 0:
        lanes = [t if not t & half else n + (t ^ half) for t in range(n)]
    else:
        lanes = [t | half if not t & half else n + t for t in range(n)]
    return ", ".join(f"i{word} {lane}" for lane in lanes)
