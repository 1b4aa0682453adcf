"""Products of a matrix and a vector, as LLVM IR text behind the kernel ABI; rows lo..hi of the matrix are one call's.

    dots     y[i] = row i of the matrix times x: one register per row, whose sums are taken for a register full of
             rows at once, so that short rows cost no more than they hold
    combine  y[chunk] = the sum of the rows of the matrix, each times its x: the registers go down the rows
    sum      y[i] = the sum of what the chunks of `combine` gave for i

In a region, `dots` and `combine` each bring a part of the next chunk of the matrix into the second cache while they
work on this one, in which memory would rest else: of 200000 x 20 in float64 a region takes 0.6 to 0.66 of the time.

The matrix is row-major, the vectors are contiguous. A product with a transposed matrix is the other of the two. The
bits of an element follow from the sizes, and for `combine` from the chunks. `dots` reads rows of up to four registers
without a loop and with no row looked for: 10 and 20 columns of float64 in the second cache take 30 and 52 cycles for
eight rows in place of 40 and 67 (Intel, AVX-512; the same in C 29, where adding registers up takes 14). On 16 registers
`dots` and `combine` are those of gemv_narrow_code.py.
"""

from __future__ import annotations

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
    spread_ir,
    store_ir,
)

_WIDE = 4  # registers of columns in `combine`
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
    return module_ir(declarations_ir(kind), write(kind, stub, is_quick))


# -- dots --------------------------------------------------------------------------------------------------------------


def _dots(kind: Numbers, stub: str, is_quick: bool) -> str:
    """Rows by as many as a register has lanes, the last ones of a chunk together with some before them, for the second
    time; where a chunk has fewer, the last one again. Rows of up to four registers are read without a loop.
    """
    n = kind.lanes
    widths = range(1, 1 if is_quick else _WIDE + 1)
    tests = (
        f"""  %fits{w} = icmp sle i64 %columns, {w * n}
  br i1 %fits{w}, label %columns{w}, label %wider{w}
wider{w}:"""
        for w in widths
    )
    blocks = (f"columns{w}:{suffixed(_rows_of(kind, w), str(w))}\n  br label %written" for w in widths)
    offsets = (
        "\n".join((min_ir(f"row{r}", str(r), "%last"), f"  %offset{r} = mul i64 %row{r}, %lda")) for r in range(n)
    )
    newline = "\n"
    return f"""
define void @{stub}({KERNEL}) #0 {{
{start()}{lines_ahead()}
{mask_ir("inside", kind, "%span")}
  %is_full = icmp sge i64 %span, {n}
  %last_full = sub i64 %hi, {n}
  %last_first = select i1 %is_full, i64 %last_full, i64 %lo
  %last = sub i64 %span, 1
{newline.join(offsets)}
{newline.join(tests)}
{_rows_by(kind, _long_rows(kind))}
  br label %written
{newline.join(blocks)}
written:
  ret void
}}"""


def _rows_by(kind: Numbers, body: str) -> str:
    """All rows, as many at once as a register has lanes; ``body`` makes the registers %t of their terms."""
    n = kind.lanes
    adding, total = sums(kind, [f"%t{r}" for r in range(n)])
    newline = "\n"
    rows = f"""
{min_ir("first", "%i", "%last_first")}
  %down = mul i64 %first, %lda
{at_ir("rows_at", kind, "%a", "%down")}
{newline.join(at_ir(f"row_at{r}", kind, "%rows_at", f"%offset{r}") for r in range(n))}
{body}
{newline.join(adding)}
{at_ir("y_at", kind, "%y", "%first")}
{store_ir(kind, total, "%y_at", "%inside")}"""
    return loop_ir("i", "%hi", str(n), rows, first="%lo")


def _rows_of(kind: Numbers, wide: int) -> str:
    """All rows of so many registers, of which the last has a mask."""
    n = kind.lanes
    before, terms = [f"  %left = sub i64 %columns, {(wide - 1) * n}", mask_ir("mask", kind, "%left")], []
    for c in range(wide):
        before += [at_ir(f"x_at{c}", kind, "%x", str(c * n)), _load(f"xs{c}", kind, f"%x_at{c}", c == wide - 1)]
        for r in range(n):
            so_far = f"%s{r}_{c}" if c else "zeroinitializer"
            terms += [
                at_ir(f"from{r}_{c}", kind, f"%row_at{r}", str(c * n)),
                _load(f"e{r}_{c}", kind, f"%from{r}_{c}", c == wide - 1),
                fma_ir(f"t{r}" if c == wide - 1 else f"s{r}_{c + 1}", kind, f"%e{r}_{c}", f"%xs{c}", so_far),
            ]
    return "\n".join((*before, _rows_by(kind, "\n".join((ask(kind, wide, n, "0"), *terms)))))


def _load(name: str, kind: Numbers, pointer: str, is_last: bool) -> str:
    """A register of a row: whole but for the last one."""
    if is_last:
        return load_ir(name, kind, pointer, "%mask")
    return f"  %{name} = load {kind.vector}, ptr {pointer}, align {kind.size}"


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
    """Columns by four registers, the last ones by two or more, as many as they fill; in quick code by four."""
    widths = (_WIDE,) if is_quick else range(2, _WIDE + 1)
    tests = [
        f"""  %fits{w} = icmp sle i64 %columns_left, {w * kind.lanes}
  br i1 %fits{w}, label %columns{w}, label %wider{w}
wider{w}:"""
        for w in widths[:-1]
    ]
    blocks = [f"columns{w}:{suffixed(_column_block(kind, w), str(w))}\n  br label %stored" for w in widths]
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
define void @{stub}({KERNEL}) #0 {{
{start()}
  %chunk_offset = mul i64 %chunk, %columns
{at_ir("y_chunk", kind, "%y", "%chunk_offset")}{lines_ahead()}
{loop_ir("j", "%columns", str(_WIDE * kind.lanes), body)}
  ret void
}}"""


def _column_block(kind: Numbers, wide: int) -> str:
    """So many registers of columns, rows by two; a second row that is not there is all zeros, as is its number."""
    tile, v, newline = [(r, c) for r in range(2) for c in range(wide)], kind.vector, "\n"
    masks = [
        f"  %left{c} = sub i64 %columns_left, {c * kind.lanes}\n{mask_ir(f'mask{c}', kind, f'%left{c}')}"
        for c in range(wide)
    ]
    phis = [f"  %s{r}_{c} = phi {v} [ zeroinitializer, %block_start ], [ %t{r}_{c}, %pair_end ]" for r, c in tile]
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
{_pair(kind, wide)}
{ask(kind, wide, 2, "%j")}
{newline.join(_product_of_block(kind, r, c) for r, c in tile)}
  br label %pair_end
pair_end:
  %i_next = add i64 %i, 2
  br label %pair
put:
{newline.join(_put_block(kind, c) for c in range(wide))}"""


def _pair(kind: Numbers, wide: int) -> str:
    """Where two rows begin, what they are multiplied with, and the lanes of the second."""
    newline = "\n"
    both = [f"  %both{c} = select i1 %second, {kind.mask} %mask{c}, {kind.mask} zeroinitializer" for c in range(wide)]
    spread = [spread_ir(f"x{r}s", kind, f"%x{r}") for r in range(2)]
    return f"""  %i1 = add i64 %i, 1
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
{newline.join(spread)}"""


def _product_of_block(kind: Numbers, r: int, c: int) -> str:
    """A register of a row times its number, added to the sums of its columns."""
    return f"""{at_ir(f"from{r}_{c}", kind, f"%row{r}", str(c * kind.lanes))}
{load_ir(f"e{r}_{c}", kind, f"%from{r}_{c}", f"%{'both' if r else 'mask'}{c}")}
{fma_ir(f"t{r}_{c}", kind, f"%e{r}_{c}", f"%x{r}s", f"%s{r}_{c}")}"""


def _put_block(kind: Numbers, c: int) -> str:
    """The sums of even and of odd rows, added."""
    return f"""  %sum{c} = fadd {kind.vector} %s0_{c}, %s1_{c}
{at_ir(f"to{c}", kind, "%y_at", str(c * kind.lanes))}
{store_ir(kind, f"%sum{c}", f"%to{c}", f"%mask{c}")}"""


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
