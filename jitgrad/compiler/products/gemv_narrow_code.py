"""Products of a matrix of short rows and a vector on 16 registers of 32 bytes, as LLVM IR text behind the kernel ABI:
`dots` and `combine` of gemv_code.py, where masks are dear; not which products these are for (gemv.py).

Only the last register of a row has a mask, made once for all rows; what is left over of the rows has none.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.products.gemv_pieces import ask, lines_ahead, start, suffixed, sums
from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    at_ir,
    fma_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    store_ir,
)

_WIDE = 6  # registers of columns in `combine`: two sums each, and one each for a mask, two numbers and an element

# -- dots --------------------------------------------------------------------------------------------------------------


def narrow_dots(kind: Numbers, stub: str, _: bool) -> str:
    """Rows by as many as a register has lanes, the last ones of a chunk together with some before them, for the second
    time; where a chunk has fewer, the last one again.
    """
    n = kind.lanes
    body = f"""
{min_ir("first", "%i", "%last_first")}
  %down = mul i64 %first, %lda
{at_ir("rows_at", kind, "%a", "%down")}
{_lines(at_ir(f"row_at{r}", kind, "%rows_at", f"%offset{r}") for r in range(n))}
{at_ir("y_at", kind, "%y", "%first")}
{_rows(kind)}"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
{start()}{lines_ahead()}
  %rest = and i64 %columns, {n - 1}
  %whole = sub i64 %columns, %rest
{mask_ir("mask", kind, "%rest")}
{mask_ir("inside", kind, "%span")}
  %is_full = icmp sge i64 %span, {n}
  %last_full = sub i64 %hi, {n}
  %last_first = select i1 %is_full, i64 %last_full, i64 %lo
  %last = sub i64 %span, 1
{_lines(_row_offset(r) for r in range(n))}
{loop_ir("i", "%hi", str(n), body, first="%lo")}
  ret void
}}"""


def _row_offset(r: int) -> str:
    return "\n".join((min_ir(f"row{r}", str(r), "%last"), f"  %offset{r} = mul i64 %row{r}, %lda"))


def _rows(kind: Numbers) -> str:
    """The registers of columns that are full, the one that is not, if there is one, and the sums of all rows."""
    n, v = kind.lanes, kind.vector
    full, rest = suffixed(_step(kind, "%j"), "full"), suffixed(_step(kind, "%whole", "%mask"), "rest")
    adding, total = sums(kind, [f"%u{r}" for r in range(n)])
    return f"""
  br label %full_loop
full_loop:
  %j = phi i64 [ 0, %i_body ], [ %j_next, %asked_full ]
{_lines(f"  %s{r} = phi {v} [ zeroinitializer, %i_body ], [ %t{r}_full, %asked_full ]" for r in range(n))}
  %j_more = icmp slt i64 %j, %whole
  br i1 %j_more, label %full, label %full_done
full:
{full}
  %j_next = add i64 %j, {n}
  br label %full_loop
full_done:
  %has_rest = icmp ne i64 %rest, 0
  br i1 %has_rest, label %others, label %add
others:
{rest}
  br label %add
add:
{_lines(f"  %u{r} = phi {v} [ %s{r}, %full_done ], [ %t{r}_rest, %asked_rest ]" for r in range(n))}
{_lines(adding)}
  br i1 %is_full, label %put, label %put_few
put:
  store {v} {total}, ptr %y_at, align {kind.size}
  br label %stored
put_few:
{store_ir(kind, total, "%y_at", "%inside")}
  br label %stored
stored:"""


def _step(kind: Numbers, column: str, mask: str = "") -> str:
    """One register of each row, times that of the vector, added to the sums."""
    n = kind.lanes
    loads = "\n".join(
        "\n".join(
            (
                at_ir(f"from{r}", kind, f"%row_at{r}", column),
                _load(f"e{r}", kind, f"%from{r}", mask),
                fma_ir(f"t{r}", kind, f"%e{r}", "%xs", f"%s{r}"),
            )
        )
        for r in range(n)
    )
    return f"""{at_ir("x_at", kind, "%x", column)}
{_load("xs", kind, "%x_at", mask)}
{ask(kind, 1, n, column)}
{loads}"""


# -- combine -----------------------------------------------------------------------------------------------------------


def narrow_combine(kind: Numbers, stub: str, is_quick: bool) -> str:
    """Columns by six registers, the last ones by as many as they fill; in quick code by one."""
    widths = range(1, 2 if is_quick else _WIDE + 1)
    tests = (
        f"""  %fits{w} = icmp sle i64 %columns_left, {w * kind.lanes}
  br i1 %fits{w}, label %columns{w}, label %wider{w}
wider{w}:"""
        for w in widths[:-1]
    )
    blocks = (f"columns{w}:{suffixed(_column_block(kind, w), str(w))}\n  br label %stored" for w in widths)
    body = f"""
  %columns_left = sub i64 %columns, %j
{at_ir("a_columns", kind, "%a", "%j")}
{at_ir("y_at", kind, "%y_chunk", "%j")}
{_lines(tests)}
  br label %columns{widths[-1]}
{_lines(blocks)}
stored:"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
{start()}
  %chunk_offset = mul i64 %chunk, %columns
{at_ir("y_chunk", kind, "%y", "%chunk_offset")}{lines_ahead()}
{loop_ir("j", "%columns", str(widths[-1] * kind.lanes), body)}
  ret void
}}"""


def _column_block(kind: Numbers, wide: int) -> str:
    """So many registers of columns, of which the last may be full in part; rows by two, then an odd one."""
    v = kind.vector
    phis = (
        f"  %s{r}_{c} = phi {v} [ zeroinitializer, %block_start ], [ %t{r}_{c}, %asked ]"
        for r in range(2)
        for c in range(wide)
    )
    ends = (f"  %u{c} = phi {v} [ %s0_{c}, %odd ], [ %t0_{c}_odd, %one_more ]" for c in range(wide))
    return f"""
  %last_left = sub i64 %columns_left, {(wide - 1) * kind.lanes}
{mask_ir("mask", kind, "%last_left")}
  br label %block_start
block_start:
  br label %pair
pair:
  %i = phi i64 [ %lo, %block_start ], [ %i_next, %asked ]
{_lines(phis)}
  %i1 = add i64 %i, 1
  %has_two = icmp slt i64 %i1, %hi
  br i1 %has_two, label %two, label %odd
two:
{ask(kind, wide, 2, "%j")}
{_row(kind, wide, 0, "%i")}
{_row(kind, wide, 1, "%i1")}
  %i_next = add i64 %i, 2
  br label %pair
odd:
  %has_one = icmp slt i64 %i, %hi
  br i1 %has_one, label %one_more, label %put
one_more:
{suffixed(_row(kind, wide, 0, "%i"), "odd")}
  br label %put
put:
{_lines(ends)}
{_lines(_put(kind, wide, c) for c in range(wide))}"""


def _row(kind: Numbers, wide: int, r: int, i: str) -> str:
    """So many registers of row ``i``, times its number, added to the sums ``r``."""
    v = kind.vector
    terms = (
        "\n".join(
            (
                at_ir(f"from{r}_{c}", kind, f"%row{r}", str(c * kind.lanes)),
                _load(f"e{r}_{c}", kind, f"%from{r}_{c}", "%mask" if c == wide - 1 else ""),
                fma_ir(f"t{r}_{c}", kind, f"%e{r}_{c}", f"%x{r}s", f"%s{r}_{c}"),
            )
        )
        for c in range(wide)
    )
    return f"""  %down{r} = mul i64 {i}, %lda
{at_ir(f"row{r}", kind, "%a_columns", f"%down{r}")}
{at_ir(f"x{r}_at", kind, "%x", i)}
  %x{r} = load {kind.type}, ptr %x{r}_at
  %x{r}v = insertelement {v} poison, {kind.type} %x{r}, i64 0
  %x{r}s = shufflevector {v} %x{r}v, {v} poison, <{kind.lanes} x i32> zeroinitializer
{_lines(terms)}"""


def _put(kind: Numbers, wide: int, c: int) -> str:
    plain = f"  store {kind.vector} %sum{c}, ptr %to{c}, align {kind.size}"
    return f"""  %sum{c} = fadd {kind.vector} %u{c}, %s1_{c}
{at_ir(f"to{c}", kind, "%y_at", str(c * kind.lanes))}
{store_ir(kind, f"%sum{c}", f"%to{c}", "%mask") if c == wide - 1 else plain}"""


def _load(name: str, kind: Numbers, pointer: str, mask: str) -> str:
    """A register from memory, whole where there is no mask."""
    if mask:
        return load_ir(name, kind, pointer, mask)
    return f"  %{name} = load {kind.vector}, ptr {pointer}, align {kind.size}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)
