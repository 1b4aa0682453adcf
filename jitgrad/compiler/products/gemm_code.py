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

from collections.abc import Sequence

from jitgrad.compiler.products.gemm_packing import packing_ir, pitch
from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    loop_ir,
    min_ir,
    tile_names,
)  # fmt: skip
from jitgrad.compiler.products.transposes import turn_ir

WIDTH = 256


def tall(kind: Numbers) -> int:
    """Rows of a tile: with two registers each, they hold sums in three quarters of all."""
    return kind.registers * 3 // 8


def low(kind: Numbers) -> int:
    """Rows of a tile of what is left of the rows."""
    return kind.registers // 8


def scratch_bytes(kind: Numbers, columns: int) -> int:
    """What a thread needs for tiles of so many columns: a panel of A, a tile of C, and the packed part of B."""
    packed = min(WIDTH, -(-columns // kind.columns) * kind.columns) * kind.depth
    return kind.size * (_panel_elements(kind) + tall(kind) * kind.columns + packed)


def _panel_elements(kind: Numbers) -> int:
    return max(tall(kind) * kind.row, pitch(kind) * kind.depth)


def multiply_ir(kind: Numbers) -> str:
    """The function `multiply_<type>` and what it calls, but for the tiles."""
    kernels = [f"declare void @{name}(ptr, i64, i64, ptr, i64, ptr, i64, i1) #0" for name in tile_names(kind.suffix)]
    prefetch = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0"
    loops = (_row_of_tiles(kind), _multiply(kind))
    return "\n".join((declarations_ir(kind), prefetch, turn_ir(kind), *kernels, packing_ir(kind), *loops))


# -- the tile in registers ---------------------------------------------------------------------------------------------


def tiles_ir(kind: Numbers) -> str:
    """The module of the tiles, which `multiply_<type>` calls."""
    names = zip(tile_names(kind.suffix), (tall(kind), low(kind)), strict=True)
    return "\n".join((declarations_ir(kind), *(_kernel(kind, name, rows) for name, rows in names)))


def _kernel(kind: Numbers, name: str, rows: int) -> str:
    """A whole tile: C = or += A times packed B over k >= 1; of A, rows lie `row` apart and places of the sum `step`.

    Each address of 12 is made from the one before, as the processor's registers hold few; so half as many instructions
    are compiled as for products of each row with the distance, and none waits for another within a turn. Of 6 rows the
    starts are kept: a turn takes 6 cycles then, and would wait 8 for the addresses (Zen 3, 102 GFLOP/s of 103, and 72).
    """
    v = kind.vector
    tile = [(r, c) for r in range(rows) for c in range(2)]
    old = [f"  %old{r}_{c} = load {v}, ptr %old{r}_{c}_at, align {kind.size}" for r, c in tile]
    phis = "\n".join(
        f"  %s{r}_{c} = phi {v} [ zeroinitializer, %entry ], [ %old{r}_{c}, %more ], [ %t{r}_{c}, %loop ]"
        for r, c in tile
    )
    loads = "\n".join(
        f"{at_ir(f'b{c}_at', kind, '%b_at', str(c * kind.lanes))}\n"
        f"  %b{c} = load {v}, ptr %b{c}_at, align {kind.bytes}"
        for c in range(2)
    )
    steps = "\n".join(_kernel_row(kind, r) for r in range(rows))
    stores = [f"  store {v} %t{r}_{c}, ptr %new{r}_{c}_at, align {kind.size}" for r, c in tile]
    return f"""
define void @{name}(ptr %a, i64 %row, i64 %step, ptr %b, i64 %k, ptr %c, i64 %ldc, i1 %fresh) noinline #0 {{
entry:
{_row_starts(kind, rows)}  br i1 %fresh, label %loop, label %more
more:
{_tile_places(kind, "old", rows, old)}
  br label %loop
loop:
  %p = phi i64 [ 0, %entry ], [ 0, %more ], [ %p1, %loop ]
{_first_place(kind)}
  %b_at = phi ptr [ %b, %entry ], [ %b, %more ], [ %b_next, %loop ]
{phis}
{loads}
{steps}
{_next_place(kind)}
{at_ir("b_next", kind, "%b_at", str(kind.columns))}
  %p1 = add i64 %p, 1
  %again = icmp slt i64 %p1, %k
  br i1 %again, label %loop, label %end
end:
{_tile_places(kind, "new", rows, stores)}
  ret void
}}"""


def _row_starts(kind: Numbers, rows: int) -> str:
    """Where rows of A begin, if they are kept."""
    if kind.registers == 32:
        return ""
    starts = [at_ir(f"start{r}", kind, f"%start{r - 1}" if r else "%a", "%row" if r else "0") for r in range(rows)]
    return "\n".join((*starts, ""))


def _first_place(kind: Numbers) -> str:
    """The place of the sum: the address in the first row, or how far on it is in all."""
    if kind.registers == 32:
        return "  %a0_at = phi ptr [ %a, %entry ], [ %a, %more ], [ %a_next, %loop ]"
    return "  %q = phi i64 [ 0, %entry ], [ 0, %more ], [ %q1, %loop ]"


def _next_place(kind: Numbers) -> str:
    return at_ir("a_next", kind, "%a0_at", "%step") if kind.registers == 32 else "  %q1 = add i64 %q, %step"


def _tile_places(kind: Numbers, name: str, rows: int, accesses: Sequence[str]) -> str:
    """The addresses of a tile's registers in C, those of each row from the row's before, with the access of each."""
    lines = []
    for r in range(rows):
        lines.append(at_ir(f"{name}{r}", kind, *((f"%{name}{r - 1}", "%ldc") if r else ("%c", "0"))))
        for c in range(2):
            lines += [at_ir(f"{name}{r}_{c}_at", kind, f"%{name}{r}", str(c * kind.lanes)), accesses[2 * r + c]]
    return "\n".join(lines)


def _kernel_row(kind: Numbers, r: int) -> str:
    v = kind.vector
    if kind.registers < 32:
        lines = [at_ir(f"a{r}_at", kind, f"%start{r}", "%q")]
    else:
        lines = [at_ir(f"a{r}_at", kind, f"%a{r - 1}_at", "%row")] if r else []
    lines += [
        f"  %x{r} = load {kind.type}, ptr %a{r}_at",
        f"  %y{r} = insertelement {v} poison, {kind.type} %x{r}, i64 0",
        f"  %z{r} = shufflevector {v} %y{r}, {v} poison, <{kind.lanes} x i32> zeroinitializer",
    ]
    lines += [
        f"  %t{r}_{c} = call {v} @llvm.fma.v{kind.lanes}{kind.suffix}({v} %z{r}, {v} %b{c}, {v} %s{r}_{c})"
        for c in range(2)
    ]
    return "\n".join(lines)


# -- the loops ---------------------------------------------------------------------------------------------------------


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
  %a_row = select i1 %turned, i64 1, i64 %lda
  %a_step = select i1 %turned, i64 %lda, i64 1
  %rows = select i1 %low, i64 {low(kind)}, i64 {tall(kind)}
  %high = icmp eq i64 %height, %rows
  %asked = select i1 %turned, i64 0, i64 %rows
{loop_ir("j", "%n", str(kind.columns), body)}
  ret void
}}"""


def _multiply(kind: Numbers) -> str:
    panel = f"""
  %height = sub i64 %m, %i
  %low = icmp sle i64 %height, {2 * low(kind)}
  %rows = select i1 %low, i64 {low(kind)}, i64 {tall(kind)}
{min_ir("filled", "%height", "%rows")}
  %partly = icmp slt i64 %height, %rows
  %packs = or i1 %partly, %collide
  %a_row = select i1 %ta, i64 %p, i64 %i
  %a_column = select i1 %ta, i64 %i, i64 %p
  %a_far = mul i64 %a_row, %lda
  %a_here = add i64 %a_far, %a_column
{at_ir("a_at", kind, "%a", "%a_here")}
  br i1 %packs, label %pack, label %packed_a
pack:
  br i1 %ta, label %a_turned, label %a_straight
a_turned:
  call void @pack_a_turned_{kind.type}(ptr %a_at, i64 %lda, i64 %filled, i64 %depth, ptr %panel)
  br label %packed_a
a_straight:
  call void @pack_a_{kind.type}(ptr %a_at, i64 %lda, i64 %filled, i64 %rows, i64 %depth, ptr %panel)
  br label %packed_a
packed_a:
  %used = select i1 %packs, ptr %panel, ptr %a_at
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
  %packed_lda = select i1 %ta, i64 {pitch(kind)}, i64 {kind.row}
  %lda_bits = and i64 %lda, {4096 // kind.size - 1}
  %collide = icmp eq i64 %lda_bits, 0
{loop_ir("p", "%k", str(kind.depth), part)}
  ret void
}}"""
