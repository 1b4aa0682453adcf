"""Pieces of LLVM IR text that products of a matrix and a vector have in common: their arguments, lines that are asked
for, sums over registers. They make no function.
"""

from __future__ import annotations

import re

from jitgrad.compiler.emission.memory import CACHE_LINE
from jitgrad.compiler.loopir.asked import ASKED_SLOT
from jitgrad.compiler.products.gemv_steps import BLOCK
from jitgrad.compiler.products.registers import Numbers, arrays_ir, block_ir, min_ir


def start() -> str:
    """The words of the block, the matrix %a, the vector %x and the result %y."""
    return f"{block_ir(BLOCK)}\n{arrays_ir('a', 'x', 'y')}"


def lines_ahead() -> str:
    """Where lines are that a product of a region asks for, %next, and how many bytes for an element that it works on,
    in parts of 65536.
    """
    return f"""
  %asking = icmp ne i64 %asks, 0
  %span = sub i64 %hi, %lo
  %ask_slot = lshr i64 %asks, {ASKED_SLOT}
  %ask_row = and i64 %asks, {(1 << ASKED_SLOT) - 1}
  %next_entry = getelementptr ptr, ptr %table, i64 %ask_slot
  %next = load ptr, ptr %next_entry
  %ask_row_parts = shl i64 %ask_row, 16
  %ask_share = udiv i64 %ask_row_parts, %columns"""


def ask(kind: Numbers, registers: int, rows: int, column: str) -> str:
    """Ask line by line for what belongs to the ``rows`` rows from %i on and to so many registers of columns."""
    return f"""
  br i1 %asking, label %ask_lines, label %asked
ask_lines:
  %done_rows = sub i64 %i, %lo
  %done_whole = mul i64 %done_rows, %columns
  %done_columns = mul i64 {column}, {rows}
  %done_places = add i64 %done_whole, %done_columns
  %done_parts = mul i64 %done_places, %ask_share
  %done_bytes = lshr i64 %done_parts, 16
  %ask = getelementptr i8, ptr %next, i64 %done_bytes
  %ask_left = sub i64 %columns, {column}
{min_ir("ask_columns", "%ask_left", str(registers * kind.lanes))}
  %ask_places = mul i64 %ask_columns, {rows}
  %ask_parts = mul i64 %ask_places, %ask_share
  %ask_bytes = lshr i64 %ask_parts, 16
  br label %ask_line
ask_line:
  %far = phi i64 [ 0, %ask_lines ], [ %farther, %ask_line ]
  %line_at = getelementptr i8, ptr %ask, i64 %far
  call void @llvm.prefetch.p0(ptr %line_at, i32 0, i32 1, i32 1)
  %farther = add i64 %far, {CACHE_LINE}
  %ask_again = icmp slt i64 %farther, %ask_bytes
  br i1 %ask_again, label %ask_line, label %asked
asked:"""


def sums(kind: Numbers, names: list[str]) -> tuple[list[str], str]:
    """The sum over each of a square of registers, lane r that of register r; for all of them in the same order."""
    n, v, lines, half = kind.lanes, kind.vector, [], 1
    while half < n:
        result = []
        for r in range(0, len(names), 2):
            upper = [t if not t & half else n + (t ^ half) for t in range(n)]
            lower = [t | half if not t & half else n + t for t in range(n)]
            for part, mask in (("u", upper), ("l", lower)):
                shown = ", ".join(f"i32 {t}" for t in mask)
                lines.append(
                    f"  %{part}{half}_{r} = shufflevector {v} {names[r]}, {v} {names[r + 1]}, <{n} x i32> <{shown}>"
                )
            lines.append(f"  %h{half}_{r} = fadd {v} %u{half}_{r}, %l{half}_{r}")
            result.append(f"%h{half}_{r}")
        names, half = result, 2 * half
    return lines, names[0]


def suffixed(text: str, suffix: str) -> str:
    """Code whose own names and labels, all that stand for something new in it, end in a suffix."""
    own = {*re.findall(r"%(\w+) =", text), *re.findall(r"^(\w+):", text, re.MULTILINE)}
    place = r"(?:(?<=%)|^)\w+"
    return re.sub(place, lambda name: f"{name[0]}_{suffix}" if name[0] in own else name[0], text, flags=re.MULTILINE)
