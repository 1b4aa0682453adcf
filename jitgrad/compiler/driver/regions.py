"""What the driver's loops and branches are made of, as LLVM IR text: the table of a loop, the lists that are walked
after a step, a body run once, the question whether a signal has come. The loops themselves are in loops.py and rows.py,
each of which takes what it calls.
"""

from __future__ import annotations

from jitgrad.compiler.driver.loop_layout import BLOCK, REGION
from jitgrad.compiler.driver.pool_layout import RUN_CHUNK, RUN_RECORD
from jitgrad.compiler.driver.system import clock_ir, host_platform


def word(name: str, of: str = "block", words: tuple[str, ...] = BLOCK, kind: str = "i64") -> str:
    """Load a word of a description into a register of its name."""
    return f"""  %at_{name} = getelementptr i64, ptr %{of}, i64 {words.index(name)}
  %{name} = load {kind}, ptr %at_{name}"""


def word_list(name: str) -> str:
    """Load the number of entries of a list, and its address."""
    return f"{word(name)}\n{word(name + '_list', kind='ptr')}"


_PAIR = """
  %pair = getelementptr [2 x i64], ptr %list, i64 %k
  %{} = load i64, ptr %pair
  %second = getelementptr i64, ptr %pair, i64 1
  %{} = load i64, ptr %second"""


def _copied(to: str, given: str, after: str) -> str:
    """``bytes`` of memory copied, and then the block ``after``; a single word takes no call."""
    return f"""  %is_word = icmp eq i64 %bytes, 8
  br i1 %is_word, label %word, label %many
word:
  %value = load i64, ptr %{given}, align 1
  store i64 %value, ptr %{to}, align 1
  br label %{after}
many:
  %r = call ptr @memcpy(ptr %{to}, ptr %{given}, i64 %bytes)
  br label %{after}
{after}:"""


_COPY = """
  %triple = getelementptr [3 x i64], ptr %list, i64 %k
  %to_slot = load i64, ptr %triple
  %second = getelementptr i64, ptr %triple, i64 1
  %from_slot = load i64, ptr %second
  %third = getelementptr i64, ptr %triple, i64 2
  %bytes = load i64, ptr %third
  %to_at = getelementptr ptr, ptr %inside, i64 %to_slot
  %to = load ptr, ptr %to_at
  %from_at = getelementptr ptr, ptr %inside, i64 %from_slot
  %from = load ptr, ptr %from_at
""" + _copied("to", "from", "next")

_WRITE = """
  %entry_at = getelementptr [6 x i64], ptr %list, i64 %k
{words}
  %place_slot = getelementptr ptr, ptr %inside, i64 %at
  %place_at = load ptr, ptr %place_slot
  %place = load i64, ptr %place_at
  %is_none = icmp slt i64 %place, 0
  br i1 %is_none, label %next, label %found
found:
  %array_slot = getelementptr ptr, ptr %inside, i64 %to
  %array = load ptr, ptr %array_slot
  %part_slot = getelementptr ptr, ptr %inside, i64 %from
  %part = load ptr, ptr %part_slot
  %before = mul i64 %place, %bytes
  %first = getelementptr i8, ptr %array, i64 %before
  br label %stretch
stretch:
  %n_done = phi i64 [ 0, %found ], [ %n1, %stretched ]
  %far = mul i64 %n_done, %apart
  %there = getelementptr i8, ptr %first, i64 %far
  %given = mul i64 %n_done, %bytes
  %here = getelementptr i8, ptr %part, i64 %given
{copied}
  %n1 = add i64 %n_done, 1
  %again = icmp slt i64 %n1, %outer
  br i1 %again, label %stretch, label %next
next:""".format(
    copied=_copied("there", "here", "stretched"),
    words="\n".join(
        f"  %{name}_at = getelementptr i64, ptr %entry_at, i64 {k}\n  %{name} = load i64, ptr %{name}_at"
        for k, name in enumerate(("to", "at", "from", "outer", "apart", "bytes"))
    )
)

_SWAP = (
    _PAIR.format("one", "two")
    + """
  %one_at = getelementptr ptr, ptr %inside, i64 %one
  %two_at = getelementptr ptr, ptr %inside, i64 %two
  %a = load ptr, ptr %one_at
  %b = load ptr, ptr %two_at
  store ptr %b, ptr %one_at
  store ptr %a, ptr %two_at"""
)

_MOVE = (
    _PAIR.format("slot", "bytes")
    + """
  %at = getelementptr ptr, ptr %inside, i64 %slot
  %here = load ptr, ptr %at
  %there = getelementptr i8, ptr %here, i64 %bytes
  store ptr %there, ptr %at"""
)

_PLACE = (
    _PAIR.format("slot", "offset")
    + """
  %address = getelementptr i8, ptr %record, i64 %offset
  %at = getelementptr ptr, ptr %inside, i64 %slot
  store ptr %address, ptr %at"""
)


def _walk(name: str, label: str, body: str, end: str | None = None, extra: str = "") -> str:
    """A function that runs ``body`` for each entry k of a list; ``end`` is the block in which the body ends."""
    return f"""
define internal void @{name}(ptr %inside, {extra}i64 %n, ptr %list) #0 {{
entry:
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %{label}, label %done
{label}:
  %k = phi i64 [ 0, %entry ], [ %k1, %{end or label} ]{body}
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %n
  br i1 %more, label %{label}, label %done
done:
  ret void
}}"""


def tables_ir() -> str:
    """`open_loop`, and whether the run has failed before, `has_failed`, and that it has, `tell`."""
    return f"""
declare ptr @memcpy(ptr, ptr, i64) #0

; The table of a loop, so far from the start of its room: its slots filled from the table around, its status cleared.
define internal ptr @open_loop(ptr %table, ptr %block, i64 %far) #0 {{
entry:
{word("room")}
{word_list("fills")}
  %room_at = getelementptr ptr, ptr %table, i64 %room
  %tables = load ptr, ptr %room_at
  %inside = getelementptr i8, ptr %tables, i64 %far
  br label %fill
fill:
  %k = phi i64 [ 0, %entry ], [ %k1, %fill ]
  %pair = getelementptr [2 x i64], ptr %fills_list, i64 %k
  %slot = load i64, ptr %pair
  %second = getelementptr i64, ptr %pair, i64 1
  %offset = load i64, ptr %second
  %from = getelementptr ptr, ptr %table, i64 %slot
  %base = load ptr, ptr %from
  %address = getelementptr i8, ptr %base, i64 %offset
  %to = getelementptr ptr, ptr %inside, i64 %k
  store ptr %address, ptr %to
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %fills
  br i1 %more, label %fill, label %done
done:
  %status = getelementptr i64, ptr %inside, i64 %fills
  store i64 0, ptr %status
  ret ptr %inside
}}

define internal i1 @has_failed(ptr %table, ptr %block) #0 {{
entry:
{word("status")}
  %at = getelementptr ptr, ptr %table, i64 %status
  %word = load ptr, ptr %at
  %value = load i64, ptr %word
  %failed = icmp ne i64 %value, 0
  ret i1 %failed
}}

define internal void @tell(ptr %table, ptr %block, i64 %value) #0 {{
entry:
{word("status")}
  %at = getelementptr ptr, ptr %table, i64 %status
  %word = load ptr, ptr %at
  store i64 %value, ptr %word
  ret void
}}"""


def swaps_ir() -> str:
    """`swap_all`: slots exchanged by pairs."""
    return _walk("swap_all", "swap", _SWAP)


def moves_ir() -> str:
    """`move_all`: slots that move on by so many bytes."""
    return _walk("move_all", "move", _MOVE)


def places_ir() -> str:
    """`place_saved`: slots of what a step saves, which point into the stack."""
    return _walk("place_saved", "place", _PLACE, extra="ptr %record, ")


def regions_ir() -> str:
    """`run_region`; and `copy_all`, for lists of copies, `write_all`, and RUN_CHUNK, which it takes."""
    return f"""
declare void @jitgrad_run_parallel(ptr, ptr, ptr, i64, i64, i32) #0
declare void @jitgrad_run_tried(ptr, ptr, i32) #0
{RUN_CHUNK}{_walk("copy_all", "copy", _COPY, end="next")}
{_walk("write_all", "write", _WRITE, end="next")}

define internal void @run_inside(ptr %table, ptr %steps, i64 %nsteps, i32 %limit) #0 {{
entry:
  %some = icmp sgt i64 %nsteps, 0
  br i1 %some, label %step, label %done
step:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
{RUN_RECORD}
next:
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, %nsteps
  br i1 %more, label %step, label %done
done:
  ret void
}}

; Runs a body once. Whether it failed, which is then told to the status around.
define internal i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %region, i32 %limit) #0 {{
entry:
{word("steps", "region", REGION)}
{word("step_list", "region", REGION, "ptr")}
{word("copies", "region", REGION)}
{word("copy_list", "region", REGION, "ptr")}
  call void @run_inside(ptr %inside, ptr %step_list, i64 %steps, i32 %limit)
  call void @copy_all(ptr %inside, i64 %copies, ptr %copy_list)
{word("writes", "region", REGION)}
{word("write_list", "region", REGION, "ptr")}
  call void @write_all(ptr %inside, i64 %writes, ptr %write_list)
{word("fills")}
  %status_at = getelementptr i64, ptr %inside, i64 %fills
  %status = load i64, ptr %status_at
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %done, label %failed
done:
  ret i1 false
failed:
{word("offset", "region", REGION)}
  %is_value = icmp sgt i64 %status, 0
  %moved = add i64 %status, %offset
  %told = select i1 %is_value, i64 %moved, i64 %status
  call void @tell(ptr %table, ptr %block, i64 %told)
  ret i1 true
}}
"""


PATIENCE = 100_000_000
"""Nanoseconds between two questions whether a signal has come."""


def signals_ir() -> str:
    """`is_interrupted`: whether the handler of a signal has raised something, asked for step k; ``last`` holds the time
    of the latest question, at first 0, which only starts the clock.
    """
    return f"""{clock_ir(host_platform())}
declare i32 @PyGILState_Ensure() #0
declare void @PyGILState_Release(i32) #0
declare i32 @PyErr_CheckSignals() #0

define internal i1 @is_interrupted(i64 %k, ptr %last) #0 {{
entry:
  %now_at = alloca i64
  %low = and i64 %k, 1023
  %due = icmp eq i64 %low, 1023
  br i1 %due, label %read, label %no
read:
  call void @read_clock(ptr %now_at)
  %now = load i64, ptr %now_at
  %before = load i64, ptr %last
  %passed = sub i64 %now, %before
  %late = icmp sgt i64 %passed, {PATIENCE}
  br i1 %late, label %note, label %no
note:
  store i64 %now, ptr %last
  %first = icmp eq i64 %before, 0
  br i1 %first, label %no, label %ask
ask:
  %lock = call i32 @PyGILState_Ensure()
  %raised = call i32 @PyErr_CheckSignals()
  call void @PyGILState_Release(i32 %lock)
  %found = icmp ne i32 %raised, 0
  ret i1 %found
no:
  ret i1 false
}}
"""
