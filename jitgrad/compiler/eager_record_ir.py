"""How a result becomes a tensor and how tapes are told, as LLVM IR text; what computes it is elsewhere.

    here()                               whether machine code may take this thread's operations
    tensor(result)                       a new tensor of a result, which it takes over; null for null
    operand(x), number(x), key(x)        what NumPy, tapes and rules know of an operand; null for what is left to Python
    tell(a, b, entry, out)               enters what was done with two numbers on the tapes that watch one of them
    recorded(fn, table, x, y, out)       the tensor `out`, made of x and y, after the tapes were told

A rule that is not known yet is left to the recorder in Python.
"""

from __future__ import annotations

from jitgrad.compiler.eager_layout import (
    COUNT,
    FIRST_TAPE,
    KEY_FACTORS,
    KEY_RANK,
    KEY_WORDS,
    KEYS,
    SHOWN,
    THREAD,
    Slots,
)
from jitgrad.compiler.ir_text import (
    DATA,
    DESCR,
    DIMENSIONS,
    FLAGS,
    HEAD,
    RANK,
    STRIDES,
    TUPLE_ITEMS,
    TYPE,
    load,
    load_item,
    load_word,
)

_OWN_DATA, _WRITEABLE = 0x1, 0x400


def record_ir(slots: Slots) -> str:
    """The functions, and all declarations."""
    parts = (
        _DECLARATIONS, _here(), _tensor(slots), _operand(slots), _number(slots), _key(slots), _tell(), _entry(),
        _recorded(slots),
    )  # fmt: skip
    return "\n".join(parts)


_DECLARATIONS = """
@jitgrad_eager_here = external global i8
@jitgrad_eager_ops = external global i8
@jitgrad_eager_keys = external global i8
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
@jitgrad_type_float64 = external global i8
@jitgrad_float64 = external global i8
@jitgrad_none = external global i8
@jitgrad_ellipsis = external global i8
@jitgrad_one = external global i8
@jitgrad_two = external global i8
@jitgrad_call_name = external global i8
declare ptr @PyThreadState_Get() #0
declare i64 @PyThreadState_GetID(ptr) #0
declare void @PyErr_Clear() #0
declare ptr @PyErr_Occurred() #0
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
    """A new tensor of a result, which it takes over: `wrap` of tensor.py. Null for null, or with an exception set. And
    `cell()`, a new 0-d array of float64.
    """
    return f"""
define internal ptr @cell() #0 {{
  call void @Py_IncRef(ptr @jitgrad_float64)
  %cell = call ptr @jitgrad_array_new(ptr @jitgrad_type_ndarray, ptr @jitgrad_float64, i32 0, ptr null, ptr null,
      ptr null, i32 0, ptr null)
  ret ptr %cell
}}

define internal ptr @tensor(ptr %result) #0 {{
entry:
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %fail, label %look
look:
{load("type", "%result", TYPE)}
  %exact = icmp eq ptr %type, @jitgrad_type_ndarray
  br i1 %exact, label %view, label %scalar
scalar:
  %is_double = icmp eq ptr %type, @jitgrad_type_float64
  br i1 %is_double, label %double, label %convert
double:
  %cell = call ptr @cell()
  %no_cell = icmp eq ptr %cell, null
  br i1 %no_cell, label %drop_result, label %fill
fill:
{load("number_value", "%result", HEAD, "double")}
{load("cell_data", "%cell", DATA)}
  store double %number_value, ptr %cell_data
  call void @Py_DecRef(ptr %result)
  br label %view
drop_result:
  call void @Py_DecRef(ptr %result)
  br label %fail
convert:
  %converted = call ptr @jitgrad_array_from(ptr %result, ptr null, i32 0, i32 0, i32 0, ptr null)
  call void @Py_DecRef(ptr %result)
  %lost = icmp eq ptr %converted, null
  br i1 %lost, label %fail, label %view
view:
  %array = phi ptr [ %result, %look ], [ %cell, %fill ], [ %converted, %convert ]
{load("flags", "%array", FLAGS, "i32")}
  %fixed = and i32 %flags, {~_WRITEABLE}
  store i32 %fixed, ptr %flags_at
  %lent = and i32 %fixed, {~_OWN_DATA}
{load("rank", "%array", RANK, "i32")}
{load("dims", "%array", DIMENSIONS)}
{load("strides", "%array", STRIDES)}
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
    """`operand_key` of recorder.py for tensors, floats and integers; null for what the recorder has to look at. A
    tensor that has no key yet gets one that is among those seen.
    """
    return f"""
define internal ptr @key(ptr %x) #0 {{
entry:
{load("type", "%x", TYPE)}
  %is_tensor = icmp eq ptr %type, @jitgrad_type_tensor
  br i1 %is_tensor, label %tensor, label %other
tensor:
{load("key", "%x", slots.key)}
  %missing = icmp eq ptr %key, null
  br i1 %missing, label %search, label %done
search:
  %seen = call ptr @seen_key(ptr %x)
  %new = icmp eq ptr %seen, null
  br i1 %new, label %done, label %keep
keep:
  call void @Py_IncRef(ptr %seen)
  store ptr %seen, ptr %key_at
  br label %done
done:
  %found_key = phi ptr [ %key, %tensor ], [ null, %search ], [ %seen, %keep ]
  ret ptr %found_key
other:
  %is_float = icmp eq ptr %type, @jitgrad_type_float
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %integer = select i1 %is_int, ptr %x, ptr null
  %found = select i1 %is_float, ptr @jitgrad_type_float, ptr %integer
  ret ptr %found
}}

define internal ptr @seen_key(ptr %x) #0 {{
entry:
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
{load("dims", "%x", DIMENSIONS)}
{load("descr", "%x", DESCR)}
  %few = icmp sle i64 %rank, {KEY_RANK}
  br i1 %few, label %start, label %no
start:
  %address = ptrtoint ptr %descr to i64
  %sum0 = lshr i64 %address, 5
  %weighted = mul i64 %rank, {KEY_FACTORS[0]}
  %sum = add i64 %sum0, %weighted
{_extents()}
  %place = urem i64 %sum{KEY_RANK}, {KEYS}
  %first = mul i64 %place, {KEY_WORDS}
  %at = getelementptr i64, ptr @jitgrad_eager_keys, i64 %first
{load_word("dtype", "%at", 0, "ptr")}
{load_word("axes", "%at", 1)}
  %same_dtype = icmp eq ptr %dtype, %descr
  %same_rank = icmp eq i64 %axes, %rank
  %same = and i1 %same_dtype, %same_rank
{_comparisons()}
{load_word("key", "%at", KEY_WORDS - 1, "ptr")}
  %found = select i1 %same{KEY_RANK}, ptr %key, ptr null
  ret ptr %found
no:
  ret ptr null
}}
"""


def _extents() -> str:
    """The extents, 0 where there are no more axes, and the sum that says where the key is."""
    lines = []
    for k, factor in enumerate(KEY_FACTORS[1:]):
        before = "%sum" if k == 0 else f"%sum{k}"
        lines.append(f"""  %has{k} = icmp sgt i64 %rank, {k}
  br i1 %has{k}, label %read{k}, label %joined{k}
read{k}:
{load_word(f"read_extent{k}", "%dims", k)}
  br label %joined{k}
joined{k}:
  %extent{k} = phi i64 [ 0, %{"start" if k == 0 else f"joined{k - 1}"} ], [ %read_extent{k}, %read{k} ]
  %product{k} = mul i64 %extent{k}, {factor}
  %sum{k + 1} = add i64 {before}, %product{k}""")
    return "\n".join(lines)


def _comparisons() -> str:
    """Whether the extents are those of the key that was found."""
    lines = []
    for k in range(KEY_RANK):
        before = "%same" if k == 0 else f"%same{k}"
        lines.append(f"""{load_word(f"wanted{k}", "%at", 2 + k)}
  %equal{k} = icmp eq i64 %wanted{k}, %extent{k}
  %same{k + 1} = and i1 {before}, %equal{k}""")
    return "\n".join(lines)


def _tell() -> str:
    """Enter `entry` on the tapes that watch one of two numbers, which then watch a third; 1 if there is such a tape, 0
    if not, -1 with an exception set. With a null entry nothing is entered: this is how one asks before one enters.
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
  %alone = icmp eq i64 %n, 1
  %not_asking = xor i1 %asking, true
  %surely = and i1 %alone, %not_asking
  %twice = mul i64 %k, 2
{load_item("entries", "%first", "%twice")}
  %odd = add i64 %twice, 1
{load_item("watched", "%first", "%odd")}
  br i1 %surely, label %hit, label %look
look:
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
    """An entry: one or two inputs, and what is kept of x (1), y (2), the result (4); null with an exception set."""
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
