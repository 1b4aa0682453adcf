"""A call of a compiled function as LLVM IR text: a builtin that finds the description that fits the arguments, and runs
it; whatever fits none is left to Python.

    jitgrad_call(self, args, nargs, names)    self is (the Python function of all other calls, the table)

While a function is being traced anywhere, all calls are Python's. While a journal is open, calls are written into it,
but for the first, second, fourth, eighth, ... of a description, which are Python's, since it looks at them more
closely; so are those whose work is Python's. A description has one frame: a call that comes while
another runs on it (another thread, or a finaliser) goes to Python, which has frames of its own. Descriptions of one
program share its frame. The words are those of entry_layout.py.
"""

from __future__ import annotations

from jitgrad.compiler.calling.entry_layout import CLOCK, COUNT, FIRST_ENTRY, Word
from jitgrad.compiler.calling.match import match_ir
from jitgrad.compiler.calling.performing import perform_ir, run_ir, word
from jitgrad.compiler.calling.result import result_ir
from jitgrad.compiler.driver.system import Platform, clock_ir
from jitgrad.compiler.machine.ir_text import DATA, HEAD, TUPLE_ITEMS, load, load_item, load_word
from jitgrad.conditions import JOURNAL, OBSERVERS, words


def call_ir(host: Platform) -> str:
    """The module."""
    parts = (
        match_ir(), _DECLARATIONS, clock_ir(host), _release(), _attempt(), run_ir(), result_ir(), perform_ir(), _call(),
    )  # fmt: skip
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\n"


_DECLARATIONS = f"""
@jitgrad_conditions = external global [{len(words)} x i64]
@jitgrad_threads_here = external global i8
@jitgrad_admit = external global i8
declare i64 @pthread_self() #0

define internal i64 @time_now() #0 {{
  %at = alloca i64
  call void @read_clock(ptr %at)
  %now = load i64, ptr %at
  ret i64 %now
}}
declare ptr @PyLong_FromLongLong(i64) #0
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr) #0
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...) #0
declare void @Py_DecRef(ptr) #0
"""


def _release() -> str:
    """The end of a call, or of an attempt: what it held, its frame and its description are given back."""
    return f"""
define internal void @release(ptr %entry) #0 {{
entry_block:
{word("holds", Word.HOLDS, "ptr")}
{word("owner", Word.OWNER, "ptr")}
{word("busy", Word.BUSY, "ptr")}
{load_word("n", "%holds", 0)}
  br label %head
head:
  %k = phi i64 [ %n, %entry_block ], [ %less, %one ]
  %more = icmp sgt i64 %k, 0
  br i1 %more, label %one, label %done
one:
  %less = sub i64 %k, 1
  store i64 %less, ptr %holds
{load_item("object", "%holds", "%k")}
  call void @Py_DecRef(ptr %object)
  br label %head
done:
  store atomic i64 0, ptr %busy release, align 8
  call void @Py_DecRef(ptr %owner)
  ret void
}}
"""


def _attempt() -> str:
    """Whether the arguments fit a description whose frame is free; then the frame is taken, and its table filled."""
    return f"{_take_frame()}{_match_arguments()}{_match_keywords()}"


def _take_frame() -> str:
    return f"""
define internal i1 @attempt(ptr %entry, ptr %args, i64 %nargs, ptr %names, i64 %nnames) #0 {{
entry_block:
{word("positional", Word.POSITIONAL)}
{word("named", Word.NAMED)}
  %args_ok = icmp eq i64 %positional, %nargs
  %names_ok = icmp eq i64 %named, %nnames
  %counts_ok = and i1 %args_ok, %names_ok
  br i1 %counts_ok, label %take, label %no
take:
{word("busy", Word.BUSY, "ptr")}
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %free = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %free, label %start, label %no
start:
{word("owner", Word.OWNER, "ptr")}
  call void @Py_IncRef(ptr %owner)
{word("holds", Word.HOLDS, "ptr")}
{word("table", Word.TABLE, "ptr")}
{word("first", Word.PATTERNS, "ptr")}
  %name_items = getelementptr i8, ptr %names, i64 {TUPLE_ITEMS}
  br label %argument
"""


def _match_arguments() -> str:
    """Positions: the patterns stand in their order."""
    return f"""\
argument:
  %k = phi i64 [ 0, %start ], [ %k1, %match ]
  %node = phi ptr [ %first, %start ], [ %after, %match ]
  %more = icmp slt i64 %k, %nargs
  br i1 %more, label %match, label %keyword
match:
{load_item("object", "%args", "%k")}
  %after = call ptr @match(ptr %node, ptr %object, ptr %table, ptr %holds)
  %fits = icmp ne ptr %after, null
  %k1 = add i64 %k, 1
  br i1 %fits, label %argument, label %refuse
"""


def _match_keywords() -> str:
    """Names: in the order in which the call was written that is described."""
    return f"""\
keyword:
  %j = phi i64 [ 0, %argument ], [ %j1, %match_named ]
  %name_node = phi ptr [ %node, %argument ], [ %after_named, %match_named ]
  %names_left = icmp slt i64 %j, %nnames
  br i1 %names_left, label %name, label %yes
name:
  %wanted = load ptr, ptr %name_node
{load_item("given", "%name_items", "%j")}
  %found = icmp eq ptr %given, %wanted
  br i1 %found, label %match_named, label %refuse
match_named:
  %place = add i64 %nargs, %j
{load_item("named_object", "%args", "%place")}
  %named_node = getelementptr i64, ptr %name_node, i64 1
  %after_named = call ptr @match(ptr %named_node, ptr %named_object, ptr %table, ptr %holds)
  %named_fits = icmp ne ptr %after_named, null
  %j1 = add i64 %j, 1
  br i1 %named_fits, label %keyword, label %refuse
refuse:
  call void @release(ptr %entry)
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def _call() -> str:
    """The builtin: the first description that fits is moved to the front."""
    return f"{_begin()}{_find()}{_answer()}"


def _begin() -> str:
    """Whether calls are Python's just now, and the time where they are written down."""
    return f"""
define ptr @jitgrad_call(ptr %self, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
{load("python", "%self", TUPLE_ITEMS)}
  %traces_at = getelementptr i64, ptr @jitgrad_conditions, i64 {OBSERVERS}
  %traces = load volatile i64, ptr %traces_at
  %calm = icmp eq i64 %traces, 0
  br i1 %calm, label %listen, label %leave
listen:
  %journal_at = getelementptr i64, ptr @jitgrad_conditions, i64 {JOURNAL}
  %journal = load volatile ptr, ptr %journal_at
  %unheard = icmp eq ptr %journal, null
  br i1 %unheard, label %open, label %begin
begin:
  %now = call i64 @time_now()
  br label %open
"""


def _find() -> str:
    """The descriptions are tried in their order; what has just been used stands in front."""
    return f"""\
open:
  %start = phi i64 [ 0, %listen ], [ %now, %begin ]
{load("table_array", "%self", TUPLE_ITEMS + 8)}
{load("table", "%table_array", DATA)}
  %entries = getelementptr i64, ptr %table, i64 {FIRST_ENTRY}
  %unnamed = icmp eq ptr %names, null
  br i1 %unnamed, label %search, label %count
count:
{load("length", "%names", HEAD, "i64")}
  br label %search
search:
  %nnames = phi i64 [ 0, %open ], [ %length, %count ]
  br label %head
head:
  %k = phi i64 [ 0, %search ], [ %k1, %next ]
{load_word("n", "%table", COUNT)}
  %more = icmp slt i64 %k, %n
  br i1 %more, label %try, label %leave
try:
{load_item("found", "%entries", "%k")}
  %fits = call i1 @attempt(ptr %found, ptr %args, i64 %nargs, ptr %names, i64 %nnames)
  br i1 %fits, label %take, label %next
next:
  %k1 = add i64 %k, 1
  br label %head
take:
{load_word("clock", "%table", CLOCK)}
  %later = add i64 %clock, 1
  %clock_at2 = getelementptr i64, ptr %table, i64 {CLOCK}
  store i64 %later, ptr %clock_at2
  %stamp_at = getelementptr i64, ptr %found, i64 {Word.STAMP}
  store i64 %later, ptr %stamp_at
  %first = load ptr, ptr %entries
  %same_place = load ptr, ptr %found_at
  %unmoved = icmp eq ptr %same_place, %found
  br i1 %unmoved, label %swap, label %perform
swap:
  store ptr %found, ptr %entries
  store ptr %first, ptr %found_at
  br label %perform
"""


def _answer() -> str:
    """The call, written down or not; or Python's."""
    return """\
perform:
  %silent = icmp eq ptr %journal, null
  br i1 %silent, label %plain, label %written
plain:
  %result = call ptr @perform(ptr %found, ptr null)
  call void @release(ptr %found)
  ret ptr %result
written:
  %left = call i1 @is_left(ptr %found)
  br i1 %left, label %give_back, label %record
record:
  %recorded = call ptr @recorded(ptr %found, i64 %start)
  call void @release(ptr %found)
  ret ptr %recorded
give_back:
  call void @release(ptr %found)
  br label %leave
leave:
  %other = call ptr @PyObject_Vectorcall(ptr %python, ptr %args, i64 %nargs, ptr %names)
  ret ptr %other
}
"""
