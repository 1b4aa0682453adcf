"""A run of a description as part of a call, as LLVM IR text: how many threads it may use, its steps, the results that
are built, and how it is written into a journal; which description fits is found elsewhere (call.py).
"""

from __future__ import annotations

from jitgrad.compiler.calling.entry_layout import Word
from jitgrad.compiler.machine.ir_text import load_word
from jitgrad.conditions import BLOCKS, JOURNAL, THREADS
from jitgrad.journal import CAPACITY, END, NUMBER, SERIAL, STAMPS, START, STEPS, THREAD, USED


def run_ir() -> str:
    """The functions that run the steps."""
    return f"{_threads()}\n{_run()}"


def perform_ir() -> str:
    """Those that make the results of a call, written down or not."""
    return f"{_perform()}\n{_recorded()}\n{_is_left()}"


def word(name: str, number: Word, kind: str = "i64") -> str:
    """Lines that read a word of the description `%entry`."""
    return load_word(name, "%entry", number, kind)


def _threads() -> str:
    """How many threads a call made here may use: the process's number, or Python's answer where a block has its own.
    -1 with an exception set.
    """
    return f"""
define internal i64 @threads_here() #0 {{
entry:
{load_word("blocks", "@jitgrad_conditions", BLOCKS)}
{load_word("threads", "@jitgrad_conditions", THREADS)}
  %plain = icmp eq i64 %blocks, 0
  %known = icmp ne i64 %threads, 0
  %ready = and i1 %plain, %known
  br i1 %ready, label %answer, label %ask
answer:
  ret i64 %threads
ask:
  %object = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_threads_here, ptr null)
  %lost = icmp eq ptr %object, null
  br i1 %lost, label %fail, label %read
read:
  %number = call i64 @PyLong_AsLongLong(ptr %object)
  call void @Py_DecRef(ptr %object)
  ret i64 %number
fail:
  ret i64 -1
}}
"""


def _run() -> str:
    """Runs the steps, with stamps where `times` is not null, and reports what the status says. False with an exception
    set.
    """
    return f"""
define internal i1 @run(ptr %entry, ptr %table, ptr %times) #0 {{
entry_block:
  %threads = call i64 @threads_here()
  %unknown = icmp slt i64 %threads, 1
  br i1 %unknown, label %fail, label %enter
enter:
{word("workers", Word.WORKERS)}
  %few = icmp slt i64 %threads, %workers
  %limit = select i1 %few, i64 %threads, i64 %workers
{word("steps", Word.STEPS, "ptr")}
{word("nsteps", Word.NSTEPS)}
{word("release", Word.RELEASE)}
{word("function", Word.ENTER, "ptr")}
  %state = call i32 %function(ptr %table, ptr %steps, i64 %nsteps, ptr %times, i64 %limit, i64 %release)
{word("status_at", Word.STATUS, "ptr")}
  %ran = icmp eq i32 %state, 0
  br i1 %ran, label %check, label %stopped
stopped:
  store i64 0, ptr %status_at
  br label %fail
check:
{word("reporter", Word.REPORT, "ptr")}
  %silent = icmp eq ptr %reporter, null
  br i1 %silent, label %good, label %look
look:
  %status = load i64, ptr %status_at
  %fine = icmp eq i64 %status, 0
  br i1 %fine, label %good, label %report
report:
  store i64 0, ptr %status_at
  %number = call ptr @PyLong_FromLongLong(i64 %status)
  %lost = icmp eq ptr %number, null
  br i1 %lost, label %fail, label %raise
raise:
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %reporter, ptr %number, ptr null)
  call void @Py_DecRef(ptr %number)
  br label %fail
good:
  ret i1 true
fail:
  ret i1 false
}}
"""


def _perform() -> str:
    """A call whose arguments have been taken: outputs, run, result; null with an exception set."""
    return f"""
define internal ptr @perform(ptr %entry, ptr %times) #0 {{
entry_block:
{word("table", Word.TABLE, "ptr")}
{word("finish", Word.FINISH, "ptr")}
  %direct = icmp eq ptr %finish, null
  br i1 %direct, label %prepare, label %hand_over
hand_over:
{word("nleaves", Word.NLEAVES)}
  %finished = call ptr @finish(ptr %finish, ptr %table, i64 %nleaves)
  ret ptr %finished
prepare:
  %prepared = call i1 @prepare(ptr %entry, ptr %table)
  br i1 %prepared, label %go, label %fail
go:
  %ran = call i1 @run(ptr %entry, ptr %table, ptr %times)
  br i1 %ran, label %collect, label %fail
collect:
  %collected = call i1 @collect(ptr %entry, ptr %table)
  br i1 %collected, label %assemble, label %fail
assemble:
{word("program", Word.BUILD, "ptr")}
{word("results", Word.RESULTS, "ptr")}
{word("stack", Word.STACK, "ptr")}
  %built = call ptr @build(ptr %program, ptr %results, ptr %stack)
  %broken = icmp eq ptr %built, null
  br i1 %broken, label %fail, label %done
done:
  ret ptr %built
fail:
{word("noutputs", Word.NOUTPUTS)}
{word("outputs", Word.RESULTS, "ptr")}
  call void @drop(ptr %outputs, i64 %noutputs)
  ret ptr null
}}
"""


def _recorded() -> str:
    """`perform`, written into the journal, if it is still open; null with an exception set."""
    return f"""
define internal ptr @recorded(ptr %entry, i64 %start) #0 {{
entry_block:
{word("steps", Word.NSTEPS)}
{word("number", Word.NUMBER)}
  %nwords = add i64 %steps, {STAMPS + 1}
  br label %look
look:
{load_word("journal", "@jitgrad_conditions", JOURNAL, "ptr")}
  %closed = icmp eq ptr %journal, null
  br i1 %closed, label %unheard, label %open
open:
{load_word("used", "%journal", USED)}
{load_word("capacity", "%journal", CAPACITY)}
{load_word("serial", "%journal", SERIAL)}
{word("known", Word.JOURNAL)}
  %after = add i64 %used, %nwords
  %fits = icmp ule i64 %after, %capacity
  %admitted = icmp eq i64 %known, %serial
  %ready = and i1 %fits, %admitted
  br i1 %ready, label %write, label %ask
ask:
{word("owner", Word.OWNER, "ptr")}
  %wanted = call ptr @PyLong_FromLongLong(i64 %nwords)
  %lost = icmp eq ptr %wanted, null
  br i1 %lost, label %fail, label %admit
admit:
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_admit, ptr %owner, ptr %wanted, ptr null)
  call void @Py_DecRef(ptr %wanted)
  %broken = icmp eq ptr %answer, null
  br i1 %broken, label %fail, label %again
again:
  call void @Py_DecRef(ptr %answer)
  br label %look
write:
  store i64 %after, ptr %used_at
  %record = getelementptr i64, ptr %journal, i64 %used
{_store("%record", NUMBER, "%number")}
{_store("%record", STEPS, "%steps")}
  %thread = call i64 @pthread_self()
{_store("%record", THREAD, "%thread")}
{_store("%record", START, "%start")}
  %times = getelementptr i64, ptr %record, i64 {STAMPS}
  %result = call ptr @perform(ptr %entry, ptr %times)
  %end_at = getelementptr i64, ptr %record, i64 {END}
  call void @read_clock(ptr %end_at)
  ret ptr %result
unheard:
  %plain = call ptr @perform(ptr %entry, ptr null)
  ret ptr %plain
fail:
  ret ptr null
}}
"""


def _store(base: str, number: int, value: str) -> str:
    """Lines that write a word."""
    return f"  {value}_to = getelementptr i64, ptr {base}, i64 {number}\n  store i64 {value}, ptr {value}_to"


def _is_left() -> str:
    """Whether a call that would be written down is left to Python."""
    return f"""
define internal i1 @is_left(ptr %entry) #0 {{
entry_block:
{word("finish", Word.FINISH)}
{word("before", Word.RECORDED)}
  %count = add i64 %before, 1
  store i64 %count, ptr %before_at
  %others = and i64 %count, %before
  %looked_at = icmp eq i64 %others, 0
  %handed = icmp ne i64 %finish, 0
  %left = or i1 %handed, %looked_at
  ret i1 %left
}}
"""
