"""The step driver and its thread pool, as LLVM IR text; compiled and cached like any kernel. No Python runs
here.

A step is eight i64: function, block, extent, number of chunks, and four words for trials (trials.py). Chunk c of a step
covers [extent*c//nchunks, extent*(c+1)//nchunks), whatever thread runs it, so results do not depend on the
thread count.

    jitgrad_run(table, steps, nsteps, times, n)          runs the steps in order with at most n <= 64 threads
    jitgrad_worker(number)                               the life of a worker thread, 0 < number < MAX_WORKERS
    jitgrad_stop()                                       asks all workers to return from jitgrad_worker
    jitgrad_reset()                                      a pool without workers: at first, and after a fork
    jitgrad_pool()                                       the address of the pool's memory
    jitgrad_enter(table, steps, nsteps, times, n, free)  jitgrad_run for a caller who holds the GIL: starts missing
                                                         workers, gives the GIL up meanwhile if asked
    jitgrad_run_steps(self, args, nargs)                 the same as a Python builtin
    jitgrad_run_parallel(function, table, block, extent, n, limit)  the chunks of a step, shared out among threads
    jitgrad_run_tried(record, table, limit)              a step that is on trial, see trials.py

The last two are what steps that are control ops call; each is a module of its own (control.py).

How a region is shared out. One word holds the number of the region, how many threads may take part, and the
first and the end of the chunks that nobody has taken yet (24, 8, 16 and 16 bits; more chunks run serially). A
thread takes a chunk by compare-and-swap of the whole word, so it can only take a chunk of the region that is
open now, and only if its number is below the limit (scratch for `limit` threads is enough). From then on the
region cannot end before this chunk is done, which makes its description (function, block, extent) safe to
read. A worker that wakes late finds no chunk and goes on sleeping; the caller never waits for a thread that
has taken nothing. The caller takes chunks from the front, the first worker from the back, and so on in turns:
what a thread has written in one step, it reads in the next, out of its own cache.

How threads wait. A worker spins for some microseconds on `signal`, which changes with every region, then
counts itself in `sleepers` and blocks on `signal` in the kernel; the caller changes `signal` before it reads
`sleepers`, both sequentially consistent, so one of the two sees the other. The caller waits for the last
chunk in the same way, with `waiting`.

Where threads run. Linux likes to wake a thread on the processor of the thread that wakes it, and where
processors share no cache (many virtual machines) leaves it there, although others are idle: worker and caller
then take turns on one of them. A worker that wakes up on the caller's processor therefore forbids itself that
one; from then on a caller that has moved forbids its new processor to all workers before it wakes them, and
so does one that had to wait long for a chunk. Without this, a region opened every millisecond took 108 us on
two processors; with it 46, of which 26 are work.

Only one region is open at a time: whoever does not get `lock` at once (a second Python thread, a step inside
a step) runs the chunks of its step itself, in order, as worker 0. Its scratch lies in the arena of its own
call.
"""

from __future__ import annotations

from jitgrad.compiler.driver.builtin import builtin_ir
from jitgrad.compiler.driver.pool_layout import (
    BLOCK,
    ENSURE,
    EXTENT,
    FUNCTION,
    LOCK,
    MAX_WORKERS,
    NCHUNKS,
    PENDING,
    POOL_BYTES,
    REGIONS,
    RUN_CHUNK,
    RUN_RECORD,
    RUNNING,
    SIGNAL,
    SLEEPERS,
    STOP,
    TABLE,
    WAITING,
    WORD,
    at,
)
from jitgrad.compiler.driver.system import Platform, machine_ir
from jitgrad.compiler.driver.trials import trials_ir


def driver_ir(host: Platform, spin: int) -> str:
    """The whole module; `spin` is how many pauses a thread waits before it blocks."""
    steps = (_RUN_SERIALLY, _in_parallel(), _all_steps())
    parts = (_pool(), RUN_CHUNK, _work(), _wait(spin), _region(), *steps, trials_ir(), _worker(spin))
    return "\n".join((*parts, machine_ir(host), builtin_ir())) + "\nattributes #0 = { nounwind }\n"


def _pool() -> str:
    cleared = "\n".join(f"  store i64 0, ptr {at(8 * k)}" for k in range(POOL_BYTES // 8) if 8 * k != ENSURE)
    return f"""
@pool = internal global [{POOL_BYTES} x i8] zeroinitializer, align 64

define ptr @jitgrad_pool() #0 {{
  ret ptr @pool
}}

define void @jitgrad_reset() #0 {{
{cleared}
  call void @init_waiting()
  ret void
}}

define void @jitgrad_stop() #0 {{
  store atomic i32 1, ptr {at(STOP)} seq_cst, align 4
  %old = atomicrmw add ptr {at(SIGNAL)}, i32 1 seq_cst
  call void @wake(ptr {at(SIGNAL)}, i32 {MAX_WORKERS})
  ret void
}}
"""


def _work() -> str:
    """A thread takes chunks of the open region and runs them until none is left."""
    return f"""
define internal void @work(i64 %worker) #0 {{
entry:
  %odd = and i64 %worker, 1
  %from_back = icmp ne i64 %odd, 0
  %change = select i1 %from_back, i64 -65536, i64 1
  br label %look
look:
  %seen = load atomic i64, ptr {at(WORD)} acquire, align 8
  %first = and i64 %seen, 65535
  %upper = lshr i64 %seen, 16
  %end = and i64 %upper, 65535
  %none = icmp uge i64 %first, %end
  %highest = lshr i64 %seen, 32
  %limit = and i64 %highest, 255
  %surplus = icmp uge i64 %worker, %limit
  %leave = or i1 %none, %surplus
  br i1 %leave, label %done, label %take
take:
  %taken = add i64 %seen, %change
  %pair = cmpxchg ptr {at(WORD)}, i64 %seen, i64 %taken acq_rel acquire
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %chunk, label %look
chunk:
  %function = load ptr, ptr {at(FUNCTION)}
  %table = load ptr, ptr {at(TABLE)}
  %block = load ptr, ptr {at(BLOCK)}
  %extent = load i64, ptr {at(EXTENT)}
  %n = load i64, ptr {at(NCHUNKS)}
  %last_left = sub i64 %end, 1
  %c = select i1 %from_back, i64 %last_left, i64 %first
  %threads = trunc i64 %limit to i32
  call void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c, i64 %worker, i32 %threads)
  %pending = atomicrmw sub ptr {at(PENDING)}, i32 1 seq_cst
  %last = icmp eq i32 %pending, 1
  br i1 %last, label %tell, label %look
tell:
  %waiting = load atomic i32, ptr {at(WAITING)} seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %rouse, label %look
rouse:
  call void @wake(ptr {at(PENDING)}, i32 1)
  br label %look
done:
  ret void
}}
"""


def _wait(spin: int) -> str:
    return f"""
; Waits until every chunk of the open region is done.
define internal void @wait_pending() #0 {{
entry:
  br label %spin
spin:
  %k = phi i32 [ 0, %entry ], [ %k1, %again ]
  %p = load atomic i32, ptr {at(PENDING)} acquire, align 4
  %over = icmp eq i32 %p, 0
  br i1 %over, label %done, label %again
again:
  call void @pause()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, {spin}
  br i1 %more, label %spin, label %block
block:
  call void @forbid_workers()
  store atomic i32 1, ptr {at(WAITING)} seq_cst, align 4
  br label %check
check:
  %q = load atomic i32, ptr {at(PENDING)} seq_cst, align 4
  %ended = icmp eq i32 %q, 0
  br i1 %ended, label %awake, label %sleep
sleep:
  call void @park(ptr {at(PENDING)}, i32 %q)
  br label %check
awake:
  store atomic i32 0, ptr {at(WAITING)} seq_cst, align 4
  br label %done
done:
  ret void
}}
"""


def _region() -> str:
    return f"""
; Opens a region for the chunks of a step, works at it, and closes it. The caller holds the lock.
define internal void @region(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit) #0 {{
entry:
  store ptr %function, ptr {at(FUNCTION)}
  store ptr %table, ptr {at(TABLE)}
  store ptr %block, ptr {at(BLOCK)}
  store i64 %extent, ptr {at(EXTENT)}
  store i64 %n, ptr {at(NCHUNKS)}
  %others = sub i32 %limit, 1
  %n32 = trunc i64 %n to i32
  store atomic i32 %n32, ptr {at(PENDING)} monotonic, align 4
  %regions = load i64, ptr {at(REGIONS)}
  %counted = add i64 %regions, 1
  store i64 %counted, ptr {at(REGIONS)}
  %old = load atomic i64, ptr {at(WORD)} monotonic, align 8
  %epoch = lshr i64 %old, 40
  %epoch1 = add i64 %epoch, 1
  %number = shl i64 %epoch1, 40
  %limit64 = zext i32 %limit to i64
  %threads = shl i64 %limit64, 32
  %upper = or i64 %number, %threads
  %end = shl i64 %n, 16
  %word = or i64 %upper, %end
  store atomic i64 %word, ptr {at(WORD)} seq_cst, align 8
  %signalled = atomicrmw add ptr {at(SIGNAL)}, i32 1 seq_cst
  %sleepers = load atomic i32, ptr {at(SLEEPERS)} seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %share
rouse:
  call void @clear_way()
  %running = load atomic i32, ptr {at(RUNNING)} monotonic, align 4
  %some = icmp ult i32 %others, %running
  %useful = sub i32 %n32, 1
  %count = select i1 %some, i32 {MAX_WORKERS}, i32 %useful
  call void @wake(ptr {at(SIGNAL)}, i32 %count)
  br label %share
share:
  call void @work(i64 0)
  call void @wait_pending()
  ret void
}}
"""


_RUN_SERIALLY = """
define internal void @run_serially(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit) #0 {
entry:
  br label %chunk
chunk:
  %c = phi i64 [ 0, %entry ], [ %c1, %chunk ]
  call void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c, i64 0, i32 %limit)
  %c1 = add i64 %c, 1
  %more = icmp slt i64 %c1, %n
  br i1 %more, label %chunk, label %done
done:
  ret void
}
"""
"""Chunks of a step, one after another."""


def _in_parallel() -> str:
    """A step of several chunks: in parallel if threads may be used, exist, and are not busy with another region."""
    return f"""
define void @jitgrad_run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n,
      i32 %limit) #0 {{
entry:
  %single = icmp ult i32 %limit, 2
  %many = icmp ugt i64 %n, 65535
  %alone = or i1 %single, %many
  br i1 %alone, label %serial, label %workers
workers:
  %running = load atomic i32, ptr {at(RUNNING)} monotonic, align 4
  %none = icmp eq i32 %running, 0
  br i1 %none, label %serial, label %lock
lock:
  %pair = cmpxchg ptr {at(LOCK)}, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %got, label %parallel, label %serial
parallel:
  call void @region(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  store atomic i32 0, ptr {at(LOCK)} release, align 4
  ret void
serial:
  call void @run_serially(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  ret void
}}
"""


def _all_steps() -> str:
    """The steps one after another, and when each ended."""
    return f"""
define void @jitgrad_run(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit) #0 {{
entry:
  call void @stamp(ptr %times, i64 0)
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp slt i64 %k, %nsteps
  br i1 %more, label %step, label %done
step:
{RUN_RECORD}
next:
  %k1 = add i64 %k, 1
  call void @stamp(ptr %times, i64 %k1)
  br label %head
done:
  ret void
}}
"""


def _worker(spin: int) -> str:
    return f"""
define void @jitgrad_worker(i64 %number) #0 {{
entry:
  br label %watch
watch:
  %seen = phi i32 [ 0, %entry ], [ %signal, %joined ]
  br label %spin
spin:
  %k = phi i32 [ 0, %watch ], [ %k1, %again ]
  %s = load atomic i32, ptr {at(SIGNAL)} acquire, align 4
  %changed = icmp ne i32 %s, %seen
  br i1 %changed, label %called, label %again
again:
  call void @pause()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, {spin}
  br i1 %more, label %spin, label %block
block:
  %a = atomicrmw add ptr {at(SLEEPERS)}, i32 1 seq_cst
  br label %check
check:
  %t = load atomic i32, ptr {at(SIGNAL)} seq_cst, align 4
  %still = icmp eq i32 %t, %seen
  br i1 %still, label %sleep, label %awake
sleep:
  call void @park(ptr {at(SIGNAL)}, i32 %seen)
  br label %check
awake:
  %b = atomicrmw sub ptr {at(SLEEPERS)}, i32 1 seq_cst
  call void @step_aside()
  br label %called
called:
  %signal = phi i32 [ %s, %spin ], [ %t, %awake ]
  %stop = load atomic i32, ptr {at(STOP)} seq_cst, align 4
  %leave = icmp ne i32 %stop, 0
  br i1 %leave, label %done, label %joined
joined:
  call void @work(i64 %number)
  br label %watch
done:
  ret void
}}
"""
