"""How a result becomes a tensor and how tapes are told, as LLVM IR text; what computes it is elsewhere.

    listeners()                          what listens in this thread: a tuple, or False for what is left to Python
    may()                                whether machine code may take this thread's operations; -1 for an exception
    tensor(result)                       a new tensor of a result, which it takes over; null for null
    tell(tapes, a, b, entry, out)        enters what was done with two numbers on the tapes that watch one of them
    recorded(fn, table, x, y, out)       the tensor `out`, made of x and y, after the tapes were told

Every call out of here may run Python: a signal, the garbage collector, another thread while NumPy computes. So what
listens is asked for after NumPy has computed, as the Python functions do, and kept alive while it is told. It lies in
the dictionary that CPython keeps for C in each thread: a cell, and in it what Python has filled in. A rule that is not
known yet is left to the recorder in Python.
"""

from __future__ import annotations

from jitgrad.compiler.eager_layout import ENTRY_HEAD, NAMED_TYPES, OUT, RULE, Slots, X, Y
from jitgrad.compiler.ir_text import (
    DATA,
    DESCR,
    DIMENSIONS,
    FLAGS,
    HEAD,
    LIST_ITEMS,
    RANK,
    STRIDES,
    TUPLE_ITEMS,
    TYPE,
    load,
    load_item,
)

_OWN_DATA, _WRITEABLE = 0x1, 0x400
_GIVEN = "ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out"


def record_ir(slots: Slots) -> str:
    """The functions, and all declarations."""
    parts = (
        _declarations(), _LISTENERS, _ARRAY, _tensor(slots), _WATCHES, _TELL, _PUT, _ENTRY, _KNOWN_RULE,
        _enter_known(slots), _LEARN, _record(slots),
        recorded_ir("recorded", _GIVEN, f"record(ptr %tapes, {_GIVEN})", "learn"),
    )  # fmt: skip
    return "\n".join(parts)


_OBJECTS = (
    "eager_ops", "eager_keys", "eager_word", "eager_show", "eager_counter", "eager_record_one", "eager_record_pair",
    "eager_true", "eager_false", "float64", "none", "false", "one", "two", "call_name", "type_tensor", "type_ndarray",
    "type_float64",
)  # fmt: skip


def _declarations() -> str:
    names = (*_OBJECTS, *[f"type_{name}" for name in NAMED_TYPES])
    return "\n".join(f"@jitgrad_{name} = external global i8" for name in names) + _FUNCTIONS


_FUNCTIONS = """
declare ptr @PyThreadState_GetDict() #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_Clear() #0
declare ptr @PyErr_NoMemory() #0
declare ptr @PyMem_Malloc(i64) #0
declare void @PyMem_Free(ptr) #0
declare ptr @PyIter_Next(ptr) #0
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyTuple_New(i64) #0
declare i32 @PyList_Append(ptr, ptr) #0
declare i32 @PySet_Contains(ptr, ptr) #0
declare i32 @PySet_Add(ptr, ptr) #0
declare ptr @PyDict_GetItemWithError(ptr, ptr) #0
declare ptr @PyObject_GetItem(ptr, ptr) #0
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr) #0
declare ptr @PyObject_CallFunctionObjArgs(ptr, ...) #0
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32) #0
declare void @Py_IncRef(ptr) #0
declare void @Py_DecRef(ptr) #0
declare ptr @jitgrad_array_new(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr) #0
declare ptr @jitgrad_array_from(ptr, ptr, i32, i32, i32, ptr) #0
declare i32 @jitgrad_array_set_base(ptr, ptr) #0
declare i64 @llvm.ctpop.i64(i64) #0
"""


# What is not known of the thread is asked for, and again when that has run Python which has changed it.
_LISTENERS = f"""
define internal ptr @listeners() #0 {{
entry:
  br label %look
look:
  %memory = call ptr @PyThreadState_GetDict()
  %bare = icmp eq ptr %memory, null
  br i1 %bare, label %ask, label %search
search:
  %cell = call ptr @PyDict_GetItemWithError(ptr %memory, ptr @jitgrad_eager_word)
  %new = icmp eq ptr %cell, null
  br i1 %new, label %ask, label %read
read:
{load("items", "%cell", LIST_ITEMS)}
  %shown = load ptr, ptr %items
  %void = icmp eq ptr %shown, @jitgrad_none
  br i1 %void, label %ask, label %done
ask:
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_show, ptr null)
  %lost = icmp eq ptr %answer, null
  br i1 %lost, label %done, label %told
told:
  call void @Py_DecRef(ptr %answer)
  br label %look
done:
  %found = phi ptr [ %shown, %read ], [ null, %ask ]
  ret ptr %found
}}

define internal i32 @may() #0 {{
  %shown = call ptr @listeners()
  %lost = icmp eq ptr %shown, null
  %is_tuple = icmp ne ptr %shown, @jitgrad_false
  %yes = zext i1 %is_tuple to i32
  %answer = select i1 %lost, i32 -1, i32 %yes
  ret i32 %answer
}}
"""


# `cell` is a new 0-d array of float64; `array_for` the array of a result, which it takes over.
_ARRAY = f"""
define internal ptr @cell() #0 {{
  call void @Py_IncRef(ptr @jitgrad_float64)
  %cell = call ptr @jitgrad_array_new(ptr @jitgrad_type_ndarray, ptr @jitgrad_float64, i32 0, ptr null, ptr null,
      ptr null, i32 0, ptr null)
  ret ptr %cell
}}

define internal ptr @cell_of(ptr %double) #0 {{
entry:
  %cell = call ptr @cell()
  %lost = icmp eq ptr %cell, null
  br i1 %lost, label %done, label %fill
fill:
{load("value", "%double", HEAD, "double")}
{load("data", "%cell", DATA)}
  store double %value, ptr %data
  br label %done
done:
  ret ptr %cell
}}

define internal ptr @array_for(ptr %result) #0 {{
entry:
{load("type", "%result", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %exact, label %same, label %scalar
same:
  ret ptr %result
scalar:
  %is_double = icmp eq ptr %type, @jitgrad_type_float64
  br i1 %is_double, label %double, label %convert
double:
  %cell = call ptr @cell_of(ptr %result)
  br label %done
convert:
  %converted = call ptr @jitgrad_array_from(ptr %result, ptr null, i32 0, i32 0, i32 0, ptr null)
  br label %done
done:
  %array = phi ptr [ %cell, %double ], [ %converted, %convert ]
  call void @Py_DecRef(ptr %result)
  ret ptr %array
}}
"""


def _tensor(slots: Slots) -> str:
    """`wrap` of tensor.py; null for null, or with an exception set."""
    return f"""
define internal ptr @tensor(ptr %result) #0 {{
entry:
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %fail, label %convert
convert:
  %array = call ptr @array_for(ptr %result)
  %lost = icmp eq ptr %array, null
  br i1 %lost, label %fail, label %view
view:
{load("flags", "%array", FLAGS, "i32")}
  %fixed = and i32 %flags, {~_WRITEABLE}
  store i32 %fixed, ptr %flags_at
  %lent = and i32 %fixed, {~_OWN_DATA}
{load("rank", "%array", RANK, "i32")}
{load("dims", "%array", DIMENSIONS)}
{load("strides", "%array", STRIDES)}
{load("data", "%array", DATA)}
{load("descr", "%array", DESCR)}
  call void @Py_IncRef(ptr %descr)
  %out = call ptr @jitgrad_array_new(ptr @jitgrad_type_tensor, ptr %descr, i32 %rank, ptr %dims, ptr %strides,
      ptr %data, i32 %lent, ptr null)
  %none = icmp eq ptr %out, null
  br i1 %none, label %drop, label %base
base:
  call void @Py_IncRef(ptr %array)
  %state = call i32 @jitgrad_array_set_base(ptr %out, ptr %array)
  %number = call ptr @PyIter_Next(ptr @jitgrad_eager_counter)
  %plain_at = getelementptr i8, ptr %out, i64 {slots.plain}
  store ptr %array, ptr %plain_at
  %number_at = getelementptr i8, ptr %out, i64 {slots.number}
  store ptr %number, ptr %number_at
  %refused = icmp ne i32 %state, 0
  br i1 %refused, label %drop_out, label %done
done:
  ret ptr %out
drop_out:
  call void @Py_DecRef(ptr %out)
  br label %fail
drop:
  call void @Py_DecRef(ptr %array)
  br label %fail
fail:
  ret ptr null
}}
"""


_WATCHES = """
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

define internal i1 @watches(ptr %watched, ptr %a, ptr %b) #0 {
entry:
  %has_a = call i1 @contains(ptr %watched, ptr %a)
  br i1 %has_a, label %yes, label %second
second:
  %has_b = call i1 @contains(ptr %watched, ptr %b)
  ret i1 %has_b
yes:
  ret i1 true
}
"""

# `tell` gives 1 if there is a tape that watches a or b, 0 if not, -1 with an exception set. Such tapes then watch `out`
# too. With a null entry nothing is entered: this is how one asks before one enters, so one tape is not asked again.
_TELL = f"""
define internal i32 @tell(ptr %tapes, ptr %a, ptr %b, ptr %entry, ptr %out) #0 {{
start:
{load("n", "%tapes", HEAD, "i64")}
  %first = getelementptr i8, ptr %tapes, i64 {TUPLE_ITEMS}
  %asking = icmp eq ptr %entry, null
  %entering = xor i1 %asking, true
  %is_alone = icmp eq i64 %n, 2
  %surely = and i1 %is_alone, %entering
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k2, %next ]
  %found = phi i32 [ 0, %start ], [ %found1, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %tape, label %done
tape:
{load_item("entries", "%first", "%k")}
  %odd = add i64 %k, 1
{load_item("watched", "%first", "%odd")}
  br i1 %surely, label %enter, label %look
look:
  %hit = call i1 @watches(ptr %watched, ptr %a, ptr %b)
  br i1 %hit, label %heard, label %next
heard:
  br i1 %asking, label %yes, label %enter
yes:
  ret i32 1
enter:
  %appended = call i32 @PyList_Append(ptr %entries, ptr %entry)
  %added = call i32 @PySet_Add(ptr %watched, ptr %out)
  %both = or i32 %appended, %added
  %well = icmp eq i32 %both, 0
  br i1 %well, label %next, label %fail
next:
  %found1 = phi i32 [ %found, %look ], [ 1, %enter ]
  %k2 = add i64 %k, 2
  br label %head
done:
  ret i32 %found
fail:
  ret i32 -1
}}
"""

_PUT = """
define internal i64 @put(ptr %items, i64 %k, ptr %object) #0 {
  %absent = icmp eq ptr %object, null
  %item = select i1 %absent, ptr @jitgrad_none, ptr %object
  call void @Py_IncRef(ptr %item)
  %at = getelementptr ptr, ptr %items, i64 %k
  store ptr %item, ptr %at
  %next = add i64 %k, 1
  ret i64 %next
}

define internal i64 @put_if(i64 %bits, i64 %bit, ptr %items, i64 %k, ptr %object) #0 {
entry:
  %masked = and i64 %bits, %bit
  %is_set = icmp ne i64 %masked, 0
  br i1 %is_set, label %keep, label %skip
keep:
  %next = call i64 @put(ptr %items, i64 %k, ptr %object)
  ret i64 %next
skip:
  ret i64 %k
}
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
  call void @Py_IncRef(ptr %out_key)
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
  %told = call i32 @tell(ptr %tapes, ptr %a, ptr %b, ptr %made, ptr %mine)
  call void @Py_DecRef(ptr %made)
  %well = icmp sge i32 %told, 0
  ret i1 %well
good:
  ret i1 true
bad:
  ret i1 false
}}
"""


# The recorder in Python, unless an exception is set already; false with one.
_LEARN = """
define internal i1 @is_well(ptr %answer) #0 {
entry:
  %lost = icmp eq ptr %answer, null
  br i1 %lost, label %no, label %forget
forget:
  call void @Py_DecRef(ptr %answer)
  ret i1 true
no:
  ret i1 false
}

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


def _record(slots: Slots) -> str:
    """Tells the tapes of a result, made of x and y (null: of x alone); false with an exception set."""
    return f"""
define internal ptr @number(ptr %x) #0 {{
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

define internal i1 @record(ptr %tapes, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out) #0 {{
entry:
  %a = call ptr @number(ptr %x)
  %b = call ptr @number(ptr %y)
  %watching = call i32 @tell(ptr %tapes, ptr %a, ptr %b, ptr null, ptr null)
  %is_watched = icmp eq i32 %watching, 1
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
}}
"""


def recorded_ir(name: str, given: str, record: str, learn: str) -> str:
    """A function that gives its last argument, the tensor `out`, after the tapes were told of it by the call `record`;
    null with an exception set where that fails. Where operations are left to Python, `learn` is called as it was.
    """
    return f"""
define internal ptr @{name}({given}) #0 {{
entry:
  %failed = icmp eq ptr %out, null
  br i1 %failed, label %done, label %listen
listen:
  %tapes = call ptr @listeners()
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
  call void @Py_IncRef(ptr %tapes)
  %told = call i1 @{record}
  call void @Py_DecRef(ptr %tapes)
  br i1 %told, label %done, label %fail
leave:
  %learnt = call i1 @{learn}({given})
  br i1 %learnt, label %done, label %fail
done:
  ret ptr %out
fail:
  call void @Py_DecRef(ptr %out)
  ret ptr null
}}
"""
