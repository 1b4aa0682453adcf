"""NumPy's functions of one tensor and of plain options as LLVM IR text (``np.sum(x, axis=0)``), by what Python has
learnt of such options, as methods are; calls of any other kind are left to Python.

NumPy asks the class of the first tensor among the arguments: `__array_function__(self, func, types, args, kwargs)`.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import Op
from jitgrad.compiler.eager_code.method import MOST_ARGUMENTS
from jitgrad.compiler.machine.ir_text import HEAD, TUPLE_ITEMS, TYPE, load, load_item, load_word

_ALL = "ptr %self, ptr %args, i64 %nargs"


def function_ir() -> str:
    """The functions."""
    return "\n".join((_IS_SIMPLE, _GATHER, _NAMES, _KNOWN, _CALL, _FUNCTION))


# Whether NumPy's four arguments are as usual: tensors and no other class, the arguments a tuple with a first one, the
# options a dictionary, and there are few of them.
_IS_SIMPLE = f"""
define internal i1 @is_only_tensor(ptr %types) #0 {{
entry:
{load("type", "%types", TYPE)}
{load("n", "%types", HEAD, "i64")}
  %is_tuple = icmp eq ptr %type, @jitgrad_type_tuple
  %is_one = icmp eq i64 %n, 1
  %may_be = and i1 %is_tuple, %is_one
  br i1 %may_be, label %look, label %no
look:
{load("first", "%types", TUPLE_ITEMS)}
  %is_tensor = icmp eq ptr %first, @jitgrad_type_tensor
  ret i1 %is_tensor
no:
  ret i1 false
}}

define internal i1 @is_simple(ptr %types, ptr %given, ptr %options) #0 {{
entry:
  %only = call i1 @is_only_tensor(ptr %types)
  br i1 %only, label %kinds, label %no
kinds:
{load("given_type", "%given", TYPE)}
{load("options_type", "%options", TYPE)}
  %is_tuple = icmp eq ptr %given_type, @jitgrad_type_tuple
  %is_dict = icmp eq ptr %options_type, @jitgrad_type_dict
  %both = and i1 %is_tuple, %is_dict
  br i1 %both, label %count, label %no
count:
{load("n", "%given", HEAD, "i64")}
  %named = call i64 @PyDict_Size(ptr %options)
  %all = add i64 %n, %named
  %has_first = icmp sgt i64 %n, 0
  %few = icmp sle i64 %all, {MOST_ARGUMENTS + 1}
  %fits = and i1 %has_first, %few
  ret i1 %fits
no:
  ret i1 false
}}
"""

# Puts all arguments but the first in a row, those with names last.
_GATHER = f"""
define internal void @gather(ptr %given, ptr %options, ptr %values) #0 {{
entry:
  %position = alloca i64
  %name = alloca ptr
  %value = alloca ptr
  store i64 0, ptr %position
{load("n", "%given", HEAD, "i64")}
  %items = getelementptr i8, ptr %given, i64 {TUPLE_ITEMS}
  br label %head
head:
  %k = phi i64 [ 1, %entry ], [ %k1, %one ]
  %to = phi ptr [ %values, %entry ], [ %to1, %one ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %named
one:
{load_item("item", "%items", "%k")}
  store ptr %item, ptr %to
  %to1 = getelementptr ptr, ptr %to, i64 1
  %k1 = add i64 %k, 1
  br label %head
named:
  %at = phi ptr [ %to, %head ], [ %at1, %store ]
  %is_one = call i32 @PyDict_Next(ptr %options, ptr %position, ptr %name, ptr %value)
  %is_end = icmp eq i32 %is_one, 0
  br i1 %is_end, label %done, label %store
store:
  %option = load ptr, ptr %value
  store ptr %option, ptr %at
  %at1 = getelementptr ptr, ptr %at, i64 1
  br label %named
done:
  ret void
}}
"""

# The names of options, a new tuple; null with an exception set.
_NAMES = f"""
define internal ptr @names_of(ptr %options, i64 %n) #0 {{
entry:
  %position = alloca i64
  %name = alloca ptr
  store i64 0, ptr %position
  %made = call ptr @PyTuple_New(i64 %n)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %done, label %fill
fill:
  %items = getelementptr i8, ptr %made, i64 {TUPLE_ITEMS}
  br label %head
head:
  %k = phi i64 [ 0, %fill ], [ %k1, %one ]
  %is_one = call i32 @PyDict_Next(ptr %options, ptr %position, ptr %name, ptr null)
  %is_end = icmp eq i32 %is_one, 0
  br i1 %is_end, label %done, label %one
one:
  %found = load ptr, ptr %name
  %k1 = call i64 @put(ptr %items, i64 %k, ptr %found)
  br label %head
done:
  ret ptr %made
}}
"""

# (function of the tensor alone, its rules, what computes), as `known_method`.
_KNOWN = """
define internal ptr @known_function(ptr %functions, ptr %func, ptr %values, i64 %n, ptr %names) #0 {
entry:
  %bound = call ptr @PyDict_GetItemWithError(ptr %functions, ptr %func)
  %unknown = icmp eq ptr %bound, null
  br i1 %unknown, label %none, label %search
search:
  call void @hold(ptr %bound)
  %known = call ptr @known_method(ptr %bound, ptr %values, i64 %n, ptr %names)
  call void @Py_DecRef(ptr %bound)
  ret ptr %known
none:
  ret ptr null
}
"""

# Calls a function of which that is known, and tells the tapes.
_CALL = f"""
define internal ptr @call_known(ptr %heard, ptr %known, ptr %x, ptr %values, i64 %nargs, i64 %n, ptr %names) #0 {{
entry:
{load("fn", "%known", TUPLE_ITEMS)}
{load("table", "%known", TUPLE_ITEMS + 8)}
{load("call", "%known", TUPLE_ITEMS + 16)}
  %plain = call ptr @plain(ptr %x)
  %lost = icmp eq ptr %plain, null
  br i1 %lost, label %fail, label %run
run:
  %out = call ptr @run_method(ptr %call, ptr %fn, ptr %x, ptr %plain, ptr %values, i64 %nargs, i64 %n, ptr %names)
  %told = call ptr @recorded(ptr %heard, ptr %fn, ptr %table, ptr %x, ptr null, ptr %out)
  ret ptr %told
fail:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr %nothing
}}

define internal {{ i32, ptr }} @simple_function(ptr %functions, ptr %func, ptr %given, ptr %values, i64 %n,
    ptr %names) #0 {{
entry:
{load("x", "%given", TUPLE_ITEMS)}
{load("length", "%given", HEAD, "i64")}
  %nargs = sub i64 %length, 1
  %usual = call i1 @is_usual(ptr %x, ptr %values, i64 %n)
  br i1 %usual, label %listen, label %done
listen:
  %heard = call ptr @listen()
  %lost = icmp eq ptr %heard, null
  br i1 %lost, label %done, label %may
may:
  %is_left = call i1 @is_left(ptr %heard)
  br i1 %is_left, label %done, label %search
search:
  %known = call ptr @known_function(ptr %functions, ptr %func, ptr %values, i64 %n, ptr %names)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %look, label %use
look:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  %missing = zext i1 %is_error to i32
  br label %done
use:
  %out = call ptr @call_known(ptr %heard, ptr %known, ptr %x, ptr %values, i64 %nargs, i64 %n, ptr %names)
  call void @Py_DecRef(ptr %known)
  br label %done
done:
  %taken = phi i32 [ 0, %entry ], [ 1, %listen ], [ 0, %may ], [ %missing, %look ], [ 1, %use ]
  %answer = phi ptr [ null, %entry ], [ null, %listen ], [ null, %may ], [ null, %look ], [ %out, %use ]
  %part = insertvalue {{ i32, ptr }} poison, i32 %taken, 0
  %both = insertvalue {{ i32, ptr }} %part, ptr %answer, 1
  ret {{ i32, ptr }} %both
}}
"""

# `func_answer` is 1 and what it gives (null with an exception set), or 0 for what is left to Python.
_FUNCTION = f"""
define internal {{ i32, ptr }} @func_answer(ptr %functions, ptr %func, ptr %given, ptr %options) #0 {{
entry:
  %values = alloca [{MOST_ARGUMENTS + 1} x ptr]
{load("length", "%given", HEAD, "i64")}
  %named = call i64 @PyDict_Size(ptr %options)
  %all = add i64 %length, %named
  %n = sub i64 %all, 1
  call void @gather(ptr %given, ptr %options, ptr %values)
  %has_names = icmp ne i64 %named, 0
  br i1 %has_names, label %name, label %call
name:
  %made = call ptr @names_of(ptr %options, i64 %named)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %fail, label %call
call:
  %names = phi ptr [ null, %entry ], [ %made, %name ]
  %answer = call {{ i32, ptr }} @simple_function(ptr %functions, ptr %func, ptr %given, ptr %values, i64 %n, ptr %names)
  call void @Py_DecRef(ptr %names)
  ret {{ i32, ptr }} %answer
fail:
  ret {{ i32, ptr }} {{ i32 1, ptr null }}
}}

define internal ptr @function(ptr %op, {_ALL}, ptr %names) #0 {{
entry:
  %is_four = icmp eq i64 %nargs, 4
  %unnamed = icmp eq ptr %names, null
  %usual = and i1 %is_four, %unnamed
  br i1 %usual, label %look, label %leave
look:
  %func = load ptr, ptr %args
{load_word("types", "%args", 1, "ptr")}
{load_word("given", "%args", 2, "ptr")}
{load_word("options", "%args", 3, "ptr")}
  %simple = call i1 @is_simple(ptr %types, ptr %given, ptr %options)
  br i1 %simple, label %call, label %leave
call:
{load_word("functions", "%op", Op.TABLE, "ptr")}
  %answer = call {{ i32, ptr }} @func_answer(ptr %functions, ptr %func, ptr %given, ptr %options)
  %taken = extractvalue {{ i32, ptr }} %answer, 0
  %out = extractvalue {{ i32, ptr }} %answer, 1
  %is_taken = icmp ne i32 %taken, 0
  br i1 %is_taken, label %done, label %leave
done:
  ret ptr %out
leave:
{load_word("python", "%op", Op.PYTHON, "ptr")}
  %n = call i64 @arguments(i64 %nargs, ptr %names)
  %other = call ptr @leave(ptr %python, {_ALL}, i64 %n, ptr %names)
  ret ptr %other
}}
"""
