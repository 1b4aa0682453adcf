"""The driver's loops over independent rows, as LLVM IR text: what freezing/row_loops.py found is run here.

    jitgrad_loop_rows    a scan, some rows of its state in each chunk: all steps for these, one after another

It is the function of a step whose chunks divide rows. A chunk has a table of its own, whose slots move on as the chunk
goes from step to step; no chunk waits for another, for none reads rows that another writes. Of a step of the body it
runs the chunk of its own number. Whether a signal has come is asked by the caller's thread alone; the others look now
and then whether the run has failed.
"""

from __future__ import annotations

from jitgrad.compiler.driver.loop_layout import INTERRUPT_STATUS, REGION
from jitgrad.compiler.driver.loops import begun, note
from jitgrad.compiler.driver.pool_layout import RUN_CHUNK, STEP_FIELDS, STEP_WORDS
from jitgrad.compiler.driver.regions import moves_ir, signals_ir, swaps_ir, tables_ir, word, word_list


def row_loop_ir() -> str:
    """`jitgrad_loop_rows`, and what it calls."""
    called = "\n".join((tables_ir(), swaps_ir(), moves_ir(), signals_ir(), RUN_CHUNK))
    return f"{called}{_copy_rows()}{_ask_for_rows()}{_steps_of_chunk()}{_opened()}{_steps()}"


def _copy_rows() -> str:
    return """
; Copies of arrays, as `copy_all` makes them, of rows lo to hi out of so many.
define internal void @copy_rows(ptr %inside, i64 %n, ptr %list, i64 %lo, i64 %hi, i64 %rows) #0 {
entry:
  %count = sub i64 %hi, %lo
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %copy ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %copy, label %done
copy:
  %triple = getelementptr [3 x i64], ptr %list, i64 %k
  %to_slot = load i64, ptr %triple
  %second = getelementptr i64, ptr %triple, i64 1
  %from_slot = load i64, ptr %second
  %third = getelementptr i64, ptr %triple, i64 2
  %bytes = load i64, ptr %third
  %each = udiv i64 %bytes, %rows
  %first = mul i64 %each, %lo
  %many = mul i64 %each, %count
  %to_at = getelementptr ptr, ptr %inside, i64 %to_slot
  %to = load ptr, ptr %to_at
  %to_row = getelementptr i8, ptr %to, i64 %first
  %from_at = getelementptr ptr, ptr %inside, i64 %from_slot
  %from = load ptr, ptr %from_at
  %from_row = getelementptr i8, ptr %from, i64 %first
  %r = call ptr @memcpy(ptr %to_row, ptr %from_row, i64 %many)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}
"""


def _ask_for_rows() -> str:
    return """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0

; Brings rows lo to hi of the next step's items near, which another thread may have made.
define internal void @ask_for_rows(ptr %inside, i64 %n, ptr %list, i64 %lo, i64 %hi, i64 %rows) #0 {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %asked ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %item, label %done
item:
  %pair = getelementptr [2 x i64], ptr %list, i64 %k
  %slot = load i64, ptr %pair
  %second = getelementptr i64, ptr %pair, i64 1
  %bytes = load i64, ptr %second
  %size = call i64 @llvm.abs.i64(i64 %bytes, i1 false)
  %each = udiv i64 %size, %rows
  %first = mul i64 %each, %lo
  %end = mul i64 %each, %hi
  %at = getelementptr ptr, ptr %inside, i64 %slot
  %here = load ptr, ptr %at
  %next = getelementptr i8, ptr %here, i64 %bytes
  br label %line
line:
  %b = phi i64 [ %first, %item ], [ %b1, %ask ]
  %again = icmp slt i64 %b, %end
  br i1 %again, label %ask, label %asked
ask:
  %address = getelementptr i8, ptr %next, i64 %b
  call void @llvm.prefetch.p0(ptr %address, i32 0, i32 2, i32 1)
  %b1 = add i64 %b, 64
  br label %line
asked:
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}
declare i64 @llvm.abs.i64(i64, i1) #0
"""


def _steps_of_chunk() -> str:
    return f"""
; One chunk of each of some steps.
define internal void @run_chunks(ptr %table, ptr %steps, i64 %nsteps, i64 %chunk, i64 %worker,
      i32 %threads) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %step ]
  %more = icmp slt i64 %k, %nsteps
  br i1 %more, label %step, label %done
step:
  %record = getelementptr [{STEP_WORDS} x i64], ptr %steps, i64 %k
{STEP_FIELDS}
  call void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %chunk, i64 %worker,
      i32 %threads)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}}
"""


def _opened() -> str:
    """The chunk's table is opened, and its rows of the state are brought there."""
    return f"""
{begun("loop_rows")}
{word("rows")}
{word("table_bytes")}
  %far = mul i64 %table_bytes, %chunk
  %inside = call ptr @open_loop(ptr %table, ptr %block, i64 %far)
{word_list("starts")}
{word_list("ends")}
{word_list("swaps")}
{word_list("moves")}
{word("count")}
{word("second", kind="ptr")}
{word("steps", "second", REGION)}
{word("step_list", "second", REGION, "ptr")}
{word("copies", "second", REGION)}
{word("copy_list", "second", REGION, "ptr")}
  call void @copy_rows(ptr %inside, i64 %starts, ptr %starts_list, i64 %lo, i64 %hi, i64 %rows)
  %is_caller = icmp eq i64 %worker, 0
  %last = alloca i64
  store i64 0, ptr %last
  br label %head
"""


def _steps() -> str:
    return f"""\
head:
  %k = phi i64 [ 0, %open ], [ %k1, %step ]
  br i1 %is_caller, label %ask, label %watch
ask:
  %stops = call i1 @is_interrupted(i64 %k, ptr %last)
  br i1 %stops, label %interrupted, label %watch
interrupted:
  call void @tell(ptr %table, ptr %block, i64 {INTERRUPT_STATUS})
  br label %leave
watch:
  %low = and i64 %k, 1023
  %due = icmp eq i64 %low, 1023
  br i1 %due, label %look, label %begin
look:
  %lost = call i1 @has_failed(ptr %table, ptr %block)
  br i1 %lost, label %leave, label %begin
begin:
  %more = icmp slt i64 %k, %count
  br i1 %more, label %step, label %end
step:
  call void @ask_for_rows(ptr %inside, i64 %moves, ptr %moves_list, i64 %lo, i64 %hi, i64 %rows)
  call void @run_chunks(ptr %inside, ptr %step_list, i64 %steps, i64 %chunk, i64 %worker,
      i32 %threads)
  call void @copy_rows(ptr %inside, i64 %copies, ptr %copy_list, i64 %lo, i64 %hi, i64 %rows)
  call void @swap_all(ptr %inside, i64 %swaps, ptr %swaps_list)
  call void @move_all(ptr %inside, i64 %moves, ptr %moves_list)
  %k1 = add i64 %k, 1
  br label %head
end:
{note("%k")}
  call void @copy_rows(ptr %inside, i64 %ends, ptr %ends_list, i64 %lo, i64 %hi, i64 %rows)
  br label %leave
leave:
  ret void
}}
"""
