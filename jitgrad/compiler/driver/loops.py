"""The driver's control ops, as LLVM IR text: the code of the step that is a loop or a branch. No Python runs here. The
loop over rows is in rows.py.

    jitgrad_loop            scan and while: steps of the body, a condition before each where there is one
    jitgrad_loop_gradient   a while loop that saves on a stack, and then the steps back
    jitgrad_choose          runs one of several lists of steps; the only one for a call

Each is the function of a step with one chunk, so it is run by the thread that runs the list around it, outside of any
region; what it runs may open regions. Its table lies in its own memory, in the arena of the call: several threads may
run the same loop. It is filled anew each time, from the table around it. A loop does nothing when the run has failed
before it; and it ends when the status of its own table is set, which is then told to the status around it.

A loop that takes long asks Python every tenth of a second whether a signal has come (Ctrl-C), and ends when its handler
raises something: a mask of the number of the step, and the clock every 1024 steps. Handlers run in the main thread
alone, as everywhere in Python.

Memory for a stack that outgrows its room comes from malloc and is doubled by realloc; it is given back before the loop
ends, however it ends.
"""

from __future__ import annotations

from jitgrad.compiler.driver.loop_layout import BLOCK, INTERRUPT_STATUS, KINDS, MEMORY_STATUS, REGION
from jitgrad.compiler.driver.regions import (
    moves_ir,
    places_ir,
    regions_ir,
    signals_ir,
    swaps_ir,
    tables_ir,
    word,
    word_list,
)


def loop_ir() -> str:
    """`jitgrad_loop`, and what it calls."""
    return "\n".join((tables_ir(), swaps_ir(), moves_ir(), regions_ir(), signals_ir(), _loop()))


def gradient_ir() -> str:
    """`jitgrad_loop_gradient`, and what it calls."""
    return "\n".join((_MEMORY, tables_ir(), swaps_ir(), places_ir(), regions_ir(), signals_ir(), _gradient()))


def choose_ir() -> str:
    """`jitgrad_choose`, and what it calls."""
    return "\n".join((tables_ir(), regions_ir(), _choose()))


_MEMORY = """
declare ptr @malloc(i64) #0
declare ptr @realloc(ptr, i64) #0
declare void @free(ptr) #0"""


def note(steps: str) -> str:
    """Write down how many steps a loop took."""
    return f"""  %at_ran = getelementptr i64, ptr %block, i64 {BLOCK.index("ran")}
  store i64 {steps}, ptr %at_ran"""


def begun(name: str) -> str:
    """The function of a control op, which does nothing after a step that has failed."""
    return f"""define void @jitgrad_{name}(ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker,
      i32 %threads) #0 {{
entry:
  %before = call i1 @has_failed(ptr %table, ptr %block)
  br i1 %before, label %leave, label %open
open:"""


def _loop() -> str:
    return f"""
{begun("loop")}
  %inside = call ptr @open_loop(ptr %table, ptr %block, i64 0)
{word_list("starts")}
{word_list("ends")}
{word_list("swaps")}
{word_list("moves")}
{word("count")}
{word("conditional")}
{word("flag")}
{word("limit")}
{word("code")}
{word("first", kind="ptr")}
{word("second", kind="ptr")}
  call void @copy_all(ptr %inside, i64 %starts, ptr %starts_list)
  %flag_at = getelementptr ptr, ptr %inside, i64 %flag
  %counts = icmp eq i64 %conditional, 0
  %last = alloca i64
  store i64 0, ptr %last
  br label %head
{_counted_or_asked()}
{_step_of_loop()}
"""


def _counted_or_asked() -> str:
    """Whether there is a further step: by their number, or by the condition."""
    return f"""head:
  %k = phi i64 [ 0, %open ], [ %k1, %next ]
  %stops = call i1 @is_interrupted(i64 %k, ptr %last)
  br i1 %stops, label %interrupted, label %begin
interrupted:
  call void @tell(ptr %table, ptr %block, i64 {INTERRUPT_STATUS})
  br label %leave
begin:
  br i1 %counts, label %counted, label %asked
counted:
  %more = icmp slt i64 %k, %count
  br i1 %more, label %step, label %end
asked:
  %lost = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %first, i32 %threads)
  br i1 %lost, label %leave, label %look
look:
  %byte_at = load ptr, ptr %flag_at
  %byte = load i8, ptr %byte_at
  %over = icmp eq i8 %byte, 0
  br i1 %over, label %end, label %goes_on
goes_on:
  %beyond = icmp eq i64 %k, %limit
  br i1 %beyond, label %too_long, label %step
too_long:
  call void @tell(ptr %table, ptr %block, i64 %code)
  br label %leave"""


def _step_of_loop() -> str:
    """A step, and what is read and made in the next."""
    return f"""step:
  %failed = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %second, i32 %threads)
  br i1 %failed, label %leave, label %next
next:
  call void @swap_all(ptr %inside, i64 %swaps, ptr %swaps_list)
  call void @move_all(ptr %inside, i64 %moves, ptr %moves_list)
  %k1 = add i64 %k, 1
  br label %head
end:
{note("%k")}
  call void @copy_all(ptr %inside, i64 %ends, ptr %ends_list)
  br label %leave
leave:
  ret void
}}"""


def _gradient() -> str:
    return f"{_before_a_step()}{_step_that_saves()}{_steps_back()}"


def _before_a_step() -> str:
    """The table is opened; before each step its condition is asked."""
    return f"""
{begun("loop_gradient")}
  %inside = call ptr @open_loop(ptr %table, ptr %block, i64 0)
{word_list("starts")}
{word_list("ends")}
{word_list("swaps")}
{word_list("saved")}
{word_list("back_swaps")}
{word("flag")}
{word("limit")}
{word("code")}
{word("record")}
{word("stack")}
{word("stack_bytes")}
{word("first", kind="ptr")}
{word("second", kind="ptr")}
{word("third", kind="ptr")}
  call void @copy_all(ptr %inside, i64 %starts, ptr %starts_list)
  %flag_at = getelementptr ptr, ptr %inside, i64 %flag
  %own_at = getelementptr ptr, ptr %inside, i64 %stack
  %own = load ptr, ptr %own_at
  %last_look = alloca i64
  store i64 0, ptr %last_look
  br label %head
{_asked_with_stack()}
"""


def _asked_with_stack() -> str:
    """The condition, and where the stack is."""
    return f"""head:
  %k = phi i64 [ 0, %open ], [ %k1, %next ]
  %memory = phi ptr [ %own, %open ], [ %held, %next ]
  %room = phi i64 [ %stack_bytes, %open ], [ %held_room, %next ]
  %used = phi i64 [ 0, %open ], [ %used1, %next ]
  %stops = call i1 @is_interrupted(i64 %k, ptr %last_look)
  br i1 %stops, label %interrupted, label %begin
interrupted:
  call void @tell(ptr %table, ptr %block, i64 {INTERRUPT_STATUS})
  br label %release
begin:
  %lost = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %first, i32 %threads)
  br i1 %lost, label %release, label %look
look:
  %byte_at = load ptr, ptr %flag_at
  %byte = load i8, ptr %byte_at
  %over = icmp eq i8 %byte, 0
  br i1 %over, label %begin_back, label %goes_on
begin_back:
{note("%k")}
  br label %back"""


def _step_that_saves() -> str:
    """Room on the stack is found for what a step saves, and it runs."""
    return f"""\
goes_on:
  %beyond = icmp eq i64 %k, %limit
  br i1 %beyond, label %too_long, label %fits
too_long:
  call void @tell(ptr %table, ptr %block, i64 %code)
  br label %release
fits:
  %used1 = add i64 %used, %record
  %enough = icmp sle i64 %used1, %room
  br i1 %enough, label %step, label %grow
grow:
  %doubled = shl i64 %room, 1
  %is_own = icmp eq ptr %memory, %own
  br i1 %is_own, label %take, label %extend
take:
  %taken = call ptr @malloc(i64 %doubled)
  %none = icmp eq ptr %taken, null
  br i1 %none, label %no_memory, label %fill
fill:
  %r = call ptr @memcpy(ptr %taken, ptr %own, i64 %used)
  br label %step
extend:
  %extended = call ptr @realloc(ptr %memory, i64 %doubled)
  %no_more = icmp eq ptr %extended, null
  br i1 %no_more, label %no_memory, label %step
no_memory:
  call void @tell(ptr %table, ptr %block, i64 {MEMORY_STATUS})
  br label %release
step:
  %held = phi ptr [ %memory, %fits ], [ %taken, %fill ], [ %extended, %extend ]
  %held_room = phi i64 [ %room, %fits ], [ %doubled, %fill ], [ %doubled, %extend ]
  %place = getelementptr i8, ptr %held, i64 %used
  call void @place_saved(ptr %inside, ptr %place, i64 %saved, ptr %saved_list)
  %failed = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %second, i32 %threads)
  br i1 %failed, label %release_held, label %next
next:
  call void @swap_all(ptr %inside, i64 %swaps, ptr %swaps_list)
  %k1 = add i64 %k, 1
  br label %head
"""


def _steps_back() -> str:
    """The steps back, the last first, and the end, however the loop came to it."""
    return """\
back:
  %left = phi i64 [ %used, %begin_back ], [ %left1, %returned ]
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %step_back, label %end
step_back:
  %left1 = sub i64 %left, %record
  %place_back = getelementptr i8, ptr %memory, i64 %left1
  call void @place_saved(ptr %inside, ptr %place_back, i64 %saved, ptr %saved_list)
  %failed_back = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %third, i32 %threads)
  br i1 %failed_back, label %release, label %returned
returned:
  call void @swap_all(ptr %inside, i64 %back_swaps, ptr %back_swaps_list)
  br label %back
end:
  call void @copy_all(ptr %inside, i64 %ends, ptr %ends_list)
  br label %release
release_held:
  br label %release
release:
  %last = phi ptr [ %memory, %interrupted ], [ %memory, %begin ], [ %memory, %too_long ], [ %memory, %no_memory ],
    [ %held, %release_held ], [ %memory, %step_back ], [ %memory, %end ]
  %nothing = icmp eq ptr %last, %own
  br i1 %nothing, label %leave, label %give_back
give_back:
  call void @free(ptr %last)
  br label %leave
leave:
  ret void
}
"""


def _choose() -> str:
    reads = "\n".join(_read_index(kind) for kind in KINDS)
    cases = "\n".join(f"    i64 {k}, label %{_label(kind)}" for k, kind in enumerate(KINDS))
    incoming = ", ".join(f"[ %v_{_label(kind)}, %{_label(kind)} ]" for kind in KINDS)
    return f"""
{begun("choose")}
{word("index")}
{word("index_kind")}
{word("regions")}
{word("first", kind="ptr")}
  %only = icmp slt i64 %index, 0
  br i1 %only, label %chosen, label %read
read:
  %slot = getelementptr ptr, ptr %table, i64 %index
  %at = load ptr, ptr %slot
  switch i64 %index_kind, label %chosen [
{cases}
  ]
{reads}
clamp:
  %given = phi i64 {incoming}
  %negative = icmp slt i64 %given, 0
  %low = select i1 %negative, i64 0, i64 %given
  %last = sub i64 %regions, 1
  %high = icmp sgt i64 %low, %last
  %inside_range = select i1 %high, i64 %last, i64 %low
  br label %chosen
chosen:
  %number = phi i64 [ 0, %open ], [ 0, %read ], [ %inside_range, %clamp ]
  %inside = call ptr @open_loop(ptr %table, ptr %block, i64 0)
  %region = getelementptr [{len(REGION)} x i64], ptr %first, i64 %number
  %failed = call i1 @run_region(ptr %table, ptr %block, ptr %inside, ptr %region, i32 %threads)
  br label %leave
leave:
  ret void
}}
"""


def _label(kind: str) -> str:
    return "bool" if kind == "?" else kind


def _read_index(kind: str) -> str:
    """Read a branch's number of a dtype as 64 bits."""
    label, bits = _label(kind), 8 if kind == "?" else 8 * int(kind[1])
    extend = "sext" if kind[0] == "i" else "zext"
    widen = f"{extend} i{bits} %r_{label} to i64" if bits < 64 else f"add i64 %r_{label}, 0"
    return f"""{label}:
  %r_{label} = load i{bits}, ptr %at
  %v_{label} = {widen}
  br label %clamp"""
