"""Eigenvalues and vectors of small symmetric float64 matrices as steps: calls of the loop that NumPy's own function
runs; which are steps is decided elsewhere (rules/matrices.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jitgrad.bare import eigen_loop
from jitgrad.compiler.machine.cache import cache_key, compile_cached, kernel_cache
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.product_code import Module
from jitgrad.compiler.products.transform_steps import filled_ir
from jitgrad.compiler.symbols import at_once

STEP = "jitgrad_eigen"
BLOCK = (
    "loop", "data", "test", "clear", "source_slot", "result_slot", "status_slot", "code", "n", "source_bytes",
    "result_bytes", "row_bytes",
)  # fmt: skip
"""The words of a step's block: the loop and its data; the C functions that tell of invalid operations, by which the
loop says that it has not found all, and that forget them; slots, and what is left in the status then; sizes.
"""
_INVALID = 1
"""FE_INVALID, on x86 and ARM."""
_CHUNK_ELEMENTS, _MOST_CHUNKS = 64, 64


def eigen_step(lower: bool, n: int, count: int, slots: Sequence[int], status: int, code: int) -> BlasStep:
    """The step for so many matrices of n rows; ``slots`` are those of the matrices and of values with vectors."""
    block = (*eigen_loop(lower), *slots, status, code, n, 8 * n * n, 8 * n * (n + 1), 8 * n)
    return BlasStep(STEP, _address(), block, count, at_once(_chunks, count, n))


def _chunks(count: int, n: int) -> int:
    return max(1, min(count, _MOST_CHUNKS, count * n * n // _CHUNK_ELEMENTS))


def eigen_modules() -> dict[str, Module]:
    """The module that steps refer to, where it is not on disk."""
    return {} if kernel_cache().has(cache_key(STEP)) else {STEP: (_text, False)}


@cache
def _address() -> int:
    return compile_cached(STEP, _text, (STEP,))[STEP]


def _text() -> str:
    """The module of the step: a call of the loop for matrices from `lo` to `hi`; a result's first row has values."""
    from jitgrad.compiler.products.registers import KERNEL, block_ir, module_ir

    sizes = "%source_bytes", "%result_bytes", "%result_bytes", "%row_bytes", "8", "8", "%row_bytes", "8"
    return module_ir(f"""
define void @{STEP}({KERNEL}) #0 {{
entry:
{block_ir(BLOCK)}
  %function = inttoptr i64 %loop to ptr
  %words = inttoptr i64 %data to ptr
  %is_told = inttoptr i64 %test to ptr
  %forget = inttoptr i64 %clear to ptr
  %count = sub i64 %hi, %lo
{_first("source")}
{_first("result")}
  %vectors = getelementptr i8, ptr %result, i64 %row_bytes
  %arguments = alloca [3 x ptr]
{filled_ir("arguments", "ptr", "%source", "%result", "%vectors")}
  %dimensions = alloca [2 x i64]
{filled_ir("dimensions", "i64", "%count", "%n")}
  %steps = alloca [8 x i64]
{filled_ir("steps", "i64", *sizes)}
  %before = call i32 %forget(i32 {_INVALID})
  call void %function(ptr %arguments, ptr %dimensions, ptr %steps, ptr %words)
  %told = call i32 %is_told(i32 {_INVALID})
  %failed = icmp ne i32 %told, 0
  br i1 %failed, label %report, label %done
report:
  %status_entry = getelementptr ptr, ptr %table, i64 %status_slot
  %status = load ptr, ptr %status_entry
  store i64 %code, ptr %status
  br label %done
done:
  ret void
}}""")


def _first(name: str) -> str:
    """The address of the first matrix."""
    return f"""  %{name}_entry = getelementptr ptr, ptr %table, i64 %{name}_slot
  %{name}_base = load ptr, ptr %{name}_entry
  %{name}_far = mul i64 %lo, %{name}_bytes
  %{name} = getelementptr i8, ptr %{name}_base, i64 %{name}_far"""
