"""Where the words of the thread pool lie in its memory, and what the driver's modules have in common; for the parts of
the driver and for threads.py.
"""

from __future__ import annotations

MAX_WORKERS = 64
STEP_WORDS = 8
STEP_FIELDS = """\
  %function = load ptr, ptr %record
  %p1 = getelementptr i64, ptr %record, i64 1
  %block = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %record, i64 2
  %extent = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %record, i64 3
  %n = load i64, ptr %p3"""
"""Loads what a step's record says in its first words; STEP_WORDS is how many it has."""
RUN_RECORD = f"""\
  %record = getelementptr [{STEP_WORDS} x i64], ptr %steps, i64 %k
{STEP_FIELDS}
  %one = icmp slt i64 %n, 2
  br i1 %one, label %direct, label %chunks
direct:
  call void %function(ptr %table, ptr %block, i64 0, i64 %extent, i64 0, i64 0, i32 %limit)
  br label %next
chunks:
  %p4 = getelementptr i64, ptr %record, i64 4
  %trial = load i64, ptr %p4
  %settled = icmp eq i64 %trial, 0
  br i1 %settled, label %shared, label %tried
shared:
  call void @jitgrad_run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  br label %next
tried:
  call void @jitgrad_run_tried(ptr %record, ptr %table, i32 %limit)
  br label %next"""
"""Runs the k-th of some step records: at once, or its chunks in parallel."""
RUN_CHUNK = """
define internal void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c,
      i64 %worker, i32 %limit) #0 {
  %next = add i64 %c, 1
  %a = mul i64 %extent, %c
  %b = mul i64 %extent, %next
  %lo = udiv i64 %a, %n
  %hi = udiv i64 %b, %n
  call void %function(ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %c, i64 %worker, i32 %limit)
  ret void
}
"""
"""The part of the indices that is a chunk's."""
PROCESSOR_WORDS = 16
"""A set of processors is that many words of 64 bits."""

# Byte offsets. Words that different threads write lie on different cache lines.
LOCK = 0
SIGNAL, SLEEPERS = 64, 68
WORD = 128
PENDING, WAITING = 192, 196
FUNCTION, BLOCK, EXTENT, NCHUNKS, TABLE = 256, 264, 272, 280, 288
RUNNING, STOP, ENSURE, REGIONS = 384, 388, 392, 400
CPU, CROWDED, FORBIDDEN = 416, 420, 424
PROCESSORS = 448
THREAD_IDS = PROCESSORS + 8 * PROCESSOR_WORDS
POOL_BYTES = THREAD_IDS + 4 * MAX_WORKERS


def at(offset: int) -> str:
    """The address of a word of the pool, as a constant of LLVM IR."""
    return f"getelementptr (i8, ptr @pool, i64 {offset})"
