"""A matrix product of our own for processors with 32 registers of 64 bytes, as LLVM IR text: packing, a tile of C
in registers, the loops around it. It knows neither steps nor threads.

    void multiply(i1 ta, i1 tb, i64 m, i64 n, i64 k, ptr a, i64 lda, ptr b, i64 ldb, i1 fresh, ptr c, i64 ldc,
                  ptr scratch)                  C = op(A) op(B), or C += when not `fresh`; all row-major

The scheme is that of Goto and van de Geijn (Anatomy of high-performance matrix multiplication, 2008): parts of
`DEPTH` of the sum; of B, `WIDTH` columns packed in panels of two registers' width, which stay in the second cache;
of A, one panel of 12 rows at a time, which stays in the first. A tile of C is 12 x 2 registers; what is left of the
rows is done by fours; a tile that C does not have all of is made beside it. Each element of C is the sum of its
products in order, by fused multiply-add, in parts of `DEPTH`: its bits do not depend on how C is cut in tiles.

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

from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    store_ir,
    tile_names,
)  # fmt: skip
from jitgrad.compiler.products.transposes import turn_ir

TALL, LOW = 12, 4
_PITCH = 16  # of a packed panel of a transposed A
_PANEL_BYTES = 64
WIDTH = 256


def scratch_bytes(kind: Numbers, columns: int) -> int:
    """What a thread needs for tiles of so many columns: a panel of A, a tile of C, and the packed part of B."""
    packed = min(WIDTH, -(-columns // kind.columns) * kind.columns) * kind.depth
    return kind.size * (_panel_elements(kind) + TALL * kind.columns + packed)


def _panel_elements(kind: Numbers) -> int:
    return max(TALL * kind.row, _PITCH * kind.depth)


def multiply_ir(kind: Numbers) -> str:
    """The function `multiply_<type>` and what it calls, but for the tiles."""
    kernels = [f"declare void @{name}(ptr, i64, i64, ptr, i64, ptr, i64, i1) #0" for name in tile_names(kind.suffix)]
    packing = (_copy_tile(kind), _pack_a(kind), _pack_a_turned(kind), _pack_b(kind), _pack_b_turned(kind))
    prefetch = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0"
    loops = (_row_of_tiles(kind), _multiply(kind))
    return "\n".join((declarations_ir(kind), prefetch, turn_ir(kind), *kernels, *packing, *loops))


# -- the tile in registers ---------------------------------------------------------------------------------------------


def tiles_ir(kind: Numbers) -> str:
    """The module of the tiles, which `multiply_<type>` calls."""
    names = zip(tile_names(kind.suffix), (TALL, LOW), strict=True)
    return "\n".join((declarations_ir(kind), *(_kernel(kind, name, rows) for name, rows in names)))


def _kernel(kind: Numbers, name: str, rows: int) -> str:
    """A whole tile: C = or += A times packed B over k >= 1; of A, rows lie `row` apart and places of the sum `step`.

    Each address is made from the one before, as the processor's registers hold few; so half as many instructions are
    compiled as for products of each row with the distance, and none waits for another within a turn.
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
  br i1 %fresh, label %loop, label %more
more:
{_tile_places(kind, "old", rows, old)}
  br label %loop
loop:
  %p = phi i64 [ 0, %entry ], [ 0, %more ], [ %p1, %loop ]
  %a0_at = phi ptr [ %a, %entry ], [ %a, %more ], [ %a_next, %loop ]
  %b_at = phi ptr [ %b, %entry ], [ %b, %more ], [ %b_next, %loop ]
{phis}
{loads}
{steps}
{at_ir("a_next", kind, "%a0_at", "%step")}
{at_ir("b_next", kind, "%b_at", str(kind.columns))}
  %p1 = add i64 %p, 1
  %again = icmp slt i64 %p1, %k
  br i1 %again, label %loop, label %end
end:
{_tile_places(kind, "new", rows, stores)}
  ret void
}}"""


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


def _copy_tile(kind: Numbers) -> str:
    """Rows of up to two registers from one place to another."""
    body = "\n".join(
        (
            "  %from_offset = mul i64 %r, %ldf",
            at_ir("from_row", kind, "%from", "%from_offset"),
            "  %to_offset = mul i64 %r, %ldt",
            at_ir("to_row", kind, "%to", "%to_offset"),
            *(
                "\n".join(
                    (
                        at_ir(f"from{c}", kind, "%from_row", str(c * kind.lanes)),
                        load_ir(f"x{c}", kind, f"%from{c}", f"%mask{c}"),
                        at_ir(f"to{c}", kind, "%to_row", str(c * kind.lanes)),
                        store_ir(kind, f"%x{c}", f"%to{c}", f"%mask{c}"),
                    )
                )
                for c in range(2)
            ),
        )
    )
    return f"""
define internal void @copy_{kind.type}(ptr %from, i64 %ldf, ptr %to, i64 %ldt, i64 %height, i64 %width) noinline #0 {{
  %left = sub i64 %width, {kind.lanes}
{mask_ir("mask0", kind, "%width")}
{mask_ir("mask1", kind, "%left")}
{loop_ir("r", "%height", "1", body)}
  ret void
}}"""


# -- packing -----------------------------------------------------------------------------------------------------------


def _pack_a(kind: Numbers) -> str:
    """Rows of A, each as it is; in the place of missing rows the last one again."""
    copy = "\n".join(
        (
            "  %left = sub i64 %k, %p",
            mask_ir("mask", kind, "%left"),
            at_ir("from", kind, "%row_at", "%p"),
            load_ir("x", kind, "%from", "%mask"),
            at_ir("to", kind, "%put_at", "%p"),
            f"  store {kind.vector} %x, ptr %to, align {kind.bytes}",
        )
    )
    body = f"""
{min_ir("row", "%r", "%last")}
  %row_offset = mul i64 %row, %lda
{at_ir("row_at", kind, "%a", "%row_offset")}
  %put_offset = mul i64 %r, {kind.row}
{at_ir("put_at", kind, "%panel", "%put_offset")}
{loop_ir("p", "%k", str(kind.lanes), copy)}"""
    return f"""
define internal void @pack_a_{kind.type}(ptr %a, i64 %lda, i64 %height, i64 %rows, i64 %k, ptr %panel) noinline #0 {{
  %last = sub i64 %height, 1
{loop_ir("r", "%rows", "1", body)}
  ret void
}}"""


def _pack_a_turned(kind: Numbers) -> str:
    """Columns of a panel of a transposed A, zeros in the place of missing rows."""
    copies = []
    for t in range(_PITCH // kind.lanes):
        copies += [
            at_ir(f"from{t}", kind, "%from", str(t * kind.lanes)),
            load_ir(f"x{t}", kind, f"%from{t}", f"%mask{t}"),
            at_ir(f"to{t}", kind, "%to", str(t * kind.lanes)),
            f"  store {kind.vector} %x{t}, ptr %to{t}, align {kind.bytes}",
        ]
    masks = "\n".join(
        "\n".join((f"  %left{t} = sub i64 %height, {t * kind.lanes}", mask_ir(f"mask{t}", kind, f"%left{t}")))
        for t in range(_PITCH // kind.lanes)
    )
    body = "\n".join(
        (
            "  %from_offset = mul i64 %p, %lda",
            at_ir("from", kind, "%a", "%from_offset"),
            f"  %to_offset = mul i64 %p, {_PITCH}",
            at_ir("to", kind, "%panel", "%to_offset"),
            *copies,
        )
    )
    return f"""
define internal void @pack_a_turned_{kind.type}(ptr %a, i64 %lda, i64 %height, i64 %k, ptr %panel) noinline #0 {{
{masks}
{loop_ir("p", "%k", "1", body)}
  ret void
}}"""


def _pack_b(kind: Numbers) -> str:
    """Panels of B: the rows of each, zeros in the place of missing columns. Row by row, because where rows lie whole
    pages apart, a few columns of many rows come slowly from memory; one row ahead is asked for.
    """
    lines = [
        f"  %left0 = sub i64 %n, %j\n  %left1 = sub i64 %left0, {kind.lanes}",
        mask_ir("mask0", kind, "%left0"),
        mask_ir("mask1", kind, "%left1"),
        at_ir("from", kind, "%row", "%j"),
        f"  %panel_offset = mul i64 %j, {kind.depth}",
        at_ir("to", kind, "%line", "%panel_offset"),
    ]
    for c in range(2):
        lines += [
            at_ir(f"from{c}", kind, "%from", str(c * kind.lanes)),
            load_ir(f"x{c}", kind, f"%from{c}", f"%mask{c}"),
            at_ir(f"ahead{c}", kind, f"%from{c}", "%further"),
            f"  call void @llvm.prefetch.p0(ptr %ahead{c}, i32 0, i32 3, i32 1)",
            at_ir(f"to{c}", kind, "%to", str(c * kind.lanes)),
            f"  store {kind.vector} %x{c}, ptr %to{c}, align {kind.bytes}",
        ]
    body = f"""
  %row_offset = mul i64 %p, %ldb
{at_ir("row", kind, "%b", "%row_offset")}
  %line_offset = mul i64 %p, {kind.columns}
{at_ir("line", kind, "%packed", "%line_offset")}
{loop_ir("j", "%n", str(kind.columns), chr(10).join(lines))}"""
    return f"""
define internal void @pack_b_{kind.type}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
  %further = mul i64 %ldb, 2
{loop_ir("p", "%k", "1", body)}
  ret void
}}"""


def _pack_b_turned(kind: Numbers) -> str:
    """Panels of a transposed B, by squares of registers."""
    n = kind.lanes
    fetch = f"""
  %column = add i64 %j, %r
{min_ir("row", "%column", "%last")}
  %row_offset = mul i64 %row, %ldb
  %from_offset = add i64 %row_offset, %p
{at_ir("from", kind, "%b", "%from_offset")}
{load_ir("x", kind, "%from", "%mask")}
  %square_offset = mul i64 %r, {n}
{at_ir("square_at", kind, "%square", "%square_offset")}
  store {kind.vector} %x, ptr %square_at, align {kind.bytes}"""
    put = f"""
  %turned_offset = mul i64 %t, {n}
{at_ir("turned_at", kind, "%square", "%turned_offset")}
  %y = load {kind.vector}, ptr %turned_at, align {kind.bytes}
  %down = mul i64 %t, {kind.columns}
{at_ir("put_at", kind, "%to", "%down")}
  store {kind.vector} %y, ptr %put_at, align {kind.bytes}"""
    square = f"""
  %left = sub i64 %k, %p
{mask_ir("mask", kind, "%left")}
{loop_ir("r", str(n), "1", fetch)}
  call void @turn_{kind.type}(ptr %square)
  %half = urem i64 %j, {kind.columns}
  %first = sub i64 %j, %half
  %panel_offset = mul i64 %first, {kind.depth}
  %deep = mul i64 %p, {kind.columns}
  %inside = add i64 %deep, %half
  %to_offset = add i64 %panel_offset, %inside
{at_ir("to", kind, "%packed", "%to_offset")}
{loop_ir("t", str(n), "1", put)}"""
    return f"""
define internal void @pack_b_turned_{kind.type}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
  %square = alloca [{n} x {kind.vector}], align {kind.bytes}
  %last = sub i64 %n, 1
{loop_ir("j", "%n", str(n), loop_ir("p", "%k", str(n), square))}
  ret void
}}"""


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
    asked = "\n".join(
        (
            "  %ahead_down = mul i64 %row, %step",
            at_ir("ahead_row", kind, "%ahead_at", "%ahead_down"),
            at_ir("ahead_more", kind, "%ahead_row", str(kind.lanes)),
            "  call void @llvm.prefetch.p0(ptr %ahead_row, i32 0, i32 3, i32 1)",
            "  call void @llvm.prefetch.p0(ptr %ahead_more, i32 0, i32 3, i32 1)",
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
  %rows = select i1 %low, i64 {LOW}, i64 {TALL}
  %high = icmp eq i64 %height, %rows
  %asked = select i1 %turned, i64 0, i64 %rows
{loop_ir("j", "%n", str(kind.columns), body)}
  ret void
}}"""


def _multiply(kind: Numbers) -> str:
    panel = f"""
  %height = sub i64 %m, %i
  %low = icmp sle i64 %height, {2 * LOW}
  %rows = select i1 %low, i64 {LOW}, i64 {TALL}
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
  %panel_step = mul i64 %lda, {TALL}
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
{at_ir("packed", kind, "%tile", str(TALL * kind.columns))}
  %packed_lda = select i1 %ta, i64 {_PITCH}, i64 {kind.row}
  %lda_bits = and i64 %lda, {4096 // kind.size - 1}
  %collide = icmp eq i64 %lda_bits, 0
{loop_ir("p", "%k", str(kind.depth), part)}
  ret void
}}"""
