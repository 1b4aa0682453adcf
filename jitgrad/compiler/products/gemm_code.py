"""A matrix product of our own for processors with 32 registers of 64 bytes or 16 of 32, as LLVM IR text: a tile of C in
registers, the loops around it. It knows neither steps nor threads, and packing is beside it (gemm_packing.py).

    void multiply(i1 ta, i1 tb, i64 m, i64 n, i64 k, ptr a, i64 lda, ptr b, i64 ldb, i1 fresh, ptr c, i64 ldc,
                  ptr scratch)                  C = op(A) op(B), or C += when not `fresh`; all row-major

The scheme is that of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008): parts of `DEPTH`
of the sum; of B, `WIDTH` columns packed in panels of two registers' width, which stay in the second cache; of A, one
panel of 12 rows at a time, which stays in the first. A tile of C is 12 x 2 registers; what is left of the rows is done
by fours (6 x 2 of 16 registers, and twos); a tile that C does not have all of is made beside it. Each element of C is
the sum of its products in order, by fused multiply-add, in parts of `DEPTH`: its bits do not depend on how C is cut in
tiles.

The kernel reads A one element at a time, so A is read where it is. Only where its stored rows lie whole pages
apart, and so share one place in the first cache, is a panel copied, row by row. A transposed B is turned by shuffles
of whole registers.

GFLOP/s of one busy Zen 4 core with a peak of 115, ours and OpenBLAS on one thread (SciPy's, with Skylake's kernels):

    256 x 512 x 784          97 and 97       16 x 10000 x 50, B transposed       73 and 39 (NumPy's: 58)
    256 x 512 x 512, B T    108 and 95       16 x 50 x 10000                     64 and 66
    512 x 512 x 256, A T    109 and 103
    1024 x 1024 x 1024       96 and 97
"""

from __future__ import annotations

from jitgrad.compiler.products.gemm_packing import GROUP, packing_ir, pitch
from jitgrad.compiler.products.gemm_tiles import LOW, most_low, reads_rows_only, tall
from jitgrad.compiler.products.product_code import tile_names
from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    loop_ir,
    min_ir,
)  # fmt: skip
from jitgrad.compiler.products.transposes import turn_ir

WIDTH = 256


def scratch_bytes(kind: Numbers, columns: int) -> int:
    """What a thread needs for tiles of so many columns: a panel of A, a tile of C, and the packed part of B."""
    packed = min(WIDTH, -(-columns // kind.columns) * kind.columns) * kind.depth
    return kind.size * (_panel_elements(kind) + tall(kind) * kind.columns + packed)


def _panel_elements(kind: Numbers) -> int:
    if reads_rows_only(kind):
        return GROUP * kind.row
    return max(tall(kind) * kind.row, pitch(kind) * kind.depth)


def multiply_ir(kind: Numbers) -> str:
    """The function `multiply_<type>` and what it calls, but for the tiles."""
    kernels = [f"declare void @{name}(ptr, i64, i64, ptr, i64, ptr, i64, i1) #0" for name in tile_names(kind.suffix)]
    prefetch = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0"
    loops = (_row_of_tiles(kind), _multiply(kind))
    return "\n".join((declarations_ir(kind), prefetch, turn_ir(kind), *kernels, packing_ir(kind), *loops))


# -- the loops ---------------------------------------------------------------------------------------------------------


_ROWS = """  %a_row = add i64 %lda, 0
  %a_step = add i64 1, 0"""
_ROWS_OR_COLUMNS = """  %a_row = select i1 %turned, i64 1, i64 %lda
  %a_step = select i1 %turned, i64 %lda, i64 1"""


def _row_of_tiles(kind: Numbers) -> str:
    """A packed panel of A times all packed panels of B. A tile that C does not have all of is made beside it.

    With each tile, some columns of the rows of the next panel of A are asked for, `ahead`, unless A is transposed.
    """
    calls = "\n".join(
        f"make_{form}:\n  call void @{name}"
        "(ptr %a, i64 %a_row, i64 %a_step, ptr %b_at, i64 %k, ptr %out, i64 %ldo, i1 %fresh)\n  br label %made"
        for form, name in zip(("tall", "low"), tile_names(kind.suffix), strict=True)
    )
    more = [
        at_ir("ahead_more", kind, "%ahead_row", str(kind.line)),
        "  call void @llvm.prefetch.p0(ptr %ahead_more, i32 0, i32 3, i32 1)",
    ]
    more = more if kind.columns > kind.line else []
    asked = "\n".join(
        (
            "  %ahead_down = mul i64 %row, %step",
            at_ir("ahead_row", kind, "%ahead_at", "%ahead_down"),
            *more[:1],
            "  call void @llvm.prefetch.p0(ptr %ahead_row, i32 0, i32 3, i32 1)",
            *more[1:],
        )
    )
    ask = loop_ir("row", "%asked", "1", asked)
    body = f"""
  %left = sub i64 %n, %j
  %b_offset = mul i64 %j, {kind.depth}
{at_ir("b_at", kind, "%packed", "%b_offset")}
{at_ir("c_at", kind, "%c", "%j")}
{at_ir("ahead_at", kind, "%ahead", "%j")}
  %wide = icmp sge i64 %left, {kind.columns}
  %whole = and i1 %wide, %high
  %out = select i1 %whole, ptr %c_at, ptr %tile
  %ldo = select i1 %whole, i64 %ldc, i64 {kind.columns}
  %direct = or i1 %whole, %fresh
  br i1 %direct, label %make, label %fetch
fetch:
  call void @copy_{kind.type}(ptr %c_at, i64 %ldc, ptr %tile, i64 {kind.columns}, i64 %height, i64 %left)
  br label %make
make:
  br i1 %low, label %make_low, label %make_tall
{calls}
made:
{ask}
  br i1 %whole, label %j_latch, label %bring
bring:
  call void @copy_{kind.type}(ptr %tile, i64 {kind.columns}, ptr %c_at, i64 %ldc, i64 %height, i64 %left)"""
    return f"""
define internal void @tiles_{kind.type}(ptr %a, i64 %lda, ptr %packed, ptr %tile, i1 %low, i1 %turned, i64 %n,
      i64 %k, i1 %fresh, i64 %height, ptr %c, i64 %ldc, ptr %ahead, i64 %step) noinline #0 {{
{_ROWS if reads_rows_only(kind) else _ROWS_OR_COLUMNS}
  %rows = select i1 %low, i64 {LOW}, i64 {tall(kind)}
  %high = icmp eq i64 %height, %rows
  %asked = select i1 %turned, i64 0, i64 %rows
{loop_ir("j", "%n", str(kind.columns), body)}
  ret void
}}"""


_PACKS_TURNED = """
  %packs_all = or i1 %collide, %ta"""
_PACKED_ROWS = """packed_rows:
  br label %packed_a
"""
_USED = "  %used = select i1 %packs, ptr %panel, ptr %a_at"
_USED_OF_GROUP = """  %in_panels = phi i64 [ 0, %packed_rows ], [ 0, %a_straight ], [ %rows_before, %packed_group ]
{place}
  %used = select i1 %packs, ptr %in_panel, ptr %a_at"""


def _pack_columns(kind: Numbers) -> str:
    return f"  call void @pack_a_turned_{kind.type}(ptr %a_at, i64 %lda, i64 %filled, i64 %depth, ptr %panel)"


def _pack_group(kind: Numbers) -> str:
    """Several panels of a transposed A at a time: whole lines of the cache."""
    return f"""
  %in_group = urem i64 %i, {GROUP}
  %rows_before = mul i64 %in_group, {kind.row}
  %begins = icmp eq i64 %in_group, 0
  br i1 %begins, label %pack_group, label %packed_group
pack_group:
{min_ir("together", "%height", str(GROUP))}
  call void @pack_a_turned_{kind.type}(ptr %a_at, i64 %lda, i64 %together, i64 %depth, ptr %panel)
  br label %packed_group
packed_group:"""


def _multiply(kind: Numbers) -> str:
    panel = f"""
  %height = sub i64 %m, %i
  %low = icmp sle i64 %height, {most_low(kind)}
  %rows = select i1 %low, i64 {LOW}, i64 {tall(kind)}
{min_ir("filled", "%height", "%rows")}
  %partly = icmp slt i64 %height, %rows
  %packs = or i1 %partly, %{"packs_all" if reads_rows_only(kind) else "collide"}
  %a_row = select i1 %ta, i64 %p, i64 %i
  %a_column = select i1 %ta, i64 %i, i64 %p
  %a_far = mul i64 %a_row, %lda
  %a_here = add i64 %a_far, %a_column
{at_ir("a_at", kind, "%a", "%a_here")}
  br i1 %packs, label %pack, label %{"packed_rows" if reads_rows_only(kind) else "packed_a"}
{_PACKED_ROWS if reads_rows_only(kind) else ""}pack:
  br i1 %ta, label %a_turned, label %a_straight
a_turned:
{_pack_group(kind) if reads_rows_only(kind) else _pack_columns(kind)}
  br label %packed_a
a_straight:
  call void @pack_a_{kind.type}(ptr %a_at, i64 %lda, i64 %filled, i64 %rows, i64 %depth, ptr %panel)
  br label %packed_a
packed_a:
{_USED_OF_GROUP.format(place=at_ir("in_panel", kind, "%panel", "%in_panels")) if reads_rows_only(kind) else _USED}
  %ldu = select i1 %packs, i64 %packed_lda, i64 %lda
  %panel_step = mul i64 %lda, {tall(kind)}
{at_ir("next_rows", kind, "%a_at", "%panel_step")}
  %c_down = mul i64 %i, %ldc
  %c_there = add i64 %c_down, %j
{at_ir("c_at", kind, "%c", "%c_there")}
  call void @tiles_{kind.type}(ptr %used, i64 %ldu, ptr %packed, ptr %tile, i1 %low, i1 %ta, i64 %width, i64 %depth,
      i1 %new, i64 %filled, ptr %c_at, i64 %ldc, ptr %next_rows, i64 %lda)"""
    block = f"""
  %n_left = sub i64 %n, %j
{min_ir("width", "%n_left", str(WIDTH))}
  br i1 %tb, label %b_turned, label %b_straight
b_turned:
  %b_down = mul i64 %j, %ldb
  %b_there = add i64 %b_down, %p
{at_ir("b_rows", kind, "%b", "%b_there")}
  call void @pack_b_turned_{kind.type}(ptr %b_rows, i64 %ldb, i64 %width, i64 %depth, ptr %packed)
  br label %packed_b
b_straight:
  %b_far = mul i64 %p, %ldb
  %b_here = add i64 %b_far, %j
{at_ir("b_columns", kind, "%b", "%b_here")}
  call void @pack_b_{kind.type}(ptr %b_columns, i64 %ldb, i64 %width, i64 %depth, ptr %packed)
  br label %packed_b
packed_b:
{loop_ir("i", "%m", "%rows", panel)}"""
    part = f"""
  %k_left = sub i64 %k, %p
{min_ir("depth", "%k_left", str(kind.depth))}
  %is_first = icmp eq i64 %p, 0
  %new = and i1 %fresh, %is_first
{loop_ir("j", "%n", str(WIDTH), block)}"""
    return f"""
define internal void @multiply_{kind.type}(i1 %ta, i1 %tb, i64 %m, i64 %n, i64 %k, ptr %a, i64 %lda, ptr %b,
      i64 %ldb, i1 %fresh, ptr %c, i64 %ldc, ptr %panel) noinline #0 {{
{at_ir("tile", kind, "%panel", str(_panel_elements(kind)))}
{at_ir("packed", kind, "%tile", str(tall(kind) * kind.columns))}
  %packed_lda = select i1 %ta, i64 {kind.row if reads_rows_only(kind) else pitch(kind)}, i64 {kind.row}
  %lda_bits = and i64 %lda, {4096 // kind.size - 1}
  %collide = icmp eq i64 %lda_bits, 0{_PACKS_TURNED if reads_rows_only(kind) else ""}
{loop_ir("p", "%k", str(kind.depth), part)}
  ret void
}}"""
