"""Whether a kernel's stores go past the caches, where only a trial tells; as LLVM IR text. What they are is not its
business.

Past the caches a line need not be read before it is written, but is not there for whoever reads it next, and a loop may
wait for its stores. Element-wise loops over arrays larger than the caches take half of the time so on one machine and
1.12 of it on another, and nothing that a processor tells of itself says which. So the driver runs such a step in both
ways, twice each and in turns, since the first run finds in the caches what the other way left there; the second is
timed. After three of each the shorter one stays, past the caches if that saves a sixteenth. All runs give the same
bits.

What memory gives changes while a process lives, most of all where a host shares it out among others, and with it which
way is shorter. So a trial is made again after RENEWED runs, with two in place of three timed for each way: where the
other way takes twice as long that is 1.6 % of the time, where it takes 1.3 times as long half of one.

The fifth word of the step says how far in the step's block the word lies that the kernel reads; the others belong to
the trial: which code was tried, shifted by eight bits, with how many runs there were, and the shortest of each way.
Better code in the place of the code that was tried (tiers.py) is tried anew. Two threads that run the same step at once
may spoil a trial, never a result.
"""

from __future__ import annotations

from jitgrad.compiler.driver.pool_layout import STEP_FIELDS

PAST, THROUGH, TRIED, WHOLE_LINES = 0, -1, -2, -3
"""The word that kernels read: 0 where stores go past the caches; with -2 and -3 chunks are cut as with 0."""

RUNS = 12
"""So many are a trial; one made again begins with the fifth."""
RENEWED = 252
"""So many runs after a trial began the next one begins; it fits in eight bits."""


def trials_ir() -> str:
    """``jitgrad_run_tried(record, table, limit)``: a step of several chunks."""
    return f"""
define void @jitgrad_run_tried(ptr %record, ptr %table, i32 %limit) #0 {{
entry:
  %begun = alloca i64
  %ended = alloca i64
{STEP_FIELDS}
  %p4 = getelementptr i64, ptr %record, i64 4
  %far = load i64, ptr %p4
  %word = getelementptr i8, ptr %block, i64 %far
  %state = getelementptr i64, ptr %record, i64 5
  %shortest = getelementptr i64, ptr %record, i64 6
  %other = getelementptr i64, ptr %record, i64 7
  %known = load atomic i64, ptr %state monotonic, align 8
  %address = ptrtoint ptr %function to i64
  %code = shl i64 %address, 8
  %runs_known = xor i64 %known, %code
  %same = icmp ult i64 %runs_known, 256
  %runs = select i1 %same, i64 %runs_known, i64 0
  %over = icmp uge i64 %runs, {RUNS}
  br i1 %over, label %settled, label %trial
settled:
  %later = add i64 %runs, 1
  %old = icmp uge i64 %later, {RENEWED}
  %count_then = select i1 %old, i64 4, i64 %later
  %state_then = or i64 %code, %count_then
  store atomic i64 %state_then, ptr %state monotonic, align 8
  call void @jitgrad_run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  br i1 %old, label %forget, label %out
forget:
  store atomic i64 {2**63 - 1}, ptr %shortest monotonic, align 8
  store atomic i64 {2**63 - 1}, ptr %other monotonic, align 8
  ret void
trial:
  %first = icmp eq i64 %runs, 0
  br i1 %first, label %clear, label %begin
clear:
  store atomic i64 {2**63 - 1}, ptr %shortest monotonic, align 8
  store atomic i64 {2**63 - 1}, ptr %other monotonic, align 8
  br label %begin
{_timed_run()}
{_counted()}
"""


def _timed_run() -> str:
    """One run, in the way that its number says; the second of each pair is timed."""
    return f"""begin:
  %pair = lshr i64 %runs, 1
  %way = and i64 %pair, 1
  %past = icmp ne i64 %way, 0
  %tried = select i1 %past, i64 {PAST}, i64 {TRIED}
  store atomic i64 %tried, ptr %word monotonic, align 8
  call void @read_clock(ptr %begun)
  call void @jitgrad_run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  call void @read_clock(ptr %ended)
  %t0 = load i64, ptr %begun
  %t1 = load i64, ptr %ended
  %took = sub i64 %t1, %t0
  %cell = getelementptr i64, ptr %shortest, i64 %way
  %before = load atomic i64, ptr %cell monotonic, align 8
  %second = trunc i64 %runs to i1
  %less = icmp ult i64 %took, %before
  %counts = and i1 %second, %less
  br i1 %counts, label %note, label %count
note:
  store atomic i64 %took, ptr %cell monotonic, align 8
  br label %count"""


def _counted() -> str:
    """After the last run the shorter way stays."""
    return f"""count:
  %done = add i64 %runs, 1
  %next = or i64 %code, %done
  store atomic i64 %next, ptr %state monotonic, align 8
  %last = icmp eq i64 %done, {RUNS}
  br i1 %last, label %settle, label %out
settle:
  %through = load atomic i64, ptr %shortest monotonic, align 8
  %around = load atomic i64, ptr %other monotonic, align 8
  %part = lshr i64 %through, 4
  %less_part = sub i64 %through, %part
  %pays = icmp ult i64 %around, %less_part
  %kept = select i1 %pays, i64 {PAST}, i64 {TRIED}
  store atomic i64 %kept, ptr %word monotonic, align 8
  br label %out
out:
  ret void
}}"""
