"""A matrix product of our own for processors with 32 registers of 64 bytes or 16 of 32, as LLVM IR text: a tile of C in
registers, the loops around it. It knows neither steps nor threads, and packing is beside it (gemm_packing.py).

    void multiply(i1 ta, i1 tb, i64 m, i64 n, i64 k, ptr a, i64 lda, ptr b, i64 ldb, i1 fresh, ptr c, i64 ldc,
                  ptr scratch)                  C = op(A) op(B), or C += when not `fresh`; all row-major

The scheme is that of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008): equal parts of
the sum of at most `Numbers.depth` places; of B, some columns packed in panels, which stay in the second cache; of A,
one panel of 6 rows at a time, which stays in the first. What is left of the rows is done by fours, of the columns by
half a panel; a tile that C does not have all of is made beside it. In each part, an element of C is the sum of its
products in order, by fused multiply-add, and the parts are added in order: its bits do not depend on how C is cut in
tiles.

B is packed, and A where registers have 32 bytes or are multiplied in halves; what a transposed operand has in columns
is turned by shuffles of whole registers. While tiles are made, rows of the next panel of A are asked for, and the place
of each tile in C when it begins: it is written once its sum is complete, so nothing waits for what was there. Packing
takes 3 to 8 % of the time where B has 500 rows of A to meet, and 7 % for a transposed A.

Where registers of 64 bytes are multiplied whole, A is read where it lies, transposed or not, and only what a tile would
read beyond it is packed: the last rows, and places that do not fill a turn; and a transposed A whose rows lie whole
pages apart: a second cache of 1.25 MB does not hold a line of each beside B (two cores of Intel's Ice Lake, 1024 x 1024
x 1024, A T, 200 and 265 GFLOP/s in float32, 98 and 130 in float64). Packed anew for each 256 columns of B it
took 5 to 8 % of the time. So parts of the sum can be longer (C is read and written less often), but those of a
transposed A not: each place is a line of its own, and where lines lie whole pages apart, the second cache has room for
few. Panels of B lie next to each other, so that what it asks for by itself behind one is the next. One core of Intel's
(Emerald Rapids) with a peak of 179, C of 1020 x 1024, k = 1024, by hand in C, GFLOP/s, 256 columns of B and 512:

    packed, parts of 256               150 and 159        A T, packed, parts of 256            145 and 154
    where it lies, parts of 256        159 and 162        A T, where it lies, parts of 208     154 and 156
    where it lies, parts of 512        165 and 164        A T, where it lies, parts of 512     104 and 100

GFLOP/s of one core of Intel's with AVX-512 and a peak of 216, before this scheme and now, m x n x k, in hours of their
own:

    512 x 512 x 1024         148 and 167        392 x 512 x 1024, A T    138 and 161
    512 x 512 x 1024, B T    143 and 160        128 x 256 x 784          153 and 160
"""

from __future__ import annotations

from jitgrad.compiler.products.gemm_packing import (
    GROUP,
    apart_ir,
    filled_ir,
    packed_ir,
    packing_declarations_ir,
    packing_ir,
)
from jitgrad.compiler.products.gemm_tiles import LOW, TALL, narrow, places, tile_declarations_ir
from jitgrad.compiler.products.product_code import tile_names
from jitgrad.compiler.products.registers import Numbers, at_ir, declarations_ir, loop_ir, min_ir

WIDTH = 256
"""The columns of B that are packed at a time: with the depth of a part, what the second cache holds with ease."""
WIDE = 512
"""The same for a transposed A where registers are multiplied whole."""
_PAGE = 4096
"""Bytes of a page of memory: where rows of a transposed A lie so many apart, or a multiple, it is packed."""


_ROW_OF_A = {True: "i64 %down, i64 %along", False: "ptr %ahead, i64 %lda, i64 %asked"}
"""What the tiles of a row are told beside: how far apart rows and places of A are that is not packed, or what to ask
for.
"""


def width(kind: Numbers, is_turned: bool) -> int:
    """The columns of B that are packed at a time for A transposed or not."""
    return WIDE if is_turned and kind.in_place else WIDTH


def scratch_bytes(kind: Numbers, columns: int, is_turned: bool) -> int:
    """What a thread needs for tiles of so many columns: the packed part of B, a tile of C, and a panel of A, or as many
    as are turned at a time.
    """
    packed = min(width(kind, is_turned), -(-columns // kind.columns) * kind.columns) * kind.deepest(is_turned)
    rows = GROUP if is_turned else kind.lanes if kind.in_place else TALL
    return kind.size * (packed + TALL * kind.columns + rows * kind.row)


def multiply_ir(kind: Numbers, quickly: bool = False) -> str:
    """The function `multiply_<type>` and what it calls, but for the tiles; and for packing, where it is compiled
    ``quickly``, see `row_of_tiles_ir`, too.
    """
    packing = packing_declarations_ir(kind) if quickly else packing_ir(kind)
    loops = (row_of_tiles_ir(kind, quickly), _multiply(kind))
    return "\n".join((declarations_ir(kind), tile_declarations_ir(kind), packing, *loops))


# -- the loops ---------------------------------------------------------------------------------------------------------


def row_of_tiles_ir(kind: Numbers, quickly: bool = False) -> str:
    """The function `tiles_<type>`: a packed panel of A times all packed panels of B. A tile that C does not have all of
    is made beside it.

    With each tile, its share of `asked` rows of the next panel of A is asked for, if tiles do not ask themselves. In
    code that is compiled ``quickly``, low and narrow tiles are whole ones, whose other rows and columns are not
    brought: of packed operands there is room for these, and any bits will do.
    """
    low = f"""  %is_low = icmp sle i64 %height, {LOW}
  %high = select i1 %is_low, i64 {LOW}, i64 {TALL}"""
    return f"""
define internal void @tiles_{kind.type}(ptr %a, ptr %packed, ptr %tile, i64 %n, i64 %k, i1 %fresh, i64 %height, ptr %c,
      i64 %ldc, {_ROW_OF_A[kind.in_place]}) noinline #0 {{
{filled_ir(kind, "%k")}
{apart_ir(kind, "%k")}
{"" if quickly else low}
{"" if kind.in_place else _share(kind)}
{loop_ir("j", "%n", str(kind.columns), _tile_of_row(kind, quickly))}
  ret void
}}"""


def _share(kind: Numbers) -> str:
    """`share`: of each row of the next panel of A, what is asked for with a tile."""
    return f"""  %last = add i64 %n, {kind.columns - 1}
  %tiles = udiv i64 %last, {kind.columns}
  %some_more = sub i64 %tiles, 1
  %shared = add i64 %k, %some_more
  %share = udiv i64 %shared, %tiles"""


def _tile_of_row(kind: Numbers, quickly: bool) -> str:
    """One tile: in its place, or beside it, between a copy of what is there and a copy back."""
    extents = f"  %columns = add i64 {kind.columns}, 0\n  %rows = add i64 {TALL}, 0" if quickly else _least_tile(kind)
    whole, low, few = (_call(kind, name) for name in tile_names(kind.suffix))
    chosen = f"""  br i1 %is_narrow, label %make_narrow, label %make_wide
make_narrow:
{few}
make_wide:
  br i1 %is_low, label %make_low, label %make_whole
make_low:
{low}
make_whole:
{whole}"""
    return f"""
  %left = sub i64 %n, %j
  %b_offset = mul i64 %j, %apart
{at_ir("b_at", kind, "%packed", "%b_offset")}
{at_ir("c_at", kind, "%c", "%j")}
{extents}
  %is_wide = icmp sge i64 %left, %columns
  %is_high = icmp eq i64 %height, %rows
  %is_whole = and i1 %is_wide, %is_high
  %out = select i1 %is_whole, ptr %c_at, ptr %tile
  %ldo = select i1 %is_whole, i64 %ldc, i64 {kind.columns}
  %direct = or i1 %is_whole, %fresh
  br i1 %direct, label %make, label %fetch
fetch:
  call void @jitgrad_copy_{kind.suffix}(ptr %c_at, i64 %ldc, ptr %tile, i64 {kind.columns}, i64 %height, i64 %left)
  br label %make
make:
{whole if quickly else chosen}
made:
{_ask_ahead(kind)}
  br i1 %is_whole, label %j_latch, label %bring
bring:
  call void @jitgrad_copy_{kind.suffix}(ptr %tile, i64 {kind.columns}, ptr %c_at, i64 %ldc, i64 %height, i64 %left)"""


def _least_tile(kind: Numbers) -> str:
    """`columns` and `rows` of the least tile that has what is left."""
    return f"""  %is_narrow = icmp sle i64 %left, {narrow(kind)}
  %columns = select i1 %is_narrow, i64 {narrow(kind)}, i64 {kind.columns}
  %rows = select i1 %is_narrow, i64 {TALL}, i64 %high"""


def _call(kind: Numbers, name: str) -> str:
    """A tile made by the function of that name, the end of a block."""
    more = ", i64 %down, i64 %along" if kind.in_place else ", ptr %ahead, i64 %lda" if kind.halves else ""
    return f"""  call void @{name}(ptr %a, ptr %b_at, i64 %filled, ptr %out, i64 %ldo, i1 %fresh{more})
  br label %made"""


def _ask_ahead(kind: Numbers) -> str:
    """The tile's share of the next panel of A, line by line, where tiles read packed ones and do not ask themselves."""
    if kind.in_place or kind.halves:
        return ""
    line = f"""
  %ahead_place = add i64 %ahead_down, %q
{at_ir("ahead_line", kind, "%ahead_at", "%ahead_place")}
  call void @llvm.prefetch.p0(ptr %ahead_line, i32 0, i32 3, i32 1)"""
    lines = loop_ir("q", "%share", str(kind.line), line)
    rows = loop_ir("row", "%asked", "1", f"  %ahead_down = mul i64 %row, %lda{lines}")
    return f"""  %number = udiv i64 %j, {kind.columns}
  %ahead_offset = mul i64 %number, %share
{at_ir("ahead_at", kind, "%ahead", "%ahead_offset")}{rows}"""


def _multiply(kind: Numbers) -> str:
    """Parts of the sum, one after another: equal ones of whole registers."""
    part = f"""
  %k_left = sub i64 %k, %p
{min_ir("depth", "%k_left", "%even")}
  %is_first = icmp eq i64 %p, 0
  %new = and i1 %fresh, %is_first
{loop_ir("j", "%n", "%wide", _columns(kind))}"""
    straight_rows = kind.lanes if kind.in_place else TALL
    return f"""
define internal void @multiply_{kind.type}(i1 %ta, i1 %tb, i64 %m, i64 %n, i64 %k, ptr %a, i64 %lda, ptr %b,
      i64 %ldb, i1 %fresh, ptr %c, i64 %ldc, ptr %tile) noinline #0 {{
{at_ir("panel", kind, "%tile", str(TALL * kind.columns))}
  %rows_packed = select i1 %ta, i64 {GROUP * kind.row}, i64 {straight_rows * kind.row}
{at_ir("packed", kind, "%panel", "%rows_packed")}
{_is_grouped(kind) if kind.in_place else f"  %asked = select i1 %ta, i64 0, i64 {TALL}"}
  %k_last = sub i64 %k, 1
  %deep = select i1 %ta, i64 {kind.deepest(True)}, i64 {kind.deepest(False)}
  %wide = select i1 %ta, i64 {width(kind, True)}, i64 {width(kind, False)}
  %more_parts = udiv i64 %k_last, %deep
  %parts = add i64 %more_parts, 1
  %k_shared = add i64 %k, %more_parts
  %share = udiv i64 %k_shared, %parts
  %beyond = add i64 %share, {kind.lanes - 1}
  %even = and i64 %beyond, -{kind.lanes}
{loop_ir("p", "%k", "%even", part)}
  ret void
}}"""


def _columns(kind: Numbers) -> str:
    """Some columns of B, packed, and all panels of A."""
    turned, straight = _element_ir("b_turned", kind, "b", "j", "p"), _element_ir("b_straight", kind, "b", "p", "j")
    panel = f"""
  %height = sub i64 %m, %i
{min_ir("filled", "%height", str(TALL))}
{(_panel if kind.in_place else _packed_panel)(kind)}
{_element_ir("c_at", kind, "c", "i", "j")}
  call void @tiles_{kind.type}(ptr %used, ptr %packed, ptr %tile, i64 %width, i64 %depth, i1 %new, i64 %filled,
      ptr %c_at, i64 %ldc, {_ROW_OF_A[kind.in_place]})"""
    return f"""
  %n_left = sub i64 %n, %j
{min_ir("width", "%n_left", "%wide")}
{packed_ir(kind, "b", "%width", "%packed", turned, straight)}
{loop_ir("i", "%m", str(TALL), panel)}"""


def _element_ir(name: str, kind: Numbers, matrix: str, row: str, column: str) -> str:
    """Where an element of a matrix lies, whose rows are `ld` and its name apart."""
    return f"""  %{name}_row = mul i64 %{row}, %ld{matrix}
  %{name}_offset = add i64 %{name}_row, %{column}
{at_ir(name, kind, f"%{matrix}", f"%{name}_offset")}"""


def _is_grouped(kind: Numbers) -> str:
    """`grouped`: whether a transposed A is packed, some panels at a time; not for one panel of B, which would meet the
    copy once.
    """
    return f"""  %a_apart = mul i64 %lda, {kind.size}
  %beyond_page = and i64 %a_apart, {_PAGE - 1}
  %is_far = icmp eq i64 %beyond_page, 0
  %is_many = icmp sgt i64 %n, {kind.columns}
  %is_worth = and i1 %is_far, %is_many
  %grouped = and i1 %ta, %is_worth"""


def _panel_of_group(kind: Numbers) -> str:
    """The packed panel of a transposed A, `panel_of_group`, where the group's first is made with those behind it."""
    return f"""  %in_group = urem i64 %i, {GROUP}
  %place = mul i64 %in_group, {kind.row}
{at_ir("panel_of_group", kind, "%panel", "%place")}
  %begins = icmp eq i64 %in_group, 0
  br i1 %begins, label %pack_group, label %packed_group
pack_group:
{min_ir("together", "%height", str(GROUP))}
{_element_ir("a_columns", kind, "a", "p", "i")}
  call void @jitgrad_pack_a_turned_{kind.suffix}(ptr %a_columns, i64 %lda, i64 %together, i64 %depth, ptr %panel)
  br label %packed_group
packed_group:"""


def _packed_panel(kind: Numbers) -> str:
    """The packed panel of A, `used`, and the rows of the next, `ahead`: panels of a transposed A are packed some at a
    time.
    """
    return f"""  br i1 %ta, label %a_turned, label %a_straight
a_turned:
{_panel_of_group(kind)}
  br label %packed_a
a_straight:
{_element_ir("a_rows", kind, "a", "i", "p")}
  call void @jitgrad_pack_a_{kind.suffix}(ptr %a_rows, i64 %lda, i64 %filled, i64 %depth, ptr %panel)
  %panel_distance = mul i64 %lda, {TALL}
{at_ir("next_rows", kind, "%a_rows", "%panel_distance")}
  br label %packed_a
packed_a:
  %used = phi ptr [ %panel_of_group, %packed_group ], [ %panel, %a_straight ]
  %ahead = phi ptr [ %a, %packed_group ], [ %next_rows, %a_straight ]"""


def _panel(kind: Numbers) -> str:
    """The rows of A, `used`, where they lie; packed where they are `grouped`, or a tile would read beyond them."""
    turned, straight = _element_ir("a_turned", kind, "a", "p", "i"), _element_ir("a_straight", kind, "a", "i", "p")
    return f"""  br i1 %grouped, label %of_group, label %alone
of_group:
{_panel_of_group(kind)}
  br label %found_a
alone:
  %is_few = icmp slt i64 %filled, {TALL}
  %odd = and i64 %depth, {places(kind) - 1}
  %is_odd = icmp ne i64 %odd, 0
  %is_short = or i1 %is_few, %is_odd
  br i1 %is_short, label %pack, label %in_place
pack:
{packed_ir(kind, "a", "%filled", "%panel", turned, straight)}
  br label %found_a
in_place:
  %far = select i1 %ta, i64 %p, i64 %i
  %near = select i1 %ta, i64 %i, i64 %p
{_element_ir("lies", kind, "a", "far", "near")}
  %row_distance = select i1 %ta, i64 1, i64 %lda
  %place_distance = select i1 %ta, i64 %lda, i64 1
  br label %found_a
found_a:
  %used = phi ptr [ %panel_of_group, %packed_group ], [ %panel, %packed_a ], [ %lies, %in_place ]
  %down = phi i64 [ {kind.row}, %packed_group ], [ {kind.row}, %packed_a ], [ %row_distance, %in_place ]
  %along = phi i64 [ 1, %packed_group ], [ 1, %packed_a ], [ %place_distance, %in_place ]"""
