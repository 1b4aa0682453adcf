"""The library's solutions with triangles, shared out among our own threads by columns, as a step: its text and words.

The library divides one solution by how many threads it has, and so do its bits. Here a cell is a fixed number of
columns, and each is a call on one thread.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import KERNEL, SMALLER, block_ir, module_ir

STEP = "jitgrad_library_triangles"
BLOCK = ("trsm", "matrix", "n", "result", "columns", "width", "steps", "are_unit_columns", "first", "second")
"""Addresses and sizes. The `result` has n rows of `columns` right sides, `width` of them in a cell. One triangle of the
`matrix` is solved with, or two; `first` and `second` are their letters, three bytes each: which triangle, whether
transposed, whether its diagonal is ones. Are the right sides unit columns, a cell's have zeros above its first column's
row, where its first triangle, a lower one, need not begin.
"""


def library_triangles_ir() -> str:
    """The module: the step, and a call of `dtrsm` from the right, since rows are columns to the library."""
    return module_ir(SMALLER, _step(), _call())


def _step() -> str:
    return f"""
define void @{STEP}({KERNEL}) #0 {{
entry:
{block_ir(BLOCK)}
  %from_row = icmp ne i64 %are_unit_columns, 0
  %are_two = icmp eq i64 %steps, 2
  br label %cell
cell:
  %i = phi i64 [ %lo, %entry ], [ %i1, %next ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %solve, label %done
solve:
  %column = mul i64 %i, %width
  %left = sub i64 %columns, %column
  %wide = call i64 @llvm.smin.i64(i64 %left, i64 %width)
  %row = select i1 %from_row, i64 %column, i64 0
  call void @one_triangle(ptr %block, i64 %wide, i64 %column, i64 %row, i64 %first)
  br i1 %are_two, label %other, label %next
other:
  call void @one_triangle(ptr %block, i64 %wide, i64 %column, i64 0, i64 %second)
  br label %next
next:
  %i1 = add i64 %i, 1
  br label %cell
done:
  ret void
}}"""


def _call() -> str:
    return f"""
define internal void @one_triangle(ptr %block, i64 %wide, i64 %column, i64 %row, i64 %letters) #0 {{
entry:
{block_ir(("trsm", "matrix", "n", "result", "columns"))}
  %n_row = add i64 %n, 1
  %skipped = mul i64 %row, %n_row
  %skipped_bytes = mul i64 %skipped, 8
  %a = add i64 %matrix, %skipped_bytes
  %above = mul i64 %row, %columns
  %place = add i64 %above, %column
  %place_bytes = mul i64 %place, 8
  %x = add i64 %result, %place_bytes
  %rows = sub i64 %n, %row
  %right = alloca i8
  store i8 {ord("R")}, ptr %right
  %letter_cells = alloca i64
  store i64 %letters, ptr %letter_cells
  %turned = getelementptr i8, ptr %letter_cells, i64 1
  %unit = getelementptr i8, ptr %letter_cells, i64 2
  %one = alloca double
  store double 1.0, ptr %one
{_stored("wide", "rows", "n", "columns")}
  %function = inttoptr i64 %trsm to ptr
  %a_ptr = inttoptr i64 %a to ptr
  %x_ptr = inttoptr i64 %x to ptr
  call void %function(ptr %right, ptr %letter_cells, ptr %turned, ptr %unit, ptr %_wide, ptr %_rows, ptr %one,
      ptr %a_ptr, ptr %_n, ptr %x_ptr, ptr %_columns, i64 1, i64 1, i64 1, i64 1)
  ret void
}}"""


def _stored(*names: str) -> str:
    """Cells of the stack for numbers that Fortran takes by reference."""
    return "\n".join(f"  %_{name} = alloca i64\n  store i64 %{name}, ptr %_{name}" for name in names)
