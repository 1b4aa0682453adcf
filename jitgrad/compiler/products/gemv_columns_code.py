"""`combine` of gemv_code.py for some registers of columns, or halves of them: sums that go down the rows of a chunk, as
LLVM IR text. It makes no function.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from jitgrad.compiler.products.gemv_halves_code import load_some
from jitgrad.compiler.products.gemv_pieces import ask
from jitgrad.compiler.products.registers import Numbers, at_ir, fma_ir, mask_ir, spread_ir, store_ir


def columns_down(kind: Numbers, wide: int, sums: int, rows: int, column: str) -> str:
    """So many registers of columns from ``column`` on, of which the last has a mask; so many ``rows`` in a turn, added
    to as many ``sums``, one after the other, then those that are left.
    """
    v, masked = kind.vector, (wide - 1,)
    phis = (
        f"  %s{s}_{c} = phi {v} [ zeroinitializer, %start ], [ %t{rows - sums + s}_{c}, %asked ]"
        for s in range(sums)
        for c in range(wide)
    )
    return f"""
{_first_row(kind, column, masked)}
  %end = sub i64 %hi, {rows - 1}
  br label %start
start:
  br label %rows
rows:
  %i = phi i64 [ %lo, %start ], [ %i_next, %asked ]
{_lines(phis)}
  %i_more = icmp slt i64 %i, %end
  br i1 %i_more, label %together, label %left
together:
{ask(kind, wide, rows, column)}
{_lines(_row(kind, wide, r, sums, masked) for r in range(rows))}
  %i_next = add i64 %i, {rows}
  br label %rows
{_row_by_row(kind, wide, [[f"%s{s}_{c}" for c in range(wide)] for s in range(sums)], ("%i", "%rows"), masked)}"""


def quick_columns_down(kind: Numbers, wide: int, sums: int, column: str) -> str:
    """The same row by row, in less code: each register has a mask and may be empty. The bits are the same."""
    zeros = [["zeroinitializer"] * wide] * sums
    return f"""
{_first_row(kind, column, range(wide))}
  br label %start
start:
  br label %left
{_row_by_row(kind, wide, zeros, ("%lo", "%start"), range(wide))}"""


def _first_row(kind: Numbers, column: str, masked: Iterable[int]) -> str:
    """Where the columns begin, those of the result, and the masks of registers."""
    masks = (f"  %left{c} = sub i64 %fill, {c * kind.lanes}\n{mask_ir(f'mask{c}', kind, f'%left{c}')}" for c in masked)
    return f"""  %fill = sub i64 %columns, {column}
{at_ir("a_columns", kind, "%a", column)}
{at_ir("y_at", kind, "%y_chunk", column)}
{_lines(masks)}"""


def _row_by_row(
    kind: Numbers, wide: int, so_far: Sequence[Sequence[str]], start: tuple[str, str], masked: Container[int]
) -> str:
    """Rows from the first of ``start`` on, behind the block that is the second, and the sums of all, stored. Each row
    is added to the sum that has waited longest and becomes the last: so whole turns leave sums where they were.
    """
    (i, before), sums, v = start, len(so_far), kind.vector
    added = [[f"%u{s + 1}_{c}" if s + 1 < sums else f"%v_{c}" for c in range(wide)] for s in range(sums)]
    phis = (
        f"  %u{s}_{c} = phi {v} [ {so_far[s][c]}, {before} ], [ {added[s][c]}, %one ]"
        for s in range(sums)
        for c in range(wide)
    )
    return f"""left:
  %k = phi i64 [ {i}, {before} ], [ %k_next, %one ]
{_lines(phis)}
  %k_more = icmp slt i64 %k, %hi
  br i1 %k_more, label %one, label %put
one:
{_number(kind, "k", "%k")}
{_lines(_term(kind, "k", c, f"v_{c}", f"%u0_{c}", masked) for c in range(wide))}
  %k_next = add i64 %k, 1
  br label %left
put:
{_lines(_put(kind, c, sums, masked) for c in range(wide))}"""


def _row(kind: Numbers, wide: int, r: int, sums: int, masked: Container[int]) -> str:
    """Row ``r`` of a turn, times its number, added to one of the sums."""
    so_far = [f"%t{r - sums}_{c}" if r >= sums else f"%s{r}_{c}" for c in range(wide)]
    terms = (_term(kind, f"{r}", c, f"t{r}_{c}", so_far[c], masked) for c in range(wide))
    return _lines((f"  %i{r} = add i64 %i, {r}", _number(kind, f"{r}", f"%i{r}"), *terms))


def _number(kind: Numbers, r: str, i: str) -> str:
    """Where row ``i`` begins, and what it is multiplied with, in all lanes."""
    return f"""  %down{r} = mul i64 {i}, %lda
{at_ir(f"row{r}", kind, "%a_columns", f"%down{r}")}
{at_ir(f"x_at{r}", kind, "%x", i)}
  %x{r} = load {kind.type}, ptr %x_at{r}
{spread_ir(f"xs{r}", kind, f"%x{r}")}"""


def _term(kind: Numbers, r: str, c: int, to: str, so_far: str, masked: Container[int]) -> str:
    """Register ``c`` of a row times its number, added to a sum."""
    return f"""{at_ir(f"from{r}_{c}", kind, f"%row{r}", str(c * kind.lanes))}
{load_some(f"e{r}_{c}", kind, f"%from{r}_{c}", c, masked)}
{fma_ir(to, kind, f"%e{r}_{c}", f"%xs{r}", so_far)}"""


def _put(kind: Numbers, c: int, sums: int, masked: Container[int]) -> str:
    """The sums of register ``c``, added by two, stored."""
    names, lines = [f"%u{s}_{c}" for s in range(sums)], list[str]()
    while len(names) > 1:
        half = len(names) // 2
        lines += [f"  %sum{half}_{k}_{c} = fadd {kind.vector} {names[2 * k]}, {names[2 * k + 1]}" for k in range(half)]
        names = [f"%sum{half}_{k}_{c}" for k in range(half)]
    plain = f"  store {kind.vector} {names[0]}, ptr %to{c}, align {kind.size}"
    stored = store_ir(kind, names[0], f"%to{c}", f"%mask{c}") if c in masked else plain
    return _lines((*lines, at_ir(f"to{c}", kind, "%y_at", str(c * kind.lanes)), stored))


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)
