"""Small kernels as LLVM IR text, and steps made of them, for the tests of the native runtime."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jitgrad.compiler.driver.runtime import StepRecord, pack_steps
from jitgrad.compiler.machine import native

_KERNEL = "ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker"

# table[0][i] += 1 for lo <= i < hi; table[1][chunk] = lo, table[2][chunk] = hi, table[3][chunk] = worker
COUNT = f"""
define void @NAME({_KERNEL}) nounwind {{
entry:
  %p = load ptr, ptr %table
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %q = getelementptr i64, ptr %p, i64 %i
  %v = load i64, ptr %q
  %v1 = add i64 %v, 1
  store i64 %v1, ptr %q
  %i1 = add i64 %i, 1
  br label %head
done:
  %t1 = getelementptr ptr, ptr %table, i64 1
  %los = load ptr, ptr %t1
  %lo_at = getelementptr i64, ptr %los, i64 %chunk
  store i64 %lo, ptr %lo_at
  %t2 = getelementptr ptr, ptr %table, i64 2
  %his = load ptr, ptr %t2
  %hi_at = getelementptr i64, ptr %his, i64 %chunk
  store i64 %hi, ptr %hi_at
  %t3 = getelementptr ptr, ptr %table, i64 3
  %workers = load ptr, ptr %t3
  %worker_at = getelementptr i64, ptr %workers, i64 %chunk
  store i64 %worker, ptr %worker_at
  ret void
}}
"""

# table[0][chunk] = the result of a long recurrence that depends on the chunk: work without memory
SPIN = f"""
define void @NAME({_KERNEL}) nounwind {{
entry:
  %p = load ptr, ptr %table
  %start = sitofp i64 %chunk to double
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i1, %body ]
  %a = phi double [ %start, %entry ], [ %a2, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  %a1 = fmul double %a, 0.75
  %a2 = fadd double %a1, 0.5
  %i1 = add i64 %i, 1
  br label %head
done:
  %q = getelementptr double, ptr %p, i64 %chunk
  store double %a, ptr %q
  ret void
}}
"""

# table[0][chunk] = threads
LIMIT = f"""
define void @NAME({_KERNEL}, i32 %threads) nounwind {{
  %p = load ptr, ptr %table
  %q = getelementptr i64, ptr %p, i64 %chunk
  %v = zext i32 %threads to i64
  store i64 %v, ptr %q
  ret void
}}
"""

# calls run(block[1], block[2], 1, null, threads) by the address in block[0], once per index
NEST = f"""
define void @NAME({_KERNEL}, i32 %threads) nounwind {{
entry:
  %run = load ptr, ptr %block
  %b1 = getelementptr ptr, ptr %block, i64 1
  %inner_table = load ptr, ptr %b1
  %b2 = getelementptr ptr, ptr %block, i64 2
  %inner_steps = load ptr, ptr %b2
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i1, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
  call void %run(ptr %inner_table, ptr %inner_steps, i64 1, ptr null, i32 %threads)
  %i1 = add i64 %i, 1
  br label %head
done:
  ret void
}}
"""

_numbers = itertools.count()


def unique(text: str) -> tuple[str, str]:
    """The text with a function name of its own, and that name."""
    name = f"test_kernel_{next(_numbers)}"
    return text.replace("NAME", name), name


def compiled(text: str) -> int:
    """The address of a kernel."""
    module, name = unique(text)
    return native.compile_module(module, [name])[name]


class Call:
    """The memory of one call: buffers, table, blocks and step records, kept alive together."""

    def __init__(self, buffers: Sequence[NDArray[Any]], steps: Sequence[tuple[int, Sequence[int], int, int]]):
        self.buffers = list(buffers)
        self.table = np.array([buffer.ctypes.data for buffer in buffers], np.int64)
        self.blocks = [np.array(block or [0], np.int64) for _, block, _, _ in steps]
        records = [
            StepRecord(function, block.ctypes.data, extent, nchunks)
            for (function, _, extent, nchunks), block in zip(steps, self.blocks, strict=True)
        ]
        self.steps = pack_steps(records)
        self.arguments = (self.table.ctypes.data, self.steps.ctypes.data, len(records))
