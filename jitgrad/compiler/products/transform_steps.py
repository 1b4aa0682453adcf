"""Fourier transforms of rows of numbers as steps: calls of the loops that NumPy's own functions run, so that
their bits are NumPy's; which transforms are steps is decided elsewhere (complex_pairs.py, fusing/factors.py).

Between two clusters a transform takes Python a microsecond more than NumPy's loop, which takes less than one for a
hundred points. Addresses of loops are found in each process, and lie in the block, never in code.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.bare import transform_loops
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.numpy_loops import address_ir, filled_ir
from jitgrad.compiler.products.product_code import Functions

STEP = "jitgrad_transform"
BLOCK = (
    "even", "even_data", "odd", "odd_data", "source_slot", "result_slot", "read", "made", "points", "source_step",
    "result_step", "is_divided", "is_single",
)  # fmt: skip
"""The words of a step's block: the loops for even and odd numbers of points, and their data; slots; how many numbers of
a row are read and made, and how many points it has; bytes of a number; whether the result is divided by the points, and
whether numbers are of single precision.
"""
_CHUNK_POINTS, _MOST_CHUNKS = 2048, 64


def transform_chunks(rows: int, points: int) -> int:
    """In how many chunks rows of so many points are cut: one takes some ten microseconds."""
    return max(1, min(rows, _MOST_CHUNKS, rows * points // _CHUNK_POINTS))


def transform_step(
    char: str, routine: str, is_divided: bool, rows: int, points: Sequence[int], chunks: int, slots: Sequence[int]
) -> BlasStep:
    """The step of a transform of rows, of each of which ``points`` are read and made; ``slots`` are those of both, and
    ``char`` is the dtype of numbers, "f" or "d".
    """
    name, number = routine.removeprefix("pairs_"), {"f": 4, "d": 8}[char]
    loops = transform_loops("ifft" if name == "fft" and is_divided else name, char)
    count = points[1] if name == "irfft" else points[0]
    sizes = number if name == "rfft" else 2 * number, number if name == "irfft" else 2 * number
    block = (*loops, *slots, *points, count, *sizes, int(is_divided), int(char == "f"))
    return BlasStep(STEP, CODE.code()[STEP], block, rows, chunks)


def _text() -> str:
    """The module of the step: what it is given becomes a call of a loop, for rows from `lo` to `hi`."""
    from jitgrad.compiler.products.registers import KERNEL, block_ir, module_ir

    return module_ir(f"""
define void @{STEP}({KERNEL}) #0 {{
entry:
{block_ir(BLOCK)}
  %parity = and i64 %points, 1
  %is_odd = icmp ne i64 %parity, 0
  %loop_word = select i1 %is_odd, i64 %odd, i64 %even
  %data_word = select i1 %is_odd, i64 %odd_data, i64 %even_data
  %loop = inttoptr i64 %loop_word to ptr
  %data = inttoptr i64 %data_word to ptr
  %count = sub i64 %hi, %lo
  %real_points = sitofp i64 %points to double
  %part = fdiv double 1.0, %real_points
  %divides = icmp ne i64 %is_divided, 0
  %scale = select i1 %divides, double %part, double 1.0
  %single_points = sitofp i64 %points to float
  %single_part = fdiv float 1.0, %single_points
  %single_scale = select i1 %divides, float %single_part, float 1.0
  %single_bits = bitcast float %single_scale to i32
  %narrow = zext i32 %single_bits to i64
  %wide = bitcast double %scale to i64
  %single = icmp ne i64 %is_single, 0
  %word = select i1 %single, i64 %narrow, i64 %wide
  %factor = alloca i64
  store i64 %word, ptr %factor
  %source_row = mul i64 %read, %source_step
  %result_row = mul i64 %made, %result_step
{address_ir("source", "source_slot", "source_row", "lo")}
{address_ir("result", "result_slot", "result_row", "lo")}
  %arguments = alloca [3 x ptr]
{filled_ir("arguments", "ptr", "%source", "%factor", "%result")}
  %dimensions = alloca [3 x i64]
{filled_ir("dimensions", "i64", "%count", "%read", "%made")}
  %steps = alloca [5 x i64]
{filled_ir("steps", "i64", "%source_row", "0", "%result_row", "%source_step", "%result_step")}
  call void %loop(ptr %arguments, ptr %dimensions, ptr %steps, ptr %data)
  ret void
}}""")


CODE = Functions(STEP, _text, (STEP,))
