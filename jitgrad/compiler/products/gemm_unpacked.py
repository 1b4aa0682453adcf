"""Our own matrix product of a transposed A, read where it lies, with one panel of B, as LLVM IR text behind the kernel
ABI, where registers are multiplied in halves: nothing is saved by packing what one panel meets. The sum is cut in the
same parts as that of other products. It takes sums of whole turns, and at least as many rows of C as a tile has: what
is left of the rows is a tile with some of those before, which are not written again. One Zen 4 core, 32 products of
256 x 64 x 256 as a step of attention: 2.61 ms, by OpenBLAS 3.03 (at the core's peak 2.27).
"""

from __future__ import annotations

from jitgrad.compiler.products.blas_stubs import Scalar, cell_start_ir, cells_ir, scratch_ir, words_ir
from jitgrad.compiler.products.gemm_packing import copying_ir, packed_ir, packing_b_ir, packing_declarations_ir
from jitgrad.compiler.products.gemm_tiles import TALL
from jitgrad.compiler.products.product_code import unpacked_name
from jitgrad.compiler.products.registers import SMALLER, Numbers, at_ir, declarations_ir, loop_ir, min_ir, module_ir


def unpacked_bytes(kind: Numbers) -> int:
    """What a thread needs: a tile of C, and a packed panel of B."""
    return kind.size * kind.columns * (TALL + kind.depth)


def unpacked_step_ir(kind: Numbers, stub: str, quickly: bool = False) -> str:
    """The module of the step over cells; `depth` is that of a part. ``quickly`` as for `multiply_ir`."""
    scalar = Scalar(kind.type, stub, kind.size)
    tile = f"declare void @{unpacked_name(kind.suffix)}(ptr, ptr, i64, ptr, i64, i1, i64) #0"
    packing = (packing_declarations_ir(kind),) if quickly else (copying_ir(kind), packing_b_ir(kind))
    parts = (_unpacked(kind), _cell(scalar), cells_ir(scalar))
    return module_ir(SMALLER, declarations_ir(kind), tile, *packing, *parts)


def _unpacked(kind: Numbers) -> str:
    """Rows of C, one part of the sum after the other."""
    turned = at_ir("b_turned", kind, "%b", "%p")
    straight = f"""  %b_down = mul i64 %p, %ldb
{at_ir("b_straight", kind, "%b", "%b_down")}"""
    part = f"""
  %k_left = sub i64 %k, %p
{min_ir("depth", "%k_left", "%even")}
  %new = icmp eq i64 %p, 0
  %a_down = mul i64 %p, %lda
{at_ir("a_part", kind, "%a", "%a_down")}
{packed_ir(kind, "b", "%n", "%packed", turned, straight)}
{loop_ir("i", "%m", str(TALL), _rows(kind))}"""
    return f"""
define internal void @unpacked_{kind.type}(i1 %tb, i64 %m, i64 %n, i64 %k, i64 %even, ptr %a, i64 %lda, ptr %b,
      i64 %ldb, ptr %c, i64 %ldc, ptr %tile) noinline #0 {{
{at_ir("packed", kind, "%tile", str(TALL * kind.columns))}
  %is_wide = icmp eq i64 %n, {kind.columns}
{loop_ir("p", "%k", "%even", part)}
  ret void
}}"""


def _rows(kind: Numbers) -> str:
    """The rows of a tile: in their place, or beside it, with some before them that are made again."""
    tile = unpacked_name(kind.suffix)
    return f"""
  %height = sub i64 %m, %i
{min_ir("high", "%height", str(TALL))}
  %again = sub i64 {TALL}, %high
  %first = sub i64 %i, %again
{at_ir("a_at", kind, "%a_part", "%first")}
  %c_down = mul i64 %i, %ldc
{at_ir("c_at", kind, "%c", "%c_down")}
  %is_high = icmp eq i64 %again, 0
  %is_whole = and i1 %is_high, %is_wide
  br i1 %is_whole, label %whole, label %beside
whole:
  call void @{tile}(ptr %a_at, ptr %packed, i64 %depth, ptr %c_at, i64 %ldc, i1 %new, i64 %lda)
  br label %i_latch
beside:
  %beside_offset = mul i64 %again, {kind.columns}
{at_ir("beside_at", kind, "%tile", "%beside_offset")}
  br i1 %new, label %make, label %fetch
fetch:
  call void @jitgrad_copy_{kind.suffix}(ptr %c_at, i64 %ldc, ptr %beside_at, i64 {kind.columns}, i64 %high, i64 %n)
  br label %make
make:
  call void @{tile}(ptr %a_at, ptr %packed, i64 %depth, ptr %tile, i64 {kind.columns}, i1 %new, i64 %lda)
  call void @jitgrad_copy_{kind.suffix}(ptr %beside_at, i64 {kind.columns}, ptr %c_at, i64 %ldc, i64 %high, i64 %n)"""


def _cell(kind: Scalar) -> str:
    """Some rows of C."""
    return f"""{cell_start_ir(kind)}
{words_ir("depth")}
{scratch_ir()}
  call void @unpacked_{kind.type}(i1 %b_t, i64 %m_tile, i64 %n, i64 %k, i64 %depth, ptr %a_ptr, i64 %a_stride,
      ptr %b_ptr, i64 %b_stride, ptr %c_ptr, i64 %c_stride, ptr %scratch)
  ret void
}}"""
