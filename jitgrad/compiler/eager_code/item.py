"""Items of tensors with values as LLVM IR text: by integers, slices, None and ...; the entry keeps the index and the
key of the tensor. Other indices are left to Python.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import BASIC_TYPES, ENTRY_HEAD, RULE, Op, Slots
from jitgrad.compiler.eager_code.method import is_of, tuple_of
from jitgrad.compiler.eager_code.record import recorded_ir
from jitgrad.compiler.machine.ir_text import DESCR, HEAD, TUPLE_ITEMS, TYPE, load, load_word

_KIND = HEAD + 8

_GIVEN = "ptr %heard, ptr %op, ptr %self, ptr %index, ptr %out"
_TOLD = "record_item(ptr %op, ptr %tapes, ptr %self, ptr %index, ptr %out)"
_LEARNT = "learn_item(ptr %op, ptr %self, ptr %index, ptr %out)"


def item_ir(slots: Slots) -> str:
    """The functions."""
    index = is_of("is_index_alone", BASIC_TYPES) + tuple_of("is_index", "is_index_alone")
    recorded = recorded_ir("recorded_item", _GIVEN, _TOLD, _LEARNT)
    return "\n".join((index, _CARRIES, _entry(slots), _LEARN_ITEM, _record(slots), recorded, _ITEM_OF_NUMPY, _ITEM))


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
  %well = call i1 @tell(ptr %tapes, ptr %a, ptr null, ptr %made, ptr %mine)
  call void @Py_DecRef(ptr %made)
  ret i1 %well
bad:
  ret i1 false
}}
"""


_LEARN_ITEM = f"""
define internal i1 @learn_item(ptr %op, ptr %self, ptr %index, ptr %out) #0 {{
{_word("recorder", Op.CALL)}
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %recorder, ptr %self, ptr %index, ptr %out, ptr null)
  %well = call i1 @is_well(ptr %answer)
  ret i1 %well
}}
"""


def _record(slots: Slots) -> str:
    """Tells the tapes that watch the tensor; false with an exception set."""
    return f"""
define internal i1 @record_item(ptr %op, ptr %tapes, ptr %self, ptr %index, ptr %out) #0 {{
entry:
{load("a", "%self", slots.number)}
  %is_watched = call i1 @is_watched(ptr %tapes, ptr %a, ptr null)
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


# What NumPy makes of an index of the simple types; `state` is 1 for it, 0 for what is left to Python, -1 for an error.
_ITEM_OF_NUMPY = """
define internal { i32, ptr } @item_of_numpy(ptr %python, ptr %self, ptr %index) #0 {
entry:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %done, label %look
look:
  %plain = call ptr @plain(ptr %self)
  %has_plain = icmp ne ptr %plain, null
  %simple = call i1 @is_index(ptr %index)
  %usual = and i1 %has_plain, %simple
  br i1 %usual, label %ask, label %done
ask:
  %found = call ptr @PyObject_GetItem(ptr %plain, ptr %index)
  %made = call ptr @answer(ptr %found, ptr %python, ptr %self, ptr %index)
  %failed = icmp eq ptr %made, null
  %verdict = select i1 %failed, i32 -1, i32 1
  br label %done
done:
  %state = phi i32 [ -1, %entry ], [ 0, %look ], [ %verdict, %ask ]
  %out = phi ptr [ null, %entry ], [ null, %look ], [ %made, %ask ]
  %part = insertvalue { i32, ptr } poison, i32 %state, 0
  %both = insertvalue { i32, ptr } %part, ptr %out, 1
  ret { i32, ptr } %both
}
"""


_ITEM = f"""
define internal ptr @item(ptr %op, ptr %self, ptr %index) #0 {{
entry:
{_word("python", Op.PYTHON)}
{load("type", "%self", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %exact, label %listen, label %leave
listen:
  %heard = call ptr @listen()
  %lost = icmp eq ptr %heard, null
  br i1 %lost, label %fail, label %may
may:
  %is_left = call i1 @is_left(ptr %heard)
  br i1 %is_left, label %leave, label %view
view:
  %seen = call ptr @basic_item(ptr %self, ptr %index)
  %is_other = icmp eq ptr %seen, null
  br i1 %is_other, label %ask_numpy, label %tell
ask_numpy:
  %answer = call {{ i32, ptr }} @item_of_numpy(ptr %python, ptr %self, ptr %index)
  %state = extractvalue {{ i32, ptr }} %answer, 0
  %found = extractvalue {{ i32, ptr }} %answer, 1
  switch i32 %state, label %tell [
    i32 0, label %leave
    i32 -1, label %fail
  ]
tell:
  %out = phi ptr [ %seen, %view ], [ %found, %ask_numpy ]
  %told = call ptr @recorded_item(ptr %heard, ptr %op, ptr %self, ptr %index, ptr %out)
  ret ptr %told
leave:
  %other = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %python, ptr %self, ptr %index, ptr null)
  ret ptr %other
fail:
  ret ptr null
}}
"""
