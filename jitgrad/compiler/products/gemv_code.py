"""Products of a matrix and a vector, as LLVM IR text behind the kernel ABI; rows lo..hi of the matrix are one call's.

    dots     y[i] = row i of the matrix times x: one register per row, whose sums are taken for a register full of
             rows at once, so that short rows cost no more than they hold
    combine  y[chunk] = the sum of the rows of the matrix, each times its x: the registers go down the rows
    sum      y[i] = the sum of what the chunks of `combine` gave for i

In a region, `dots` and `combine` each bring a part of the next chunk of the matrix into the second cache while they
work on this one, in which memory would rest else: of 200000 x 20 in float64 a region takes 0.6 to 0.66 of the time.

The matrix is row-major, the vectors are contiguous. A product with a transposed matrix is the other of the two. The
bits of an element follow from the sizes, and for `combine` from the chunks. Rows of up to four registers are read by
halves of these, without a loop and with no row looked for (gemv_halves_code.py). On 16 registers `dots` and `combine`
are those of gemv_narrow_code.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from jitgrad.compiler.products.gemv_columns_code import columns_down, quick_columns_down
from jitgrad.compiler.products.gemv_halves_code import WIDEST, half_of, short_dots
from jitgrad.compiler.products.gemv_narrow_code import narrow_combine, narrow_dots
from jitgrad.compiler.products.gemv_pieces import ask, lines_ahead, start, suffixed, sums
from jitgrad.compiler.products.gemv_steps import COMBINE_STUBS, DOTS_STUBS, SUM_BLOCK, SUM_STUBS
from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    arrays_ir,
    at_ir,
    block_ir,
    declarations_ir,
    fma_ir,
    kinds,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    module_ir,
    numbers_of,
    store_ir,
)

_WIDE = 4  # registers of columns in `combine`
_FEW_HALVES = 4
"""Of a row: eight rows of so many are combined in a turn, in four sums, else four in two. Where rows are longer, lines
for eight would be asked for at once: a Poisson regression of 400000 x 37 float32 takes 0.92 of the time with four.
"""
_FEW = 16  # registers, for which there are forms without masks


def stub_ir(stub: str) -> str:
    """The module of one function, by its name."""
    return _module(stub, is_quick=False)


def quick_stub_ir(stub: str) -> str:
    """The module of one function in less code: all columns by as many registers. The bits are the same."""
    return _module(stub, is_quick=True)


def _module(stub: str, is_quick: bool) -> str:
    dots, combine = (narrow_dots, narrow_combine) if kinds()["float32"].registers == _FEW else (_dots, _combine)
    writers = ((DOTS_STUBS, dots), (COMBINE_STUBS, combine), (SUM_STUBS, _sum))
    kind = numbers_of(stub, DOTS_STUBS, COMBINE_STUBS, SUM_STUBS)
    write = next(write for stubs, write in writers if stub in stubs.values())
    declared = "\n".join((declarations_ir(kind), declarations_ir(half_of(kind)))).splitlines()
    return module_ir(*dict.fromkeys(declared), write(kind, stub, is_quick))


# -- dots --------------------------------------------------------------------------------------------------------------


def _dots(kind: Numbers, stub: str, is_quick: bool) -> str:
    """Short rows by halves of registers, others by whole ones; in quick code in a loop over these, in which lines are
    asked for register by register.
    """
    half = half_of(kind)
    short = {WIDEST: _rows_by(half)} if is_quick else {w: short_dots(half, w) for w in range(1, WIDEST + 1)}
    return f"""
define void @{stub}({KERNEL}) #0 {{
{start()}{lines_ahead()}
{_by_width("short", half, "%columns", short, _rows_by(kind))}
  ret void
}}"""


def _by_width(name: str, kind: Numbers, count: str, blocks: Mapping[int, str], more: str = "") -> str:
    """The first of ``blocks``, by how many registers they are for, that ``count`` columns fit in; ``more`` where none
    is, or else the last.
    """
    newline, widths = "\n", list(blocks)
    tests = [
        f"""  %{name}_fit{w} = icmp sle i64 {count}, {w * kind.lanes}
  br i1 %{name}_fit{w}, label %{name}_by{w}, label %{name}_over{w}
{name}_over{w}:"""
        for w in (widths if more else widths[:-1])
    ]
    other = f"{more}\n  br label %{name}_done" if more else f"  br label %{name}_by{widths[-1]}"
    cases = [
        f"{name}_by{w}:\n{suffixed(block, f'{name}{w}')}\n  br label %{name}_done" for w, block in blocks.items()
    ]
    return f"{newline.join(tests)}\n{other}\n{newline.join(cases)}\n{name}_done:"


def _rows_by(kind: Numbers) -> str:
    """All rows, as many at once as a register has lanes, the last ones of a chunk together with some before them, for
    the second time; where a chunk has fewer, the last one again.
    """
    n = kind.lanes
    adding, total = sums(kind, [f"%t{r}" for r in range(n)])
    offsets = (f"{min_ir(f'row{r}', str(r), '%last')}\n  %offset{r} = mul i64 %row{r}, %lda" for r in range(n))
    newline = "\n"
    rows = f"""
{min_ir("first", "%i", "%last_first")}
  %down = mul i64 %first, %lda
{at_ir("rows_at", kind, "%a", "%down")}
{newline.join(at_ir(f"row_at{r}", kind, "%rows_at", f"%offset{r}") for r in range(n))}
{_long_rows(kind)}
{newline.join(adding)}
{at_ir("y_at", kind, "%y", "%first")}
{store_ir(kind, total, "%y_at", "%inside")}"""
    return f"""
{mask_ir("inside", kind, "%span")}
  %is_full = icmp sge i64 %span, {n}
  %last_full = sub i64 %hi, {n}
  %last_first = select i1 %is_full, i64 %last_full, i64 %lo
  %last = sub i64 %span, 1
{newline.join(offsets)}
{loop_ir("i", "%hi", str(n), rows, first="%lo")}"""


def _long_rows(kind: Numbers) -> str:
    """The terms of rows, register by register."""
    n, v = kind.lanes, kind.vector
    phis = [f"  %s{r} = phi {v} [ zeroinitializer, %i_body ], [ %t{r}, %asked ]" for r in range(n)]
    newline = "\n"
    return f"""
  br label %columns_loop
columns_loop:
  %j = phi i64 [ 0, %i_body ], [ %j_next, %asked ]
{newline.join(phis)}
  %left = sub i64 %columns, %j
{mask_ir("mask", kind, "%left")}
{at_ir("x_at", kind, "%x", "%j")}
{load_ir("xs", kind, "%x_at", "%mask")}
{ask(kind, 1, n, "%j")}
{newline.join(_product_of_row(kind, r) for r in range(n))}
  %j_next = add i64 %j, {n}
  %j_more = icmp slt i64 %j_next, %columns
  br i1 %j_more, label %columns_loop, label %put
put:"""


def _product_of_row(kind: Numbers, r: int) -> str:
    """A register of a row times that of the vector, added to the row's sums."""
    return f"""{at_ir(f"from{r}", kind, f"%row_at{r}", "%j")}
{load_ir(f"e{r}", kind, f"%from{r}", "%mask")}
{fma_ir(f"t{r}", kind, f"%e{r}", "%xs", f"%s{r}")}"""


# -- combine -----------------------------------------------------------------------------------------------------------


def _combine(kind: Numbers, stub: str, is_quick: bool) -> str:
    """Short rows by halves of registers, others by four registers of columns, the last ones by as many as they fill. In
    quick code by two whole ones where columns have as many sums as those of four halves, else by four.
    """
    if is_quick:
        short, few = kind, {_FEW_HALVES // 2: quick_columns_down(kind, _FEW_HALVES // 2, 4, "0")}
        wide = {_WIDE: quick_columns_down(kind, _WIDE, 2, "%j")}
    else:
        short = half_of(kind)
        turns = {w: (4, 8) if w <= _FEW_HALVES else (2, 4) for w in range(1, WIDEST + 1)}
        few = {w: columns_down(short, w, sums, rows, "0") for w, (sums, rows) in turns.items()}
        wide = {w: columns_down(kind, w, 2, 4, "%j") for w in range(1, _WIDE + 1)}
    body = f"  %more = sub i64 %columns, %j\n{_by_width('more', kind, '%more', wide)}"
    all_columns = loop_ir("j", "%columns", str(_WIDE * kind.lanes), body)
    return f"""
define void @{stub}({KERNEL}) #0 {{
{start()}
  %chunk_offset = mul i64 %chunk, %columns
{at_ir("y_chunk", kind, "%y", "%chunk_offset")}{lines_ahead()}
{_by_width("short", short, "%columns", few, all_columns)}
  ret void
}}"""


# -- sum ---------------------------------------------------------------------------------------------------------------


def _sum(kind: Numbers, stub: str, _: bool) -> str:
    """Element i of the result is the sum of the i-th elements of all parts, in order; a register of them at once."""
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
define void @{stub}({KERNEL}) #0 {{
{block_ir(SUM_BLOCK)}
{arrays_ir("from", "to")}
{loop_ir("i", "%hi", str(kind.lanes), body, first="%lo")}
  ret void
}}"""
