"""What runs the kernels of a region, one after another, for the same part of their extent; which are in a region is
decided elsewhere (freezing/regions.py).

Of a value that only the region knows each worker has the rows of one chunk, in memory of its own (freezing/owned.py).
Kernels are told nothing of it: where they find such a value in a copy of the table, its first row lies so far in front
of that memory that the chunk's rows lie in it.

What each kernel asks for of the next chunk of a matrix (freezing/next_chunks.py) has its address in one more slot,
behind the others. A thread takes chunks that follow one another, from the front or from the back (driver/steps.py).
"""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Module, code_modules, product_address

_STUB = "jitgrad_sequence"
BLOCK = ("count", "pairs_address", "moved", "slots", "moves_address", "matrix_slot", "row_bytes", "parts_address")
"""The words of the block: how many kernels, and the address of pairs, function and block of each; how many values each
worker has for itself, how many slots the table has, and the address of triples: slot, bytes of a row, and of a worker;
the slot of the matrix of which lines are asked for, the bytes of its rows or 0, and the address of where in a row each
kernel begins to ask.
"""


def sequence_address() -> int:
    """The address of the function."""
    return product_address(_STUB, _text)


def sequence_modules() -> dict[str, Module]:
    """The modules that `sequence_address` will need."""
    return code_modules(_STUB, _text)


def _text(stub: str) -> str:
    from jitgrad.compiler.products.registers import KERNEL, array_ir, block_ir, loop_ir

    return f"""
define void @{stub}({KERNEL}) #0 {{
{block_ir(BLOCK)}
  %pairs = inttoptr i64 %pairs_address to ptr
  %moves = inttoptr i64 %moves_address to ptr
  %parts = inttoptr i64 %parts_address to ptr
  %asking = icmp sgt i64 %row_bytes, 0
  %moving = icmp sgt i64 %moved, 0
  %changing = or i1 %asking, %moving
  br i1 %changing, label %copy, label %as_given
copy:
  %room = add i64 %slots, 1
  %copied = alloca ptr, i64 %room
{loop_ir("s", "%slots", "1", _COPY)}
{loop_ir("m", "%moved", "1", _MOVE)}
  br label %run
as_given:
  br label %run
run:
  %here = phi ptr [ %copied, %m_done ], [ %table, %as_given ]
{array_ir("matrix")}
{_NEXT}
{loop_ir("k", "%count", "1", _CALL)}
  ret void
}}
attributes #0 = {{ nounwind }}
"""


_NEXT = """
  %span = sub i64 %hi, %lo
  %back = sub i64 0, %span
  %odd = and i64 %worker, 1
  %from_front = icmp eq i64 %odd, 0
  %on = select i1 %from_front, i64 %span, i64 %back
  %next_row = add i64 %lo, %on
  %next_place = mul i64 %next_row, %row_bytes
  %next = getelementptr i8, ptr %matrix, i64 %next_place"""

_CALL = """
  %function_at = getelementptr [2 x i64], ptr %pairs, i64 %k
  %function = load ptr, ptr %function_at
  %block_at = getelementptr i64, ptr %function_at, i64 1
  %own = load ptr, ptr %block_at
  br i1 %asking, label %tell, label %call
tell:
  %part_at = getelementptr i64, ptr %parts, i64 %k
  %part = load i64, ptr %part_at
  %skipped = mul i64 %part, %span
  %lines = getelementptr i8, ptr %next, i64 %skipped
  %lines_at = getelementptr ptr, ptr %here, i64 %slots
  store ptr %lines, ptr %lines_at
  br label %call
call:
  call void %function(ptr %here, ptr %own, i64 %lo, i64 %hi, i64 %chunk, i64 %worker)"""

_COPY = """
  %slot_from = getelementptr i64, ptr %table, i64 %s
  %slot_to = getelementptr i64, ptr %copied, i64 %s
  %word = load i64, ptr %slot_from
  store i64 %word, ptr %slot_to"""

_MOVE = """
  %slot_at = getelementptr [3 x i64], ptr %moves, i64 %m
  %slot = load i64, ptr %slot_at
  %row_at = getelementptr i64, ptr %slot_at, i64 1
  %row = load i64, ptr %row_at
  %worker_at = getelementptr i64, ptr %slot_at, i64 2
  %part_bytes = load i64, ptr %worker_at
  %given_at = getelementptr i64, ptr %table, i64 %slot
  %given = load i64, ptr %given_at
  %to_worker = mul i64 %part_bytes, %worker
  %to_row = mul i64 %row, %lo
  %mine = add i64 %given, %to_worker
  %base = sub i64 %mine, %to_row
  %base_at = getelementptr i64, ptr %copied, i64 %slot
  store i64 %base, ptr %base_at"""
