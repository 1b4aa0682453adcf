"""Operations on tensors with values as LLVM IR text: NumPy computes, the result becomes a tensor, the tapes are told; no
gradient rule is made here.

Each operator and method of the class is a C function over one record of words (eager_layout.py): the Python function
that defines it, what computes, and what is known of its gradients. Whatever is unusual is left to the Python function:
operands that are neither tensors, floats, integers nor arrays, and threads in which a scope collects. A rule that is
not known yet is left to the recorder. What listens in a thread is known by the words of ``eagerness.here``, which
Python fills in when they are void or another thread's.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.eager_layout import COUNT, FIRST_TAPE, OP_WORDS, SHOWN, THREAD, Op, Slots
from jitgrad.compiler.ir_text import DATA, DESCR, DIMENSIONS, FLAGS, HEAD, RANK, TUPLE_ITEMS, TYPE, load, load_item, load_word

_STRIDES, _BASE_KIND = HEAD + 24, HEAD + 8
_OWN_DATA, _WRITEABLE = 0x1, 0x400


def eager_ir(slots: Slots, ops: Sequence[tuple[str, str]]) -> str:
    """The module: one exported function per operation, given as its name and its kind."""
    parts = (
        _DECLARATIONS, _here(), _tensor(slots), _operand(slots), _number(slots), _key(slots), _tell(), _entry(),
        _recorded(slots), _computed(), _method(slots), _item(slots), _ufunc(), _leave(),
    )  # fmt: skip
    functions = [_function(name, kind, number) for number, (name, kind) in enumerate(ops)]
    return "\n".join((*parts, *functions)) + "\nattributes #0 = { nounwind }\n"


def op_word(name: str, number: Op) -> str:
    """Lines that read a word of the operation `%op`."""
    return load_word(name, "%op", number, "ptr")


_DECLARATIONS = """
@jitgrad_eager_here = external global i8
@jitgrad_eager_ops = external global i8
@jitgrad_eager_show = external global i8
@jitgrad_eager_counter = external global i8
@jitgrad_eager_record_one = external global i8
@jitgrad_eager_record_pair = external global i8
@jitgrad_type_tensor = external global i8
@jitgrad_type_ndarray = external global i8
@jitgrad_type_float = external global i8
@jitgrad_type_int = external global i8
@jitgrad_type_bool = external global i8
@jitgrad_type_str = external global i8
@jitgrad_type_type = external global i8
@jitgrad_type_tuple = external global i8
@jitgrad_type_slice = external global i8
@jitgrad_none = external global i8
@jitgrad_ellipsis = external global i8
@jitgrad_one = external global i8
@jitgrad_two = external global i8
@jitgrad_call_name = external global i8
declare ptr @PyThreadState_Get() #0
declare i64 @PyThreadState_GetID(ptr) #0
declare void @PyErr_Clear() #0
declare ptr @PyIter_Next(ptr) #0
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyTuple_New(i64) #0
declare i32 @PyList_Append(ptr, ptr) #0
declare i32 @PySet_Contains(ptr, ptr) #0
declare i32 @PySet_Add(ptr, ptr) #0
declare ptr @PyDict_GetItemWithError(ptr, ptr) #0
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


def _here() -> str:
    """Whether machine code may take this thread's operations; what is not known of it is asked for."""
    return f"""
define internal i1 @here() #0 {{
entry:
  %state = call ptr @PyThreadState_Get()
  %thread = call i64 @PyThreadState_GetID(ptr %state)
{load_word("known", "@jitgrad_eager_here", THREAD)}
  %same = icmp eq i64 %thread, %known
  br i1 %same, label %look, label %ask
ask:
  %answer = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_show, ptr null)
  %lost = icmp eq ptr %answer, null
  br i1 %lost, label %fail, label %told
told:
  call void @Py_DecRef(ptr %answer)
  br label %look
look:
{load_word("shown", "@jitgrad_eager_here", SHOWN)}
  %may = icmp ne i64 %shown, 0
  ret i1 %may
fail:
  call void @PyErr_Clear()
  ret i1 false
}}
"""


def _tensor(slots: Slots) -> str:
    """A new tensor of a result, which it takes over: `wrap` of tensor.py. Null for null, or with an exception set."""
    return f"""
define internal ptr @tensor(ptr %result) #0 {{
entry:
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %fail, label %look
look:
{load("type", "%result", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %exact, label %view, label %convert
convert:
  %converted = call ptr @jitgrad_array_from(ptr %result, ptr null, i32 0, i32 0, i32 0, ptr null)
  call void @Py_DecRef(ptr %result)
  %lost = icmp eq ptr %converted, null
  br i1 %lost, label %fail, label %view
view:
  %array = phi ptr [ %result, %look ], [ %converted, %convert ]
{load("flags", "%array", FLAGS, "i32")}
  %fixed = and i32 %flags, {~_WRITEABLE}
  store i32 %fixed, ptr %flags_at
  %lent = and i32 %fixed, {~_OWN_DATA}
{load("rank", "%array", RANK, "i32")}
{load("dims", "%array", DIMENSIONS)}
{load("strides", "%array", _STRIDES)}
{load("data", "%array", DATA)}
{load("descr", "%array", DESCR)}
  call void @Py_IncRef(ptr %descr)
  %out = call ptr @jitgrad_array_new(ptr @jitgrad_type_tensor, ptr %descr, i32 %rank, ptr %dims, ptr %strides,
      ptr %data, i32 %lent, ptr null)
  %none = icmp eq ptr %out, null
  br i1 %none, label %drop, label %base
base:
  call void @Py_IncRef(ptr %array)
  %state = call i32 @jitgrad_array_set_base(ptr %out, ptr %array)
  %number = call ptr @PyIter_Next(ptr @jitgrad_eager_counter)
  %plain_at = getelementptr i8, ptr %out, i64 {slots.plain}
  store ptr %array, ptr %plain_at
  %number_at = getelementptr i8, ptr %out, i64 {slots.number}
  store ptr %number, ptr %number_at
  %refused = icmp ne i32 %state, 0
  br i1 %refused, label %drop_out, label %done
done:
  ret ptr %out
drop_out:
  call void @Py_DecRef(ptr %out)
  ret ptr null
drop:
  call void @Py_DecRef(ptr %array)
  br label %fail
fail:
  ret ptr null
}}
"""


def _operand(slots: Slots) -> str:
    """What NumPy is given for an operand; null for one that is left to Python."""
    return f"""
define internal ptr @operand(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %other
tensor:
{load("plain", "%x", slots.plain)}
  ret ptr %plain
other:
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_array = icmp eq ptr %type, @jitgrad_type_ndarray
  %is_number = or i1 %is_float, %is_int
  %is_known = or i1 %is_number, %is_array
  %found = select i1 %is_known, ptr %x, ptr null
  ret ptr %found
}}
"""


def _number(slots: Slots) -> str:
    """The number of a tensor; null for anything else, and for null."""
    return f"""
define internal ptr @number(ptr %x) #0 {{
entry:
  %absent = icmp eq ptr %x, null
  br i1 %absent, label %none, label %look
look:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %none
tensor:
{load("number", "%x", slots.number)}
  ret ptr %number
none:
  ret ptr null
}}
"""


def _key(slots: Slots) -> str:
    """`operand_key` of recorder.py for tensors, floats and integers; null for what the recorder has to look at."""
    return f"""
define internal ptr @key(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %other
tensor:
{load("key", "%x", slots.key)}
  ret ptr %key
other:
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %integer = select i1 %is_int, ptr %x, ptr null
  %found = select i1 %is_float, ptr @jitgrad_type_float, ptr %integer
  ret ptr %found
}}
"""


def _tell() -> str:
    """Enter `entry` on the tapes that watch one of two numbers, which then watch a third; 1 if there is such a tape, 0
    if not, -1 with an exception set. With a null entry nothing is entered.
    """
    return f"""
define internal i1 @contains(ptr %watched, ptr %number) #0 {{
entry:
  %absent = icmp eq ptr %number, null
  br i1 %absent, label %no, label %look
look:
  %answer = call i32 @PySet_Contains(ptr %watched, ptr %number)
  %is_in = icmp eq i32 %answer, 1
  ret i1 %is_in
no:
  ret i1 false
}}

define internal i32 @tell(ptr %a, ptr %b, ptr %entry, ptr %out) #0 {{
start:
{load_word("n", "@jitgrad_eager_here", COUNT)}
  %first = getelementptr i64, ptr @jitgrad_eager_here, i64 {FIRST_TAPE}
  %asking = icmp eq ptr %entry, null
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %k1, %next ]
  %found = phi i32 [ 0, %start ], [ %found1, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %tape, label %done
tape:
  %twice = mul i64 %k, 2
{load_item("entries", "%first", "%twice")}
  %odd = add i64 %twice, 1
{load_item("watched", "%first", "%odd")}
  %has_a = call i1 @contains(ptr %watched, ptr %a)
  br i1 %has_a, label %hit, label %second
second:
  %has_b = call i1 @contains(ptr %watched, ptr %b)
  br i1 %has_b, label %hit, label %next
hit:
  br i1 %asking, label %yes, label %enter
yes:
  ret i32 1
enter:
  %appended = call i32 @PyList_Append(ptr %entries, ptr %entry)
  %added = call i32 @PySet_Add(ptr %watched, ptr %out)
  %both = or i32 %appended, %added
  %well = icmp eq i32 %both, 0
  br i1 %well, label %next, label %fail
next:
  %found1 = phi i32 [ %found, %second ], [ 1, %enter ]
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i32 %found
fail:
  ret i32 -1
}}
"""


def _entry() -> str:
    """An entry for one or two inputs and what is kept of x (1), y (2) and the result (4); null with an exception set."""
    return f"""
define internal i64 @put(ptr %items, i64 %k, ptr %object) #0 {{
  %absent = icmp eq ptr %object, null
  %item = select i1 %absent, ptr @jitgrad_none, ptr %object
  call void @Py_IncRef(ptr %item)
  %at = getelementptr ptr, ptr %items, i64 %k
  store ptr %item, ptr %at
  %next = add i64 %k, 1
  ret i64 %next
}}

define internal i64 @put_if(i64 %bits, i64 %bit, ptr %items, i64 %k, ptr %object) #0 {{
entry:
  %masked = and i64 %bits, %bit
  %is_set = icmp ne i64 %masked, 0
  br i1 %is_set, label %keep, label %skip
keep:
  %next = call i64 @put(ptr %items, i64 %k, ptr %object)
  ret i64 %next
skip:
  ret i64 %k
}}

define internal ptr @entry(ptr %rule, i64 %bits, ptr %x, ptr %a, ptr %y, ptr %b, ptr %result, ptr %out) #0 {{
entry:
  %kept = call i64 @llvm.ctpop.i64(i64 %bits)
  %is_pair = icmp ne ptr %y, null
  %one_more = zext i1 %is_pair to i64
  %least = add i64 %kept, 5
  %size = add i64 %least, %one_more
  %made = call ptr @PyTuple_New(i64 %size)
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %fail, label %fill
fill:
  %items = getelementptr i8, ptr %made, i64 {TUPLE_ITEMS}
  %inputs = select i1 %is_pair, ptr @jitgrad_two, ptr @jitgrad_one
  %k1 = call i64 @put(ptr %items, i64 0, ptr %rule)
  %k2 = call i64 @put(ptr %items, i64 %k1, ptr %inputs)
  %k3 = call i64 @put(ptr %items, i64 %k2, ptr @jitgrad_one)
  %k4 = call i64 @put(ptr %items, i64 %k3, ptr %a)
  %k5 = call i64 @put_if(i64 %one_more, i64 1, ptr %items, i64 %k4, ptr %b)
  %k6 = call i64 @put(ptr %items, i64 %k5, ptr %out)
  %k7 = call i64 @put_if(i64 %bits, i64 1, ptr %items, i64 %k6, ptr %x)
  %k8 = call i64 @put_if(i64 %bits, i64 2, ptr %items, i64 %k7, ptr %y)
  %k9 = call i64 @put_if(i64 %bits, i64 4, ptr %items, i64 %k8, ptr %result)
  ret ptr %made
fail:
  ret ptr null
}}
"""


def _recorded(slots: Slots) -> str:
    """A new tensor, made of x and y (null: of x alone), after the tapes were told; null with an exception set."""
    return f"""
define internal ptr @recorded(ptr %fn, ptr %table, ptr %x, ptr %y, ptr %out) #0 {{
entry:
  %failed = icmp eq ptr %out, null
  br i1 %failed, label %done, label %listen
listen:
{load_word("tapes", "@jitgrad_eager_here", COUNT)}
  %heard = icmp ne i64 %tapes, 0
  br i1 %heard, label %ask, label %done
ask:
  %a = call ptr @number(ptr %x)
  %b = call ptr @number(ptr %y)
  %watching = call i32 @tell(ptr %a, ptr %b, ptr null, ptr null)
  %is_watched = icmp eq i32 %watching, 1
  br i1 %is_watched, label %search, label %done
search:
  %key = call ptr @key(ptr %x)
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %learn, label %first
first:
  %by_first = call ptr @PyDict_GetItemWithError(ptr %table, ptr %key)
  %unknown = icmp eq ptr %by_first, null
  br i1 %unknown, label %learn, label %operands
operands:
  %is_one = icmp eq ptr %y, null
  br i1 %is_one, label %found, label %second
second:
  %other_key = call ptr @key(ptr %y)
  %no_other_key = icmp eq ptr %other_key, null
  br i1 %no_other_key, label %learn, label %pair
pair:
  %by_both = call ptr @PyDict_GetItemWithError(ptr %by_first, ptr %other_key)
  %new_pair = icmp eq ptr %by_both, null
  br i1 %new_pair, label %learn, label %found
found:
  %known = phi ptr [ %by_first, %operands ], [ %by_both, %pair ]
{load("rule", "%known", TUPLE_ITEMS)}
{load("reads", "%known", TUPLE_ITEMS + 8)}
{load("out_key", "%known", TUPLE_ITEMS + 16)}
  call void @Py_IncRef(ptr %out_key)
  %slot = getelementptr i8, ptr %out, i64 {slots.key}
  store ptr %out_key, ptr %slot
  %constant = icmp eq ptr %rule, @jitgrad_none
  br i1 %constant, label %done, label %write
write:
  %bits = call i64 @PyLong_AsLongLong(ptr %reads)
{load("mine", "%out", slots.number)}
  %entry_made = call ptr @entry(ptr %rule, i64 %bits, ptr %x, ptr %a, ptr %y, ptr %b, ptr %out, ptr %mine)
  %lost = icmp eq ptr %entry_made, null
  br i1 %lost, label %fail, label %enter
enter:
  %told = call i32 @tell(ptr %a, ptr %b, ptr %entry_made, ptr %mine)
  call void @Py_DecRef(ptr %entry_made)
  %broken = icmp slt i32 %told, 0
  br i1 %broken, label %fail, label %done
learn:
  %alone = icmp eq ptr %y, null
  br i1 %alone, label %learn_one, label %learn_pair
learn_one:
  %answer_one = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_record_one, ptr %fn, ptr %table,
      ptr %x, ptr %out, ptr null)
  br label %learnt
learn_pair:
  %answer_pair = call ptr (ptr, ...) @PyObject_CallFunctionObjArgs(ptr @jitgrad_eager_record_pair, ptr %fn, ptr %table,
      ptr %x, ptr %y, ptr %out, ptr null)
  br label %learnt
learnt:
  %answer = phi ptr [ %answer_one, %learn_one ], [ %answer_pair, %learn_pair ]
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
}}
"""


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


_MOST_ARGUMENTS = 6


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
  %result = call ptr @PyObject_GetItem(ptr %plain, ptr %index)
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
{load("key", "%self", slots.key)}
  %no_key = icmp eq ptr %key, null
  br i1 %no_key, label %learn, label %kind
kind:
{load("descr", "%self", DESCR)}
{load("letter", "%descr", _BASE_KIND, "i8")}
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
