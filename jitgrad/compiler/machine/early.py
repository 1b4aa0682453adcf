"""Machine code that a process has before it knows which plans and kernels are its own: their keys are made from the
times of some 490 files, and pages of outputs are asked for meanwhile. What is made of either is decided elsewhere.

    look(folders, count, found, room)
                             a record for each source and library in the folders, whose paths end with 0: bytes, seconds
                             and nanoseconds of the last change, number of the folder, and the name, in room that was
                             filled with 0; how many bytes they take, or -1: no room, a long name, or a file that
                             cannot be looked at
    touch(place, end, step, is_over, nothing)
                             asks for pages by adding nothing to a byte of each; ends when the word is not 0

Its key is made from its own text and the processor, since there is no other yet. Only where code is loaded without LLVM
is any looked for on disk: to load that takes longer than what is saved.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from jitgrad.compiler.machine import elf, native
from jitgrad.compiler.machine.cache import KernelCache, compile_under, kernel_cache
from jitgrad.compiler.machine.native import NativeCode
from jitgrad.compiler.machine.stamp import NAME_BYTES, RECORD_BYTES, digest, processor
from jitgrad.config import config
from jitgrad.records import NamedTuple

_NAME = "early"
_FUNCTIONS = ("jitgrad_touch", "jitgrad_look")


class Early(NamedTuple):
    """The functions; ``look`` is None where the system is not asked so."""

    touch: Callable[[int, int, int, int, int], None]
    look: Callable[[bytes, int, Any, int], int] | None


_made: list[Early] = []


def early() -> Early | None:
    """The functions, if they are in memory or, where that needs no LLVM, on disk."""
    if not _made and elf.is_supported():
        code = kernel_cache().get(_key(), _names())
        if code is not None:
            _made.append(_functions(code))
    return _made[0] if _made else None


def have_early() -> Early:
    """The functions, compiled if need be."""
    found = early()
    if found is None:
        found = _functions(compile_under(_key(), _NAME, _text, _names()))
        _made.append(found)
    return found


def begin_early() -> None:
    """Have the functions for later first calls and processes: by a thread in the background, for the one that finds
    nothing has no use for them, and compiling them took 8 ms of it; without a quick start at once.
    """
    cache = kernel_cache()
    if _made or not elf.is_supported() or cache.has(_key()):
        return
    if not config.quick_start:
        have_early()
        return
    from jitgrad.compiler.machine import tiers

    tiers.improver.add([tiers.Task(_text, partial(_enter, cache))])


def _enter(cache: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep what was compiled; no record holds its addresses."""
    cache.put(_key(), native.load_object(object_code, _names()))
    return 0, 0


def _functions(code: NativeCode) -> Early:
    touch = ctypes.CFUNCTYPE(None, *(ctypes.c_int64,) * 4, ctypes.c_int8)(code["jitgrad_touch"])
    if not elf.is_supported():
        return Early(touch, None)
    word, text = ctypes.c_int64, ctypes.c_char_p
    look = ctypes.CFUNCTYPE(word, text, word, text, word)(code["jitgrad_look"])
    return Early(touch, look)


@cache
def _key() -> str:
    return digest(f"{_NAME}\n{_text()}\n{processor()}".encode()).hex()


def _names() -> tuple[str, ...]:
    return _FUNCTIONS if elf.is_supported() else _FUNCTIONS[:1]


def _text() -> str:
    return f"{_TOUCH}{_LOOK if elf.is_supported() else ''}\nattributes #0 = {{ nounwind }}\n"


# What others write into the same memory meanwhile stays: the addition is atomic. The 0 comes from the caller, for LLVM
# may take the addition of a constant 0 for a load.
_TOUCH = """
define void @jitgrad_touch(i64 %place, i64 %end, i64 %step, ptr %is_over, i8 %nothing) #0 {
entry:
  br label %look
look:
  %now = phi i64 [ %place, %entry ], [ %next, %ask ]
  %left = icmp slt i64 %now, %end
  br i1 %left, label %listen, label %done
listen:
  %word = load atomic i64, ptr %is_over monotonic, align 8
  %over = icmp ne i64 %word, 0
  br i1 %over, label %done, label %ask
ask:
  %at = inttoptr i64 %now to ptr
  %was = atomicrmw add ptr %at, i8 %nothing monotonic
  %next = add i64 %now, %step
  br label %look
done:
  ret void
}
"""

# Names begin in the entry's byte 19; a record is 32 bytes and the name with its 0, all as long. The system call statx,
# 332 on x86-64 under Linux, tells size and time of change for 512 + 64: at bytes 40, 112 (seconds) and 120
# (nanoseconds, four bytes).
_LOOK = f"""
declare i64 @syscall(i64, ...) #0
declare i64 @strlen(ptr) #0
declare ptr @opendir(ptr) #0
declare ptr @readdir(ptr) #0
declare i32 @closedir(ptr) #0
declare i32 @dirfd(ptr) #0
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1) #0

define i64 @jitgrad_look(ptr %folders, i64 %count, ptr %found, i64 %room) #0 {{
entry:
  %answer = alloca [32 x i64], align 8
  %size_at = getelementptr i8, ptr %answer, i64 40
  %seconds_at = getelementptr i8, ptr %answer, i64 112
  %nanoseconds_at = getelementptr i8, ptr %answer, i64 120
  br label %next_folder
next_folder:
  %k = phi i64 [ 0, %entry ], [ %k1, %end ]
  %path = phi ptr [ %folders, %entry ], [ %path1, %end ]
  %used0 = phi i64 [ 0, %entry ], [ %used, %end ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %open, label %done
open:
  %folder = call ptr @opendir(ptr %path)
  %missing = icmp eq ptr %folder, null
  br i1 %missing, label %none, label %opened
opened:
  %number32 = call i32 @dirfd(ptr %folder)
  %number = sext i32 %number32 to i64
  br label %entries
entries:
  %used = phi i64 [ %used0, %opened ], [ %used, %entries_more ], [ %used, %suffix ], [ %used2, %note ]
  %entry_at = call ptr @readdir(ptr %folder)
  %last = icmp eq ptr %entry_at, null
  br i1 %last, label %end, label %entries_more
entries_more:
  %name = getelementptr i8, ptr %entry_at, i64 19
  %length = call i64 @strlen(ptr %name)
  %long = icmp sge i64 %length, 3
  br i1 %long, label %suffix, label %entries
suffix:
  %dot = sub i64 %length, 3
  %suffix_at = getelementptr i8, ptr %name, i64 %dot
  %three = load i24, ptr %suffix_at, align 1
  %py = icmp eq i24 %three, {int.from_bytes(b".py", "little")}
  %so = icmp eq i24 %three, {int.from_bytes(b".so", "little")}
  %wanted = or i1 %py, %so
  br i1 %wanted, label %ask, label %entries
ask:
  %r = call i64 (i64, ...) @syscall(i64 332, i64 %number, ptr %name, i64 0, i64 576, ptr %answer)
  %failed = icmp ne i64 %r, 0
  %bytes = add i64 %length, 1
  %unnamed = icmp sgt i64 %bytes, {NAME_BYTES}
  %used2 = add i64 %used, {RECORD_BYTES}
  %full = icmp sgt i64 %used2, %room
  %failed_or_full = or i1 %failed, %full
  %bad = or i1 %failed_or_full, %unnamed
  br i1 %bad, label %give_up, label %note
note:
  %to = getelementptr i8, ptr %found, i64 %used
  %size = load i64, ptr %size_at
  store i64 %size, ptr %to, align 1
  %seconds = load i64, ptr %seconds_at
  %to8 = getelementptr i8, ptr %to, i64 8
  store i64 %seconds, ptr %to8, align 1
  %short = load i32, ptr %nanoseconds_at
  %nanoseconds = zext i32 %short to i64
  %to16 = getelementptr i8, ptr %to, i64 16
  store i64 %nanoseconds, ptr %to16, align 1
  %to24 = getelementptr i8, ptr %to, i64 24
  store i64 %k, ptr %to24, align 1
  %to32 = getelementptr i8, ptr %to, i64 32
  call void @llvm.memcpy.p0.p0.i64(ptr %to32, ptr %name, i64 %bytes, i1 false)
  br label %entries
end:
  %closed = call i32 @closedir(ptr %folder)
  %path_length = call i64 @strlen(ptr %path)
  %beyond = add i64 %path_length, 1
  %path1 = getelementptr i8, ptr %path, i64 %beyond
  %k1 = add i64 %k, 1
  br label %next_folder
give_up:
  %closed1 = call i32 @closedir(ptr %folder)
  br label %none
none:
  ret i64 -1
done:
  ret i64 %used0
}}
"""
