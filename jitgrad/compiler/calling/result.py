"""Outputs before a run and the result after it, as LLVM IR text: arrays are made, scalars read, containers built.

    prepare(entry, table)    memory for the outputs; false with an exception set
    collect(entry, table)    copies and NumPy scalars after the run; false with an exception set
    build(program, results, stack)   the result, for which the outputs are used up; null with an exception set
    drop(objects, n)         gives up so many objects, where there are any
    finish(function, leaves, n)      a Python function of the list of the leaves
"""

from __future__ import annotations

from jitgrad.compiler.calling.entry_layout import (
    DONE,
    FRESH,
    LEAF,
    MAKE,
    MAKE_DICT,
    MAKE_LIST,
    MAKE_TUPLE,
    OBJECT,
    OUTPUT_WORDS,
    RANK_WORD,
    SCALAR,
    SPARED,
    Word,
)
from jitgrad.compiler.calling.spares import spares_ir
from jitgrad.compiler.machine.ir_text import DATA, LIST_ITEMS, TUPLE_ITEMS, load, load_item, load_word


def result_ir() -> str:
    """The functions."""
    return "\n".join((_DECLARATIONS, spares_ir(), _prepare(), _collect(), _drop(), _finish(), _build()))


_DECLARATIONS = """
@jitgrad_type_ndarray = external global i8
declare ptr @jitgrad_array_new(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr) #0
declare ptr @jitgrad_array_scalar(ptr, ptr, ptr) #0
declare ptr @PyTuple_New(i64) #0
declare ptr @PyList_New(i64) #0
declare ptr @PyDict_Copy(ptr) #0
declare i32 @PyDict_SetItem(ptr, ptr, ptr) #0
@jitgrad_none = external global i8
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1) #0
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1) #0
"""


def _each_output(body: str) -> str:
    """A loop over the records of the outputs, true at its end; `body` goes on at %next."""
    return f"""
entry_block:
{load_word("n", "%entry", Word.NOUTPUTS)}
{load_word("first", "%entry", Word.OUTPUTS, "ptr")}
{load_word("results", "%entry", Word.RESULTS, "ptr")}
  br label %head
head:
  %k = phi i64 [ 0, %entry_block ], [ %k1, %next ]
  %record = phi ptr [ %first, %entry_block ], [ %after, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %output, label %done
output:
{load_word("kind", "%record", 0)}
{load_word("slot", "%record", 1)}
{load_word("object", "%record", 2, "ptr")}
  %entry_at = getelementptr i64, ptr %table, i64 %slot
  %result_at = getelementptr i64, ptr %results, i64 %k
{body}
next:
{load_word("rank", "%record", RANK_WORD)}
  %dims = getelementptr i64, ptr %record, i64 {OUTPUT_WORDS}
  %strides = getelementptr i64, ptr %dims, i64 %rank
  %after = getelementptr i64, ptr %strides, i64 %rank
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i1 true
"""


def _prepare() -> str:
    """Arrays that the caller has dropped, new ones by NumPy, or from the pool through Python; a scalar has its cell in
    the frame.
    """
    body = f"""
  switch i64 %kind, label %pooled [ i64 {SCALAR}, label %next i64 {FRESH}, label %fresh i64 {SPARED}, label %look ]
look:
  %spare = call ptr @spare(ptr %record)
  %has_none = icmp eq ptr %spare, null
  br i1 %has_none, label %fresh, label %keep
fresh:
{load_word("nd64", "%record", RANK_WORD)}
  %nd = trunc i64 %nd64 to i32
  %extents = getelementptr i64, ptr %record, i64 {OUTPUT_WORDS}
  call void @Py_IncRef(ptr %object)
  %new = call ptr @jitgrad_array_new(ptr @jitgrad_type_ndarray, ptr %object, i32 %nd, ptr %extents, ptr null,
      ptr null, i32 0, ptr null)
  %made = icmp ne ptr %new, null
  %is_spared = icmp eq i64 %kind, {SPARED}
  %is_kept = and i1 %made, %is_spared
  br i1 %is_kept, label %note, label %keep
note:
  call void @keep(ptr %record, ptr %new)
  br label %keep
pooled:
  %taken = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %object, ptr null)
  br label %keep
keep:
  %array = phi ptr [ %spare, %look ], [ %new, %fresh ], [ %new, %note ], [ %taken, %pooled ]
  %lost = icmp eq ptr %array, null
  br i1 %lost, label %fail, label %enter
enter:
  store ptr %array, ptr %result_at
{load("data", "%array", DATA)}
  store ptr %data, ptr %entry_at
  br label %next
fail:
  ret i1 false
"""
    return "define internal i1 @prepare(ptr %entry, ptr %table) #0 {" + _each_output(body) + "}\n"


def _collect() -> str:
    """Outputs that are another value are copied; a scalar is read from its cell, or from the value that it is."""
    body = f"""
{load_word("source", "%record", 3)}
  %copies = icmp sge i64 %source, 0
  %source_slot = select i1 %copies, i64 %source, i64 %slot
{load_item("from", "%table", "%source_slot")}
  %is_scalar = icmp eq i64 %kind, {SCALAR}
  br i1 %is_scalar, label %scalar, label %array
scalar:
  %made = call ptr @jitgrad_array_scalar(ptr %from, ptr %object, ptr null)
  store ptr %made, ptr %result_at
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %fail, label %next
array:
  br i1 %copies, label %copy, label %next
copy:
{load_word("nbytes", "%record", 4)}
  %to = load ptr, ptr %entry_at
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %nbytes, i1 false)
  br label %next
fail:
  ret i1 false
"""
    return "define internal i1 @collect(ptr %entry, ptr %table) #0 {" + _each_output(body) + "}\n"


def _drop() -> str:
    return f"""
define internal void @drop(ptr %objects, i64 %n) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %done
one:
{load_item("object", "%objects", "%k")}
  %k1 = add i64 %k, 1
  %none = icmp eq ptr %object, null
  br i1 %none, label %next, label %forget
forget:
  store ptr null, ptr %object_at
  call void @Py_DecRef(ptr %object)
  br label %next
next:
  br label %head
done:
  ret void
}}
"""


def _finish() -> str:
    return f"""
define internal ptr @finish(ptr %function, ptr %leaves, i64 %n) #0 {{
entry:
  %list = call ptr @PyList_New(i64 %n)
  %lost = icmp eq ptr %list, null
  br i1 %lost, label %fail, label %fill
fill:
{load("items", "%list", LIST_ITEMS)}
  br label %head
head:
  %k = phi i64 [ 0, %fill ], [ %k1, %one ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %call
one:
{load_item("leaf", "%leaves", "%k")}
  call void @Py_IncRef(ptr %leaf)
  %to = getelementptr ptr, ptr %items, i64 %k
  store ptr %leaf, ptr %to
  %k1 = add i64 %k, 1
  br label %head
call:
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %list, ptr null)
  call void @Py_DecRef(ptr %list)
  ret ptr %result
fail:
  ret ptr null
}}
"""


def _build() -> str:
    """A machine with a stack; what is on the stack belongs to it."""
    cases = {
        LEAF: "leaf", OBJECT: "object", MAKE_TUPLE: "tuple", MAKE_LIST: "list", MAKE_DICT: "dict", MAKE: "list",
        DONE: "done",
    }  # fmt: skip
    labels = " ".join(f"i64 {kind}, label %{name}" for kind, name in cases.items())
    return f"""
define internal ptr @build(ptr %program, ptr %results, ptr %stack) #0 {{
entry:
  br label %head
head:
  %at = phi ptr [ %program, %entry ], [ %two, %pushed ], [ %after, %made ]
  %sp = phi i64 [ 0, %entry ], [ %sp1, %pushed ], [ %below1, %made ]
{load_word("kind", "%at", 0)}
{load_word("word", "%at", 1)}
  %two = getelementptr i64, ptr %at, i64 2
  %three = getelementptr i64, ptr %at, i64 3
  %below = sub i64 %sp, %word
  %parts = getelementptr i64, ptr %stack, i64 %below
  switch i64 %kind, label %done [ {labels} ]
leaf:
{load_item("result", "%results", "%word")}
  store ptr null, ptr %result_at
  br label %pushed
object:
  %fixed = inttoptr i64 %word to ptr
  call void @Py_IncRef(ptr %fixed)
  br label %pushed
pushed:
  %part = phi ptr [ %result, %leaf ], [ %fixed, %object ]
  %top = getelementptr ptr, ptr %stack, i64 %sp
  store ptr %part, ptr %top
  %sp1 = add i64 %sp, 1
  br label %head
{_sequences()}
{_dict()}
made:
  %whole = phi ptr [ %new, %end ], [ %outcome, %hand_over ], [ %new_dict, %member_end ]
  %after = phi ptr [ %two, %end ], [ %three, %hand_over ], [ %keys_end, %member_end ]
  store ptr %whole, ptr %parts
  %below1 = add i64 %below, 1
  br label %head
done:
{load_word("answer", "%stack", 0, "ptr")}
  ret ptr %answer
clear:
  %high = phi i64 [ %sp, %tuple ], [ %sp, %list ], [ %below, %hand_over ], [ %sp, %dict ], [ %sp, %spoilt ]
  call void @drop(ptr %stack, i64 %high)
  ret ptr null
}}
"""


def _sequences() -> str:
    """The last parts into a new tuple or list, which a function may then get."""
    return f"""
tuple:
  %new_tuple = call ptr @PyTuple_New(i64 %word)
  %tuple_items = getelementptr i8, ptr %new_tuple, i64 {TUPLE_ITEMS}
  %no_tuple = icmp eq ptr %new_tuple, null
  br i1 %no_tuple, label %clear, label %fill
list:
  %new_list = call ptr @PyList_New(i64 %word)
  %no_list = icmp eq ptr %new_list, null
  br i1 %no_list, label %clear, label %list_inside
list_inside:
{load("list_items", "%new_list", LIST_ITEMS)}
  br label %fill
fill:
  %new = phi ptr [ %new_tuple, %tuple ], [ %new_list, %list_inside ]
  %items = phi ptr [ %tuple_items, %tuple ], [ %list_items, %list_inside ]
  br label %item
item:
  %i = phi i64 [ 0, %fill ], [ %i1, %put ]
  %left_items = icmp slt i64 %i, %word
  br i1 %left_items, label %put, label %end
put:
{load_item("moved", "%parts", "%i")}
  %to = getelementptr ptr, ptr %items, i64 %i
  store ptr %moved, ptr %to
  %i1 = add i64 %i, 1
  br label %item
end:
  %calls = icmp eq i64 %kind, {MAKE}
  br i1 %calls, label %hand_over, label %made
hand_over:
{load_word("function", "%at", 2, "ptr")}
  %outcome = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %function, ptr %new, ptr null)
  call void @Py_DecRef(ptr %new)
  %refused = icmp eq ptr %outcome, null
  br i1 %refused, label %clear, label %made
"""


def _dict() -> str:
    """The last parts into a new dict, by the keys in the program. A copy of a dict that has these keys already is made
    at once, where one that begins empty grows several times: 1.7 us for 100 members in place of 3.8.
    """
    return f"""
dict:
{load_word("model", "%at", 2, "ptr")}
  %new_dict = call ptr @PyDict_Copy(ptr %model)
  %keys_end = getelementptr i64, ptr %three, i64 %word
  %no_dict = icmp eq ptr %new_dict, null
  br i1 %no_dict, label %clear, label %member
member:
  %m = phi i64 [ 0, %dict ], [ %m1, %added ]
  %members_left = icmp slt i64 %m, %word
  br i1 %members_left, label %add, label %member_end
add:
{load_item("key", "%three", "%m")}
{load_item("value", "%parts", "%m")}
  %state = call i32 @PyDict_SetItem(ptr %new_dict, ptr %key, ptr %value)
  %added_well = icmp eq i32 %state, 0
  br i1 %added_well, label %added, label %spoilt
added:
  %m1 = add i64 %m, 1
  br label %member
spoilt:
  call void @Py_DecRef(ptr %new_dict)
  br label %clear
member_end:
  call void @drop(ptr %parts, i64 %word)
  br label %made
"""
