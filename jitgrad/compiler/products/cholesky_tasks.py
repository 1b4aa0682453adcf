"""What a task of our own factorization of a positive definite matrix, or of its gradient, does with a tile, as LLVM IR
text; the steps that take tasks are elsewhere (cholesky_code.py), as are the blocks that tiles are made of
(cholesky_tiles.py).

    void factor_task(ptr block, i64 j, i64 panel)                        a tile of the j-th row of blocks of U
    void gradient_task(ptr block, i64 j, i64 panel, i64 first_panel)     the same of S
    void await(ptr flags, i64 task), void tell(ptr flags, i64 task)      until a task is over; that it is
"""

from __future__ import annotations

import sys

from jitgrad.compiler.products.cholesky_steps import BLOCK, LINE, WIDE
from jitgrad.compiler.products.cholesky_tiles import diagonal_elements, turn_block_ir
from jitgrad.compiler.products.registers import Numbers, at_ir, loop_ir, min_ir, word_ir

_PATIENCE = 50_000  # looks, some 70 us: who yields beside busy processes may not run for milliseconds
_POINTERS = ("source", "factor", "work", "result", "diagonals", "flags", "claims")


def block_words_ir() -> str:
    """All words of the block."""
    words = ((name, word_ir(name, BLOCK)) for name in BLOCK)
    return "\n".join(text.replace("load i64", "load ptr") if name in _POINTERS else text for name, text in words)


def block_at_ir(kind: Numbers, name: str, base: str, row: str, column: str, ld: str = "%ld") -> str:
    """The address of a block."""
    return f"""  %{name}_row = mul i64 {row}, {kind.lanes}
  %{name}_column = mul i64 {column}, {kind.lanes}
  %{name}_down = mul i64 %{name}_row, {ld}
  %{name}_place = add i64 %{name}_down, %{name}_column
{at_ir(name, kind, base, f"%{name}_place")}"""


def diagonal_at_ir(kind: Numbers, row: str) -> str:
    """The address of a block on the diagonal."""
    return f"""  %d_place = mul i64 {row}, {diagonal_elements(kind)}
{at_ir("d", kind, "%diagonals", "%d_place")}"""


def waiting_ir() -> str:
    """A task is over when its flag is set; who has waited long lets others run."""
    can_yield = sys.platform != "win32"
    declared = "declare i32 @sched_yield() #0" if can_yield else ""
    yields = "  %r = call i32 @sched_yield()" if can_yield else ""
    return f"""
{declared}
define internal void @await(ptr %flags, i64 %task) noinline #0 {{
entry:
  %at = getelementptr i32, ptr %flags, i64 %task
  br label %look
look:
  %k = phi i32 [ 0, %entry ], [ %k1, %again ]
  %flag = load atomic i32, ptr %at acquire, align 4
  %over = icmp ne i32 %flag, 0
  br i1 %over, label %done, label %next
next:
  %k1 = add i32 %k, 1
  %long = icmp ugt i32 %k1, {_PATIENCE}
  br i1 %long, label %yield, label %again
yield:
{yields}
  br label %again
again:
  br label %look
done:
  ret void
}}

define internal void @tell(ptr %flags, i64 %task) #0 {{
  %at = getelementptr i32, ptr %flags, i64 %task
  store atomic i32 1, ptr %at release, align 4
  ret void
}}"""


def helpers_ir(kind: Numbers) -> str:
    """A sum of one to three blocks; blocks above the diagonal turned to their places below it."""
    n = kind.lanes
    cases = "\n".join(f"    i64 {wide}, label %w{wide}" for wide in range(1, WIDE + 1))
    calls = "\n".join(
        f"""w{wide}:
  call void @sum_{wide}(ptr %p, i64 %ldp, ptr %q, i64 %ldq, i64 %k, ptr %t, i64 %ldt)
  br label %done"""
        for wide in range(1, WIDE + 1)
    )
    body = f"""
  %across = mul i64 %c, {n}
{at_ir("from", kind, "%t", "%across")}
  %down = mul i64 %across, %ld
{at_ir("to", kind, "%mirrored", "%down")}
{turn_block_ir(kind, "%from", "%ld", "%to", "%ld")}"""
    return f"""
define internal void @sum(ptr %p, i64 %ldp, ptr %q, i64 %ldq, i64 %k, ptr %t, i64 %ldt, i64 %wide) #0 {{
  switch i64 %wide, label %done [
{cases}
  ]
{calls}
done:
  ret void
}}

; `mirrored` is where the first of the blocks at `t` comes.
define internal void @mirror(ptr %t, ptr %mirrored, i64 %ld, i64 %count) #0 {{
{loop_ir("c", "%count", "1", body)}
  ret void
}}"""


def _task_start(kind: Numbers, first: str) -> str:
    """What a tile is: its blocks, from `first`, its flag, and those of the row."""
    return f"""{block_words_ir()}
  %stride = add i64 %panels, 1
  %row_flag = mul i64 %j, %stride
  %flag = add i64 %row_flag, %panel
  %start = mul i64 %panel, {WIDE}
  %stop = add i64 %start, {WIDE}
{min_ir("end", "%stop", "%blocks")}
  %inside = icmp sgt i64 {first}, %start
  %c = select i1 %inside, i64 {first}, i64 %start
  %wide = sub i64 %end, %c
{diagonal_at_ir(kind, "%j")}
{block_at_ir(kind, "t", "%work", "%j", "%c")}
{block_at_ir(kind, "mirrored", "%work", "%c", "%j")}"""


def factor_task_ir(kind: Numbers) -> str:
    """A tile of U. The one on the diagonal factors its first block, for which all others of the row wait when they have
    their sums.
    """
    return f"""
define internal void @factor_task(ptr %block, i64 %j, i64 %panel) noinline #0 {{
entry:
{_task_start(kind, "%j")}
  %first_panel = udiv i64 %j, {WIDE}
  %is_first = icmp eq i64 %panel, %first_panel
  %first_flag = add i64 %row_flag, %first_panel
{_factor_sum(kind)}
summed:
  br i1 %is_first, label %first, label %other
{_factor_first(kind)}
other:
  call void @await(ptr %flags, i64 %first_flag)
  br label %solve
solve:
  %t_at = phi ptr [ %t_rest, %rest ], [ %t, %other ]
  %to = phi ptr [ %mirrored_rest, %rest ], [ %mirrored, %other ]
  %count = phi i64 [ %wide_rest, %rest ], [ %wide, %other ]
  call void @forward(ptr %d, ptr %t_at, i64 %ld, i64 %count)
  call void @mirror(ptr %t_at, ptr %to, i64 %ld, i64 %count)
  call void @tell(ptr %flags, i64 %flag)
  ret void
}}"""


def _factor_sum(kind: Numbers) -> str:
    """Takes from the tile what the rows above it say, when those above it and above the row's first tile are made."""
    return f"""  %top = icmp eq i64 %j, 0
  br i1 %top, label %summed, label %after_others
after_others:
  %above = sub i64 %flag, %stride
  call void @await(ptr %flags, i64 %above)
  %above_first = sub i64 %first_flag, %stride
  call void @await(ptr %flags, i64 %above_first)
  br label %add
add:
{block_at_ir(kind, "p", "%work", "0", "%j")}
{block_at_ir(kind, "q", "%work", "0", "%c")}
  call void @sum(ptr %p, i64 %ld, ptr %q, i64 %ld, i64 %t_row, ptr %t, i64 %ld, i64 %wide)
  br label %summed"""


def _factor_first(kind: Numbers) -> str:
    """Factors the block on the diagonal; the rest of its tile is what is beside it."""
    n = kind.lanes
    return f"""first:
  %bad = call i1 @factor(ptr %t, i64 %ld, ptr %d)
  br i1 %bad, label %fail, label %rest
fail:
  %status = getelementptr i8, ptr %claims, i64 {LINE}
  store i64 1, ptr %status
  br label %rest
rest:
{turn_block_ir(kind, "%d", str(n), "%t", "%ld")}
{at_ir("t_rest", kind, "%t", str(n))}
  %n_down = mul i64 %ld, {n}
{at_ir("mirrored_rest", kind, "%mirrored", "%n_down")}
  %wide_rest = sub i64 %wide, 1
  br label %solve"""


def gradient_task_ir(kind: Numbers) -> str:
    """A tile of S, or the block on the diagonal, behind all tiles of its row. A tile needs the row below it, and of the
    rows that it meets on the diagonal all: what lies below that is theirs, turned.
    """
    return f"""
define internal void @gradient_task(ptr %block, i64 %j, i64 %panel, i64 %first_panel) noinline #0 {{
entry:
  %j1 = add i64 %j, 1
{_task_start(kind, "%j1")}
{block_at_ir(kind, "p", "%factor", "%j1", "%j", "%n")}
  %k = sub i64 %n, %p_row
  %is_end = icmp eq i64 %panel, %panels
  br i1 %is_end, label %diagonal, label %tile
{_gradient_tile(kind)}
{_gradient_diagonal(kind)}
over:
  call void @tell(ptr %flags, i64 %flag)
  ret void
}}"""


def _gradient_tile(kind: Numbers) -> str:
    """A tile of S, where its row has blocks beside the diagonal."""
    return f"""tile:
  %none = icmp slt i64 %wide, 1
  br i1 %none, label %over, label %wait
wait:
  %met_row = mul i64 %c, %stride
  %met = add i64 %met_row, %panels
  call void @await(ptr %flags, i64 %met)
  %is_next = icmp eq i64 %c, %j1
  br i1 %is_next, label %add, label %wait_below
wait_below:
  %below = add i64 %flag, %stride
  call void @await(ptr %flags, i64 %below)
  br label %add
add:
{block_at_ir(kind, "q", "%work", "%j1", "%c")}
  call void @sum(ptr %p, i64 %n, ptr %q, i64 %ld, i64 %k, ptr %t, i64 %ld, i64 %wide)
  call void @backward(ptr %d, ptr %t, i64 %ld, i64 %wide)
  call void @mirror(ptr %t, ptr %mirrored, i64 %ld, i64 %wide)
  br label %over"""


def _gradient_diagonal(kind: Numbers) -> str:
    """The block on the diagonal, when all tiles of the row are made."""
    return f"""diagonal:
  br label %look
look:
  %f = phi i64 [ %first_panel, %diagonal ], [ %f1, %ask ]
  %more = icmp slt i64 %f, %panels
  br i1 %more, label %ask, label %ready
ask:
  %asked = add i64 %row_flag, %f
  call void @await(ptr %flags, i64 %asked)
  %f1 = add i64 %f, 1
  br label %look
ready:
{block_at_ir(kind, "own", "%work", "%j", "%j")}
{block_at_ir(kind, "below_own", "%work", "%j1", "%j")}
  call void @sum_1(ptr %p, i64 %n, ptr %below_own, i64 %ld, i64 %k, ptr %own, i64 %ld)
  call void @reverse(ptr %d, ptr %own, i64 %ld)
  br label %over"""
