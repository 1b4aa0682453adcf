"""What a task of our own factorization of a positive definite matrix, or of its gradient, does with a tile, as LLVM IR
text; the steps that take tasks are elsewhere (cholesky_code.py), as are the blocks that tiles are made of
(cholesky_tiles.py).

    void factor_task(ptr block, i64 j, i64 panel, i64 first_panel)       a tile of the j-th row of blocks of U
    void gradient_task(ptr block, i64 j, i64 panel, i64 first_panel)     the same of S
    i1 take(ptr block, i64 j, i64 panel)                                 takes a task, unless somebody has
    void await(ptr flags, i64 task), void tell(ptr flags, i64 task)      until a task is over; that it is

A tile takes its blocks of the source itself: what it works on is in the cache of the thread that does.
"""

from __future__ import annotations

import sys

from jitgrad.compiler.products.cholesky_steps import WIDE, WORDS
from jitgrad.compiler.products.cholesky_tiles import diagonal_elements, turn_block_ir
from jitgrad.compiler.products.registers import Numbers, at_ir, loop_ir, mask_ir, min_ir, store_ir, word_ir
from jitgrad.compiler.products.transposes import turned_ir

_PATIENCE = 50_000  # looks, some 70 us: who yields beside busy processes may not run for milliseconds
_OVER = 2
_POINTERS = ("source", "factor", "work", "kept", "result", "diagonals", "flags", "status")


def block_words_ir() -> str:
    """All words of a call."""
    words = ((name, word_ir(name, WORDS)) for name in WORDS)
    return "\n".join(text.replace("load i64", "load ptr") if name in _POINTERS else text for name, text in words)


def block_at_ir(kind: Numbers, name: str, base: str, row: str, column: str) -> str:
    """The address of a block in columns of blocks."""
    return f"""  %{name}_across = mul i64 {column}, %column
  %{name}_down = mul i64 {row}, {kind.lanes**2}
  %{name}_place = add i64 %{name}_across, %{name}_down
{at_ir(name, kind, base, f"%{name}_place")}"""


def given_at_ir(kind: Numbers, name: str, base: str, row: str, column: str) -> str:
    """The address of a block in rows of n, and how many rows and columns there are from it on."""
    return f"""  %{name}_row = mul i64 {row}, {kind.lanes}
  %{name}_column = mul i64 {column}, {kind.lanes}
  %{name}_before = mul i64 %{name}_row, %n
  %{name}_place = add i64 %{name}_before, %{name}_column
{at_ir(name, kind, base, f"%{name}_place")}
  %{name}_height = sub i64 %n, %{name}_row
  %{name}_width = sub i64 %n, %{name}_column"""


def diagonal_at_ir(kind: Numbers, row: str) -> str:
    """The address of a block on the diagonal."""
    return f"""  %d_place = mul i64 {row}, {diagonal_elements(kind)}
{at_ir("d", kind, "%diagonals", "%d_place")}"""


def waiting_ir() -> str:
    """Flags of tasks: 0, 1 when one is taken, 2 when it is over."""
    return "\n".join((_await(), _take(), _TELL))


def _await() -> str:
    """Looks until a task is over. Who has looked for long lets others run, where the system has a call for that."""
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
  %over = icmp eq i32 %flag, {_OVER}
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
}}"""


def _take() -> str:
    """Looks before it asks: a line that is only read stays in the caches of all."""
    return f"""
define internal i1 @take(ptr %block, i64 %j, i64 %panel) noinline #0 {{
{block_words_ir()}
  %stride = add i64 %panels, 1
  %row_flag = mul i64 %j, %stride
  %flag = add i64 %row_flag, %panel
  %at = getelementptr i32, ptr %flags, i64 %flag
  %seen = load atomic i32, ptr %at monotonic, align 4
  %free = icmp eq i32 %seen, 0
  br i1 %free, label %ask, label %taken
ask:
  %pair = cmpxchg ptr %at, i32 0, i32 1 monotonic monotonic
  %mine = extractvalue {{ i32, i1 }} %pair, 1
  ret i1 %mine
taken:
  ret i1 false
}}"""


_TELL = f"""
define internal void @tell(ptr %flags, i64 %task) #0 {{
  %at = getelementptr i32, ptr %flags, i64 %task
  store atomic i32 {_OVER}, ptr %at release, align 4
  ret void
}}"""


def helpers_ir(kind: Numbers) -> str:
    """Blocks of the source, sums of one to three, blocks turned to their places below the diagonal, and stored."""
    return "\n".join((_fetch(kind), _sums(""), _sums("_turned"), _mirror(kind), _put(kind, True), _put(kind, False)))


def _fetch(kind: Numbers) -> str:
    """Blocks of a row from the lower triangle of a matrix."""
    body = f"""
{given_at_ir(kind, "from", "%given", "%b", "%j")}
{block_at_ir(kind, "to", "%made", "%j", "%b")}
  %from_least_less = icmp slt i64 %from_height, %from_width
  %from_least = select i1 %from_least_less, i64 %from_height, i64 %from_width
  %is_whole = icmp sge i64 %from_least, {kind.lanes}
  br i1 %is_whole, label %whole, label %part
whole:
  call void @turn_whole(ptr %from, i64 %n, ptr %to)
  br label %fetched
part:
  call void @turn_{kind.type}(ptr %from, i64 %n, i64 %from_height, i64 0, i64 %from_width, i64 0, ptr %to,
    i64 {kind.lanes})
  br label %fetched
fetched:"""
    return f"""
define internal void @fetch(ptr %block, ptr %given, ptr %made, i64 %j, i64 %c, i64 %end) noinline #0 {{
{block_words_ir()}
{loop_ir("b", "%end", "1", body, "%c")}
  ret void
}}"""


def _sums(turned: str) -> str:
    cases = "\n".join(f"    i64 {wide}, label %w{wide}" for wide in range(1, WIDE + 1))
    calls = "\n".join(
        f"""w{wide}:
  call void @sum{turned}_{wide}(ptr %p, ptr %q, i64 %k, ptr %t, i64 %column)
  br label %done"""
        for wide in range(1, WIDE + 1)
    )
    return f"""
define internal void @sum{turned}(ptr %p, ptr %q, i64 %k, ptr %t, i64 %column, i64 %wide) #0 {{
  switch i64 %wide, label %done [
{cases}
  ]
{calls}
done:
  ret void
}}"""


def _mirror(kind: Numbers) -> str:
    body = f"""
  %across = mul i64 %c, %column
{at_ir("from", kind, "%t", "%across")}
  %down = mul i64 %c, {kind.lanes**2}
{at_ir("to", kind, "%mirrored", "%down")}
{turn_block_ir(kind, "%from", "%to")}"""
    return f"""
; `mirrored` is where the first of the blocks at `t` comes.
define internal void @mirror(ptr %t, ptr %mirrored, i64 %column, i64 %count) #0 {{
{loop_ir("c", "%count", "1", body)}
  ret void
}}"""


def _put(kind: Numbers, is_turned: bool) -> str:
    """A block, transposed, or halved, to rows of n; of it so many rows and columns are there.

    Nothing is stored to rows behind the last one, but their addresses are those of the first: masked accesses to pages
    that nobody has touched yet take 60 ns each, though they do nothing (100 rows: 19 us of a gradient became 23).
    """
    rows = range(kind.lanes)
    lines = [
        line
        for r in rows
        for line in (
            at_ir(f"from{r}", kind, "%from", str(r * kind.lanes)),
            f"  %x{r} = load {kind.vector}, ptr %from{r}, align {kind.size}",
        )
    ]
    names = [f"%x{r}" for r in rows]
    if is_turned:
        turning, names = turned_ir(kind, names)
        lines += turning
    else:
        lines += [f"  %half{r} = fmul {kind.vector} %x{r}, splat ({kind.type} 0.5)" for r in rows]
        names = [f"%half{r}" for r in rows]
    whole, part = [], []
    for r in rows:
        lines.append(at_ir(f"to{r}", kind, *((f"%to{r - 1}", "%n") if r else ("%to", "0"))))
        whole.append(f"  store {kind.vector} {names[r]}, ptr %to{r}, align {kind.size}")
        part += [
            f"  %has{r} = icmp sgt i64 %height, {r}",
            f"  %mask{r} = select i1 %has{r}, {kind.mask} %inside, {kind.mask} zeroinitializer",
            f"  %at{r} = select i1 %has{r}, ptr %to{r}, ptr %to",
            store_ir(kind, names[r], f"%at{r}", f"%mask{r}"),
        ]
    return f"""
define internal void @put_{"turned" if is_turned else "half"}(ptr %from, ptr %to, i64 %n, i64 %height,
    i64 %width) noinline #0 {{
{chr(10).join(lines)}
{min_ir("least", "%height", "%width")}
  %is_whole = icmp sge i64 %least, {kind.lanes}
  br i1 %is_whole, label %whole, label %part
whole:
{chr(10).join(whole)}
  ret void
part:
{mask_ir("inside", kind, "%width")}
{chr(10).join(part)}
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
  %is_end = icmp eq i64 %panel, %panels"""


def factor_task_ir(kind: Numbers) -> str:
    """A tile of U, or, behind all panels, the rows of the result that are the blocks above the one on the diagonal.
    The tile on the diagonal factors its first block, for which all others of the row wait when they have their sums.
    """
    return f"""
define internal void @factor_task(ptr %block, i64 %j, i64 %panel, i64 %first_panel) noinline #0 {{
entry:
{_task_start(kind, "%j")}
  %first_flag = add i64 %row_flag, %first_panel
  br i1 %is_end, label %finish, label %tile
tile:
  %is_first = icmp eq i64 %panel, %first_panel
{_factor_sum(kind)}
summed:
  br i1 %is_first, label %first, label %other
{_factor_first(kind)}
other:
  call void @await(ptr %flags, i64 %first_flag)
  br label %solve
solve:
  %t_at = phi ptr [ %t_rest, %rest ], [ %t, %other ]
  %count = phi i64 [ %wide_rest, %rest ], [ %wide, %other ]
  call void @forward(ptr %d, ptr %t_at, i64 %column, i64 %count)
  call void @tell(ptr %flags, i64 %flag)
  ret void
{_factor_finish(kind)}
}}"""


def _factor_sum(kind: Numbers) -> str:
    """Takes from the tile what the rows above it say, when those above it and above the row's first tile are made."""
    return f"""  %top = icmp eq i64 %j, 0
  br i1 %top, label %all, label %after_others
after_others:
  %above = sub i64 %flag, %stride
  call void @await(ptr %flags, i64 %above)
  %above_first = sub i64 %first_flag, %stride
  call void @await(ptr %flags, i64 %above_first)
  br label %all
all:
  call void @fetch(ptr %block, ptr %source, ptr %work, i64 %j, i64 %c, i64 %end)
{block_at_ir(kind, "p", "%work", "0", "%j")}
{block_at_ir(kind, "q", "%work", "0", "%c")}
  %k = mul i64 %j, {kind.lanes}
  call void @sum(ptr %p, ptr %q, i64 %k, ptr %t, i64 %column, i64 %wide)
  br label %summed"""


def _factor_first(kind: Numbers) -> str:
    """Factors the block on the diagonal, with ones behind the last element; the rest of its tile is what is beside
    it.
    """
    one = f"""  %one_place = mul i64 %r, {kind.lanes + 1}
{at_ir("one", kind, "%t", "%one_place")}
  store {kind.type} 1.0, ptr %one"""
    return f"""first:
  %row = mul i64 %j, {kind.lanes}
  %left = sub i64 %n, %row
{loop_ir("r", str(kind.lanes), "1", one, "%left")}
  %bad = call i1 @factor(ptr %t, ptr %d)
  br i1 %bad, label %fail, label %rest
fail:
  %told = load i64, ptr %status
  %is_told = icmp ne i64 %told, 0
  %new = select i1 %is_told, i64 %told, i64 %code
  store i64 %new, ptr %status
  br label %rest
rest:
{at_ir("t_rest", kind, "%t", "%column")}
  %wide_rest = sub i64 %wide, 1
  br label %solve"""


def _factor_finish(kind: Numbers) -> str:
    """The blocks above the diagonal, turned, the one on it, and zeros behind it."""
    turned = f"""
{block_at_ir(kind, "made", "%work", "%b", "%j")}
  %is_own = icmp eq i64 %b, %j
  %from = select i1 %is_own, ptr %d, ptr %made
{given_at_ir(kind, "to", "%result", "%j", "%b")}
  call void @put_turned(ptr %from, ptr %to, i64 %n, i64 %to_height, i64 %to_width)"""
    zeros = f"""  %room = sub i64 %n, %z
{mask_ir("empty", kind, "%room")}
{at_ir("zero_at", kind, "%zero_row", "%z")}
{store_ir(kind, "zeroinitializer", "%zero_at", "%empty")}"""
    row = f"""  %zero_down = mul i64 %s, %n
{at_ir("zero_row", kind, "%result", "%zero_down")}
{loop_ir("z", "%n", str(kind.lanes), zeros, "%next_row")}"""
    return f"""finish:
  call void @await(ptr %flags, i64 %first_flag)
  %behind = add i64 %j, 1
{loop_ir("b", "%behind", "1", turned)}
  %own_row = mul i64 %j, {kind.lanes}
  %next_row = mul i64 %behind, {kind.lanes}
{min_ir("row_end", "%next_row", "%n")}
{loop_ir("s", "%row_end", "1", row, "%own_row")}
  ret void"""


def gradient_task_ir(kind: Numbers) -> str:
    """A tile of S, or the block on the diagonal, behind all tiles of its row. A tile needs the row below it, and of the
    rows that it meets on the diagonal all: what lies below that is theirs, turned.
    """
    return f"""
define internal void @gradient_task(ptr %block, i64 %j, i64 %panel, i64 %first_panel) noinline #0 {{
entry:
  %j1 = add i64 %j, 1
{_task_start(kind, "%j1")}
{block_at_ir(kind, "p", "%kept", "%j", "%j1")}
  %k_before = mul i64 %j1, {kind.lanes}
  %k = sub i64 %n, %k_before
  br i1 %is_end, label %diagonal, label %tile
{_gradient_tile(kind)}
{_gradient_diagonal(kind)}
over:
  call void @tell(ptr %flags, i64 %flag)
  ret void
}}"""


def _gradient_tile(kind: Numbers) -> str:
    """A tile of S, where its row has blocks beside the diagonal; what is below it, too, and both in the result."""
    stored = f"""
{block_at_ir(kind, "made", "%work", "%j", "%b")}
{given_at_ir(kind, "beside", "%result", "%j", "%b")}
  call void @put_half(ptr %made, ptr %beside, i64 %n, i64 %beside_height, i64 %beside_width)
{block_at_ir(kind, "turned", "%work", "%b", "%j")}
{given_at_ir(kind, "below", "%result", "%b", "%j")}
  call void @put_half(ptr %turned, ptr %below, i64 %n, i64 %below_height, i64 %below_width)"""
    return f"""tile:
  %none = icmp slt i64 %wide, 1
  br i1 %none, label %over, label %wait
wait:
  %is_next = icmp eq i64 %c, %j1
  %met_row = mul i64 %c, %stride
  %met = add i64 %met_row, %panels
  %flag_below = add i64 %flag, %stride
  %needed = select i1 %is_next, i64 %met, i64 %flag_below
  call void @await(ptr %flags, i64 %needed)
  br label %add
add:
{block_at_ir(kind, "q", "%work", "%j1", "%c")}
  call void @fetch(ptr %block, ptr %source, ptr %work, i64 %j, i64 %c, i64 %end)
{block_at_ir(kind, "mirrored", "%work", "%c", "%j")}
  call void @sum_turned(ptr %p, ptr %q, i64 %k, ptr %t, i64 %column, i64 %wide)
  call void @backward(ptr %d, ptr %t, i64 %column, i64 %wide)
  call void @mirror(ptr %t, ptr %mirrored, i64 %column, i64 %wide)
{loop_ir("b", "%end", "1", stored, "%c")}
  br label %over"""


def _gradient_diagonal(kind: Numbers) -> str:
    """The block on the diagonal, when all tiles of the row are made."""
    return f"""diagonal:
  call void @fetch(ptr %block, ptr %source, ptr %work, i64 %j, i64 %j, i64 %j1)
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
  call void @sum_turned_1(ptr %p, ptr %below_own, i64 %k, ptr %own, i64 %column)
  call void @reverse(ptr %d, ptr %own)
{given_at_ir(kind, "to", "%result", "%j", "%j")}
  call void @put_half(ptr %own, ptr %to, i64 %n, i64 %to_height, i64 %to_width)
  br label %over"""
