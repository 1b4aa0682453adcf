"""How tensors with values are made, as LLVM IR text: around an array of NumPy's, around a number, over the memory of
another tensor; what computes is elsewhere.

    tensor(result)                       a new tensor of a result, which it takes over; null for null
    answer(result, fn, x, y)             the same for the result of a call of NumPy's, whose errors are put in our form
    number(float)                        a new tensor of a float's value, in that float, which it takes over
    view(x, rank, dims, strides, data)   a new tensor over a part of a tensor's memory
    plain(x)                             the array by which NumPy knows a tensor, borrowed; null for what Python makes

A tensor is an array over memory that another object owns: most often the array that NumPy made, which is its plain
array too. A number lies in a float of Python or NumPy, and a view in the memory of what it was taken from: these have
no plain array until one is asked for, which saves half of what they cost. All are complete before Python may run.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import Slots
from jitgrad.compiler.machine.ir_text import BASE, DATA, DESCR, DIMENSIONS, FLAGS, HEAD, RANK, STRIDES, TYPE, load

_C_ORDER, _FORTRAN_ORDER, _ALIGNED, _WRITEABLE = 0x1, 0x2, 0x100, 0x400


def tensor_ir(slots: Slots) -> str:
    """The functions."""
    made = _numbered(slots), _OVER, _number(), _wrapped(slots), _TENSOR, _ANSWER
    return "\n".join((*made, _plain(slots), _owner(slots), _VIEW))


def _numbered(slots: Slots) -> str:
    """Gives a new tensor its number, from a row of its own: Python counts down from -1. Null, with an exception set,
    for null and where there is none to be had; the tensor is given back then.
    """
    return f"""
define internal ptr @numbered(ptr %out) #0 {{
entry:
  %lost = icmp eq ptr %out, null
  br i1 %lost, label %fail, label %count
count:
  %last = load i64, ptr @jitgrad_eager_counter
  %next = add i64 %last, 1
  store i64 %next, ptr @jitgrad_eager_counter
  %number = call ptr @PyLong_FromLongLong(i64 %next)
  %none = icmp eq ptr %number, null
  br i1 %none, label %drop, label %keep
keep:
  %slot = getelementptr i8, ptr %out, i64 {slots.number}
  store ptr %number, ptr %slot
  ret ptr %out
drop:
  call void @Py_DecRef(ptr %out)
  br label %fail
fail:
  ret ptr null
}}
"""


# A new array of a type, of x's dtype, over memory that `base` owns; null with an exception set.
_OVER = f"""
define internal ptr @over(ptr %type, ptr %x, ptr %base, i32 %rank, ptr %dims, ptr %strides, ptr %data) #0 {{
entry:
{load("descr", "%x", DESCR)}
  call void @hold(ptr %descr)
  %out = call ptr @jitgrad_array_new(ptr %type, ptr %descr, i32 %rank, ptr %dims, ptr %strides, ptr %data, i32 0,
      ptr null)
  %lost = icmp eq ptr %out, null
  br i1 %lost, label %fail, label %join
join:
  call void @hold(ptr %base)
  %state = call i32 @jitgrad_array_set_base(ptr %out, ptr %base)
  %refused = icmp ne i32 %state, 0
  br i1 %refused, label %drop, label %done
done:
  ret ptr %out
drop:
  call void @Py_DecRef(ptr %out)
  br label %fail
fail:
  ret ptr null
}}
"""


def _number() -> str:
    """An array without axes has no memory for extents, so the few words that differ from 0 are written here, which
    takes half of the time of NumPy's function for all arrays.
    """
    flags = _C_ORDER | _FORTRAN_ORDER | _ALIGNED

    def at(name: str, offset: int) -> str:
        return f"  %{name}_at = getelementptr i8, ptr %out, i64 {offset}"

    return f"""
define internal ptr @number(ptr %float) #0 {{
entry:
  %none = icmp eq ptr %float, null
  br i1 %none, label %fail, label %make
make:
  %out = call ptr @PyType_GenericAlloc(ptr @jitgrad_type_tensor, i64 0)
  %lost = icmp eq ptr %out, null
  br i1 %lost, label %drop, label %fill
fill:
  %value = getelementptr i8, ptr %float, i64 {HEAD}
  call void @hold(ptr @jitgrad_float64)
{at("data", DATA)}
{at("base", BASE)}
{at("descr", DESCR)}
{at("flags", FLAGS)}
  store ptr %value, ptr %data_at
  store ptr %float, ptr %base_at
  store ptr @jitgrad_float64, ptr %descr_at
  store i32 {flags}, ptr %flags_at
  %numbered = call ptr @numbered(ptr %out)
  ret ptr %numbered
drop:
  call void @Py_DecRef(ptr %float)
  br label %fail
fail:
  ret ptr null
}}
"""


def _wrapped(slots: Slots) -> str:
    """`wrap` of tensor.py: the tensor of an array, which it takes over as the plain array; null for null."""
    return f"""
define internal ptr @wrapped(ptr %array) #0 {{
entry:
  %none = icmp eq ptr %array, null
  br i1 %none, label %fail, label %fix
fix:
{load("flags", "%array", FLAGS, "i32")}
  %fixed = and i32 %flags, {~_WRITEABLE}
  store i32 %fixed, ptr %flags_at
{load("rank", "%array", RANK, "i32")}
{load("dims", "%array", DIMENSIONS)}
{load("strides", "%array", STRIDES)}
{load("data", "%array", DATA)}
  %out = call ptr @over(ptr @jitgrad_type_tensor, ptr %array, ptr %array, i32 %rank, ptr %dims, ptr %strides, ptr %data)
  %lost = icmp eq ptr %out, null
  br i1 %lost, label %drop, label %keep
keep:
  %slot = getelementptr i8, ptr %out, i64 {slots.plain}
  store ptr %array, ptr %slot
  %numbered = call ptr @numbered(ptr %out)
  ret ptr %numbered
drop:
  call void @Py_DecRef(ptr %array)
  br label %fail
fail:
  ret ptr null
}}
"""


_TENSOR = f"""
define internal ptr @tensor(ptr %result) #0 {{
entry:
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %fail, label %look
look:
{load("type", "%result", TYPE)}
  %is_array = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %is_array, label %array, label %scalar
array:
  %whole = call ptr @wrapped(ptr %result)
  ret ptr %whole
scalar:
  %is_double = icmp eq ptr %type, @jitgrad_type_float64
  br i1 %is_double, label %double, label %convert
double:
  %number = call ptr @number(ptr %result)
  ret ptr %number
convert:
  %converted = call ptr @jitgrad_array_from(ptr %result, ptr null, i32 0, i32 0, i32 0, ptr null)
  call void @Py_DecRef(ptr %result)
  %other = call ptr @wrapped(ptr %converted)
  ret ptr %other
fail:
  ret ptr null
}}
"""


# An error of NumPy's is shown to Python, which may set another in its place.
_ANSWER = """
define internal ptr @answer(ptr %result, ptr %fn, ptr %x, ptr %y) #0 {
entry:
  %refused = icmp eq ptr %result, null
  br i1 %refused, label %tell, label %make
make:
  %out = call ptr @tensor(ptr %result)
  ret ptr %out
tell:
  call void @refuse(ptr %fn, ptr %x, ptr %y)
  ret ptr null
}

define internal void @refuse(ptr %fn, ptr %x, ptr %y) #0 {
entry:
  %type_at = alloca ptr
  %error_at = alloca ptr
  %trace_at = alloca ptr
  call void @PyErr_Fetch(ptr %type_at, ptr %error_at, ptr %trace_at)
  call void @PyErr_NormalizeException(ptr %type_at, ptr %error_at, ptr %trace_at)
  %type = load ptr, ptr %type_at
  %error = load ptr, ptr %error_at
  %trace = load ptr, ptr %trace_at
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_refuse, ptr %error, ptr %fn, ptr %x,
      ptr %y, ptr null)
  %stays = call i1 @is_well(ptr %answer)
  br i1 %stays, label %restore, label %forget
restore:
  call void @PyErr_Restore(ptr %type, ptr %error, ptr %trace)
  ret void
forget:
  call void @Py_DecRef(ptr %type)
  call void @Py_DecRef(ptr %error)
  call void @Py_DecRef(ptr %trace)
  ret void
}
"""


def _plain(slots: Slots) -> str:
    """A tensor made here is not writeable and lies in the memory of another object. Of a tensor that NumPy has made by
    itself, Python makes a copy.
    """
    return f"""
define internal ptr @plain(ptr %x) #0 {{
entry:
{load("plain", "%x", slots.plain)}
  %is_there = icmp ne ptr %plain, null
  br i1 %is_there, label %done, label %look
look:
{load("flags", "%x", FLAGS, "i32")}
{load("base", "%x", BASE)}
  %open = and i32 %flags, {_WRITEABLE}
  %is_open = icmp ne i32 %open, 0
  %is_bare = icmp eq ptr %base, null
  %is_other = or i1 %is_open, %is_bare
  br i1 %is_other, label %none, label %make
make:
{load("rank", "%x", RANK, "i32")}
{load("dims", "%x", DIMENSIONS)}
{load("strides", "%x", STRIDES)}
{load("data", "%x", DATA)}
  %made = call ptr @over(ptr @jitgrad_type_ndarray, ptr %x, ptr %base, i32 %rank, ptr %dims, ptr %strides, ptr %data)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %clear, label %fix
fix:
  %made_flags_at = getelementptr i8, ptr %made, i64 {FLAGS}
  %made_flags = load i32, ptr %made_flags_at
  %fixed = and i32 %made_flags, {~_WRITEABLE}
  store i32 %fixed, ptr %made_flags_at
  store ptr %made, ptr %plain_at
  ret ptr %made
clear:
  call void @PyErr_Clear()
  br label %none
none:
  ret ptr null
done:
  ret ptr %plain
}}
"""


def _owner(slots: Slots) -> str:
    """What a view of a tensor is to keep alive: what the tensor's array is a view of, if it is one; null where it is
    not known whether the memory may change.
    """
    return f"""
define internal ptr @owner(ptr %x) #0 {{
entry:
{load("flags", "%x", FLAGS, "i32")}
{load("base", "%x", BASE)}
  %open = and i32 %flags, {_WRITEABLE}
  %is_open = icmp ne i32 %open, 0
  br i1 %is_open, label %none, label %look
look:
{load("plain", "%x", slots.plain)}
  %is_whole = icmp eq ptr %plain, %base
  %has_plain = icmp ne ptr %plain, null
  %may_be_view = and i1 %is_whole, %has_plain
  br i1 %may_be_view, label %ask, label %done
ask:
  %further_at = getelementptr i8, ptr %base, i64 {BASE}
  %further = load ptr, ptr %further_at
  %is_first = icmp eq ptr %further, null
  %owner = select i1 %is_first, ptr %base, ptr %further
  ret ptr %owner
done:
  ret ptr %base
none:
  ret ptr null
}}
"""


_VIEW = """
define internal ptr @view(ptr %x, i32 %rank, ptr %dims, ptr %strides, ptr %data) #0 {
entry:
  %owner = call ptr @owner(ptr %x)
  %none = icmp eq ptr %owner, null
  br i1 %none, label %fail, label %make
make:
  %out = call ptr @over(ptr @jitgrad_type_tensor, ptr %x, ptr %owner, i32 %rank, ptr %dims, ptr %strides, ptr %data)
  %numbered = call ptr @numbered(ptr %out)
  ret ptr %numbered
fail:
  ret ptr null
}
"""
