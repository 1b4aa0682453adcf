"""Products of a matrix and a vector, as LLVM IR text behind the kernel ABI; rows lo..hi of the matrix are one call's.

    dots     y[i] = row i of the matrix times x: one register per row, whose sums are taken for a register full of
             rows at once, so that short rows cost no more than they hold
    combine  y[chunk] = the sum of the rows of the matrix, each times its x: the registers go down the rows
    sum      y[i] = the sum of what the chunks of `combine` gave for i
    sequence several kernels, one after another, for the same part of their extent; the block is their number and
             the address of pairs, function and block of each

In a region, `dots` and `combine` each bring half of the next chunk of the matrix into the second cache while they work
on this one, in which memory would rest else: of 200000 x 20 in float64 a region takes 0.6 to 0.66 of the time.

The matrix is row-major, the vectors are contiguous. A product with a transposed matrix is the other of the two. The
bits of an element follow from the sizes, and for `combine` from the chunks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from jitgrad.compiler.products.gemv_steps import BLOCK, COMBINE_STUBS, DOTS_STUBS, SEQUENCE_STUBS, SUM_BLOCK, SUM_STUBS
from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    kinds,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    store_ir,
    word_ir,
)

_KERNEL = "ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker"
_WIDE = 4  # registers of columns in `combine`


def stub_ir(stub: str) -> str:
    """The module of one function, by its name."""
    return _module(stub, _combine)


def quick_stub_ir(stub: str) -> str:
    """The module of one function in less code: all columns by four registers. The bits are the same."""
    return _module(stub, lambda kind, name: _combine(kind, name, (_WIDE,)))


def _module(stub: str, combine: Callable[[Numbers, str], str]) -> str:
    writers = ((DOTS_STUBS, _dots), (COMBINE_STUBS, combine), (SUM_STUBS, _sum), (SEQUENCE_STUBS, _sequence))
    kind, write = next((kinds()[d], write) for stubs, write in writers for d, name in stubs.items() if name == stub)
    prefetch = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0"
    return f"{declarations_ir(kind)}{prefetch}\n{write(kind, stub)}\nattributes #0 = {{ nounwind }}\n"


def _start(kind: Numbers) -> str:
    lines = [word_ir(name, BLOCK) for name in BLOCK]
    for name in ("a", "x", "y"):
        lines += [
            f"  %{name}_entry = getelementptr ptr, ptr %table, i64 %{name}_slot",
            f"  %{name} = load ptr, ptr %{name}_entry",
        ]
    return "\n".join(lines)


def _next_chunk(kind: Numbers, half: int) -> str:
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


def _ask(kind: Numbers, lines: int, rows: int, column: str) -> str:
    """Ask for so many lines of the half behind %next that belongs to the ``rows`` rows from %i on and to columns."""
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
    for q in range(lines):
        parts.append(at_ir(f"ask{q}", kind, "%ask", str(q * kind.lanes)))
        parts.append(f"  call void @llvm.prefetch.p0(ptr %ask{q}, i32 0, i32 1, i32 1)")
    return "\n".join((*parts, "  br label %asked", "asked:"))


def _fma(kind: Numbers, name: str, a: str, b: str, c: str) -> str:
    v = kind.vector
    return f"  %{name} = call {v} @llvm.fma.v{kind.lanes}{kind.suffix}({v} {a}, {v} {b}, {v} {c})"


# -- dots --------------------------------------------------------------------------------------------------------------


def _dots(kind: Numbers, stub: str) -> str:
    """Rows by as many as a register has lanes; in the place of missing rows the last one again."""
    n, v = kind.lanes, kind.vector
    rows = []
    for r in range(n):
        rows += [
            f"  %place{r} = add i64 %i, {r}",
            min_ir(f"row{r}", f"%place{r}", "%last"),
            f"  %row_offset{r} = mul i64 %row{r}, %lda",
            at_ir(f"row_at{r}", kind, "%a", f"%row_offset{r}"),
        ]
    phis = [f"  %s{r} = phi {v} [ zeroinitializer, %rows ], [ %t{r}, %asked ]" for r in range(n)]
    steps = []
    for r in range(n):
        steps += [
            at_ir(f"from{r}", kind, f"%row_at{r}", "%j"),
            load_ir(f"e{r}", kind, f"%from{r}", "%mask"),
            _fma(kind, f"t{r}", f"%e{r}", "%xs", f"%s{r}"),
        ]
    sums, total = _sums(kind, [f"%t{r}" for r in range(n)])
    newline = "\n"
    body = f"""
  br label %rows
rows:
{newline.join(rows)}
  br label %columns_loop
columns_loop:
  %j = phi i64 [ 0, %rows ], [ %j_next, %asked ]
{newline.join(phis)}
  %left = sub i64 %columns, %j
{mask_ir("mask", kind, "%left")}
{at_ir("x_at", kind, "%x", "%j")}
{load_ir("xs", kind, "%x_at", "%mask")}
{_ask(kind, n // 2, n, "%j")}
{newline.join(steps)}
  %j_next = add i64 %j, {n}
  %j_more = icmp slt i64 %j_next, %columns
  br i1 %j_more, label %columns_loop, label %put
put:
{newline.join(sums)}
  %rows_left = sub i64 %hi, %i
{mask_ir("inside", kind, "%rows_left")}
{at_ir("y_at", kind, "%y", "%i")}
{store_ir(kind, total, "%y_at", "%inside")}"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
{_start(kind)}
  %last = sub i64 %hi, 1{_next_chunk(kind, 0)}
{loop_ir("i", "%hi", str(n), body, first="%lo")}
  ret void
}}"""


def _sums(kind: Numbers, names: list[str]) -> tuple[list[str], str]:
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


# -- combine -----------------------------------------------------------------------------------------------------------


def _combine(kind: Numbers, stub: str, widths: Sequence[int] = range(2, _WIDE + 1)) -> str:
    """Columns by four registers, the last ones by as many of ``widths`` as they fill."""
    tests = [
        f"""  %fits{w} = icmp sle i64 %columns_left, {w * kind.lanes}
  br i1 %fits{w}, label %columns{w}, label %wider{w}
wider{w}:"""
        for w in widths[:-1]
    ]
    blocks = [f"columns{w}:{_suffixed(_column_block(kind, w), str(w))}\n  br label %stored" for w in widths]
    newline = "\n"
    body = f"""
  %columns_left = sub i64 %columns, %j
{at_ir("a_columns", kind, "%a", "%j")}
{at_ir("y_at", kind, "%y_chunk", "%j")}
{newline.join(tests)}
  br label %columns{_WIDE}
{newline.join(blocks)}
stored:"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
{_start(kind)}
  %chunk_offset = mul i64 %chunk, %columns
{at_ir("y_chunk", kind, "%y", "%chunk_offset")}{_next_chunk(kind, 1)}
{loop_ir("j", "%columns", str(_WIDE * kind.lanes), body)}
  ret void
}}"""


def _suffixed(text: str, suffix: str) -> str:
    """Code whose own names and labels, all that stand for something new in it, end in a suffix."""
    own = "|".join({*re.findall(r"%(\w+) =", text), *re.findall(r"^(\w+):", text, re.MULTILINE)})
    return re.sub(rf"(?:(?<=%)|^)({own})\b", rf"\1_{suffix}", text, flags=re.MULTILINE)


def _column_block(kind: Numbers, wide: int) -> str:
    """So many registers of columns, rows by two; a second row that is not there is all zeros, as is its number."""
    tile = [(r, c) for r in range(2) for c in range(wide)]
    v = kind.vector
    masks = [
        "\n".join((f"  %left{c} = sub i64 %columns_left, {c * kind.lanes}", mask_ir(f"mask{c}", kind, f"%left{c}")))
        for c in range(wide)
    ]
    phis = [f"  %s{r}_{c} = phi {v} [ zeroinitializer, %block_start ], [ %t{r}_{c}, %pair_end ]" for r, c in tile]
    loads = [
        "\n".join(
            (
                at_ir(f"from{r}_{c}", kind, f"%row{r}", str(c * kind.lanes)),
                load_ir(f"e{r}_{c}", kind, f"%from{r}_{c}", f"%{'mask' if not r else 'both'}{c}"),
                _fma(kind, f"t{r}_{c}", f"%e{r}_{c}", f"%x{r}s", f"%s{r}_{c}"),
            )
        )
        for r, c in tile
    ]
    both = [f"  %both{c} = select i1 %second, {kind.mask} %mask{c}, {kind.mask} zeroinitializer" for c in range(wide)]
    splats = [
        f"  %x{r}v = insertelement {v} poison, {kind.type} %x{r}, i64 0\n"
        f"  %x{r}s = shufflevector {v} %x{r}v, {v} poison, <{kind.lanes} x i32> zeroinitializer"
        for r in range(2)
    ]
    stores = [
        "\n".join(
            (
                f"  %sum{c} = fadd {v} %s0_{c}, %s1_{c}",
                at_ir(f"to{c}", kind, "%y_at", str(c * kind.lanes)),
                store_ir(kind, f"%sum{c}", f"%to{c}", f"%mask{c}"),
            )
        )
        for c in range(wide)
    ]
    newline = "\n"
    return f"""
{newline.join(masks)}
  br label %block_start
block_start:
  br label %pair
pair:
  %i = phi i64 [ %lo, %block_start ], [ %i_next, %pair_end ]
{newline.join(phis)}
  %i_more = icmp slt i64 %i, %hi
  br i1 %i_more, label %pair_body, label %put
pair_body:
  %i1 = add i64 %i, 1
  %second = icmp slt i64 %i1, %hi
  %other = select i1 %second, i64 %i1, i64 %i
  %down0 = mul i64 %i, %lda
  %down1 = mul i64 %other, %lda
{at_ir("row0", kind, "%a_columns", "%down0")}
{at_ir("row1", kind, "%a_columns", "%down1")}
{at_ir("x0_at", kind, "%x", "%i")}
{at_ir("x1_at", kind, "%x", "%other")}
  %x0 = load {kind.type}, ptr %x0_at
  %x1_there = load {kind.type}, ptr %x1_at
  %x1 = select i1 %second, {kind.type} %x1_there, {kind.type} 0.0
{newline.join(both)}
{newline.join(splats)}
{_ask(kind, wide, 2, "%j")}
{newline.join(loads)}
  br label %pair_end
pair_end:
  %i_next = add i64 %i, 2
  br label %pair
put:
{newline.join(stores)}"""


# -- sum ---------------------------------------------------------------------------------------------------------------


def _sum(kind: Numbers, stub: str) -> str:
    """Element i of the result is the sum of the i-th elements of all parts, in order; a register of them at once."""
    words = "\n".join(word_ir(name, SUM_BLOCK) for name in SUM_BLOCK)
    body = f"""
  %left = sub i64 %hi, %i
{mask_ir("mask", kind, "%left")}
{at_ir("first", kind, "%from", "%i")}
{at_ir("to_at", kind, "%to", "%i")}
  br label %part
part:
  %p = phi i64 [ 0, %i_body ], [ %p1, %add ]
  %sum = phi {kind.vector} [ zeroinitializer, %i_body ], [ %sum1, %add ]
  %again = icmp slt i64 %p, %parts
  br i1 %again, label %add, label %put
add:
  %down = mul i64 %p, %count
{at_ir("at", kind, "%first", "%down")}
{load_ir("x", kind, "%at", "%mask")}
  %sum1 = fadd {kind.vector} %sum, %x
  %p1 = add i64 %p, 1
  br label %part
put:
{store_ir(kind, "%sum", "%to_at", "%mask")}"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
{words}
  %from_entry = getelementptr ptr, ptr %table, i64 %from_slot
  %from = load ptr, ptr %from_entry
  %to_entry = getelementptr ptr, ptr %table, i64 %to_slot
  %to = load ptr, ptr %to_entry
{loop_ir("i", "%hi", str(kind.lanes), body, first="%lo")}
  ret void
}}"""


# -- sequence ----------------------------------------------------------------------------------------------------------


def _sequence(_: Numbers, stub: str) -> str:
    body = """
  %function_at = getelementptr [2 x i64], ptr %pairs, i64 %k
  %function = load ptr, ptr %function_at
  %block_at = getelementptr i64, ptr %function_at, i64 1
  %own = load ptr, ptr %block_at
  call void %function(ptr %table, ptr %own, i64 %lo, i64 %hi, i64 %chunk, i64 %worker)"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
  %count = load i64, ptr %block
  %pairs_at = getelementptr i64, ptr %block, i64 1
  %pairs = load ptr, ptr %pairs_at
{loop_ir("k", "%count", "1", body)}
  ret void
}}"""
