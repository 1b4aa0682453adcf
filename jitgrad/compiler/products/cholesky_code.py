"""Our own factorization of a positive definite matrix, and its gradient, as LLVM IR text: which tiles are made when,
and by whom; the tiles are elsewhere (cholesky_tiles.py), as are the memory and the call (compiler/cholesky.py).

A = Uᵀ U is made row of blocks by row of blocks, from the first on, the cotangent S of A by that of U from the last:

    U[j, c] = inv(U[j, j]ᵀ) (A[j, c] - sum over k < j of U[k, j]ᵀ U[k, c])
    S[j, c] = inv(U[j, j]) (Ū[j, c] - sum over k > j of U[j, k] S[k, c])        c > j

which takes n³/3 and 2 n³/3 operations. The working matrix has whole blocks, with ones on the diagonal behind the last
element, rows an odd number of lines apart, and both triangles: what is above the diagonal, transposed, is below it.

Tiles are tasks in one order, which threads take one after another. A thread waits for the tasks that its own one needs:
they come before it in the order, so those who have taken them are at work, and no number of threads can stop. What a
task does depends on the sizes alone, so the bits are the same for any number of threads.
"""

from __future__ import annotations

import sys

from jitgrad.compiler.products.cholesky_steps import BLOCK, LINE, PREFIXES, STEPS, WIDE
from jitgrad.compiler.products.cholesky_tiles import cholesky_tiles_ir, diagonal_elements, turn_block_ir
from jitgrad.compiler.products.gemv_pieces import KERNEL
from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    store_ir,
    word_ir,
)

_PATIENCE = 50_000  # looks, some 70 us: who yields beside busy processes may not run for milliseconds


def cholesky_ir(kind: Numbers) -> str:
    """The module with the steps of both."""
    parts = [declarations_ir(kind), cholesky_tiles_ir(kind), _waiting(), _helpers(kind)]
    for prefix, is_gradient in zip(PREFIXES, (False, True), strict=True):
        parts += [
            _fill(kind, prefix, is_gradient),
            _tasks(prefix, is_gradient),
            _gradient_task(kind) if is_gradient else _factor_task(kind),
            _finish(kind, prefix, is_gradient),
        ]
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\n"


_POINTERS = ("source", "factor", "work", "result", "diagonals", "flags", "claims")


def _words() -> str:
    """All words of the block."""
    words = ((name, word_ir(name, BLOCK)) for name in BLOCK)
    return "\n".join(text.replace("load i64", "load ptr") if name in _POINTERS else text for name, text in words)


def _waiting() -> str:
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


def _helpers(kind: Numbers) -> str:
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


def _block_at(kind: Numbers, name: str, base: str, row: str, column: str, ld: str = "%ld") -> str:
    """The address of a block."""
    return f"""  %{name}_row = mul i64 {row}, {kind.lanes}
  %{name}_column = mul i64 {column}, {kind.lanes}
  %{name}_down = mul i64 %{name}_row, {ld}
  %{name}_place = add i64 %{name}_down, %{name}_column
{at_ir(name, kind, base, f"%{name}_place")}"""


def _diagonal_at(kind: Numbers, row: str) -> str:
    return f"""  %d_place = mul i64 {row}, {diagonal_elements(kind)}
{at_ir("d", kind, "%diagonals", "%d_place")}"""


def _fill(kind: Numbers, prefix: str, is_gradient: bool) -> str:
    """Rows of blocks of the working matrix from the source's lower triangle, flags that nobody has set; and, where the
    factor is given, its blocks on the diagonal.
    """
    fetch = f"""
{_block_at(kind, "from", "%source", "%c", "%j", "%n")}
{_block_at(kind, "to", "%work", "%j", "%c")}
  %height = sub i64 %n, %from_row
  %end = sub i64 %n, %from_column
  call void @turn_{kind.type}(ptr %from, i64 %n, i64 %height, i64 0, i64 %end, i64 0, ptr %to, i64 %ld)"""
    body = f"""
{loop_ir("c", "%blocks", "1", fetch, "%j")}
{_block_at(kind, "own", "%work", "%j", "%j")}
  %left = sub i64 %n, %own_row
{_diagonal(kind) if is_gradient else _ones(kind)}
  %stride = add i64 %panels, 1
  %first_flag = mul i64 %j, %stride
  %last_flag = add i64 %first_flag, %stride
{loop_ir("f", "%last_flag", "1", _clear_flag(), "%first_flag")}"""
    return f"""
define void @{prefix}_{STEPS[0]}({KERNEL}) #0 {{
{_words()}
{loop_ir("j", "%hi", "1", body, "%lo")}
  ret void
}}"""


def _clear_flag() -> str:
    return """  %flag_at = getelementptr i32, ptr %flags, i64 %f
  store i32 0, ptr %flag_at"""


def _ones(kind: Numbers) -> str:
    """On the diagonal behind the last element."""
    one = f"""  %down = mul i64 %r, %ld
  %place = add i64 %down, %r
{at_ir("one", kind, "%own", "%place")}
  store {kind.type} 1.0, ptr %one"""
    return loop_ir("r", str(kind.lanes), "1", one, "%left")


def _diagonal(kind: Numbers) -> str:
    """A block of U from one of the lower factor, ones behind its last element, and one over its diagonal."""
    n = kind.lanes
    each = f"""{mask_ir("lower", kind, "%r")}
  %u_place = mul i64 %r, {n}
{at_ir("u_row", kind, "%d", "%u_place")}
  %all = load {kind.vector}, ptr %u_row, align {kind.size}
  %upper = select {kind.mask} %lower, {kind.vector} zeroinitializer, {kind.vector} %all
  store {kind.vector} %upper, ptr %u_row, align {kind.size}
  %beyond = icmp sge i64 %r, %left
  %diagonal_place = mul i64 %r, {n + 1}
{at_ir("element_at", kind, "%d", "%diagonal_place")}
  %element = load {kind.type}, ptr %element_at
  %inside = select i1 %beyond, {kind.type} 1.0, {kind.type} %element
  store {kind.type} %inside, ptr %element_at
  %inverse = fdiv {kind.type} 1.0, %inside
  %inverse_place = add i64 %r, {n * n}
{at_ir("inverse_at", kind, "%d", "%inverse_place")}
  store {kind.type} %inverse, ptr %inverse_at"""
    return f"""{_diagonal_at(kind, "%j")}
{_block_at(kind, "given", "%factor", "%j", "%j", "%n")}
  call void @turn_{kind.type}(ptr %given, i64 %n, i64 %left, i64 0, i64 %left, i64 0, ptr %d, i64 {n})
{loop_ir("r", str(n), "1", each)}"""


_FACTOR_ROW = f"""\
  %first = udiv i64 %j, {WIDE}
  %count = sub i64 %panels, %first"""
_FACTOR_CALL = """\
  %panel = add i64 %first, %number
  call void @factor_task(ptr %block, i64 %j, i64 %panel)"""
_GRADIENT_ROW = f"""\
  %row = sub i64 %last_block, %j
  %from = add i64 %row, 1
  %first = udiv i64 %from, {WIDE}
  %tiles = sub i64 %panels, %first
  %count = add i64 %tiles, 1"""
_GRADIENT_CALL = """\
  %back = sub i64 %panels, %number
  %is_last = icmp eq i64 %number, %tiles
  %before = sub i64 %back, 1
  %panel = select i1 %is_last, i64 %panels, i64 %before
  call void @gradient_task(ptr %block, i64 %row, i64 %panel, i64 %first)"""
"""The first panel of the j-th row in the order, and how many tasks it has; the task of a number in it. The gradient's
last one of a row, behind all panels, is the block on the diagonal.
"""


def _tasks(prefix: str, is_gradient: bool) -> str:
    """Takes tasks until there are none left: row by row, of the factor each row's block on the diagonal first; of the
    gradient the last row first, and of each the panels from the right to the diagonal.
    """
    return f"""
define void @{prefix}_{STEPS[1]}({KERNEL}) #0 {{
entry:
{_words()}
  %last_block = sub i64 %blocks, 1
  br label %take
take:
  %j_seen = phi i64 [ 0, %entry ], [ %j, %run ]
  %base_seen = phi i64 [ 0, %entry ], [ %base, %run ]
  %taken32 = atomicrmw add ptr %claims, i32 1 monotonic
  %taken = zext i32 %taken32 to i64
  br label %seek
seek:
  %j = phi i64 [ %j_seen, %take ], [ %j1, %further ]
  %base = phi i64 [ %base_seen, %take ], [ %base1, %further ]
  %more = icmp slt i64 %j, %blocks
  br i1 %more, label %look, label %done
look:
{_GRADIENT_ROW if is_gradient else _FACTOR_ROW}
  %number = sub i64 %taken, %base
  %here = icmp slt i64 %number, %count
  br i1 %here, label %run, label %further
further:
  %j1 = add i64 %j, 1
  %base1 = add i64 %base, %count
  br label %seek
run:
{_GRADIENT_CALL if is_gradient else _FACTOR_CALL}
  br label %take
done:
  ret void
}}"""


def _task_start(kind: Numbers, first: str) -> str:
    """What a tile is: its blocks, from `first`, its flag, and those of the row."""
    return f"""{_words()}
  %stride = add i64 %panels, 1
  %row_flag = mul i64 %j, %stride
  %flag = add i64 %row_flag, %panel
  %start = mul i64 %panel, {WIDE}
  %stop = add i64 %start, {WIDE}
{min_ir("end", "%stop", "%blocks")}
  %inside = icmp sgt i64 {first}, %start
  %c = select i1 %inside, i64 {first}, i64 %start
  %wide = sub i64 %end, %c
{_diagonal_at(kind, "%j")}
{_block_at(kind, "t", "%work", "%j", "%c")}
{_block_at(kind, "mirrored", "%work", "%c", "%j")}"""


def _factor_task(kind: Numbers) -> str:
    """A tile of U. The one on the diagonal factors its first block, for which all others of the row wait when they have
    their sums.
    """
    n = kind.lanes
    return f"""
define internal void @factor_task(ptr %block, i64 %j, i64 %panel) noinline #0 {{
entry:
{_task_start(kind, "%j")}
  %first_panel = udiv i64 %j, {WIDE}
  %is_first = icmp eq i64 %panel, %first_panel
  %first_flag = add i64 %row_flag, %first_panel
  %top = icmp eq i64 %j, 0
  br i1 %top, label %summed, label %after_others
after_others:
  %above = sub i64 %flag, %stride
  call void @await(ptr %flags, i64 %above)
  %above_first = sub i64 %first_flag, %stride
  call void @await(ptr %flags, i64 %above_first)
  br label %add
add:
{_block_at(kind, "p", "%work", "0", "%j")}
{_block_at(kind, "q", "%work", "0", "%c")}
  call void @sum(ptr %p, i64 %ld, ptr %q, i64 %ld, i64 %t_row, ptr %t, i64 %ld, i64 %wide)
  br label %summed
summed:
  br i1 %is_first, label %first, label %other
first:
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
  br label %solve
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


def _gradient_task(kind: Numbers) -> str:
    """A tile of S, or the block on the diagonal, behind all tiles of its row. A tile needs the row below it, and of the
    rows that it meets on the diagonal all: what lies below that is theirs, turned.
    """
    return f"""
define internal void @gradient_task(ptr %block, i64 %j, i64 %panel, i64 %first_panel) noinline #0 {{
entry:
  %j1 = add i64 %j, 1
{_task_start(kind, "%j1")}
{_block_at(kind, "p", "%factor", "%j1", "%j", "%n")}
  %k = sub i64 %n, %p_row
  %is_end = icmp eq i64 %panel, %panels
  br i1 %is_end, label %diagonal, label %tile
tile:
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
{_block_at(kind, "q", "%work", "%j1", "%c")}
  call void @sum(ptr %p, i64 %n, ptr %q, i64 %ld, i64 %k, ptr %t, i64 %ld, i64 %wide)
  call void @backward(ptr %d, ptr %t, i64 %ld, i64 %wide)
  call void @mirror(ptr %t, ptr %mirrored, i64 %ld, i64 %wide)
  br label %over
diagonal:
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
{_block_at(kind, "own", "%work", "%j", "%j")}
{_block_at(kind, "below_own", "%work", "%j1", "%j")}
  call void @sum_1(ptr %p, i64 %n, ptr %below_own, i64 %ld, i64 %k, ptr %own, i64 %ld)
  call void @reverse(ptr %d, ptr %own, i64 %ld)
  br label %over
over:
  call void @tell(ptr %flags, i64 %flag)
  ret void
}}"""


def _finish(kind: Numbers, prefix: str, is_gradient: bool) -> str:
    """Rows of the result: of the lower factor with zeros behind the diagonal, or of S, halved."""
    end = "%n" if is_gradient else "%row_end"
    scale = "0.5" if is_gradient else "1.0"
    columns = f"""
  %left = sub i64 {end}, %c
  %room = sub i64 %n, %c
{mask_ir("given", kind, "%left")}
{mask_ir("whole", kind, "%room")}
{at_ir("from", kind, "%row_from", "%c")}
{at_ir("to", kind, "%row_to", "%c")}
{load_ir("x", kind, "%from", "%given")}
  %y = fmul {kind.vector} %x, splat ({kind.type} {scale})
{store_ir(kind, "%y", "%to", "%whole")}"""
    body = f"""
  %row_end = add i64 %i, 1
  %from_down = mul i64 %i, %ld
  %to_down = mul i64 %i, %n
{at_ir("row_from", kind, "%work", "%from_down")}
{at_ir("row_to", kind, "%result", "%to_down")}
{loop_ir("c", "%n", str(kind.lanes), columns)}"""
    return f"""
define void @{prefix}_{STEPS[2]}({KERNEL}) #0 {{
{_words()}
{loop_ir("i", "%hi", "1", body, "%lo")}
  ret void
}}"""
