"""Operations on tensors with values as LLVM IR text: NumPy computes, the result becomes a tensor, tapes are told; no
gradient rule is made here.

Each operator and method of the class is a C function over one record of words (layout.py): the Python function
that defines it, what computes, and what is known of its gradients. References, tensors, views, what is recorded, items
and methods have files of their own. Whatever is unusual is left to the Python function:
operands that are neither tensors, floats, integers nor arrays, and threads in which a scope collects.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.eager_code.function import function_ir
from jitgrad.compiler.eager_code.index import index_ir
from jitgrad.compiler.eager_code.item import item_ir
from jitgrad.compiler.eager_code.layout import OP_WORDS, VIEWERS, Op, Slots
from jitgrad.compiler.eager_code.method import MOST_ARGUMENTS, method_ir
from jitgrad.compiler.eager_code.operand import operand_ir
from jitgrad.compiler.eager_code.record import record_ir
from jitgrad.compiler.eager_code.reference import reference_ir
from jitgrad.compiler.eager_code.tensor import tensor_ir
from jitgrad.compiler.eager_code.view import view_ir
from jitgrad.compiler.eager_code.walk import walk_ir
from jitgrad.compiler.machine.ir_text import load_item, load_word


def eager_ir(slots: Slots, ops: Sequence[tuple[str, str]]) -> str:
    """The module: one exported function per operation, given as its name and its kind."""
    shared = reference_ir(), tensor_ir(slots), record_ir(slots), operand_ir(slots), walk_ir(slots), _LEAVE
    views = view_ir(), index_ir(), item_ir(slots)
    kinds = _COMPUTE, _OPERATOR, method_ir(), function_ir(), _IS_CALL, _UFUNC_TABLE, _UFUNC
    functions = [_function(name, kind, number) for number, (name, kind) in enumerate(ops)]
    return "\n".join((*shared, *views, *kinds, *functions)) + "\nattributes #0 = { nounwind }\n"


def op_word(name: str, number: Op) -> str:
    """Lines that read a word of the operation `%op`."""
    return load_word(name, "%op", number, "ptr")


# An operation on one or two operands by a callable, where both are known and the thread is; else false. With an
# exception set, the answer is null.
_COMPUTE = """
define internal i1 @compute(ptr %call, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %answer) #0 {
entry:
  %args = alloca [2 x ptr]
  store ptr null, ptr %answer
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
  %heard = call ptr @listen()
  %lost = icmp eq ptr %heard, null
  br i1 %lost, label %done, label %may
may:
  %is_left = call i1 @is_left(ptr %heard)
  br i1 %is_left, label %no, label %run
run:
  %result = call ptr @PyObject_Vectorcall(ptr %call, ptr %args, i64 %nargs, ptr null)
  %out = call ptr @answer(ptr %result, ptr %fn, ptr %x, ptr %y)
  %told = call ptr @recorded(ptr %heard, ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out)
  store ptr %told, ptr %answer
  br label %done
done:
  ret i1 true
no:
  ret i1 false
}
"""


_OPERATOR = f"""
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


# Whether a method of a ufunc is its plain call; -1 with an exception set.
_IS_CALL = """
define internal i32 @is_call(ptr %method) #0 {
entry:
  %same = icmp eq ptr %method, @jitgrad_call_name
  br i1 %same, label %yes, label %compare
yes:
  ret i32 1
compare:
  %verdict = call i32 @PyObject_RichCompareBool(ptr %method, ptr @jitgrad_call_name, i32 2)
  ret i32 %verdict
}
"""


# What is known of the ufunc that is called, with one or two operands and no names: a new reference to its table, which
# Python has made; null where there is none or the call is another, perhaps with an exception set.
_UFUNC_TABLE = f"""
define internal ptr @ufunc_table(ptr %tables, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
  %unnamed = icmp eq ptr %names, null
  %least = icmp sge i64 %nargs, 3
  %most = icmp sle i64 %nargs, 4
  %number_ok = and i1 %least, %most
  %usual = and i1 %number_ok, %unnamed
  br i1 %usual, label %inside, label %no
inside:
{load_word("method", "%args", 1, "ptr")}
  %verdict = call i32 @is_call(ptr %method)
  %is_call = icmp eq i32 %verdict, 1
  br i1 %is_call, label %search, label %no
search:
  %ufunc = load ptr, ptr %args
  %table = call ptr @PyDict_GetItemWithError(ptr %tables, ptr %ufunc)
  call void @Py_IncRef(ptr %table)
  ret ptr %table
no:
  ret ptr null
}}
"""


# `__array_ufunc__`: a plain call of a ufunc of one result.
_UFUNC = f"""
define internal ptr @ufunc(ptr %op, ptr %self, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
  %answer = alloca ptr
{op_word("tables", Op.TABLE)}
  %table = call ptr @ufunc_table(ptr %tables, ptr %args, i64 %nargs, ptr %names)
  %unknown = icmp eq ptr %table, null
  br i1 %unknown, label %look, label %operands
operands:
  %ufunc = load ptr, ptr %args
{load_word("x", "%args", 2, "ptr")}
  %is_one = icmp eq i64 %nargs, 3
  br i1 %is_one, label %run, label %second
second:
{load_word("other", "%args", 3, "ptr")}
  br label %run
run:
  %y = phi ptr [ null, %operands ], [ %other, %second ]
  %taken = call i1 @compute(ptr %ufunc, ptr %ufunc, ptr %table, ptr %x, ptr %y, ptr %answer)
  call void @Py_DecRef(ptr %table)
  br i1 %taken, label %done, label %leave
look:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %fail, label %leave
leave:
  %n = call i64 @arguments(i64 %nargs, ptr %names)
{op_word("python", Op.PYTHON)}
  %result = call ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names)
  ret ptr %result
done:
  %made = load ptr, ptr %answer
  ret ptr %made
fail:
  ret ptr null
}}
"""


# The Python function, called with `self` in front of the arguments; for a few of them there is room on the stack.
_LEAVE = f"""
define internal ptr @call_with(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names, ptr %values) #0 {{
entry:
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

define internal ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names) #0 {{
entry:
  %room = alloca [{MOST_ARGUMENTS + 1} x ptr]
  %few = icmp ule i64 %n, {MOST_ARGUMENTS}
  br i1 %few, label %short, label %long
short:
  %soon = call ptr @call_with(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names, ptr %room)
  ret ptr %soon
long:
  %number = add i64 %n, 1
  %bytes = mul i64 %number, 8
  %memory = call ptr @PyMem_Malloc(i64 %bytes)
  %lost = icmp eq ptr %memory, null
  br i1 %lost, label %fail, label %call
call:
  %result = call ptr @call_with(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names, ptr %memory)
  call void @PyMem_Free(ptr %memory)
  ret ptr %result
fail:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr %nothing
}}
"""


_METHOD = "@method(ptr %op, ptr {viewer}, ptr %self, ptr %args, i64 %nargs, ptr %names)"
_BODIES = {
    "binary": "@operator(ptr %op, ptr %self, ptr %other, ptr %self, ptr %other)",
    "reflected": "@operator(ptr %op, ptr %other, ptr %self, ptr %self, ptr %other)",
    "unary": "@operator(ptr %op, ptr %self, ptr null, ptr %self, ptr null)",
    "item": "@item(ptr %op, ptr %self, ptr %other)",
    "transposed": "@method(ptr %op, ptr @transposed, ptr %self, ptr null, i64 0, ptr null)",
    "ufunc": "@ufunc(ptr %op, ptr %self, ptr %args, i64 %nargs, ptr %names)",
    "function": "@function(ptr %op, ptr %self, ptr %args, i64 %nargs, ptr %names)",
    "method": _METHOD.format(viewer="null"),
} | {kind: _METHOD.format(viewer=f"@{viewer}") for kind, viewer in VIEWERS.items()}


def _function(name: str, kind: str, number: int) -> str:
    """The C function of one operation."""
    is_method = "%args" in _BODIES[kind]
    given = "ptr %self, ptr %args, i64 %nargs, ptr %names" if is_method else "ptr %self, ptr %other"
    return f"""
define ptr @{name}({given}) #0 {{
  %op = getelementptr i64, ptr @jitgrad_eager_ops, i64 {number * OP_WORDS}
  %result = call ptr {_BODIES[kind]}
  ret ptr %result
}}
"""
