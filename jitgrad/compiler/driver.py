"""The step driver and its thread pool, as LLVM IR text; compiled and cached like any kernel. No Python runs here.

A step is eight i64: function, block, extent, number of chunks, and four words left free. Chunk c of a step covers
[extent*c//nchunks, extent*(c+1)//nchunks), whatever thread runs it, so results do not depend on the thread count.

    jitgrad_run(table, steps, nsteps, times)             runs the steps in order, with the threads of the last run_limited
    jitgrad_run_limited(table, steps, nsteps, times, n)  the same with at most n threads
    jitgrad_worker(number)                               the life of a worker thread, 1 <= number < MAX_WORKERS
    jitgrad_stop()                                       asks all workers to return from jitgrad_worker
    jitgrad_reset()                                      a pool without workers: at the start, and in a forked child
    jitgrad_pool()                                       the address of the pool's memory, for tests and statistics
    jitgrad_run_steps(self, args, nargs)                 jitgrad_run_limited as a Python builtin

How a region is shared out. One word holds the epoch of the region (upper half) and the number of chunks that nobody
has taken (lower half). A thread takes a chunk by compare-and-swap of the whole word, so it can only take a chunk of
the region that is open now; from then on the region cannot end before this chunk is done, which makes the description
of the region (function, block, extent) safe to read. A worker that wakes late finds zero chunks and goes on sleeping;
the caller never waits for a thread that has taken nothing. Only workers with a number below the limit of the call take
part, so scratch for `limit` threads is enough.

How threads wait. A worker spins for some microseconds on `signal`, the low half of the epoch, then counts itself in
`sleepers` and blocks on `signal` in the kernel; the caller changes `signal` before it reads `sleepers`, both sequentially
consistent, so one of the two sees the other. The caller waits for the last chunk in the same way, with `waiting`.

Where threads run. Linux likes to wake a thread on the processor of the thread that wakes it, and where processors share no
cache (many virtual machines) leaves it there, although others are idle: worker and caller then take turns on one of
them. A worker that wakes up on the caller's processor therefore forbids itself that one, and from then on a caller that
has moved forbids its new processor to all workers before it wakes them. Without this, a region opened every
millisecond took 108 us on two processors; with it 46, of which 26 are work.

Only one region is open at a time: whoever does not get `lock` at once (a second Python thread, a step inside a step)
runs the chunks of its step itself, in order, as worker 0. Its scratch lies in the arena of its own call.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass

MAX_WORKERS = 64
STEP_WORDS = 8

# Byte offsets in the pool: words that different threads write lie on different cache lines.
_LOCK, _SIGNAL, _SLEEPERS, _WORD, _PENDING, _WAITING = 0, 64, 68, 128, 192, 196
_FUNCTION, _BLOCK, _EXTENT, _NCHUNKS, _TABLE, _LIMIT = 256, 264, 272, 280, 288, 296
RUNNING, _STOP, _THREADS, ENSURE, REGIONS, _CPU, _CROWDED = 384, 388, 392, 400, 408, 416, 420
PROCESSORS, THREAD_IDS = 448, 576
_PROCESSOR_WORDS = 16  # a set of up to 1024 processors
_POOL_BYTES = 832


@dataclass(frozen=True, slots=True)
class Platform:
    """What the driver needs to know of the machine: how to pause, how to block, which clock to read.

    `futex` is the number of the system call, or 0 to block on a mutex and a condition variable. `affinity`: whether a
    thread can ask on which processor it runs, and choose.
    """

    pause: str
    futex: int
    clock: int
    affinity: bool


_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "s390x": 238, "riscv64": 98}


def host_platform() -> Platform:
    """The platform of this process."""
    machine = platform.machine().lower()
    pause = ""
    if machine in ("x86_64", "amd64"):
        pause = "llvm.x86.sse2.pause"
    elif machine in ("aarch64", "arm64"):
        pause = "llvm.aarch64.hint"
    futex = _FUTEX_NUMBERS.get(machine, 0) if sys.platform == "linux" else 0
    return Platform(pause, futex, 6 if sys.platform == "darwin" else 1, sys.platform == "linux")


def driver_ir(host: Platform, spin: int) -> str:
    """The whole module; `spin` is how many pauses a thread waits before it blocks."""
    parts = (_pool(), _waiting(host), _regions(spin), _steps(), _placement(host), _worker(spin), _stamps(host), _builtin())
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\n"


def _at(offset: int) -> str:
    return f"getelementptr (i8, ptr @pool, i64 {offset})"


def _pool() -> str:
    cleared = "\n".join(f"  store i64 0, ptr {_at(8 * k)}" for k in range(_POOL_BYTES // 8) if 8 * k != ENSURE)
    return f"""
@pool = internal global [{_POOL_BYTES} x i8] zeroinitializer, align 64

define ptr @jitgrad_pool() #0 {{
  ret ptr @pool
}}

define void @jitgrad_reset() #0 {{
{cleared}
  call void @init_waiting()
  ret void
}}

define void @jitgrad_stop() #0 {{
  store atomic i32 1, ptr {_at(_STOP)} seq_cst, align 4
  %old = atomicrmw add ptr {_at(_SIGNAL)}, i32 1 seq_cst
  call void @wake(ptr {_at(_SIGNAL)}, i32 {MAX_WORKERS})
  ret void
}}
"""


def _waiting(host: Platform) -> str:
    """`pause`, `park(word, expected)` and `wake(word, count)`, by futex or by mutex and condition variable."""
    pause = f"""
define internal void @pause() alwaysinline #0 {{
  {_pause_call(host.pause)}
  ret void
}}
"""
    return pause + (_futex(host.futex) if host.futex else _condition())


def _pause_call(name: str) -> str:
    if name == "llvm.x86.sse2.pause":
        return "call void @llvm.x86.sse2.pause()"
    return "call void @llvm.aarch64.hint(i32 1)" if name else ""


def _futex(number: int) -> str:
    wait, wake = 128, 129  # FUTEX_WAIT_PRIVATE, FUTEX_WAKE_PRIVATE
    return f"""
declare i64 @syscall(i64, ...) #0

define internal void @init_waiting() #0 {{
  ret void
}}

define internal void @park(ptr %word, i32 %expected) #0 {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {wait}, i32 %expected, ptr null, ptr null, i32 0)
  ret void
}}

define internal void @wake(ptr %word, i32 %count) #0 {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {wake}, i32 %count, ptr null, ptr null, i32 0)
  ret void
}}
"""


def _condition() -> str:
    """One mutex and one condition for all words: rare enough, and every waiter looks at its own word again."""
    return """
@mutex = internal global [16 x i64] zeroinitializer, align 64
@condition = internal global [16 x i64] zeroinitializer, align 64
declare i32 @pthread_mutex_init(ptr, ptr) #0
declare i32 @pthread_mutex_lock(ptr) #0
declare i32 @pthread_mutex_unlock(ptr) #0
declare i32 @pthread_cond_init(ptr, ptr) #0
declare i32 @pthread_cond_wait(ptr, ptr) #0
declare i32 @pthread_cond_broadcast(ptr) #0

define internal void @init_waiting() #0 {
  %a = call i32 @pthread_mutex_init(ptr @mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr @condition, ptr null)
  ret void
}

define internal void @park(ptr %word, i32 %expected) #0 {
entry:
  %a = call i32 @pthread_mutex_lock(ptr @mutex)
  br label %check
check:
  %now = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %now, %expected
  br i1 %same, label %wait, label %done
wait:
  %b = call i32 @pthread_cond_wait(ptr @condition, ptr @mutex)
  br label %check
done:
  %c = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}

define internal void @wake(ptr %word, i32 %count) #0 {
  %a = call i32 @pthread_mutex_lock(ptr @mutex)
  %b = call i32 @pthread_cond_broadcast(ptr @condition)
  %c = call i32 @pthread_mutex_unlock(ptr @mutex)
  ret void
}
"""


def _placement(host: Platform) -> str:
    """`step_aside()` for a worker that wakes, `clear_way()` for a caller that is about to wake workers."""
    if not host.affinity:
        return """
define internal void @step_aside() alwaysinline #0 {
  ret void
}

define internal void @clear_way() alwaysinline #0 {
  ret void
}
"""
    nbytes = 8 * _PROCESSOR_WORDS
    return f"""
declare i32 @sched_getcpu() #0
declare i32 @sched_setaffinity(i32, i64, ptr) #0
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1) #0

define internal void @forbid(i32 %thread, i32 %cpu) noinline #0 {{
entry:
  %others = alloca [{_PROCESSOR_WORDS} x i64], align 64
  %known = icmp ult i32 %cpu, {8 * nbytes}
  br i1 %known, label %set, label %done
set:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr {_at(PROCESSORS)}, i64 {nbytes}, i1 false)
  %index32 = lshr i32 %cpu, 6
  %index = zext i32 %index32 to i64
  %bit32 = and i32 %cpu, 63
  %bit = zext i32 %bit32 to i64
  %one = shl i64 1, %bit
  %keep = xor i64 %one, -1
  %at = getelementptr i64, ptr %others, i64 %index
  %word = load i64, ptr %at
  %less = and i64 %word, %keep
  store i64 %less, ptr %at
  %r = call i32 @sched_setaffinity(i32 %thread, i64 {nbytes}, ptr %others)
  br label %done
done:
  ret void
}}

define internal void @step_aside() #0 {{
entry:
  %here = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr {_at(_CPU)} monotonic, align 4
  %same = icmp eq i32 %here, %caller
  br i1 %same, label %move, label %done
move:
  store atomic i32 1, ptr {_at(_CROWDED)} monotonic, align 4
  call void @forbid(i32 0, i32 %here)
  br label %done
done:
  ret void
}}

define internal void @clear_way() #0 {{
entry:
  %here = call i32 @sched_getcpu()
  %before = atomicrmw xchg ptr {_at(_CPU)}, i32 %here monotonic
  %stayed = icmp eq i32 %here, %before
  %crowded = load atomic i32, ptr {_at(_CROWDED)} monotonic, align 4
  %calm = icmp eq i32 %crowded, 0
  %fine = or i1 %stayed, %calm
  br i1 %fine, label %done, label %start
start:
  %running = load atomic i32, ptr {_at(RUNNING)} monotonic, align 4
  br label %worker
worker:
  %k = phi i32 [ 0, %start ], [ %k1, %move ]
  %more = icmp ult i32 %k, %running
  br i1 %more, label %move, label %done
move:
  %at = getelementptr i32, ptr {_at(THREAD_IDS)}, i32 %k
  %thread = load i32, ptr %at
  call void @forbid(i32 %thread, i32 %here)
  %k1 = add i32 %k, 1
  br label %worker
done:
  ret void
}}
"""


def _regions(spin: int) -> str:
    return f"""
define internal void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c, i64 %worker) #0 {{
  %next = add i64 %c, 1
  %a = mul i64 %extent, %c
  %b = mul i64 %extent, %next
  %lo = udiv i64 %a, %n
  %hi = udiv i64 %b, %n
  call void %function(ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %c, i64 %worker)
  ret void
}}

; Takes chunks of the open region and runs them until none is left.
define internal void @work(i64 %worker) #0 {{
entry:
  br label %look
look:
  %seen = load atomic i64, ptr {_at(_WORD)} acquire, align 8
  %left = and i64 %seen, 4294967295
  %none = icmp eq i64 %left, 0
  br i1 %none, label %done, label %take
take:
  %less = sub i64 %seen, 1
  %pair = cmpxchg ptr {_at(_WORD)}, i64 %seen, i64 %less acq_rel acquire
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %chunk, label %look
chunk:
  %function = load ptr, ptr {_at(_FUNCTION)}
  %table = load ptr, ptr {_at(_TABLE)}
  %block = load ptr, ptr {_at(_BLOCK)}
  %extent = load i64, ptr {_at(_EXTENT)}
  %n = load i64, ptr {_at(_NCHUNKS)}
  %c = sub i64 %n, %left
  call void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c, i64 %worker)
  %pending = atomicrmw sub ptr {_at(_PENDING)}, i32 1 seq_cst
  %last = icmp eq i32 %pending, 1
  br i1 %last, label %tell, label %look
tell:
  %waiting = load atomic i32, ptr {_at(_WAITING)} seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %rouse, label %look
rouse:
  call void @wake(ptr {_at(_PENDING)}, i32 1)
  br label %look
done:
  ret void
}}

; Waits until every chunk of the open region is done.
define internal void @wait_pending() #0 {{
entry:
  br label %spin
spin:
  %k = phi i32 [ 0, %entry ], [ %k1, %again ]
  %p = load atomic i32, ptr {_at(_PENDING)} acquire, align 4
  %over = icmp eq i32 %p, 0
  br i1 %over, label %done, label %again
again:
  call void @pause()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, {spin}
  br i1 %more, label %spin, label %block
block:
  store atomic i32 1, ptr {_at(_WAITING)} seq_cst, align 4
  br label %check
check:
  %q = load atomic i32, ptr {_at(_PENDING)} seq_cst, align 4
  %ended = icmp eq i32 %q, 0
  br i1 %ended, label %awake, label %sleep
sleep:
  call void @park(ptr {_at(_PENDING)}, i32 %q)
  br label %check
awake:
  store atomic i32 0, ptr {_at(_WAITING)} seq_cst, align 4
  br label %done
done:
  ret void
}}

; Opens a region for the chunks of a step, works at it, and closes it. The caller holds the lock.
define internal void @region(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit) #0 {{
entry:
  store ptr %function, ptr {_at(_FUNCTION)}
  store ptr %table, ptr {_at(_TABLE)}
  store ptr %block, ptr {_at(_BLOCK)}
  store i64 %extent, ptr {_at(_EXTENT)}
  store i64 %n, ptr {_at(_NCHUNKS)}
  %others = sub i32 %limit, 1
  store atomic i32 %limit, ptr {_at(_LIMIT)} monotonic, align 4
  %n32 = trunc i64 %n to i32
  store atomic i32 %n32, ptr {_at(_PENDING)} monotonic, align 4
  %regions = load i64, ptr {_at(REGIONS)}
  %counted = add i64 %regions, 1
  store i64 %counted, ptr {_at(REGIONS)}
  %old = load atomic i64, ptr {_at(_WORD)} monotonic, align 8
  %epoch = lshr i64 %old, 32
  %epoch1 = add i64 %epoch, 1
  %upper = shl i64 %epoch1, 32
  %word = or i64 %upper, %n
  store atomic i64 %word, ptr {_at(_WORD)} seq_cst, align 8
  %signalled = atomicrmw add ptr {_at(_SIGNAL)}, i32 1 seq_cst
  %sleepers = load atomic i32, ptr {_at(_SLEEPERS)} seq_cst, align 4
  %asleep = icmp ne i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %share
rouse:
  call void @clear_way()
  %running = load atomic i32, ptr {_at(RUNNING)} monotonic, align 4
  %some = icmp ult i32 %others, %running
  %useful = sub i32 %n32, 1
  %count = select i1 %some, i32 {MAX_WORKERS}, i32 %useful
  call void @wake(ptr {_at(_SIGNAL)}, i32 %count)
  br label %share
share:
  call void @work(i64 0)
  call void @wait_pending()
  ret void
}}
"""


def _steps() -> str:
    return f"""
define internal void @run_serially(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n) #0 {{
entry:
  br label %chunk
chunk:
  %c = phi i64 [ 0, %entry ], [ %c1, %chunk ]
  call void @run_chunk(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i64 %c, i64 0)
  %c1 = add i64 %c, 1
  %more = icmp slt i64 %c1, %n
  br i1 %more, label %chunk, label %done
done:
  ret void
}}

; A step of several chunks: in parallel if threads may be used, exist, and are not busy with another region.
define internal void @run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit) #0 {{
entry:
  %single = icmp ult i32 %limit, 2
  br i1 %single, label %serial, label %workers
workers:
  %running = load atomic i32, ptr {_at(RUNNING)} monotonic, align 4
  %alone = icmp eq i32 %running, 0
  br i1 %alone, label %serial, label %lock
lock:
  %pair = cmpxchg ptr {_at(_LOCK)}, i32 0, i32 1 acquire monotonic
  %got = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %got, label %parallel, label %serial
parallel:
  call void @region(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  store atomic i32 0, ptr {_at(_LOCK)} release, align 4
  ret void
serial:
  call void @run_serially(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n)
  ret void
}}

define void @jitgrad_run(ptr %table, ptr %steps, i64 %nsteps, ptr %times) #0 {{
  %limit = load atomic i32, ptr {_at(_THREADS)} monotonic, align 4
  call void @run_all(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit)
  ret void
}}

define void @jitgrad_run_limited(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit) #0 {{
  store atomic i32 %limit, ptr {_at(_THREADS)} monotonic, align 4
  call void @run_all(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit)
  ret void
}}

define internal void @run_all(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i32 %limit) #0 {{
entry:
  call void @stamp(ptr %times, i64 0)
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp slt i64 %k, %nsteps
  br i1 %more, label %step, label %done
step:
  %record = getelementptr [{STEP_WORDS} x i64], ptr %steps, i64 %k
  %function = load ptr, ptr %record
  %p1 = getelementptr i64, ptr %record, i64 1
  %block = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %record, i64 2
  %extent = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %record, i64 3
  %n = load i64, ptr %p3
  %one = icmp slt i64 %n, 2
  br i1 %one, label %direct, label %chunks
direct:
  call void %function(ptr %table, ptr %block, i64 0, i64 %extent, i64 0, i64 0)
  br label %next
chunks:
  call void @run_parallel(ptr %function, ptr %table, ptr %block, i64 %extent, i64 %n, i32 %limit)
  br label %next
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
  %number32 = trunc i64 %number to i32
  br label %watch
watch:
  %seen = phi i32 [ 0, %entry ], [ %signal, %joined ], [ %signal, %skip ]
  br label %spin
spin:
  %k = phi i32 [ 0, %watch ], [ %k1, %again ]
  %s = load atomic i32, ptr {_at(_SIGNAL)} acquire, align 4
  %changed = icmp ne i32 %s, %seen
  br i1 %changed, label %called, label %again
again:
  call void @pause()
  %k1 = add i32 %k, 1
  %more = icmp ult i32 %k1, {spin}
  br i1 %more, label %spin, label %block
block:
  %a = atomicrmw add ptr {_at(_SLEEPERS)}, i32 1 seq_cst
  br label %check
check:
  %t = load atomic i32, ptr {_at(_SIGNAL)} seq_cst, align 4
  %still = icmp eq i32 %t, %seen
  br i1 %still, label %sleep, label %awake
sleep:
  call void @park(ptr {_at(_SIGNAL)}, i32 %seen)
  br label %check
awake:
  %b = atomicrmw sub ptr {_at(_SLEEPERS)}, i32 1 seq_cst
  call void @step_aside()
  br label %called
called:
  %signal = phi i32 [ %s, %spin ], [ %t, %awake ]
  %stop = load atomic i32, ptr {_at(_STOP)} seq_cst, align 4
  %leave = icmp ne i32 %stop, 0
  br i1 %leave, label %done, label %skip
skip:
  %limit = load atomic i32, ptr {_at(_LIMIT)} acquire, align 4
  %wanted = icmp slt i32 %number32, %limit
  br i1 %wanted, label %joined, label %watch
joined:
  call void @work(i64 %number)
  br label %watch
done:
  ret void
}}
"""


def _stamps(host: Platform) -> str:
    return f"""
declare i32 @clock_gettime(i32, ptr) #0

define internal void @stamp(ptr %times, i64 %k) alwaysinline #0 {{
entry:
  %off = icmp eq ptr %times, null
  br i1 %off, label %done, label %read
read:
  %at = getelementptr i64, ptr %times, i64 %k
  call void @read_clock(ptr %at)
  br label %done
done:
  ret void
}}

define internal void @read_clock(ptr %at) noinline #0 {{
  %spec = alloca [2 x i64]
  %r = call i32 @clock_gettime(i32 {host.clock}, ptr %spec)
  %seconds = load i64, ptr %spec
  %q = getelementptr i64, ptr %spec, i64 1
  %nanoseconds = load i64, ptr %q
  %scaled = mul i64 %seconds, 1000000000
  %now = add i64 %scaled, %nanoseconds
  store i64 %now, ptr %at
  ret void
}}
"""


def _builtin() -> str:
    names = ("table", "steps", "nsteps", "times", "threads", "release")
    reads = "\n".join(_read_integer(k, name) for k, name in enumerate(names))
    failed = "\n".join(f"  %any{k + 1} = or i1 %any{k}, %bad_{name}" for k, name in enumerate(names))
    return f"""
{_PYTHON}
@usage = internal constant [{len(_USAGE) + 1} x i8] c"{_USAGE}\\00"

define ptr @jitgrad_run_steps(ptr %self, ptr %args, i64 %nargs) #0 {{
entry:
  %complete = icmp eq i64 %nargs, {len(names)}
  br i1 %complete, label %read, label %usage
usage:
  %type = load ptr, ptr @PyExc_TypeError
  call void @PyErr_SetString(ptr %type, ptr @usage)
  ret ptr null
read:
{reads}
  %any0 = or i1 false, false
{failed}
  br i1 %any{len(names)}, label %suspect, label %sound
suspect:
  %error = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %error, null
  br i1 %raised, label %fail, label %sound
sound:
  %limit = trunc i64 %v_threads to i32
  %others = sub i32 %limit, 1
  %running = load atomic i32, ptr {_at(RUNNING)} monotonic, align 4
  %lacking = icmp sgt i32 %others, %running
  br i1 %lacking, label %start, label %run
start:
  %ensure = load ptr, ptr {_at(ENSURE)}
  %wish = getelementptr ptr, ptr %args, i64 4
  %wanted = load ptr, ptr %wish
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %ensure, ptr %wanted, ptr null)
  %broken = icmp eq ptr %result, null
  br i1 %broken, label %fail, label %started
started:
  call void @Py_DecRef(ptr %result)
  br label %run
run:
  %table = inttoptr i64 %v_table to ptr
  %steps = inttoptr i64 %v_steps to ptr
  %times = inttoptr i64 %v_times to ptr
  %long = icmp ne i64 %v_release, 0
  br i1 %long, label %free, label %held
held:
  call void @jitgrad_run_limited(ptr %table, ptr %steps, i64 %v_nsteps, ptr %times, i32 %limit)
  br label %done
free:
  %state = call ptr @PyEval_SaveThread()
  call void @jitgrad_run_limited(ptr %table, ptr %steps, i64 %v_nsteps, ptr %times, i32 %limit)
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  %true = call ptr @PyBool_FromLong(i64 1)
  ret ptr %true
fail:
  ret ptr null
}}
"""


_USAGE = "run_steps(table, steps, nsteps, times, threads, release): six integers"

_PYTHON = """
@PyExc_TypeError = external global ptr
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyBool_FromLong(i64) #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_SetString(ptr, ptr) #0
declare ptr @PyEval_SaveThread() #0
declare void @PyEval_RestoreThread(ptr) #0
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...) #0
declare void @Py_DecRef(ptr) #0
"""


def _read_integer(k: int, name: str) -> str:
    return f"""  %a_{name} = getelementptr ptr, ptr %args, i64 {k}
  %o_{name} = load ptr, ptr %a_{name}
  %v_{name} = call i64 @PyLong_AsLongLong(ptr %o_{name})
  %bad_{name} = icmp eq i64 %v_{name}, -1"""
