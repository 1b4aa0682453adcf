"""The kernel ABI around our own matrix product, as LLVM IR text: cells of a product."""

from __future__ import annotations

from jitgrad.compiler.products.blas_stubs import Scalar, cell_start_ir, cells_ir, scratch_ir, words_ir
from jitgrad.compiler.products.gemm_code import multiply_ir
from jitgrad.compiler.products.gemm_packing import packing_module_ir
from jitgrad.compiler.products.gemm_shared import pack_step_ir, shared_step_ir
from jitgrad.compiler.products.gemm_steps import STUBS
from jitgrad.compiler.products.gemm_tiles import tiles_ir, unpacked_tile_ir, whole_tile_ir
from jitgrad.compiler.products.gemm_unpacked import unpacked_step_ir
from jitgrad.compiler.products.product_code import PACK_STUBS, SHARED_STUBS, UNPACKED_STUBS
from jitgrad.compiler.products.registers import SMALLER, kinds, module_ir, numbers_of

_STUBS = (STUBS, PACK_STUBS, SHARED_STUBS, UNPACKED_STUBS)


_CALLED = {"all": tiles_ir, "first": whole_tile_ir, "unpacked": unpacked_tile_ir, "packing": packing_module_ir}


def gemm_called_ir(name: str, which: str) -> str:
    """A module of functions that products of a dtype of that name call: all tiles of packed operands, those of them
    that quick code calls, that of a transposed A that is not packed, or packing for quick code.
    """
    return module_ir(_CALLED[which](kinds()[name]))


def gemm_step_ir(stub: str, quickly: bool = False) -> str:
    """The module of one of `STUBS`, over cells, of a step of a product that shares packed B, or of one with a
    transposed A that is not packed; ``quickly`` as for `multiply_ir`.
    """
    numbers = numbers_of(stub, *_STUBS)
    if stub in PACK_STUBS.values():
        return pack_step_ir(numbers, stub, quickly)
    if stub in SHARED_STUBS.values():
        return shared_step_ir(numbers, stub, quickly)
    if stub in UNPACKED_STUBS.values():
        return unpacked_step_ir(numbers, stub, quickly)
    kind = Scalar(numbers.type, stub, numbers.size)
    return module_ir(SMALLER, multiply_ir(numbers, quickly), _cell(kind), cells_ir(kind))


def _cell(kind: Scalar) -> str:
    """A tile of C, or of one part of it: the sum over `depth` places from the part's first."""
    return f"""{cell_start_ir(kind)}
{words_ir("depth")}
{scratch_ir()}
  %fresh = icmp eq i64 %accumulate, 0
  %first = mul i64 %part, %depth
  %k_left = sub i64 %k, %first
  %k_part = call i64 @llvm.smin.i64(i64 %k_left, i64 %depth)
  %a_down = mul i64 %first, %a_stride
  %a_shift = select i1 %a_t, i64 %a_down, i64 %first
  %a_part = getelementptr {kind.type}, ptr %a_ptr, i64 %a_shift
  %b_down = mul i64 %first, %b_stride
  %b_shift = select i1 %b_t, i64 %first, i64 %b_down
  %b_part = getelementptr {kind.type}, ptr %b_ptr, i64 %b_shift
  %c_rows = mul i64 %part, %m
  %c_shift = mul i64 %c_rows, %c_stride
  %c_part = getelementptr {kind.type}, ptr %c_ptr, i64 %c_shift
  call void @multiply_{kind.type}(i1 %a_t, i1 %b_t, i64 %m_tile, i64 %n_tile, i64 %k_part, ptr %a_part,
      i64 %a_stride, ptr %b_part, i64 %b_stride, i1 %fresh, ptr %c_part, i64 %c_stride, ptr %scratch)
  ret void
}}"""
