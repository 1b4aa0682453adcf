"""Operations on tensors with values as LLVM IR text: NumPy computes, the result becomes a tensor, tapes are told; no
gradient rule is made here.

Each operator and method of the class is a C function over one record of words (eager_layout.py): the Python function
that defines it, what computes, and what is known of its gradients. Whatever is unusual is left to the Python function:
operands that are neither tensors, floats, integers nor arrays, and threads in which a scope collects. What listens in a
thread is known by the words of ``eagerness.here``, which Python fills in when they are void or another thread's.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.eager_layout import COUNT, OP_WORDS, Op, Slots
from jitgrad.compiler.eager_record_ir import record_ir
from jitgrad.compiler.eager_walk_ir import walk_ir
from jitgrad.compiler.ir_text import (
    DATA,
    DESCR,
    DIMENSIONS,
    HEAD,
    RANK,
    STRIDES,
    TUPLE_ITEMS,
    TYPE,
    load,
    load_item,
    load_word,
)

_KIND = HEAD + 8
_MOST_ARGUMENTS = 6


def eager_ir(slots: Slots, ops: Sequence[tuple[str, str]]) -> str:
    """The module: one exported function per operation, given as its name and its kind."""
    parts = (
        record_ir(slots), walk_ir(slots), _computed(), _method(slots), _element(), _item(slots), _ufunc(), _leave(),
    )  # fmt: skip
    functions = [_function(name, kind, number) for number, (name, kind) in enumerate(ops)]
    return "\n".join((*parts, *functions)) + "\nattributes #0 = { nounwind }\n"


def op_word(name: str, number: Op) -> str:
    """Lines that read a word of the operation `%op`."""
    return load_word(name, "%op", number, "ptr")


def _computed() -> str:
    """An operation on one or two operands by a callable, where both are known and the thread is; else by Python's."""
    return f"""
define internal i1 @compute(ptr %call, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %answer) #0 {{
entry:
  %args = alloca [2 x ptr]
  %is_one = icmp eq ptr %y, null
  %nargs = select i1 %is_one, i64 1, i64 2
  %px = call ptr @operand(ptr %x)
  %bad_x = icmp eq ptr %px, null
  br i1 %bad_x, label %no, label %first
first:
  store ptr %px, ptr %args
  br i1 %is_one, label %listen, label %second
second:
  %py = call ptr @operand(ptr %y)
  %second_at = getelementptr ptr, ptr %args, i64 1
  store ptr %py, ptr %second_at
  %bad_y = icmp eq ptr %py, null
  br i1 %bad_y, label %no, label %listen
listen:
  %may = call i1 @here()
  br i1 %may, label %run, label %no
run:
  %result = call ptr @PyObject_Vectorcall(ptr %call, ptr %args, i64 %nargs, ptr null)
  %out = call ptr @tensor(ptr %result)
  %told = call ptr @recorded(ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out)
  store ptr %told, ptr %answer
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @operator(ptr %op, ptr %x, ptr %y, ptr %self, ptr %other) #0 {{
entry:
  %answer = alloca ptr
{op_word("call", Op.CALL)}
{op_word("fn", Op.FN)}
{op_word("table", Op.TABLE)}
  %taken = call i1 @compute(ptr %call, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %answer)
  br i1 %taken, label %done, label %leave
done:
  %made = load ptr, ptr %answer
  ret ptr %made
leave:
{op_word("python", Op.PYTHON)}
  %result = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %python, ptr %self, ptr %other, ptr null)
  ret ptr %result
}}
"""


def _method(slots: Slots) -> str:
    """A method: without arguments as an operator; with, by what Python has learnt of such arguments."""
    return f"""
define internal i1 @is_plain(ptr %object) #0 {{
entry:
{load("type", "%object", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_bool = icmp eq ptr %type, @jitgrad_type_bool
  %is_str = icmp eq ptr %type, @jitgrad_type_str
  %is_type = icmp eq ptr %type, @jitgrad_type_type
  %is_none = icmp eq ptr %object, @jitgrad_none
  %a = or i1 %is_int, %is_bool
  %b = or i1 %is_str, %is_type
  %c = or i1 %a, %b
  %d = or i1 %c, %is_none
  br i1 %d, label %yes, label %other
other:
  %is_tuple = icmp eq ptr %type, @jitgrad_type_tuple
  br i1 %is_tuple, label %items, label %no
items:
{load("n", "%object", HEAD, "i64")}
  %first = getelementptr i8, ptr %object, i64 {TUPLE_ITEMS}
  br label %head
head:
  %k = phi i64 [ 0, %items ], [ %k1, %item ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %item, label %yes
item:
{load_item("part", "%first", "%k")}
{load("part_type", "%part", TYPE)}
  %part_ok = icmp eq ptr %part_type, @jitgrad_type_int
  %k1 = add i64 %k, 1
  br i1 %part_ok, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @method(ptr %op, ptr %self, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
  %values = alloca [{_MOST_ARGUMENTS + 1} x ptr]
  %unnamed = icmp eq ptr %names, null
  br i1 %unnamed, label %count, label %named
named:
{load("length", "%names", HEAD, "i64")}
  br label %count
count:
  %nnames = phi i64 [ 0, %entry ], [ %length, %named ]
  %n = add i64 %nargs, %nnames
{load("type", "%self", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_tensor
  %few = icmp ule i64 %n, {_MOST_ARGUMENTS}
  %usual = and i1 %exact, %few
  br i1 %usual, label %look, label %leave
look:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %bare, label %check
bare:
{op_word("fn", Op.FN)}
{op_word("table", Op.TABLE)}
  br label %go
check:
  %has_names = zext i1 %unnamed to i64
  %width0 = add i64 %n, 1
  %width = sub i64 %width0, %has_names
  br label %check_head
check_head:
  %i = phi i64 [ 0, %check ], [ %i1, %check_one ]
  %unchecked = icmp slt i64 %i, %n
  br i1 %unchecked, label %check_one, label %make_key
check_one:
{load_item("argument", "%args", "%i")}
  %is_ok = call i1 @is_plain(ptr %argument)
  %i1 = add i64 %i, 1
  br i1 %is_ok, label %check_head, label %leave
make_key:
  %key = call ptr @PyTuple_New(i64 %width)
  %lost = icmp eq ptr %key, null
  br i1 %lost, label %fail, label %fill
fill:
  %items = getelementptr i8, ptr %key, i64 {TUPLE_ITEMS}
  br label %fill_head
fill_head:
  %j = phi i64 [ 0, %fill ], [ %j1, %fill_one ]
  %unfilled = icmp slt i64 %j, %n
  br i1 %unfilled, label %fill_one, label %fill_names
fill_one:
{load_item("value", "%args", "%j")}
  %j1 = call i64 @put(ptr %items, i64 %j, ptr %value)
  br label %fill_head
fill_names:
  br i1 %unnamed, label %search, label %put_names
put_names:
  %ignored = call i64 @put(ptr %items, i64 %n, ptr %names)
  br label %search
search:
{op_word("bound", Op.BOUND)}
  %known = call ptr @PyDict_GetItemWithError(ptr %bound, ptr %key)
  call void @Py_DecRef(ptr %key)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %leave_unknown, label %use
use:
{load("known_fn", "%known", TUPLE_ITEMS)}
{load("known_table", "%known", TUPLE_ITEMS + 8)}
  br label %go
go:
  %rule_fn = phi ptr [ %fn, %bare ], [ %known_fn, %use ]
  %rules = phi ptr [ %table, %bare ], [ %known_table, %use ]
{load("plain", "%self", slots.plain)}
  %no_plain = icmp eq ptr %plain, null
  br i1 %no_plain, label %leave, label %listen
listen:
  %may = call i1 @here()
  br i1 %may, label %copy, label %leave
copy:
  call void @Py_IncRef(ptr %rule_fn)
  call void @Py_IncRef(ptr %rules)
  store ptr %plain, ptr %values
  br label %copy_head
copy_head:
  %m = phi i64 [ 0, %copy ], [ %m1, %copy_one ]
  %uncopied = icmp slt i64 %m, %n
  br i1 %uncopied, label %copy_one, label %run
copy_one:
{load_item("moved", "%args", "%m")}
  %m1 = add i64 %m, 1
  %to = getelementptr ptr, ptr %values, i64 %m1
  store ptr %moved, ptr %to
  br label %copy_head
run:
{op_word("call", Op.CALL)}
  %all_args = add i64 %nargs, 1
  %result = call ptr @PyObject_Vectorcall(ptr %call, ptr %values, i64 %all_args, ptr %names)
  %out = call ptr @tensor(ptr %result)
  %told = call ptr @recorded(ptr %rule_fn, ptr %rules, ptr %self, ptr null, ptr %out)
  call void @Py_DecRef(ptr %rule_fn)
  call void @Py_DecRef(ptr %rules)
  ret ptr %told
leave_unknown:
  call void @PyErr_Clear()
  br label %leave
leave:
{op_word("python", Op.PYTHON)}
  %other = call ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names)
  ret ptr %other
fail:
  ret ptr null
}}
"""


def _item(slots: Slots) -> str:
    """An item by integers, slices, None and ...; its entry keeps the index and the key of the tensor."""
    return f"""
define internal i1 @is_basic(ptr %object) #0 {{
entry:
{load("type", "%object", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_slice = icmp eq ptr %type, @jitgrad_type_slice
  %is_none = icmp eq ptr %object, @jitgrad_none
  %is_dots = icmp eq ptr %object, @jitgrad_ellipsis
  %a = or i1 %is_int, %is_slice
  %b = or i1 %is_none, %is_dots
  %c = or i1 %a, %b
  ret i1 %c
}}

define internal i1 @is_index(ptr %index) #0 {{
entry:
  %alone = call i1 @is_basic(ptr %index)
  br i1 %alone, label %yes, label %other
other:
{load("type", "%index", TYPE)}
  %is_tuple = icmp eq ptr %type, @jitgrad_type_tuple
  br i1 %is_tuple, label %items, label %no
items:
{load("n", "%index", HEAD, "i64")}
  %first = getelementptr i8, ptr %index, i64 {TUPLE_ITEMS}
  br label %head
head:
  %k = phi i64 [ 0, %items ], [ %k1, %item ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %item, label %yes
item:
{load_item("part", "%first", "%k")}
  %k1 = add i64 %k, 1
  %basic = call i1 @is_basic(ptr %part)
  br i1 %basic, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

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
  %may = call i1 @here()
  br i1 %may, label %run, label %leave
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
  %failed = icmp eq ptr %out, null
  br i1 %failed, label %done, label %heard
heard:
{load_word("tapes", "@jitgrad_eager_here", COUNT)}
  %silent = icmp eq i64 %tapes, 0
  br i1 %silent, label %done, label %ask
ask:
{load("a", "%self", slots.number)}
  %watching = call i32 @tell(ptr %a, ptr null, ptr null, ptr null)
  %is_watched = icmp eq i32 %watching, 1
  br i1 %is_watched, label %search, label %done
search:
  %key = call ptr @key(ptr %self)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %learn, label %kind
kind:
{load("descr", "%self", DESCR)}
{load("letter", "%descr", _KIND, "i8")}
  %is_f = icmp eq i8 %letter, {ord("f")}
  %is_c = icmp eq i8 %letter, {ord("c")}
  %carries = or i1 %is_f, %is_c
  br i1 %carries, label %write, label %done
write:
{op_word("rule", Op.FN)}
{load("mine", "%out", slots.number)}
  %made = call ptr @PyTuple_New(i64 7)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %fail, label %fill
fill:
  %items = getelementptr i8, ptr %made, i64 {TUPLE_ITEMS}
  %k1 = call i64 @put(ptr %items, i64 0, ptr %rule)
  %k2 = call i64 @put(ptr %items, i64 %k1, ptr @jitgrad_one)
  %k3 = call i64 @put(ptr %items, i64 %k2, ptr @jitgrad_one)
  %k4 = call i64 @put(ptr %items, i64 %k3, ptr %a)
  %k5 = call i64 @put(ptr %items, i64 %k4, ptr %mine)
  %k6 = call i64 @put(ptr %items, i64 %k5, ptr %index)
  %k7 = call i64 @put(ptr %items, i64 %k6, ptr %key)
  %told = call i32 @tell(ptr %a, ptr null, ptr %made, ptr %mine)
  call void @Py_DecRef(ptr %made)
  %broken = icmp slt i32 %told, 0
  br i1 %broken, label %fail, label %done
learn:
{op_word("recorder", Op.CALL)}
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %recorder, ptr %self, ptr %index, ptr %out, ptr null)
  %refused = icmp eq ptr %answer, null
  br i1 %refused, label %fail, label %forget
forget:
  call void @Py_DecRef(ptr %answer)
  br label %done
done:
  ret ptr %out
fail:
  call void @Py_DecRef(ptr %out)
  ret ptr null
leave:
{op_word("python", Op.PYTHON)}
  %other = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr %python, ptr %self, ptr %index, ptr null)
  ret ptr %other
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


def _ufunc() -> str:
    """`__array_ufunc__`: a plain call of a ufunc of one result, whose table Python has made."""
    return f"""
define internal ptr @ufunc(ptr %op, ptr %self, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
  %answer = alloca ptr
  %unnamed = icmp eq ptr %names, null
  %least = icmp sge i64 %nargs, 3
  %most = icmp sle i64 %nargs, 4
  %number_ok = and i1 %least, %most
  %usual = and i1 %number_ok, %unnamed
  br i1 %usual, label %inside, label %count
inside:
  %ufunc = load ptr, ptr %args
{load_word("method", "%args", 1, "ptr")}
  %same = icmp eq ptr %method, @jitgrad_call_name
  br i1 %same, label %search, label %compare
compare:
  %verdict = call i32 @PyObject_RichCompareBool(ptr %method, ptr @jitgrad_call_name, i32 2)
  %is_call = icmp eq i32 %verdict, 1
  br i1 %is_call, label %search, label %count
search:
{op_word("tables", Op.TABLE)}
  %table = call ptr @PyDict_GetItemWithError(ptr %tables, ptr %ufunc)
  %unknown = icmp eq ptr %table, null
  br i1 %unknown, label %count, label %operands
operands:
{load_word("x", "%args", 2, "ptr")}
  %is_one = icmp eq i64 %nargs, 3
  br i1 %is_one, label %run, label %second
second:
{load_word("other", "%args", 3, "ptr")}
  br label %run
run:
  %y = phi ptr [ null, %operands ], [ %other, %second ]
  %taken = call i1 @compute(ptr %ufunc, ptr %ufunc, ptr %table, ptr %x, ptr %y, ptr %answer)
  br i1 %taken, label %done, label %count
done:
  %made = load ptr, ptr %answer
  ret ptr %made
count:
  br i1 %unnamed, label %leave, label %named
named:
{load("length", "%names", HEAD, "i64")}
  br label %leave
leave:
  %nnames = phi i64 [ 0, %count ], [ %length, %named ]
  %n = add i64 %nargs, %nnames
{op_word("python", Op.PYTHON)}
  %result = call ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names)
  ret ptr %result
}}
"""


def _leave() -> str:
    """The Python function, called with `self` in front of the arguments."""
    return f"""
define internal ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names) #0 {{
entry:
  %room = add i64 %n, 1
  %values = alloca ptr, i64 %room
  store ptr %self, ptr %values
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %call
one:
{load_item("value", "%args", "%k")}
  %k1 = add i64 %k, 1
  %to = getelementptr ptr, ptr %values, i64 %k1
  store ptr %value, ptr %to
  br label %head
call:
  %all = add i64 %nargs, 1
  %result = call ptr @PyObject_Vectorcall(ptr %python, ptr %values, i64 %all, ptr %names)
  ret ptr %result
}}
"""


_BODIES = {
    "binary": "@operator(ptr {op}, ptr %self, ptr %other, ptr %self, ptr %other)",
    "reflected": "@operator(ptr {op}, ptr %other, ptr %self, ptr %self, ptr %other)",
    "unary": "@operator(ptr {op}, ptr %self, ptr null, ptr %self, ptr null)",
    "item": "@item(ptr {op}, ptr %self, ptr %other)",
    "method": "@method(ptr {op}, ptr %self, ptr %args, i64 %nargs, ptr %names)",
    "ufunc": "@ufunc(ptr {op}, ptr %self, ptr %args, i64 %nargs, ptr %names)",
}


def _function(name: str, kind: str, number: int) -> str:
    """The C function of one operation."""
    fast = kind in ("method", "ufunc")
    given = "ptr %self, ptr %args, i64 %nargs, ptr %names" if fast else "ptr %self, ptr %other"
    body = _BODIES[kind].format(op="%op")
    return f"""
define ptr @{name}({given}) #0 {{
  %op = getelementptr i64, ptr @jitgrad_eager_ops, i64 {number * OP_WORDS}
  %result = call ptr {body}
  ret ptr %result
}}
"""
