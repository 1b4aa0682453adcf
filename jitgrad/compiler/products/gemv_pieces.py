"""Pieces of LLVM IR text that products of a matrix and a vector have in common: their arguments, lines that are asked
for, sums over registers. They make no function.
"""

from __future__ import annotations

import re

from jitgrad.compiler.products.gemv_steps import BLOCK
from jitgrad.compiler.products.registers import Numbers, arrays_ir, at_ir, block_ir


def start() -> str:
    """The words of the block, the matrix %a, the vector %x and the result %y."""
    return f"{block_ir(BLOCK)}\n{arrays_ir('a', 'x', 'y')}"


def next_chunk(kind: Numbers, half: int) -> str:
    """Where in the matrix to ask for lines, %next: the first or second half of the chunk this thread takes next, for
    the caller takes them from the front and workers from the back.
    """
    return f"""
  %asking = icmp ne i64 %asks, 0
  %span = sub i64 %hi, %lo
  %back = sub i64 0, %span
  %is_caller = icmp eq i64 %worker, 0
  %forth = select i1 %is_caller, i64 %span, i64 %back
  %next_row = add i64 %lo, %forth
  %next_place = mul i64 %next_row, %lda
  %all_next = mul i64 %span, %lda
  %half_next = lshr i64 %all_next, 1
  %from_next = add i64 %next_place, {"%half_next" if half else "0"}
{at_ir("next", kind, "%a", "%from_next")}"""


def ask(kind: Numbers, registers: int, rows: int, column: str) -> str:
    """Ask for so many registers, line by line, of the half behind %next that belongs to the ``rows`` rows from %i on
    and to columns.
    """
    parts = [
        "  br i1 %asking, label %ask_lines, label %asked",
        "ask_lines:",
        "  %done_rows = sub i64 %i, %lo",
        "  %done_places = mul i64 %done_rows, %lda",
        "  %done_half = lshr i64 %done_places, 1",
        f"  %done_columns = mul i64 {column}, {rows // 2}",
        "  %ask_place = add i64 %done_half, %done_columns",
        at_ir("ask", kind, "%next", "%ask_place"),
    ]
    for q in range(0, registers, kind.line // kind.lanes):
        parts.append(at_ir(f"ask{q}", kind, "%ask", str(q * kind.lanes)))
        parts.append(f"  call void @llvm.prefetch.p0(ptr %ask{q}, i32 0, i32 1, i32 1)")
    return "\n".join((*parts, "  br label %asked", "asked:"))


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
    own = "|".join({*re.findall(r"%(\w+) =", text), *re.findall(r"^(\w+):", text, re.MULTILINE)})
    return re.sub(rf"(?:(?<=%)|^)({own})\b", rf"\1_{suffix}", text, flags=re.MULTILINE)
