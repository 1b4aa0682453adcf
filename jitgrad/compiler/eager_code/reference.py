"""What machine code of eager operations refers to: objects of Python and NumPy, functions of the C API, and references
counted, as LLVM IR text; no operation.

    hold(object)                         one reference more, to what is not null
    put(items, k, object)                a new reference (None for null) at a place of a new tuple; the next place
    put_if(bits, bit, items, k, object)  the same where the bit is set
    is_well(answer)                      gives back what Python answered; whether there was no exception
"""

from __future__ import annotations

import sys

from jitgrad.compiler.eager_code.layout import NAMED_TYPES
from jitgrad.compiler.machine.ir_text import COUNT

_OBJECTS = (
    "eager_ops", "eager_keys", "eager_word", "eager_last", "eager_told", "eager_enter", "eager_show", "eager_refuse",
    "eager_counter", "eager_record_one", "eager_record_pair", "eager_true", "eager_false", "float64", "none", "false",
    "one", "two", "call_name", "type_tensor", "type_ndarray", "type_float64",
)  # fmt: skip


def reference_ir() -> str:
    """All declarations, and the functions."""
    names = (*_OBJECTS, *[f"type_{name}" for name in NAMED_TYPES])
    return "\n".join(f"@jitgrad_{name} = external global i8" for name in names) + _FUNCTIONS + _hold() + _PUT + _WELL


_FUNCTIONS = """
declare ptr @PyThreadState_Get() #0
declare i64 @PyThreadState_GetID(ptr) #0
declare ptr @PyThreadState_GetDict() #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_Clear() #0
declare void @PyErr_Fetch(ptr, ptr, ptr) #0
declare void @PyErr_NormalizeException(ptr, ptr, ptr) #0
declare void @PyErr_Restore(ptr, ptr, ptr) #0
declare ptr @PyErr_NoMemory() #0
declare ptr @PyMem_Malloc(i64) #0
declare void @PyMem_Free(ptr) #0
declare ptr @PyType_GenericAlloc(ptr, i64) #0
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyLong_FromLongLong(i64) #0
declare ptr @PyFloat_FromDouble(double) #0
declare ptr @PyTuple_New(i64) #0
declare i32 @PyList_Append(ptr, ptr) #0
declare i32 @PySet_Contains(ptr, ptr) #0
declare i32 @PySet_Add(ptr, ptr) #0
declare ptr @PyDict_GetItemWithError(ptr, ptr) #0
declare i64 @PyDict_Size(ptr) #0
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr) #0
declare i32 @PySlice_Unpack(ptr, ptr, ptr, ptr) #0
declare i64 @PySlice_AdjustIndices(i64, ptr, ptr, i64) #0
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


def _hold() -> str:
    """A call takes 1.4 ns, and there are ten in an operation. From Python 3.12 on some objects are not counted: which,
    is left to Python.
    """
    count = "  call void @Py_IncRef(ptr %object)" if sys.version_info >= (3, 12) else f"""\
  %count_at = getelementptr i8, ptr %object, i64 {COUNT}
  %count = load i64, ptr %count_at
  %more = add i64 %count, 1
  store i64 %more, ptr %count_at"""
    return f"""
define internal void @hold(ptr %object) #0 {{
{count}
  ret void
}}
"""


_PUT = """
define internal i64 @put(ptr %items, i64 %k, ptr %object) #0 {
  %absent = icmp eq ptr %object, null
  %item = select i1 %absent, ptr @jitgrad_none, ptr %object
  call void @hold(ptr %item)
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

_WELL = """
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
"""
