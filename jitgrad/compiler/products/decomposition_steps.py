"""Eigenvalues, singular values and QR factors of small float64 matrices as steps: calls of the loops that NumPy's own
functions run; which are steps is decided elsewhere (fusing/factors.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.bare import matrix_loop, qr_loops
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.numpy_loops import address_ir, filled_ir
from jitgrad.compiler.products.product_code import Functions
from jitgrad.compiler.symbols import at_once

CALL, QR = "jitgrad_decomposition", "jitgrad_qr"
_OPERANDS, _STRIDES = 4, 11
"""A matrix with up to three results: so many addresses, and so many strides, each operand's from matrix to matrix, then
those of rows and columns.
"""
BLOCK = (
    "loop", "data", "test", "clear", "status_slot", "code", *(f"slot{k}" for k in range(_OPERANDS)),
    *(f"bytes{k}" for k in range(_OPERANDS)), "m", "n", "k", *(f"stride{k}" for k in range(_STRIDES)),
)  # fmt: skip
"""The words of a step's block: the loop and its data; the C functions that tell of invalid operations, by which the
loop says that it has not found all, and that forget them; the status, and what is left in it then; operands, and the
bytes of each; extents and strides.
"""
QR_BLOCK = ("factor", "factor_data", "form", "form_data", "source_slot", "q_slot", "r_slot", "m", "n")
_INVALID = 1
"""FE_INVALID, on x86 and ARM."""
_CHUNK_ELEMENTS, _MOST_CHUNKS = 64, 64
_TOGETHER, _MOST_COLUMNS = 16, 32
"""Matrices that are factored in one call, whose scalars of reflections are kept meanwhile, one for each column."""

Extents = tuple[int, ...]


def decomposition_step(
    routine: str, lower: bool, sizes: Sequence[int], slots: Sequence[int], status: int, code: int
) -> BlasStep:
    """The step for matrices of m rows and n columns, of which k is the smaller: ``sizes`` are m, n, k, and how many
    matrices there are, ``slots`` those of the matrices and of the results.
    """
    m, n, k, count = sizes
    chunks = at_once(_chunks, count, m, n)
    if routine == "qr":
        return BlasStep(QR, CODE.code()[QR], (*qr_loops(), *slots, m, n), count, chunks)
    operands: dict[str, tuple[Extents, ...]] = {
        "eigh": ((n, n), (n,), (n, n)), "eigvalsh": ((n, n), (n,)), "svd": ((m, n), (m, k), (k,), (k, n)),
        "svdvals": ((m, n), (k,)),
    }  # fmt: skip
    shapes = operands[routine]
    rest = _OPERANDS - len(shapes)
    nbytes = [8 * shape[0] * shape[1] if len(shape) == 2 else 8 * shape[0] for shape in shapes]
    strides = list(nbytes)
    for shape in shapes:
        strides += [8 * shape[1], 8] if len(shape) == 2 else [8]
    dimensions = (n, 0, 0) if routine.startswith("eig") else (m, n, k)
    block = (
        *matrix_loop(routine, lower), status, code, *slots, *[slots[-1]] * rest, *nbytes, *[0] * rest, *dimensions,
        *strides, *[0] * (_STRIDES - len(strides)),
    )  # fmt: skip
    return BlasStep(CALL, CODE.code()[CALL], block, count, chunks)


def _chunks(count: int, m: int, n: int) -> int:
    return max(1, min(count, _MOST_CHUNKS, count * m * n // _CHUNK_ELEMENTS))


def _text() -> str:
    from jitgrad.compiler.products.registers import module_ir

    return module_ir(_call_text(), _qr_text())


def _call_text() -> str:
    """A call of the loop for matrices from `lo` to `hi`."""
    from jitgrad.compiler.products.registers import KERNEL, block_ir

    operands = "\n".join(address_ir(f"x{k}", f"slot{k}", f"bytes{k}", "lo") for k in range(_OPERANDS))
    return f"""
define void @{CALL}({KERNEL}) #0 {{
entry:
{block_ir(BLOCK)}
  %function = inttoptr i64 %loop to ptr
  %words = inttoptr i64 %data to ptr
  %is_told = inttoptr i64 %test to ptr
  %forget = inttoptr i64 %clear to ptr
  %count = sub i64 %hi, %lo
{operands}
  %arguments = alloca [{_OPERANDS} x ptr]
{filled_ir("arguments", "ptr", *(f"%x{k}" for k in range(_OPERANDS)))}
  %dimensions = alloca [4 x i64]
{filled_ir("dimensions", "i64", "%count", "%m", "%n", "%k")}
  %strides = alloca [{_STRIDES} x i64]
{filled_ir("strides", "i64", *(f"%stride{k}" for k in range(_STRIDES)))}
  %before = call i32 %forget(i32 {_INVALID})
  call void %function(ptr %arguments, ptr %dimensions, ptr %strides, ptr %words)
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
}}"""


def _qr_text() -> str:
    """Some matrices at a time: their copies become reflections and R, R is taken from there, then they become Q."""
    from jitgrad.compiler.products.registers import KERNEL, block_ir

    form_steps = "%matrix_bytes", "%row_bytes", "%matrix_bytes", "%row_bytes", "8", "8", "%row_bytes", "8"

    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1) #0
define void @{QR}({KERNEL}) #0 {{
entry:
{block_ir(QR_BLOCK)}
  %make_factors = inttoptr i64 %factor to ptr
  %factor_words = inttoptr i64 %factor_data to ptr
  %make_q = inttoptr i64 %form to ptr
  %form_words = inttoptr i64 %form_data to ptr
  %elements = mul i64 %m, %n
  %matrix_bytes = mul i64 %elements, 8
  %square = mul i64 %n, %n
  %r_bytes = mul i64 %square, 8
  %row_bytes = mul i64 %n, 8
  %scalars = alloca [{_TOGETHER * _MOST_COLUMNS} x double]
  %factor_arguments = alloca [2 x ptr]
  %form_arguments = alloca [3 x ptr]
  %factor_dimensions = alloca [4 x i64]
  %form_dimensions = alloca [4 x i64]
  %factor_steps = alloca [5 x i64]
{filled_ir("factor_steps", "i64", "%matrix_bytes", "%row_bytes", "%row_bytes", "8", "8")}
  %form_steps = alloca [8 x i64]
{filled_ir("form_steps", "i64", *form_steps)}
  br label %matrices
matrices:
  %at = phi i64 [ %lo, %entry ], [ %next_at, %formed ]
  %left = sub i64 %hi, %at
  %is_over = icmp sle i64 %left, 0
  br i1 %is_over, label %done, label %some
some:
  %is_last = icmp slt i64 %left, {_TOGETHER}
  %count = select i1 %is_last, i64 %left, i64 {_TOGETHER}
{address_ir("source", "source_slot", "matrix_bytes", "at")}
{address_ir("q", "q_slot", "matrix_bytes", "at")}
{address_ir("r", "r_slot", "r_bytes", "at")}
  %all_bytes = mul i64 %count, %matrix_bytes
  call void @llvm.memcpy.p0.p0.i64(ptr %q, ptr %source, i64 %all_bytes, i1 false)
{filled_ir("factor_arguments", "ptr", "%q", "%scalars")}
{filled_ir("factor_dimensions", "i64", "%count", "%m", "%n", "%n")}
  call void %make_factors(ptr %factor_arguments, ptr %factor_dimensions, ptr %factor_steps, ptr %factor_words)
  br label %rows
{_taken_text()}
formed:
{filled_ir("form_arguments", "ptr", "%q", "%scalars", "%q")}
{filled_ir("form_dimensions", "i64", "%count", "%m", "%n", "%n")}
  call void %make_q(ptr %form_arguments, ptr %form_dimensions, ptr %form_steps, ptr %form_words)
  %next_at = add i64 %at, {_TOGETHER}
  br label %matrices
done:
  ret void
}}"""


def _taken_text() -> str:
    """R from above the diagonals of matrices, row by row, with zeros below."""
    return """\
rows:
  %matrix = phi i64 [ 0, %some ], [ %same_matrix, %next_row ]
  %i = phi i64 [ 0, %some ], [ %following_row, %next_row ]
  %from_far = mul i64 %matrix, %elements
  %to_far = mul i64 %matrix, %square
  %row_far = mul i64 %i, %n
  %from_at = add i64 %from_far, %row_far
  %to_at = add i64 %to_far, %row_far
  br label %columns
columns:
  %j = phi i64 [ 0, %rows ], [ %next_j, %columns ]
  %from_place = add i64 %from_at, %j
  %to_place = add i64 %to_at, %j
  %from = getelementptr double, ptr %q, i64 %from_place
  %to = getelementptr double, ptr %r, i64 %to_place
  %number = load double, ptr %from
  %is_upper = icmp sge i64 %j, %i
  %taken = select i1 %is_upper, double %number, double 0.0
  store double %taken, ptr %to
  %next_j = add i64 %j, 1
  %has_columns = icmp slt i64 %next_j, %n
  br i1 %has_columns, label %columns, label %next_row
next_row:
  %next_i = add i64 %i, 1
  %has_rows = icmp slt i64 %next_i, %n
  %following_row = select i1 %has_rows, i64 %next_i, i64 0
  %following_matrix = add i64 %matrix, 1
  %same_matrix = select i1 %has_rows, i64 %matrix, i64 %following_matrix
  %has_matrices = icmp slt i64 %same_matrix, %count
  br i1 %has_matrices, label %rows, label %formed"""


CODE = Functions("jitgrad_decompositions", _text, (CALL, QR))
