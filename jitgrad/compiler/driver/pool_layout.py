"""Where the words of the thread pool lie in its memory, for the parts of the driver and for threads.py."""

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
