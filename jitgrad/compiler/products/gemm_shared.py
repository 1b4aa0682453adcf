"""Our own matrix product whose packed B all threads share, as LLVM IR text behind the kernel ABI: one step packs B, the
next makes whole rows of C, which meet all of it. Tiles and packing are those of gemm_code.py, and so are the bits.

Where each tile of C packs its part of B anew, a tile has to be large, and what it packs still takes a twentieth of the
time; here cells have 36 to 96 rows, so that two threads end together also where others take their processors. One core
of Zen 4's with a peak of 118 GFLOP/s, C of 510 x 1024, in turns:

    k = 784              104 and 109        k = 1024, B T        104 and 108
    k = 1024             102 and 109        k = 1024, A T        100 and 107
"""

from __future__ import annotations

from jitgrad.compiler.products.blas_stubs import Scalar, cell_start_ir, cells_ir, scratch_ir, words_ir
from jitgrad.compiler.products.gemm_code import WIDTH, row_of_tiles_ir
from jitgrad.compiler.products.gemm_packing import (
    GROUP,
    apart_ir,
    packed_ir,
    packing_a_ir,
    packing_b_ir,
    packing_declarations_ir,
)
from jitgrad.compiler.products.gemm_tiles import TALL, tile_declarations_ir
from jitgrad.compiler.products.registers import SMALLER, Numbers, at_ir, declarations_ir, loop_ir, min_ir, module_ir

MOST_ROWS = GROUP
"""The rows of a cell: as many as are packed at a time, turned or not."""


def shared_bytes(kind: Numbers, n: int, k: int, depth: int) -> int:
    """What all of packed B takes, in parts of so many places."""
    return kind.size * kind.depth * -(-k // depth) * -(-n // kind.columns) * kind.columns


def cell_bytes(kind: Numbers, rows: int) -> int:
    """What a thread needs for cells of so many rows: a tile of C, and the packed rows of A in whole panels, which are
    turned by squares.
    """
    in_panels = -(-rows // TALL) * TALL
    return kind.size * (TALL * kind.columns + -(-in_panels // kind.lanes) * kind.lanes * kind.row)


def part_depth(kind: Numbers, k: int, is_turned: bool) -> int:
    """The places of the sum in a part, as `multiply` cuts it."""
    share = -(-k // -(-k // kind.deepest(is_turned)))
    return -(-share // kind.lanes) * kind.lanes


def pack_step_ir(kind: Numbers, stub: str, quickly: bool = False) -> str:
    """The module of the step that packs B: a cell is some columns of a part of the sum, which are the rows and columns
    of its block. ``quickly`` as for `multiply_ir`.
    """
    cells = cells_ir(Scalar(kind.type, stub, kind.size))
    packing = packing_declarations_ir(kind) if quickly else packing_b_ir(kind)
    return module_ir(declarations_ir(kind), packing, _pack_cell(kind), cells)


def shared_step_ir(kind: Numbers, stub: str, quickly: bool = False) -> str:
    """The module of the step over rows of C; `depth` is that of a part. ``quickly`` as for `multiply_ir`."""
    scalar = Scalar(kind.type, stub, kind.size)
    packing = packing_declarations_ir(kind) if quickly else packing_a_ir(kind)
    loops = (row_of_tiles_ir(kind, quickly), _rows(kind), _rows_cell(scalar), cells_ir(scalar))
    return module_ir(SMALLER, declarations_ir(kind), tile_declarations_ir(kind), packing, *loops)


def _across(kind: Numbers) -> str:
    """`part_distance`: from a part of packed B to the next."""
    return f"""  %n_more = add i64 %n, {kind.columns - 1}
  %panels = udiv i64 %n_more, {kind.columns}
  %part_distance = mul i64 %panels, {kind.columns * kind.depth}"""


def _pack_cell(kind: Numbers) -> str:
    """Some columns of a part of B, packed to their place behind that of the parts and columns before."""
    return f"""
define internal void @cell_{kind.type}(ptr %table, ptr %block, i64 %row, i64 %column, i64 %a, i64 %b,
      i64 %c, i64 %part, i64 %worker) #0 {{
entry:
{words_ir("m", "n", "rows", "columns", "b_slot", "b_stride", "b_transposed", "c_slot")}
{_across(kind)}
  %b_entry = getelementptr ptr, ptr %table, i64 %b_slot
  %b_base = load ptr, ptr %b_entry
  %c_entry = getelementptr ptr, ptr %table, i64 %c_slot
  %c_base = load ptr, ptr %c_entry
  %p = mul i64 %row, %rows
  %j = mul i64 %column, %columns
  %k_left = sub i64 %m, %p
{min_ir("depth", "%k_left", "%rows")}
  %n_left = sub i64 %n, %j
{min_ir("width", "%n_left", "%columns")}
  %tb = icmp ne i64 %b_transposed, 0
  %far = select i1 %tb, i64 %j, i64 %p
  %near = select i1 %tb, i64 %p, i64 %j
  %down = mul i64 %far, %b_stride
  %there = add i64 %down, %near
  %offset = add i64 %there, %b
{at_ir("from", kind, "%b_base", "%offset")}
  %part_offset = mul i64 %row, %part_distance
{apart_ir(kind, "%depth")}
  %panel_offset = mul i64 %j, %apart
  %to_offset = add i64 %part_offset, %panel_offset
{at_ir("to", kind, "%c_base", "%to_offset")}
  br i1 %tb, label %turned, label %straight
turned:
  call void @jitgrad_pack_b_turned_{kind.suffix}(ptr %from, i64 %b_stride, i64 %width, i64 %depth, ptr %to)
  ret void
straight:
  call void @jitgrad_pack_b_{kind.suffix}(ptr %from, i64 %b_stride, i64 %width, i64 %depth, ptr %to)
  ret void
}}"""


def _rows(kind: Numbers) -> str:
    """Rows of C: for each part, A is packed, and its panels meet those columns of B that the second cache holds."""
    turned = f"""  %a_down = mul i64 %p, %lda
{at_ir("a_turned", kind, "%a", "%a_down")}"""
    straight = at_ir("a_straight", kind, "%a", "%p")
    part = f"""
  %k_left = sub i64 %k, %p
{min_ir("depth", "%k_left", "%even")}
  %new = icmp eq i64 %p, 0
  %number = udiv i64 %p, %even
  %part_offset = mul i64 %number, %part_distance
{at_ir("packed_part", kind, "%packed", "%part_offset")}
{packed_ir(kind, "a", "%m", "%panels_of_a", turned, straight)}
{loop_ir("j", "%n", str(WIDTH), _columns(kind))}"""
    return f"""
define internal void @rows_{kind.type}(i1 %ta, i64 %m, i64 %n, i64 %k, i64 %even, ptr %a, i64 %lda, ptr %packed, ptr %c,
      i64 %ldc, ptr %tile) noinline #0 {{
{_across(kind)}
{at_ir("panels_of_a", kind, "%tile", str(TALL * kind.columns))}
{loop_ir("p", "%k", "%even", part)}
  ret void
}}"""


def _columns(kind: Numbers) -> str:
    """Those columns of B that the second cache holds, and the panels of A one after another."""
    panel = f"""
  %height = sub i64 %m, %i
{min_ir("filled", "%height", str(TALL))}
  %panel_offset = mul i64 %i, {kind.row}
{at_ir("panel", kind, "%panels_of_a", "%panel_offset")}
  %c_down = mul i64 %i, %ldc
  %c_there = add i64 %c_down, %j
{at_ir("c_at", kind, "%c", "%c_there")}
  call void @tiles_{kind.type}(ptr %panel, ptr %packed_at, ptr %tile, i64 %width, i64 %depth, i1 %new, i64 %filled,
      ptr %c_at, i64 %ldc, {f"i64 {kind.row}, i64 1" if kind.in_place else "ptr %panel, i64 0, i64 0"})"""
    return f"""
  %n_left = sub i64 %n, %j
{min_ir("width", "%n_left", str(WIDTH))}
{apart_ir(kind, "%depth")}
  %columns_offset = mul i64 %j, %apart
{at_ir("packed_at", kind, "%packed_part", "%columns_offset")}
{loop_ir("i", "%m", str(TALL), panel)}"""


def _rows_cell(kind: Scalar) -> str:
    """Some rows of C."""
    return f"""{cell_start_ir(kind)}
{words_ir("depth")}
{scratch_ir()}
  call void @rows_{kind.type}(i1 %a_t, i64 %m_tile, i64 %n, i64 %k, i64 %depth, ptr %a_ptr, i64 %a_stride, ptr %b_ptr,
      ptr %c_ptr, i64 %c_stride, ptr %scratch)
  ret void
}}"""
