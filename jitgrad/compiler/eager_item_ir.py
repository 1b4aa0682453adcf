"""Items of tensors with values as LLVM IR text: by integers, slices, None and ...; the entry keeps the index and the
key of the tensor. Other indices are left to Python.
"""

from __future__ import annotations

from jitgrad.compiler.eager_layout import BASIC_TYPES, ENTRY_HEAD, RULE, Op, Slots
from jitgrad.compiler.eager_method_ir import is_of, tuple_of
from jitgrad.compiler.eager_record_ir import recorded_ir
from jitgrad.compiler.ir_text import DATA, DESCR, DIMENSIONS, HEAD, RANK, STRIDES, TUPLE_ITEMS, TYPE, load, load_word

_KIND = HEAD + 8

_GIVEN = "ptr %op, ptr %self, ptr %index, ptr %out"
_TOLD = "record_item(ptr %op, ptr %tapes, ptr %self, ptr %index, ptr %out)"


def item_ir(slots: Slots) -> str:
    """The functions."""
    index = is_of("is_index_alone", BASIC_TYPES) + tuple_of("is_index", "is_index_alone")
    recorded = recorded_ir("recorded_item", _GIVEN, _TOLD, "learn_item")
    return "\n".join((index, _CARRIES, _entry(slots), _record(slots), recorded, _element(), _item(slots)))


_CARRIES = f"""
define internal i1 @carries(ptr %x) #0 {{
{load("descr", "%x", DESCR)}
{load("letter", "%descr", _KIND, "i8")}
  %is_f = icmp eq i8 %letter, {ord("f")}
  %is_c = icmp eq i8 %letter, {ord("c")}
  %carries = or i1 %is_f, %is_c
  ret i1 %carries
}}
"""


def _word(name: str, number: Op) -> str:
    return load_word(name, "%op", number, "ptr")


def _entry(slots: Slots) -> str:
    """Enters an item on the tapes; false with an exception set."""
    return f"""
define internal i1 @enter_item(ptr %op, ptr %tapes, ptr %a, ptr %index, ptr %key, ptr %out) #0 {{
entry:
{_word("rule", Op.FN)}
{load("mine", "%out", slots.number)}
  %made = call ptr @PyTuple_New(i64 {ENTRY_HEAD + 4})
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %bad, label %fill
fill:
  %items = getelementptr i8, ptr %made, i64 {TUPLE_ITEMS}
  %k1 = call i64 @put(ptr %items, i64 {RULE}, ptr %rule)
  %k2 = call i64 @put(ptr %items, i64 %k1, ptr @jitgrad_one)
  %k3 = call i64 @put(ptr %items, i64 %k2, ptr @jitgrad_one)
  %k4 = call i64 @put(ptr %items, i64 %k3, ptr %a)
  %k5 = call i64 @put(ptr %items, i64 %k4, ptr %mine)
  %k6 = call i64 @put(ptr %items, i64 %k5, ptr %index)
  %k7 = call i64 @put(ptr %items, i64 %k6, ptr %key)
  %told = call i32 @tell(ptr %tapes, ptr %a, ptr null, ptr %made, ptr %mine)
  call void @Py_DecRef(ptr %made)
  %well = icmp sge i32 %told, 0
  ret i1 %well
bad:
  ret i1 false
}}
"""


def _record(slots: Slots) -> str:
    """Tells the tapes that watch the tensor; false with an exception set."""
    return f"""
define internal i1 @learn_item(ptr %op, ptr %self, ptr %index, ptr %out) #0 {{
{_word("recorder", Op.CALL)}
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %recorder, ptr %self, ptr %index, ptr %out, ptr null)
  %well = call i1 @is_well(ptr %answer)
  ret i1 %well
}}

define internal i1 @record_item(ptr %op, ptr %tapes, ptr %self, ptr %index, ptr %out) #0 {{
entry:
{load("a", "%self", slots.number)}
  %watching = call i32 @tell(ptr %tapes, ptr %a, ptr null, ptr null, ptr null)
  %is_watched = icmp eq i32 %watching, 1
  %carries = call i1 @carries(ptr %self)
  %counts = and i1 %is_watched, %carries
  br i1 %counts, label %search, label %good
search:
  %key = call ptr @key(ptr %self)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %learn, label %enter
enter:
  %entered = call i1 @enter_item(ptr %op, ptr %tapes, ptr %a, ptr %index, ptr %key, ptr %out)
  ret i1 %entered
learn:
  %learnt = call i1 @learn_item(ptr %op, ptr %self, ptr %index, ptr %out)
  ret i1 %learnt
good:
  ret i1 true
}}
"""


def _item(slots: Slots) -> str:
    return f"""
define internal ptr @item(ptr %op, ptr %self, ptr %index) #0 {{
entry:
{load("type", "%self", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %exact, label %inside, label %leave
inside:
{load("plain", "%self", slots.plain)}
  %has_plain = icmp ne ptr %plain, null
  %simple = call i1 @is_index(ptr %index)
  %usual = and i1 %has_plain, %simple
  br i1 %usual, label %listen, label %leave
listen:
  %may = call i32 @may()
  switch i32 %may, label %run [
    i32 0, label %leave
    i32 -1, label %fail
  ]
run:
  %number = call ptr @element(ptr %plain, ptr %index)
  %is_other = icmp eq ptr %number, null
  br i1 %is_other, label %ask_numpy, label %wrap
ask_numpy:
  %found = call ptr @PyObject_GetItem(ptr %plain, ptr %index)
  br label %wrap
wrap:
  %result = phi ptr [ %number, %run ], [ %found, %ask_numpy ]
  %out = call ptr @tensor(ptr %result)
  %told = call ptr @recorded_item(ptr %op, ptr %self, ptr %index, ptr %out)
  ret ptr %told
leave:
{_word("python", Op.PYTHON)}
  %other = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %python, ptr %self, ptr %index, ptr null)
  ret ptr %other
fail:
  ret ptr null
}}
"""


def _element() -> str:
    """A number of a vector of float64, by an integer, as a new array: NumPy would make a scalar, and of that an array.
    Null for what is left to NumPy.
    """
    return f"""
define internal ptr @element(ptr %plain, ptr %index) #0 {{
entry:
{load("type", "%index", TYPE)}
{load("descr", "%plain", DESCR)}
{load("rank", "%plain", RANK, "i32")}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_double = icmp eq ptr %descr, @jitgrad_float64
  %is_vector = icmp eq i32 %rank, 1
  %known = and i1 %is_int, %is_double
  %usual = and i1 %known, %is_vector
  br i1 %usual, label %convert, label %no
convert:
  %given = call i64 @PyLong_AsLongLong(ptr %index)
{load("dims", "%plain", DIMENSIONS)}
{load("strides", "%plain", STRIDES)}
{load("data", "%plain", DATA)}
  %n = load i64, ptr %dims
  %stride = load i64, ptr %strides
  %is_negative = icmp slt i64 %given, 0
  %from_end = add i64 %given, %n
  %k = select i1 %is_negative, i64 %from_end, i64 %given
  %is_inside = icmp ult i64 %k, %n
  br i1 %is_inside, label %make, label %outside
make:
  %error = icmp eq i64 %given, -1
  br i1 %error, label %check, label %new
check:
  %raised = call ptr @PyErr_Occurred()
  %is_raised = icmp ne ptr %raised, null
  br i1 %is_raised, label %outside, label %new
new:
  %cell = call ptr @cell()
  %lost = icmp eq ptr %cell, null
  br i1 %lost, label %outside, label %fill
fill:
  %offset = mul i64 %k, %stride
  %from = getelementptr i8, ptr %data, i64 %offset
  %value = load double, ptr %from, align 1
{load("cell_data", "%cell", DATA)}
  store double %value, ptr %cell_data
  ret ptr %cell
outside:
  call void @PyErr_Clear()
  br label %no
no:
  ret ptr null
}}
"""
