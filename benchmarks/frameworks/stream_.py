"""The limit of memory: reads the bytes of all arguments once and writes those of all gradients, at the rate of this
machine at that size; it computes nothing.

As many bytes as are written are copied, the others read and added up. Stores go through the caches or past them, by one
thread or all, whichever is fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.native import KERNEL, NativeCall, compiled
from benchmarks.workload import Array, Loss, Workload
from jitgrad.compiler.machine.caches import last_level_bytes

LINE = 64
_TRIALS = 7


class Stream:
    """Moves lines of 64 bytes with vector loads and stores."""

    loss_of = "numpy"
    version = np.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        read = max(1, sum(a.nbytes for a in arrays) // LINE)
        written = sum(arrays[k].nbytes for k in workload.argnums) // LINE
        self._bytes = LINE * (read + written)
        source = _lines(max(read, written))
        memory = [source, _lines(max(written, 1)), source[written * LINE // 4 :], _lines(64)]
        calls = list(_variants(read, written, memory))
        seconds = [call.shortest(_TRIALS) for call in calls]
        self._best = min(seconds)
        return calls[seconds.index(self._best)]

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        """Where so many bytes fit, and how many there are."""
        return {"level": _level(self._bytes), "bytes": self._bytes}


def _variants(read: int, written: int, memory: Sequence[Array]) -> list[NativeCall]:
    names = ("copy_through", "copy_past", "read_lines")
    code = compiled("\n".join((_copy("copy_through", ""), _copy("copy_past", _PAST), _READ, _METADATA)), names)
    calls = []
    for copy in names[:2] if written else names[:1]:
        kernels = [(code[copy], written)] * bool(written)
        kernels += [(code["read_lines"], read - written)] * (read > written)
        for threads in (None, 1):
            call = NativeCall(kernels, memory)
            call.threads = threads or call.threads
            calls.append(call)
    return calls


def reading(nbytes: int) -> NativeCall:
    """Reading so many bytes."""
    code = compiled(_READ, ["read_lines"])
    source = _lines(nbytes // LINE)
    return NativeCall([(code["read_lines"], nbytes // LINE)], [source, source, source, _lines(64)])


def _lines(count: int) -> Array:
    """So many lines of ones, aligned."""
    memory = np.ones((count + 1) * (LINE // 4), np.float32)
    return memory[(-memory.ctypes.data % LINE) // 4 :]


def _level(nbytes: int) -> str:
    """The smallest cache, all processors' together, that holds so many bytes; else memory. Of a host's last cache a
    virtual machine has no more than `last_level_bytes` tells.
    """
    sizes: dict[str, int] = {}
    for place in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*"):
        level, kind = ((place / name).read_text().strip() for name in ("level", "type"))
        shared = (place / "shared_cpu_map").read_text()
        if kind != "Instruction":
            told = 1024 * int((place / "size").read_text().strip().rstrip("K"))
            sizes[f"L{level} {shared}"] = min(told, last_level_bytes())
    for level in ("L1", "L2", "L3"):
        if nbytes <= sum(size for name, size in sizes.items() if name.startswith(level)):
            return level
    return "memory"


_PAST = ", !nontemporal !0"
_METADATA = "!0 = !{i32 1}"


def _copy(name: str, hint: str) -> str:
    return f"""
define void @{name}({KERNEL}) nounwind {{
entry:
  %source = load ptr, ptr %table
  %p1 = getelementptr ptr, ptr %table, i64 1
  %target = load ptr, ptr %p1
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %a = getelementptr <16 x float>, ptr %source, i64 %i
  %v = load <16 x float>, ptr %a, align 64
  %b = getelementptr <16 x float>, ptr %target, i64 %i
  store <16 x float> %v, ptr %b, align 64{hint}
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""


# Four sums, so that adding takes no longer than reading.
_READ = f"""
define void @read_lines({KERNEL}) nounwind {{
entry:
  %p2 = getelementptr ptr, ptr %table, i64 2
  %source = load ptr, ptr %p2
  %p3 = getelementptr ptr, ptr %table, i64 3
  %sink = load ptr, ptr %p3
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i4, %body ]
  %s0 = phi <16 x float> [ zeroinitializer, %entry ], [ %t0, %body ]
  %s1 = phi <16 x float> [ zeroinitializer, %entry ], [ %t1, %body ]
  %s2 = phi <16 x float> [ zeroinitializer, %entry ], [ %t2, %body ]
  %s3 = phi <16 x float> [ zeroinitializer, %entry ], [ %t3, %body ]
  %i4 = add i64 %i, 4
  %more = icmp sle i64 %i4, %hi
  br i1 %more, label %body, label %done
body:
  %a0 = getelementptr <16 x float>, ptr %source, i64 %i
  %a1 = getelementptr <16 x float>, ptr %a0, i64 1
  %a2 = getelementptr <16 x float>, ptr %a0, i64 2
  %a3 = getelementptr <16 x float>, ptr %a0, i64 3
  %v0 = load <16 x float>, ptr %a0, align 64
  %v1 = load <16 x float>, ptr %a1, align 64
  %v2 = load <16 x float>, ptr %a2, align 64
  %v3 = load <16 x float>, ptr %a3, align 64
  %t0 = fadd <16 x float> %s0, %v0
  %t1 = fadd <16 x float> %s1, %v1
  %t2 = fadd <16 x float> %s2, %v2
  %t3 = fadd <16 x float> %s3, %v3
  br label %head
done:
  %u = fadd <16 x float> %s0, %s1
  %w = fadd <16 x float> %s2, %s3
  %sum = fadd <16 x float> %u, %w
  %b = getelementptr <16 x float>, ptr %sink, i64 %chunk
  store <16 x float> %sum, ptr %b, align 64
  ret void
}}
"""


def framework() -> Stream:
    return Stream()
