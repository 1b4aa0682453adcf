"""How tapes are told of what was computed, as LLVM IR text; what computes it and makes tensors is elsewhere.

    listen()                               where it is said what listens in this thread; null with an exception set
    is_watched(tapes, a, b)                whether a tape watches one of two numbers
    tell(tapes, a, b, entry, out)          enters what was done with them on the tapes that watch one of them
    recorded(heard, fn, table, x, y, out)  the tensor `out`, made of x and y, after the tapes were told

What listens is a tuple, or False where operations are left to Python, or None where that is to be found. It lies in the
dictionary that CPython keeps for C in each thread: a list of one (``eagerness.Shown``), which stays as long as the
thread does, and in it what Python has filled in. Every call out of here may run Python: a signal, the garbage
collector, another thread while NumPy computes. So what listens is read again after NumPy has computed, as the Python
functions do, and kept alive while it is told. A rule that is not known yet is left to the recorder in Python.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import ENTRY_HEAD, OUT, RULE, Slots, X, Y
from jitgrad.compiler.machine.ir_text import HEAD, LIST_ITEMS, TUPLE_ITEMS, TYPE, load, load_item

_GIVEN = "ptr %heard, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out"
_TOLD = "record(ptr %tapes, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out)"
_LEARNT = "learn(ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out)"


def record_ir(slots: Slots) -> str:
    """The functions."""
    parts = (
        _LISTEN, _CONTAINS, _IS_WATCHED, _TELL, _ENTRY, _KNOWN_RULE, _enter_known(slots), _LEARN, _number_of(slots),
        _RECORD, recorded_ir("recorded", _GIVEN, _TOLD, _LEARNT),
    )  # fmt: skip
    return "\n".join(parts)


# The thread that was asked for last is known by its number, which no other ever has. What is not known of a thread is
# asked for, and again when that has run Python which has changed it.
_LISTEN = f"""
define internal ptr @listen() #0 {{
entry:
  %thread = call ptr @PyThreadState_Get()
  %id = call i64 @PyThreadState_GetID(ptr %thread)
  %last = load i64, ptr @jitgrad_eager_last
  %is_last = icmp eq i64 %id, %last
  %last_heard_at = getelementptr i64, ptr @jitgrad_eager_last, i64 1
  br i1 %is_last, label %known, label %look
known:
  %last_heard = load ptr, ptr %last_heard_at
  br label %read
look:
  %memory = call ptr @PyThreadState_GetDict()
  %bare = icmp eq ptr %memory, null
  br i1 %bare, label %ask, label %search
search:
  %cell = call ptr @PyDict_GetItemWithError(ptr %memory, ptr @jitgrad_eager_word)
  %new = icmp eq ptr %cell, null
  br i1 %new, label %ask, label %found
found:
{load("items", "%cell", LIST_ITEMS)}
  store i64 %id, ptr @jitgrad_eager_last
  store ptr %items, ptr %last_heard_at
  br label %read
read:
  %heard = phi ptr [ %last_heard, %known ], [ %items, %found ]
  %shown = load ptr, ptr %heard
  %void = icmp eq ptr %shown, @jitgrad_none
  br i1 %void, label %ask, label %done
ask:
  %asked = phi ptr [ @jitgrad_eager_enter, %look ], [ @jitgrad_eager_enter, %search ], [ @jitgrad_eager_show, %read ]
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %asked, ptr null)
  %well = call i1 @is_well(ptr %answer)
  br i1 %well, label %look, label %done
done:
  %place = phi ptr [ %heard, %read ], [ null, %ask ]
  ret ptr %place
}}

define internal ptr @listeners(ptr %heard) #0 {{
entry:
  %shown = load ptr, ptr %heard
  %void = icmp eq ptr %shown, @jitgrad_none
  br i1 %void, label %again, label %done
again:
  %place = call ptr @listen()
  %lost = icmp eq ptr %place, null
  br i1 %lost, label %done, label %read
read:
  %changed = load ptr, ptr %place
  br label %done
done:
  %found = phi ptr [ %shown, %entry ], [ null, %again ], [ %changed, %read ]
  ret ptr %found
}}

define internal i1 @is_left(ptr %heard) #0 {{
  %shown = load ptr, ptr %heard
  %is_left = icmp eq ptr %shown, @jitgrad_false
  ret i1 %is_left
}}
"""


_CONTAINS = """
define internal i1 @contains(ptr %watched, ptr %number) #0 {
entry:
  %absent = icmp eq ptr %number, null
  br i1 %absent, label %no, label %look
look:
  %answer = call i32 @PySet_Contains(ptr %watched, ptr %number)
  %is_in = icmp eq i32 %answer, 1
  ret i1 %is_in
no:
  ret i1 false
}

define internal ptr @watched_of(ptr %watched, ptr %a, ptr %b) #0 {
entry:
  %has_a = call i1 @contains(ptr %watched, ptr %a)
  br i1 %has_a, label %first, label %second
first:
  ret ptr %a
second:
  %has_b = call i1 @contains(ptr %watched, ptr %b)
  %found = select i1 %has_b, ptr %b, ptr null
  ret ptr %found
}
"""

# Whether one of the tapes watches a or b. Most often that number was asked for just before, or it is that of the last
# result: these two are known, and for which tapes; Python forgets them when tapes forget (``eagerness.told``).
_IS_WATCHED = f"""
define internal i1 @is_told(ptr %tapes, ptr %a, ptr %b) #0 {{
  %told_tapes = load ptr, ptr @jitgrad_eager_told
{load("asked", "@jitgrad_eager_told", 8)}
{load("made", "@jitgrad_eager_told", 16)}
  %same = icmp eq ptr %tapes, %told_tapes
  %is_a = icmp eq ptr %a, %asked
  %is_made_a = icmp eq ptr %a, %made
  %is_b = icmp eq ptr %b, %asked
  %is_made_b = icmp eq ptr %b, %made
  %any_a = or i1 %is_a, %is_made_a
  %any_b = or i1 %is_b, %is_made_b
  %any = or i1 %any_a, %any_b
  %known = and i1 %same, %any
  ret i1 %known
}}

define internal i1 @is_watched(ptr %tapes, ptr %a, ptr %b) #0 {{
entry:
  %known = call i1 @is_told(ptr %tapes, ptr %a, ptr %b)
  br i1 %known, label %yes, label %start
start:
{load("n", "%tapes", HEAD, "i64")}
  %sets = getelementptr i8, ptr %tapes, i64 {TUPLE_ITEMS + 8}
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k2, %look ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %no
look:
{load_item("watched", "%sets", "%k")}
  %found = call ptr @watched_of(ptr %watched, ptr %a, ptr %b)
  %k2 = add i64 %k, 2
  %is_none = icmp eq ptr %found, null
  br i1 %is_none, label %head, label %keep
keep:
{load("asked", "@jitgrad_eager_told", 8)}
{load("made", "@jitgrad_eager_told", 16)}
  store ptr %tapes, ptr @jitgrad_eager_told
  store ptr %found, ptr %asked_at
  store ptr %found, ptr %made_at
  br label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}
"""

# Enters what was done with a and b on the tapes that watch one of them, which watch `out` then too; if there is one
# tape it does, as was asked before. False with an exception set.
_TELL = f"""
define internal i1 @tell(ptr %tapes, ptr %a, ptr %b, ptr %entry, ptr %out) #0 {{
start:
{load("n", "%tapes", HEAD, "i64")}
  %first = getelementptr i8, ptr %tapes, i64 {TUPLE_ITEMS}
  %surely = icmp eq i64 %n, 2
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k2, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %tape, label %done
tape:
{load_item("entries", "%first", "%k")}
  %odd = add i64 %k, 1
{load_item("watched", "%first", "%odd")}
  br i1 %surely, label %enter, label %look
look:
  %found = call ptr @watched_of(ptr %watched, ptr %a, ptr %b)
  %is_none = icmp eq ptr %found, null
  br i1 %is_none, label %next, label %enter
enter:
  %appended = call i32 @PyList_Append(ptr %entries, ptr %entry)
  %added = call i32 @PySet_Add(ptr %watched, ptr %out)
  %both = or i32 %appended, %added
  %well = icmp eq i32 %both, 0
  br i1 %well, label %next, label %fail
next:
  %k2 = add i64 %k, 2
  br label %head
done:
  %told_tapes = load ptr, ptr @jitgrad_eager_told
  %same = icmp eq ptr %tapes, %told_tapes
  br i1 %same, label %keep, label %good
keep:
{load("made", "@jitgrad_eager_told", 16)}
  store ptr %out, ptr %made_at
  br label %good
good:
  ret i1 true
fail:
  ret i1 false
}}
"""

# An entry of one or two inputs and one output, which keeps what the bits say; null with an exception set.
_ENTRY = f"""
define internal ptr @entry(ptr %rule, i64 %bits, ptr %x, ptr %a, ptr %y, ptr %b, ptr %result, ptr %out) #0 {{
entry:
  %kept = call i64 @llvm.ctpop.i64(i64 %bits)
  %is_pair = icmp ne ptr %y, null
  %one_more = zext i1 %is_pair to i64
  %least = add i64 %kept, {ENTRY_HEAD + 2}
  %size = add i64 %least, %one_more
  %made = call ptr @PyTuple_New(i64 %size)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %done, label %fill
fill:
  %items = getelementptr i8, ptr %made, i64 {TUPLE_ITEMS}
  %inputs = select i1 %is_pair, ptr @jitgrad_two, ptr @jitgrad_one
  %k1 = call i64 @put(ptr %items, i64 {RULE}, ptr %rule)
  %k2 = call i64 @put(ptr %items, i64 %k1, ptr %inputs)
  %k3 = call i64 @put(ptr %items, i64 %k2, ptr @jitgrad_one)
  %k4 = call i64 @put(ptr %items, i64 %k3, ptr %a)
  %k5 = call i64 @put_if(i64 %one_more, i64 1, ptr %items, i64 %k4, ptr %b)
  %k6 = call i64 @put(ptr %items, i64 %k5, ptr %out)
  %k7 = call i64 @put_if(i64 %bits, i64 {X}, ptr %items, i64 %k6, ptr %x)
  %k8 = call i64 @put_if(i64 %bits, i64 {Y}, ptr %items, i64 %k7, ptr %y)
  %k9 = call i64 @put_if(i64 %bits, i64 {OUT}, ptr %items, i64 %k8, ptr %result)
  br label %done
done:
  ret ptr %made
}}
"""

# (rule, what it reads, key of the result), a new reference; null where there is none, perhaps with an exception set.
_KNOWN_RULE = """
define internal ptr @known_rule(ptr %table, ptr %x, ptr %y) #0 {
entry:
  %key = call ptr @key(ptr %x)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %none, label %first
first:
  %by_first = call ptr @PyDict_GetItemWithError(ptr %table, ptr %key)
  call void @Py_IncRef(ptr %by_first)
  %is_one = icmp eq ptr %y, null
  %unknown = icmp eq ptr %by_first, null
  %finished = or i1 %is_one, %unknown
  br i1 %finished, label %one, label %second
one:
  ret ptr %by_first
second:
  %other_key = call ptr @key(ptr %y)
  %no_other_key = icmp eq ptr %other_key, null
  br i1 %no_other_key, label %forget, label %pair
pair:
  %by_both = call ptr @PyDict_GetItemWithError(ptr %by_first, ptr %other_key)
  call void @Py_IncRef(ptr %by_both)
  br label %forget
forget:
  %found = phi ptr [ null, %second ], [ %by_both, %pair ]
  call void @Py_DecRef(ptr %by_first)
  ret ptr %found
none:
  ret ptr null
}
"""


def _enter_known(slots: Slots) -> str:
    """Enters a call with the rule that is known; false with an exception set."""
    return f"""
define internal i1 @enter_known(ptr %tapes, ptr %known, ptr %x, ptr %a, ptr %y, ptr %b, ptr %out) #0 {{
entry:
{load("rule", "%known", TUPLE_ITEMS)}
{load("reads", "%known", TUPLE_ITEMS + 8)}
{load("out_key", "%known", TUPLE_ITEMS + 16)}
  call void @hold(ptr %out_key)
  %slot = getelementptr i8, ptr %out, i64 {slots.key}
  store ptr %out_key, ptr %slot
  %constant = icmp eq ptr %rule, @jitgrad_none
  br i1 %constant, label %good, label %write
write:
  %bits = call i64 @PyLong_AsLongLong(ptr %reads)
{load("mine", "%out", slots.number)}
  %made = call ptr @entry(ptr %rule, i64 %bits, ptr %x, ptr %a, ptr %y, ptr %b, ptr %out, ptr %mine)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %bad, label %enter
enter:
  %well = call i1 @tell(ptr %tapes, ptr %a, ptr %b, ptr %made, ptr %mine)
  call void @Py_DecRef(ptr %made)
  ret i1 %well
good:
  ret i1 true
bad:
  ret i1 false
}}
"""


# The recorder in Python, unless an exception is set already; false with one.
_LEARN = """
define internal i1 @learn(ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out) #0 {
entry:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %bad, label %look
look:
  %alone = icmp eq ptr %y, null
  br i1 %alone, label %one, label %pair
one:
  %answer_one = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_record_one, ptr %fn, ptr %table,
      ptr %x, ptr %out, ptr null)
  br label %learnt
pair:
  %answer_pair = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_record_pair, ptr %fn, ptr %table,
      ptr %x, ptr %y, ptr %out, ptr null)
  br label %learnt
learnt:
  %answer = phi ptr [ %answer_one, %one ], [ %answer_pair, %pair ]
  %well = call i1 @is_well(ptr %answer)
  ret i1 %well
bad:
  ret i1 false
}
"""


def _number_of(slots: Slots) -> str:
    """The number of a tensor, borrowed; null for null and for what has none."""
    return f"""
define internal ptr @number_of(ptr %x) #0 {{
entry:
  %absent = icmp eq ptr %x, null
  br i1 %absent, label %none, label %look
look:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %none
tensor:
{load("number", "%x", slots.number)}
  ret ptr %number
none:
  ret ptr null
}}
"""


# Tells the tapes of a result, made of x and y (null: of x alone); false with an exception set.
_RECORD = """
define internal i1 @record(ptr %tapes, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out) #0 {
entry:
  %a = call ptr @number_of(ptr %x)
  %b = call ptr @number_of(ptr %y)
  %is_watched = call i1 @is_watched(ptr %tapes, ptr %a, ptr %b)
  br i1 %is_watched, label %search, label %good
search:
  %known = call ptr @known_rule(ptr %table, ptr %x, ptr %y)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %ask, label %enter
ask:
  %learnt = call i1 @learn(ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out)
  ret i1 %learnt
enter:
  %entered = call i1 @enter_known(ptr %tapes, ptr %known, ptr %x, ptr %a, ptr %y, ptr %b, ptr %out)
  call void @Py_DecRef(ptr %known)
  ret i1 %entered
good:
  ret i1 true
}
"""


def recorded_ir(name: str, given: str, record: str, learn: str) -> str:
    """A function that gives its last argument, the tensor `out`, after the tapes were told of it by the call `record`;
    null with an exception set where that fails. Where operations are left to Python meanwhile, `learn` is called.
    """
    return f"""
define internal ptr @{name}({given}) #0 {{
entry:
  %failed = icmp eq ptr %out, null
  br i1 %failed, label %done, label %look
look:
  %tapes = call ptr @listeners(ptr %heard)
  %lost = icmp eq ptr %tapes, null
  br i1 %lost, label %fail, label %shown
shown:
  %is_left = icmp eq ptr %tapes, @jitgrad_false
  br i1 %is_left, label %leave, label %count
count:
{load("n", "%tapes", HEAD, "i64")}
  %silent = icmp eq i64 %n, 0
  br i1 %silent, label %done, label %tell
tell:
  call void @hold(ptr %tapes)
  %told = call i1 @{record}
  call void @Py_DecRef(ptr %tapes)
  br i1 %told, label %done, label %fail
leave:
  %learnt = call i1 @{learn}
  br i1 %learnt, label %done, label %fail
done:
  ret ptr %out
fail:
  call void @Py_DecRef(ptr %out)
  ret ptr null
}}
"""
