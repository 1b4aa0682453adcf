"""Methods of tensors with values as LLVM IR text: without arguments as operators are; with, by what Python has learnt
of such arguments, which are found by the keys that ``keys.options_key`` makes too. Where a method gives a view, NumPy
is not asked (view.py).
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.layout import PLAIN_TYPES, Op
from jitgrad.compiler.machine.ir_text import HEAD, TUPLE_ITEMS, TYPE, load, load_item, load_word

MOST_ARGUMENTS = 6


def method_ir() -> str:
    """The functions."""
    return "\n".join((_plain(), _KEY, _KNOWN, _RESULT, _USUAL, _METHOD))


def _word(name: str, number: Op) -> str:
    return load_word(name, "%op", number, "ptr")


def is_one_of(types: tuple[type, ...], name: str, kind: str) -> str:
    """Lines that say in `%name` whether the type `%kind` is one of these."""
    lines = ["  %no_types = icmp eq ptr null, @jitgrad_none"]
    before = "%no_types"
    for number, found in enumerate(types):
        after = f"%{name}" if number == len(types) - 1 else f"%{name}_{number}"
        lines.append(f"  %is_{found.__name__} = icmp eq ptr %{kind}, @jitgrad_type_{found.__name__}")
        lines.append(f"  {after} = or i1 {before}, %is_{found.__name__}")
        before = after
    return "\n".join(lines)


def tuple_of(name: str, is_item: str) -> str:
    """A function that says whether an object is such an item, or a tuple of items that are `is_item`."""
    return f"""
define internal i1 @{name}(ptr %object) #0 {{
entry:
  %alone = call i1 @{name}_alone(ptr %object)
  br i1 %alone, label %yes, label %other
other:
{load("type", "%object", TYPE)}
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
  %part_ok = call i1 @{is_item}(ptr %part)
  %k1 = add i64 %k, 1
  br i1 %part_ok, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def is_of(name: str, types: tuple[type, ...]) -> str:
    """A function that says whether an object is of one of these types."""
    return f"""
define internal i1 @{name}(ptr %object) #0 {{
{load("type", "%object", TYPE)}
{is_one_of(types, "found", "type")}
  ret i1 %found
}}
"""


def _plain() -> str:
    """Whether all of `n` arguments may be part of a key."""
    return f"""{is_of("is_plain_alone", PLAIN_TYPES)}{is_of("is_integer", (int,))}{tuple_of("is_plain", "is_integer")}
define internal i1 @are_plain(ptr %args, i64 %n) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %yes
one:
{load_item("argument", "%args", "%k")}
  %is_ok = call i1 @is_plain(ptr %argument)
  %k1 = add i64 %k, 1
  br i1 %is_ok, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


# The key of arguments, a new tuple; True and False are replaced by what is not equal to 1 and 0.
_KEY = f"""
define internal ptr @key_part(ptr %object) #0 {{
{load("type", "%object", TYPE)}
  %is_bool = icmp eq ptr %type, @jitgrad_type_bool
  %is_false = icmp eq ptr %object, @jitgrad_false
  %truth = select i1 %is_false, ptr @jitgrad_eager_false, ptr @jitgrad_eager_true
  %part = select i1 %is_bool, ptr %truth, ptr %object
  ret ptr %part
}}

define internal ptr @arguments_key(ptr %args, i64 %n, ptr %names) #0 {{
entry:
  %has_names = icmp ne ptr %names, null
  %one_more = zext i1 %has_names to i64
  %width = add i64 %n, %one_more
  %key = call ptr @PyTuple_New(i64 %width)
  %lost = icmp eq ptr %key, null
  br i1 %lost, label %done, label %fill
fill:
  %items = getelementptr i8, ptr %key, i64 {TUPLE_ITEMS}
  br label %head
head:
  %j = phi i64 [ 0, %fill ], [ %j1, %one ]
  %more = icmp slt i64 %j, %n
  br i1 %more, label %one, label %last
one:
{load_item("value", "%args", "%j")}
  %part = call ptr @key_part(ptr %value)
  %j1 = call i64 @put(ptr %items, i64 %j, ptr %part)
  br label %head
last:
  %ignored = call i64 @put_if(i64 %one_more, i64 1, ptr %items, i64 %n, ptr %names)
  br label %done
done:
  ret ptr %key
}}
"""


# (function, its rules) by arguments: a new reference; null where there is none, perhaps with an exception set.
_KNOWN = """
define internal ptr @known_method(ptr %bound, ptr %args, i64 %n, ptr %names) #0 {
entry:
  %key = call ptr @arguments_key(ptr %args, i64 %n, ptr %names)
  %lost = icmp eq ptr %key, null
  br i1 %lost, label %none, label %search
search:
  %known = call ptr @PyDict_GetItemWithError(ptr %bound, ptr %key)
  call void @Py_IncRef(ptr %known)
  call void @Py_DecRef(ptr %key)
  ret ptr %known
none:
  ret ptr null
}
"""


# What a method gives, as a tensor: a view, where `viewer` (null: there is none) makes it, or NumPy's result.
_RESULT = f"""
define internal ptr @run_method(ptr %call, ptr %fn, ptr %x, ptr %plain, ptr %args, i64 %nargs, i64 %n,
    ptr %names) #0 {{
entry:
  %values = alloca [{MOST_ARGUMENTS + 1} x ptr]
  %result = call ptr @call_with(ptr %call, ptr %plain, ptr %args, i64 %nargs, i64 %n, ptr %names, ptr %values)
  %out = call ptr @answer(ptr %result, ptr %fn, ptr %x, ptr null)
  ret ptr %out
}}

define internal ptr @method_result(ptr %op, ptr %viewer, ptr %fn, ptr %self, ptr %args, i64 %nargs, i64 %n,
    ptr %names) #0 {{
entry:
  %unnamed = icmp eq ptr %names, null
  %has_viewer = icmp ne ptr %viewer, null
  %may_view = and i1 %unnamed, %has_viewer
  br i1 %may_view, label %view, label %ask_numpy
view:
  %seen = call ptr %viewer(ptr %self, ptr %args, i64 %n)
  %is_other = icmp eq ptr %seen, null
  br i1 %is_other, label %look, label %done
look:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %done, label %ask_numpy
ask_numpy:
  %plain = call ptr @plain(ptr %self)
  %lost = icmp eq ptr %plain, null
  br i1 %lost, label %fail, label %run
run:
{_word("call", Op.CALL)}
  %found = call ptr @run_method(ptr %call, ptr %fn, ptr %self, ptr %plain, ptr %args, i64 %nargs, i64 %n,
      ptr %names)
  ret ptr %found
done:
  ret ptr %seen
fail:
  %nothing = call ptr @PyErr_NoMemory()
  ret ptr %nothing
}}
"""


# How many arguments there are, and whether machine code takes them.
_USUAL = f"""
define internal i64 @arguments(i64 %nargs, ptr %names) #0 {{
entry:
  %unnamed = icmp eq ptr %names, null
  br i1 %unnamed, label %done, label %named
named:
{load("length", "%names", HEAD, "i64")}
  br label %done
done:
  %nnames = phi i64 [ 0, %entry ], [ %length, %named ]
  %n = add i64 %nargs, %nnames
  ret i64 %n
}}

define internal i1 @is_usual(ptr %self, ptr %args, i64 %n) #0 {{
entry:
{load("type", "%self", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_tensor
  %few = icmp ule i64 %n, {MOST_ARGUMENTS}
  %may_be = and i1 %exact, %few
  br i1 %may_be, label %inside, label %no
inside:
  %owner = call ptr @owner(ptr %self)
  %is_ours = icmp ne ptr %owner, null
  %are_plain = call i1 @are_plain(ptr %args, i64 %n)
  %usual = and i1 %is_ours, %are_plain
  ret i1 %usual
no:
  ret i1 false
}}
"""


# A method with the function and the table that rules for such arguments are in, if they are known; `known` null: it is
# not known of them, perhaps with an exception set.
_METHOD = f"""
define internal ptr @told_method(ptr %op, ptr %viewer, ptr %heard, ptr %fn, ptr %table, ptr %self, ptr %args,
    i64 %nargs, i64 %n, ptr %names) #0 {{
  %out = call ptr @method_result(ptr %op, ptr %viewer, ptr %fn, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names)
  %told = call ptr @recorded(ptr %heard, ptr %fn, ptr %table, ptr %self, ptr null, ptr %out)
  ret ptr %told
}}

define internal ptr @method(ptr %op, ptr %viewer, ptr %self, ptr %args, i64 %nargs, ptr %names) #0 {{
entry:
  %n = call i64 @arguments(i64 %nargs, ptr %names)
  %usual = call i1 @is_usual(ptr %self, ptr %args, i64 %n)
  br i1 %usual, label %listen, label %leave
listen:
  %heard = call ptr @listen()
  %lost = icmp eq ptr %heard, null
  br i1 %lost, label %fail, label %may
may:
  %is_left = call i1 @is_left(ptr %heard)
  br i1 %is_left, label %leave, label %look
look:
  %none = icmp eq i64 %n, 0
  br i1 %none, label %bare, label %search
bare:
{_word("fn", Op.FN)}
{_word("table", Op.TABLE)}
  %soon = call ptr @told_method(ptr %op, ptr %viewer, ptr %heard, ptr %fn, ptr %table, ptr %self, ptr %args,
      i64 %nargs, i64 %n, ptr %names)
  ret ptr %soon
search:
{_word("bound", Op.BOUND)}
  %known = call ptr @known_method(ptr %bound, ptr %args, i64 %n, ptr %names)
  %unknown = icmp eq ptr %known, null
  br i1 %unknown, label %missing, label %use
use:
{load("known_fn", "%known", TUPLE_ITEMS)}
{load("known_table", "%known", TUPLE_ITEMS + 8)}
  %told = call ptr @told_method(ptr %op, ptr %viewer, ptr %heard, ptr %known_fn, ptr %known_table, ptr %self,
      ptr %args, i64 %nargs, i64 %n, ptr %names)
  call void @Py_DecRef(ptr %known)
  ret ptr %told
missing:
  %error = call ptr @PyErr_Occurred()
  %is_error = icmp ne ptr %error, null
  br i1 %is_error, label %fail, label %leave
leave:
{_word("python", Op.PYTHON)}
  %other = call ptr @leave(ptr %python, ptr %self, ptr %args, i64 %nargs, i64 %n, ptr %names)
  ret ptr %other
fail:
  ret ptr null
}}
"""
