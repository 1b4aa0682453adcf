"""Products of a matrix of few rows with a long one, as LLVM IR text behind the kernel ABI: the lanes of a register are
the few rows.

    across   C = A Bᵀ of A (m, k) and B (n, k), rows lo..hi of B: each register holds sums of one row of B, and a square
             of them is turned on its way to memory
    down     C[chunk] = A B of A (m, k) and B (k, n), over rows lo..hi of B: A is turned a block at a time, and each
             register holds sums of one column of B

So B, the long matrix, is read where it lies, an element at a time, which an instruction spreads to all lanes as it
multiplies; nothing of it is packed. Rows of A are taken by as many as there are lanes, in the place of missing ones the
last one again, whose results are stored twice. So are those of the last square, which begins early. Each element is
the sum of its products in order, by fused multiply-add; for `down`, those of a chunk.

Microseconds of a Zen 4 core with a peak of 115 GFLOP/s, ours and with B packed in panels (gemm_code.py):

    float32   16 x 10000 x 50, transposed    157 (326; by BLAS 273; at the peak 139)
              16 x 50 x 10000                166 (233; 240; 139)
    float64   16 x 10000 x 50, transposed    337 (by BLAS 476; at the peak 281)
              16 x 50 x 10000                325 (465; 503; 281)

On 16 registers, 13 or 6 columns at a time in place of 26 or 12; figures are in gemm.py.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    arrays_ir,
    at_ir,
    block_ir,
    declarations_ir,
    fma_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    module_ir,
    numbers_of,
    places_ir,
    spread_ir,
)
from jitgrad.compiler.products.short_steps import ACROSS_STUBS, BLOCK, DOWN_STUBS, MOST_SHORT, SUMS, tile_names_of
from jitgrad.compiler.products.transposes import turned_ir

_PLACES = 64  # of A that are turned at a time: with as many rows of B they stay in the first cache


def stub_ir(stub: str) -> str:
    """The module of one function, by its name."""
    kind = numbers_of(stub, ACROSS_STUBS, DOWN_STUBS)
    return module_ir(declarations_ir(kind), (_across if _is_across(stub) else _down)(kind, stub))


def tiles_ir(stub: str) -> str:
    """The module of the loops on registers that one function calls."""
    kind, names = numbers_of(stub, ACROSS_STUBS, DOWN_STUBS), tile_names_of(stub)
    if _is_across(stub):
        return module_ir(declarations_ir(kind), _across_tile(kind, names[0]))
    tiles = (_down_tile(kind, name, wide) for name, wide in zip(names[1:], SUMS[kind.registers], strict=True))
    return module_ir(declarations_ir(kind), _turn(kind, names[0]), *tiles)


def _is_across(stub: str) -> bool:
    return stub in ACROSS_STUBS.values()


def _start() -> str:
    return "\n".join((block_ir(BLOCK), arrays_ir("a", "b", "c"), "  %last = sub i64 %m, 1"))


def _multiplied(kind: Numbers, r: int, at: str, by: str) -> str:
    """Sum r and the element at an address, spread to all lanes, times a register."""
    element = f"  %x{r} = load {kind.type}, ptr {at}"
    spread, added = spread_ir(f"z{r}", kind, f"%x{r}"), fma_ir(f"t{r}", kind, f"%z{r}", by, f"%s{r}")
    return "\n".join((element, spread, added))


# -- across ------------------------------------------------------------------------------------------------------------


def _across_tile(kind: Numbers, name: str) -> str:
    """A square of C, rows from ``s`` on: rows of B from ``b`` on, over k >= 1 places, times a packed panel of A."""
    n, v = kind.lanes, kind.vector
    sums = "\n".join(f"  %s{r} = phi {v} [ zeroinitializer, %entry ], [ %t{r}, %loop ]" for r in range(n))
    steps = [_lanes(kind)]
    for r in range(n):
        if r:
            steps.append(at_ir(f"row{r}", kind, f"%row{r - 1}" if r > 1 else "%b_at", "%ldb"))
        steps.append(_multiplied(kind, r, f"%row{r}" if r else "%b_at", "%lanes"))
    lines, turned = turned_ir(kind, [f"%t{r}" for r in range(n)])
    for r in range(n):
        lines += [
            f"  %place{r} = add i64 %s, {r}",
            min_ir(f"kept{r}", f"%place{r}", "%last"),
            f"  %down{r} = mul i64 %kept{r}, %ldc",
            at_ir(f"to{r}", kind, "%c", f"%down{r}"),
            f"  store {v} {turned[r]}, ptr %to{r}, align {kind.size}",
        ]
    return f"""
define void @{name}(ptr %panel, ptr %b, i64 %ldb, i64 %k, ptr %c, i64 %ldc, i64 %s, i64 %last) noinline #0 {{
entry:
{places_ir(kind, {"b": "1"}, sums, chr(10).join(steps))}
{chr(10).join(lines)}
  ret void
}}"""


def _lanes(kind: Numbers) -> str:
    """A place of the packed or turned rows of A, one in each lane."""
    return f"""  %at_offset = mul i64 %p, {kind.lanes}
{at_ir("lanes_at", kind, "%panel", "%at_offset")}
  %lanes = load {kind.vector}, ptr %lanes_at, align {kind.bytes}"""


def _across(kind: Numbers, stub: str) -> str:
    """Panels of as many rows of A as there are lanes; with each, the call's rows of B by as many."""
    (name,) = tile_names_of(stub)
    pack = f"""
  %pack_row = add i64 %s, %r
{min_ir("row", "%pack_row", "%last")}
  %row_offset = mul i64 %row, %lda
  %from_offset = add i64 %row_offset, %p
{at_ir("from", kind, "%a", "%from_offset")}
  %x = load {kind.type}, ptr %from
  %line = mul i64 %p, {kind.lanes}
  %to_offset = add i64 %line, %r
{at_ir("to", kind, "%panel", "%to_offset")}
  store {kind.type} %x, ptr %to"""
    tile = f"""
{min_ir("first", "%i", "%latest")}
  %b_offset = mul i64 %first, %ldb
{at_ir("b_at", kind, "%b", "%b_offset")}
{at_ir("c_at", kind, "%c", "%first")}
  call void @{name}(ptr %panel, ptr %b_at, i64 %ldb, i64 %k, ptr %c_at, i64 %ldc, i64 %s, i64 %last)"""
    packing = loop_ir("p", "%k", "1", loop_ir("r", str(kind.lanes), "1", pack))
    slices = packing + loop_ir("i", "%hi", str(kind.lanes), tile, first="%lo")
    return f"""
declare void @{name}(ptr, ptr, i64, i64, ptr, i64, i64, i64) #0

define void @{stub}({KERNEL}) #0 {{
  %panel = alloca [{MOST_SHORT} x {kind.vector}], align {kind.bytes}
{_start()}
  %latest = sub i64 %hi, {kind.lanes}
{loop_ir("s", "%m", str(kind.lanes), slices)}
  ret void
}}"""


# -- down --------------------------------------------------------------------------------------------------------------


def _turn(kind: Numbers, name: str) -> str:
    """A square of A, rows from ``s`` on, turned; zeros in the place of places beyond ``left``."""
    n = kind.lanes
    lines = []
    for r in range(n):
        lines += [
            f"  %place{r} = add i64 %s, {r}",
            min_ir(f"row{r}", f"%place{r}", "%last"),
            f"  %down{r} = mul i64 %row{r}, %lda",
            at_ir(f"from{r}", kind, "%a", f"%down{r}"),
            load_ir(f"e{r}", kind, f"%from{r}", "%mask"),
        ]
    shuffles, turned = turned_ir(kind, [f"%e{r}" for r in range(n)])
    for r in range(n):
        shuffles += [
            at_ir(f"to{r}", kind, "%to", str(r * n)),
            f"  store {kind.vector} {turned[r]}, ptr %to{r}, align {kind.bytes}",
        ]
    return f"""
define void @{name}(ptr %a, i64 %lda, i64 %s, i64 %last, i64 %left, ptr %to) noinline #0 {{
{mask_ir("mask", kind, "%left")}
{chr(10).join((*lines, *shuffles))}
  ret void
}}"""


def _down_tile(kind: Numbers, name: str, columns: int) -> str:
    """Sums of so many columns of B, over k >= 1 rows; those before the ``skipped``-th are not kept."""
    v = kind.vector
    old, sums, steps, kept = [], [], [_lanes(kind)], []
    for c in range(columns):
        old += [
            at_ir(f"sum_at{c}", kind, "%sums", str(c * kind.lanes)),
            f"  %old{c} = load {v}, ptr %sum_at{c}, align {kind.bytes}",
        ]
        sums.append(f"  %s{c} = phi {v} [ %old{c}, %entry ], [ %t{c}, %loop ]")
        steps += [at_ir(f"b{c}", kind, "%b_at", str(c)), _multiplied(kind, c, f"%b{c}", "%lanes")]
        kept += [
            f"  %is_kept{c} = icmp sge i64 {c}, %skipped",
            f"  %to{c} = select i1 %is_kept{c}, ptr %sum_at{c}, ptr %nowhere",
            f"  store {v} %t{c}, ptr %to{c}, align {kind.bytes}",
        ]
    newline = "\n"
    return f"""
define void @{name}(ptr %panel, ptr %b, i64 %ldb, i64 %k, ptr %sums, i64 %skipped) noinline #0 {{
entry:
  %nowhere = alloca {v}, align {kind.bytes}
{newline.join(old)}
{places_ir(kind, {"b": "%ldb"}, newline.join(sums), newline.join(steps))}
{newline.join(kept)}
  ret void
}}"""


def _down(kind: Numbers, stub: str) -> str:
    """Slices of as many rows of A as there are lanes: blocks of places are turned, and the sums of all columns carried
    on; the last columns begin early, and what is summed already is not kept again.
    """
    turn, wide, few = tile_names_of(stub)
    square = f"""
  %square_left = sub i64 %places, %q
  %square_at = add i64 %p, %q
{at_ir("from", kind, "%a", "%square_at")}
  %line = mul i64 %q, {kind.lanes}
{at_ir("to", kind, "%panel", "%line")}
  call void @{turn}(ptr %from, i64 %lda, i64 %s, i64 %last, i64 %square_left, ptr %to)"""
    block = f"""
  %places_left = sub i64 %hi, %p
{min_ir("places", "%places_left", str(_PLACES))}
  %b_down = mul i64 %p, %ldb
{at_ir("b_rows", kind, "%b", "%b_down")}
{loop_ir("q", "%places", str(kind.lanes), square)}
{loop_ir("j", "%n", "%columns", _some_columns(kind, few, wide))}"""
    slices = f"""
  %rows_left = sub i64 %m, %s
{min_ir("height", "%rows_left", str(kind.lanes))}
{loop_ir("z", "%n", "1", _clear(kind))}
{loop_ir("p", "%hi", str(_PLACES), block, first="%lo")}
{loop_ir("u", "%height", "1", loop_ir("v", "%n", "1", _put(kind)))}"""
    return f"""
declare void @{turn}(ptr, i64, i64, i64, i64, ptr) #0
declare void @{wide}(ptr, ptr, i64, i64, ptr, i64) #0
declare void @{few}(ptr, ptr, i64, i64, ptr, i64) #0

define void @{stub}({KERNEL}) #0 {{
  %panel = alloca [{_PLACES} x {kind.vector}], align {kind.bytes}
  %sums = alloca [{MOST_SHORT} x {kind.vector}], align {kind.bytes}
{_start()}
  %is_thin = icmp slt i64 %n, {SUMS[kind.registers][0]}
  %chunk_rows = mul i64 %chunk, %m
  %chunk_offset = mul i64 %chunk_rows, %n
{at_ir("c_chunk", kind, "%c", "%chunk_offset")}
{loop_ir("s", "%m", str(kind.lanes), slices)}
  ret void
}}"""


def _clear(kind: Numbers) -> str:
    """No sums of a column yet."""
    return f"""
  %clear_offset = mul i64 %z, {kind.lanes}
{at_ir("clear_at", kind, "%sums", "%clear_offset")}
  store {kind.vector} zeroinitializer, ptr %clear_at, align {kind.bytes}"""


def _put(kind: Numbers) -> str:
    """An element of the slice's sums, a lane of a column, to its place in C."""
    return f"""
  %sum_line = mul i64 %v, {kind.lanes}
  %sum_offset = add i64 %sum_line, %u
{at_ir("sum_at", kind, "%sums", "%sum_offset")}
  %sum = load {kind.type}, ptr %sum_at
  %put_row = add i64 %s, %u
  %put_down = mul i64 %put_row, %n
  %put_offset = add i64 %put_down, %v
{at_ir("put_at", kind, "%c_chunk", "%put_offset")}
  store {kind.type} %sum, ptr %put_at"""


def _some_columns(kind: Numbers, few: str, wide: str) -> str:
    """The sums of the columns from ``j`` on, by the narrow tile or the wide one, carried on over a block of places."""
    most, least = SUMS[kind.registers]
    return f"""
  %columns_left = sub i64 %n, %j
  %fits = icmp sle i64 %columns_left, {least}
  %is_few = or i1 %is_thin, %fits
  %columns = select i1 %is_few, i64 {least}, i64 {most}
  %final = sub i64 %n, %columns
{min_ir("begin", "%j", "%final")}
  %skipped = sub i64 %j, %begin
{at_ir("b_at", kind, "%b_rows", "%begin")}
  %sums_offset = mul i64 %begin, {kind.lanes}
{at_ir("sums_at", kind, "%sums", "%sums_offset")}
  br i1 %is_few, label %make_few, label %make_wide
make_few:
  call void @{few}(ptr %panel, ptr %b_at, i64 %ldb, i64 %places, ptr %sums_at, i64 %skipped)
  br label %made
make_wide:
  call void @{wide}(ptr %panel, ptr %b_at, i64 %ldb, i64 %places, ptr %sums_at, i64 %skipped)
  br label %made
made:"""
