"""What the driver asks of the machine, as LLVM IR text: pause, block and wake, choose a processor, read the
clock.

    pause()                    a hint to the processor, in a loop that waits
    park(word, expected)       block while the word has the expected value; may return early
    wake(word, count)          wake that many threads that block on the word
    init_waiting()             before the first of these, and in a forked child
    step_aside()               a worker that wakes up on the caller's processor leaves it for good
    clear_way()                a caller about to wake workers sees to it that they can run beside it
    forbid_workers()           keeps all workers off the caller's processor; for a caller that has waited long
    stamp(times, k)            the time in nanoseconds to times[k], unless times is null
    read_clock(at)             the time to where it is told
"""

from __future__ import annotations

import platform
import sys

from jitgrad.compiler.driver.pool_layout import (
    CPU,
    CROWDED,
    FORBIDDEN,
    PROCESSOR_WORDS,
    PROCESSORS,
    RUNNING,
    THREAD_IDS,
    at,
)
from jitgrad.records import dataclass


@dataclass(frozen=True, slots=True)
class Platform:
    """What the driver needs to know of the machine: how to pause, how to block, which clock to read.

    `futex` is the number of the system call, or 0 to block on a mutex and a condition variable. `affinity`:
    whether a thread can ask on which processor it runs, and choose.
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


def machine_ir(host: Platform) -> str:
    """All of it, for one machine."""
    return "\n".join((_waiting(host), _placement(host), _STAMP, clock_ir(host)))


def _waiting(host: Platform) -> str:
    """`pause`, `park(word, expected)`, `wake(word, count)`, by futex or by mutex and condition variable."""
    pause = f"""
define internal void @pause() #0 {{
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
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {wait}, i32 %expected, ptr null, ptr null,
      i32 0)
  ret void
}}

define internal void @wake(ptr %word, i32 %count) #0 {{
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 {wake}, i32 %count, ptr null, ptr null,
      i32 0)
  ret void
}}
"""


def _condition() -> str:
    """One mutex and condition for all words: it is rare, and every waiter looks at its own word again."""
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
    """`step_aside()` for a worker that wakes, `clear_way()` for a caller about to wake workers,
    `forbid_workers()` for one that has waited long.
    """
    return f"{_forbid()}{_moves()}" if host.affinity else _NO_PLACEMENT


_NO_PLACEMENT = """
define internal void @step_aside() #0 {
  ret void
}

define internal void @clear_way() #0 {
  ret void
}

define internal void @forbid_workers() #0 {
  ret void
}
"""


def _forbid() -> str:
    """`forbid(thread, cpu)`: a thread may run on all processors but this one."""
    nbytes = 8 * PROCESSOR_WORDS
    return f"""
declare i32 @sched_getcpu() #0
declare i32 @sched_setaffinity(i32, i64, ptr) #0
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1) #0

define internal void @forbid(i32 %thread, i32 %cpu) #0 {{
entry:
  %others = alloca [{PROCESSOR_WORDS} x i64], align 64
  %known = icmp ult i32 %cpu, {8 * nbytes}
  br i1 %known, label %set, label %done
set:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr {at(PROCESSORS)}, i64 {nbytes}, i1 false)
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

"""


def _moves() -> str:
    """Who forbids which processor to whom."""
    return f"""\
define internal void @step_aside() #0 {{
entry:
  %here = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr {at(CPU)} monotonic, align 4
  %same = icmp eq i32 %here, %caller
  br i1 %same, label %move, label %done
move:
  store atomic i32 1, ptr {at(CROWDED)} monotonic, align 4
  call void @forbid(i32 0, i32 %here)
  br label %done
done:
  ret void
}}

define internal void @clear_way() #0 {{
entry:
  %here = call i32 @sched_getcpu()
  store atomic i32 %here, ptr {at(CPU)} monotonic, align 4
  %crowded = load atomic i32, ptr {at(CROWDED)} monotonic, align 4
  %calm = icmp eq i32 %crowded, 0
  br i1 %calm, label %done, label %forbid
forbid:
  call void @forbid_workers()
  br label %done
done:
  ret void
}}

{_forbidden_workers()}
"""


def _forbidden_workers() -> str:
    """Keep the workers from the caller's processor."""
    return f"""define internal void @forbid_workers() #0 {{
entry:
  %here = call i32 @sched_getcpu()
  %mark = add i32 %here, 1
  %before = atomicrmw xchg ptr {at(FORBIDDEN)}, i32 %mark monotonic
  %stayed = icmp eq i32 %mark, %before
  br i1 %stayed, label %done, label %start
start:
  %running = load atomic i32, ptr {at(RUNNING)} monotonic, align 4
  br label %worker
worker:
  %k = phi i32 [ 0, %start ], [ %k1, %move ]
  %more = icmp ult i32 %k, %running
  br i1 %more, label %move, label %done
move:
  %at = getelementptr i32, ptr {at(THREAD_IDS)}, i32 %k
  %thread = load i32, ptr %at
  call void @forbid(i32 %thread, i32 %here)
  %k1 = add i32 %k, 1
  br label %worker
done:
  ret void
}}"""


_STAMP = """
define internal void @stamp(ptr %times, i64 %k) #0 {
entry:
  %off = icmp eq ptr %times, null
  br i1 %off, label %done, label %read
read:
  %at = getelementptr i64, ptr %times, i64 %k
  call void @read_clock(ptr %at)
  br label %done
done:
  ret void
}
"""


def clock_ir(host: Platform) -> str:
    """`read_clock(at)`."""
    return f"""
declare i32 @clock_gettime(i32, ptr) #0

define internal void @read_clock(ptr %at) #0 {{
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
