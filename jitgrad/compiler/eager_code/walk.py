"""The walk back over a tape as LLVM IR text: entries whose rules are short programs of NumPy calls are taken from the
last to the first without a step of Python; all others are given to Python, one by one.

    jitgrad_eager_walk(self, args, nargs)    entries, found, sources, watched, step, sum

`found` are the cotangents by the numbers of tensors; `step` takes an entry as Python does, `sum` adds two cotangents.
The words of a rule are those of layout.py: its program runs on a table of what is kept, the cotangent, and what
its steps have made.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import (
    BYTES_DATA,
    CALLS,
    ENTRY_HEAD,
    INPUTS,
    KEPT,
    MOST_OPERANDS,
    MOST_VALUES,
    OUTPUTS_OF,
    STEPS,
    Slots,
)
from jitgrad.compiler.machine.ir_text import TUPLE_ITEMS, TYPE, load, load_item, load_word


def walk_ir(slots: Slots) -> str:
    """The functions; what they call of the others is in record.py."""
    arrays = (_IS_SCALAR, _array_of(), _dropped())
    return "\n".join((_DECLARATIONS, *arrays, _run(), _give(), _FILL, _GIVE_ALL, _APPLY, _step(slots), _WALK))


_DECLARATIONS = """
@jitgrad_type_call_rule = external global i8
@jitgrad_type_float32 = external global i8
declare i64 @PyList_Size(ptr) #0
declare ptr @PyList_GetItem(ptr, i64) #0
declare i32 @PyDict_SetItem(ptr, ptr, ptr) #0
declare i32 @PyDict_DelItem(ptr, ptr) #0
declare ptr @PyNumber_Add(ptr, ptr) #0
"""


_IS_SCALAR = """
define internal i1 @is_scalar(ptr %type) #0 {
  %is_double = icmp eq ptr %type, @jitgrad_type_float64
  %is_single = icmp eq ptr %type, @jitgrad_type_float32
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %either = or i1 %is_double, %is_single
  %any = or i1 %either, %is_float
  ret i1 %any
}
"""
"""Whether a type is that of a number."""


def _array_of() -> str:
    """A new reference to the array of a tensor, an array or a number; null for anything else."""
    return f"""
define internal ptr @array_of(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_array = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %is_array, label %own, label %other
other:
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %number
tensor:
  %plain = call ptr @plain(ptr %x)
  %lazy = icmp eq ptr %plain, null
  br i1 %lazy, label %no, label %own
own:
  %found = phi ptr [ %x, %entry ], [ %plain, %tensor ]
  call void @Py_IncRef(ptr %found)
  ret ptr %found
number:
  %is_number = call i1 @is_scalar(ptr %type)
  br i1 %is_number, label %convert, label %no
convert:
  %made = call ptr @jitgrad_array_from(ptr %x, ptr null, i32 0, i32 0, i32 0, ptr null)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %forget, label %done
done:
  ret ptr %made
forget:
  call void @PyErr_Clear()
  br label %no
no:
  ret ptr null
}}
"""


def _dropped() -> str:
    """References given back."""
    return f"""
define internal void @drop(ptr %table, i64 %n) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %done
one:
{load_item("object", "%table", "%k")}
  call void @Py_DecRef(ptr %object)
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}}
"""


def _run() -> str:
    """Runs the calls of a program; how many values are in the table then, and where its results are said."""
    return f"""
define internal {{ i64, ptr }} @run(ptr %words, ptr %table, i64 %filled) #0 {{
entry:
  %args = alloca [{MOST_OPERANDS} x ptr]
{load_word("steps", "%words", STEPS)}
  %first = getelementptr i64, ptr %words, i64 {CALLS}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %made ]
  %at = phi ptr [ %first, %entry ], [ %after, %made ]
  %n = phi i64 [ %filled, %entry ], [ %n1, %made ]
  %more = icmp slt i64 %k, %steps
  br i1 %more, label %gather, label %done
gather:
{load_word("function", "%at", 0, "ptr")}
{load_word("count", "%at", 1)}
  %places = getelementptr i64, ptr %at, i64 2
  br label %operand_head
operand_head:
  %j = phi i64 [ 0, %gather ], [ %j1, %operand ]
  %missing = icmp slt i64 %j, %count
  br i1 %missing, label %operand, label %call
operand:
{load_item("place", "%places", "%j", "i64")}
{load_item("value", "%table", "%place")}
  %to = getelementptr ptr, ptr %args, i64 %j
  store ptr %value, ptr %to
  %j1 = add i64 %j, 1
  br label %operand_head
call:
  %result = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 %count, ptr null)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %fail, label %made
made:
  %slot = getelementptr ptr, ptr %table, i64 %n
  store ptr %result, ptr %slot
  %n1 = add i64 %n, 1
  %k1 = add i64 %k, 1
  %after = getelementptr i64, ptr %places, i64 %count
  br label %head
done:
  %part = insertvalue {{ i64, ptr }} poison, i64 %n, 0
  %both = insertvalue {{ i64, ptr }} %part, ptr %at, 1
  ret {{ i64, ptr }} %both
fail:
  %failed_part = insertvalue {{ i64, ptr }} poison, i64 %n, 0
  %nothing = insertvalue {{ i64, ptr }} %failed_part, ptr null, 1
  ret {{ i64, ptr }} %nothing
}}
"""


def _give() -> str:
    """Adds a cotangent to those found for a number, if it is watched. False with an exception set."""
    return f"""
define internal i1 @give(ptr %found, ptr %watched, ptr %number, ptr %g, ptr %sum) #0 {{
entry:
  %is_watched = call i1 @contains(ptr %watched, ptr %number)
  br i1 %is_watched, label %look, label %good
look:
  %before = call ptr @PyDict_GetItemWithError(ptr %found, ptr %number)
  %first = icmp eq ptr %before, null
  br i1 %first, label %enter, label %kind
kind:
{load("type", "%before", TYPE)}
  %is_array = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %is_array, label %add, label %ask
add:
  %added = call ptr @PyNumber_Add(ptr %before, ptr %g)
  br label %total
ask:
  %told = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %sum, ptr %before, ptr %g, ptr null)
  br label %total
total:
  %both = phi ptr [ %added, %add ], [ %told, %ask ]
  %lost = icmp eq ptr %both, null
  br i1 %lost, label %fail, label %replace
replace:
  %replaced = call i32 @PyDict_SetItem(ptr %found, ptr %number, ptr %both)
  call void @Py_DecRef(ptr %both)
  %well = icmp eq i32 %replaced, 0
  ret i1 %well
enter:
  %entered = call i32 @PyDict_SetItem(ptr %found, ptr %number, ptr %g)
  %entered_well = icmp eq i32 %entered, 0
  ret i1 %entered_well
good:
  ret i1 true
fail:
  ret i1 false
}}
"""


# Puts the arrays of what an entry keeps, and that of the cotangent, in the table; false where one is Python's to make.
_FILL = f"""
define internal i1 @fill(ptr %values, i64 %kept, ptr %g, ptr %table) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %filled ]
  %more = icmp slt i64 %k, %kept
  br i1 %more, label %one, label %last
one:
{load_item("value", "%values", "%k")}
  br label %convert
last:
  br label %convert
convert:
  %object = phi ptr [ %value, %one ], [ %g, %last ]
  %array = call ptr @array_of(ptr %object)
  %odd = icmp eq ptr %array, null
  br i1 %odd, label %give_up, label %filled
filled:
  %slot = getelementptr ptr, ptr %table, i64 %k
  store ptr %array, ptr %slot
  %k1 = add i64 %k, 1
  br i1 %more, label %head, label %done
done:
  ret i1 true
give_up:
  call void @drop(ptr %table, i64 %k)
  ret i1 false
}}
"""

# Gives the inputs of an entry their cotangents, from their places in the table; false with an exception set.
_GIVE_ALL = f"""
define internal i1 @give_all(ptr %places, ptr %table, ptr %numbers, i64 %inputs, ptr %found, ptr %watched,
    ptr %sum) #0 {{
entry:
  br label %head
head:
  %j = phi i64 [ 0, %entry ], [ %j1, %given ]
  %left = icmp slt i64 %j, %inputs
  br i1 %left, label %one, label %good
one:
{load_item("place", "%places", "%j", "i64")}
  %is_none = icmp slt i64 %place, 0
  br i1 %is_none, label %given, label %give
give:
{load_item("cotangent", "%table", "%place")}
{load_item("number", "%numbers", "%j")}
  %well = call i1 @give(ptr %found, ptr %watched, ptr %number, ptr %cotangent, ptr %sum)
  br i1 %well, label %given, label %bad
given:
  %j1 = add i64 %j, 1
  br label %head
good:
  ret i1 true
bad:
  ret i1 false
}}
"""

# Runs the rule of an entry on a table that is filled; 1, or -1 with an exception set. The table is given back.
_APPLY = """
define internal i32 @apply(ptr %words, ptr %table, i64 %ready, ptr %numbers, i64 %inputs, ptr %found, ptr %watched,
    ptr %sum) #0 {
entry:
  %ran = call { i64, ptr } @run(ptr %words, ptr %table, i64 %ready)
  %n = extractvalue { i64, ptr } %ran, 0
  %places = extractvalue { i64, ptr } %ran, 1
  %failed = icmp eq ptr %places, null
  br i1 %failed, label %end, label %give
give:
  %well = call i1 @give_all(ptr %places, ptr %table, ptr %numbers, i64 %inputs, ptr %found, ptr %watched, ptr %sum)
  %verdict = select i1 %well, i32 1, i32 -1
  br label %end
end:
  %state = phi i32 [ -1, %entry ], [ %verdict, %give ]
  call void @drop(ptr %table, i64 %n)
  ret i32 %state
}
"""


def _step(slots: Slots) -> str:
    """One entry: 1 when it was taken, 0 when it is Python's, -1 with an exception set."""
    return f"""
define internal i32 @step(ptr %entry, ptr %found, ptr %sources, ptr %watched, ptr %sum) #0 {{
start:
  %table = alloca [{MOST_VALUES} x ptr]
  %items = getelementptr i8, ptr %entry, i64 {TUPLE_ITEMS}
  %rule = load ptr, ptr %items
{load("type", "%rule", TYPE)}
  %is_call = icmp eq ptr %type, @jitgrad_type_call_rule
  br i1 %is_call, label %look, label %no
look:
{load("walk", "%rule", slots.walk)}
  %is_long = icmp eq ptr %walk, @jitgrad_none
{load_word("outputs", "%items", OUTPUTS_OF, "ptr")}
  %is_one = icmp eq ptr %outputs, @jitgrad_one
  %not_long = xor i1 %is_long, true
  %simple = and i1 %not_long, %is_one
  br i1 %simple, label %read, label %no
read:
{load("data", "%walk", TUPLE_ITEMS)}
  %words = getelementptr i8, ptr %data, i64 {BYTES_DATA}
{load_word("inputs", "%words", INPUTS)}
{load_word("kept", "%words", KEPT)}
  %numbers = getelementptr i64, ptr %items, i64 {ENTRY_HEAD}
{load_item("out", "%numbers", "%inputs")}
  %g = call ptr @PyDict_GetItemWithError(ptr %found, ptr %out)
  %unreached = icmp eq ptr %g, null
  br i1 %unreached, label %yes, label %fill
fill:
  %behind = getelementptr i64, ptr %numbers, i64 %inputs
  %values = getelementptr i64, ptr %behind, i64 1
  %filled = call i1 @fill(ptr %values, i64 %kept, ptr %g, ptr %table)
  br i1 %filled, label %take, label %no
take:
  %ready = add i64 %kept, 1
  %is_source = call i1 @contains(ptr %sources, ptr %out)
  br i1 %is_source, label %go, label %remove
remove:
  %removed = call i32 @PyDict_DelItem(ptr %found, ptr %out)
  br label %go
go:
  %state = call i32 @apply(ptr %words, ptr %table, i64 %ready, ptr %numbers, i64 %inputs, ptr %found, ptr %watched,
      ptr %sum)
  ret i32 %state
yes:
  ret i32 1
no:
  ret i32 0
}}
"""


_WALK = f"""
define ptr @jitgrad_eager_walk(ptr %self, ptr %args, i64 %nargs) #0 {{
start:
  %entries = load ptr, ptr %args
{load_word("found", "%args", 1, "ptr")}
{load_word("sources", "%args", 2, "ptr")}
{load_word("watched", "%args", 3, "ptr")}
{load_word("python", "%args", 4, "ptr")}
{load_word("sum", "%args", 5, "ptr")}
  %n = call i64 @PyList_Size(ptr %entries)
  br label %head
head:
  %k = phi i64 [ %n, %start ], [ %k1, %next ]
  %more = icmp sgt i64 %k, 0
  br i1 %more, label %one, label %done
one:
  %k1 = sub i64 %k, 1
  %entry = call ptr @PyList_GetItem(ptr %entries, i64 %k1)
  %gone = icmp eq ptr %entry, null
  br i1 %gone, label %fail, label %take
take:
  call void @Py_IncRef(ptr %entry)
  %state = call i32 @step(ptr %entry, ptr %found, ptr %sources, ptr %watched, ptr %sum)
  %unusual = icmp eq i32 %state, 0
  br i1 %unusual, label %ask, label %taken
ask:
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %python, ptr %entry, ptr %found, ptr %sources,
      ptr %watched, ptr null)
  %refused = icmp eq ptr %answer, null
  br i1 %refused, label %broken, label %told
told:
  call void @Py_DecRef(ptr %answer)
  br label %next_entry
taken:
  %is_broken = icmp slt i32 %state, 0
  br i1 %is_broken, label %broken, label %next_entry
next_entry:
  call void @Py_DecRef(ptr %entry)
  br label %next
next:
  br label %head
broken:
  call void @Py_DecRef(ptr %entry)
  br label %fail
done:
  call void @Py_IncRef(ptr @jitgrad_none)
  ret ptr @jitgrad_none
fail:
  ret ptr null
}}
"""
