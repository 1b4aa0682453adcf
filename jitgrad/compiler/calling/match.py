"""LLVM IR text of `match`: whether an object fits a pattern, and where its numbers lie; patterns.py says what patterns
are.

    ptr match(ptr node, ptr object, ptr table, ptr holds)

gives the node after this one, or null for an object that does not fit. Nothing is raised. An object found inside a
container gets one more reference and is noted in `holds` (a count, then the objects): while the call runs without the
GIL, somebody may take it out of its container.
"""

from __future__ import annotations

from jitgrad.compiler.calling.patterns import ARRAY, BITS, BOOLEAN, DICT, EQUAL, INTEGER, LIST, SAME, SEQUENCE, VALUE
from jitgrad.compiler.machine.ir_text import (
    BYTE_ORDER,
    DATA,
    DESCR,
    DIMENSIONS,
    FLAGS,
    HEAD,
    LIST_ITEMS,
    RANK,
    TUPLE_ITEMS,
    TYPE,
    TYPE_NUMBER,
    load,
    load_item,
    load_word,
)


def match_ir() -> str:
    """The function with what it calls."""
    parts = (_DECLARATIONS, _hold(), _entry(), _array(), _numbers(), _fixed(), _containers(), _END)
    return "\n".join(part.strip("\n") for part in parts) + "\n"


_DECLARATIONS = """
declare i64 @PyLong_AsLongLong(ptr) #0
declare ptr @PyErr_Occurred() #0
declare void @PyErr_Clear() #0
declare void @Py_IncRef(ptr) #0
declare i32 @PyObject_RichCompareBool(ptr, ptr, i32) #0
declare i64 @PyDict_Size(ptr) #0
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr) #0
"""


def _hold() -> str:
    return f"""
define internal void @hold(ptr %holds, ptr %object) #0 {{
  call void @Py_IncRef(ptr %object)
{load_word("n", "%holds", 0)}
  %more = add i64 %n, 1
  store i64 %more, ptr %holds
  %at = getelementptr i64, ptr %holds, i64 %more
  store ptr %object, ptr %at
  ret void
}}
"""


def _entry() -> str:
    """The node's kind, and whether the object is of its type."""
    kinds = {
        ARRAY: "array", VALUE: "read", INTEGER: "integer", BOOLEAN: "boolean", SAME: "same", EQUAL: "equal",
        BITS: "bits", SEQUENCE: "sequence", LIST: "list", DICT: "dict",
    }  # fmt: skip
    cases = " ".join(f"i64 {kind}, label %{name}" for kind, name in kinds.items())
    return f"""
define internal ptr @match(ptr %node, ptr %object, ptr %table, ptr %holds) #0 {{
entry:
  %place_at = alloca i64
  %next_key_at = alloca ptr
  %next_value_at = alloca ptr
{load_word("kind", "%node", 0)}
{load_word("wanted", "%node", 1, "ptr")}
{load("type", "%object", TYPE)}
  %exact = icmp eq ptr %type, %wanted
  %value = getelementptr i8, ptr %object, i64 {HEAD}
{load_word("word2", "%node", 2)}
  %slot_at = getelementptr i64, ptr %table, i64 %word2
  %leaf_end = getelementptr i64, ptr %node, i64 6
  %items_start = getelementptr i64, ptr %node, i64 3
  switch i64 %kind, label %no [ {cases} ]
"""


def _array() -> str:
    """Exact type, flags, rank, dtype, shape; then the data pointer or the object goes into the slot."""
    return f"""
array:
{load_word("as_object", "%node", 3)}
{load_word("rank", "%node", 8)}
  %extents = getelementptr i64, ptr %node, i64 9
  br i1 %exact, label %flags, label %scalar
scalar:
{load_word("scalar_type", "%node", 7, "ptr")}
  %is_scalar = icmp eq ptr %type, %scalar_type
  br i1 %is_scalar, label %store_array, label %no
flags:
{load("has", "%object", FLAGS, "i32")}
{load_word("needs64", "%node", 4)}
  %needs = trunc i64 %needs64 to i32
  %common = and i32 %has, %needs
  %flags_ok = icmp eq i32 %common, %needs
{load("nd32", "%object", RANK, "i32")}
  %nd = sext i32 %nd32 to i64
  %rank_ok = icmp eq i64 %nd, %rank
  %so_far = and i1 %flags_ok, %rank_ok
  br i1 %so_far, label %dtype, label %no
{_array_dtype()}
{_array_shape()}
"""


def _array_dtype() -> str:
    """The usual dtype, or one like it."""
    return f"""dtype:
{load("descr", "%object", DESCR)}
{load_word("usual", "%node", 5, "ptr")}
  %usual_dtype = icmp eq ptr %descr, %usual
  br i1 %usual_dtype, label %shape, label %other_dtype
other_dtype:
{load("order", "%descr", BYTE_ORDER, "i8")}
  %native = icmp eq i8 %order, {ord("=")}
  %orderless = icmp eq i8 %order, {ord("|")}
  %order_ok = or i1 %native, %orderless
{load("number", "%descr", TYPE_NUMBER, "i32")}
{load_word("want64", "%node", 6)}
  %want = trunc i64 %want64 to i32
  %number_ok = icmp eq i32 %number, %want
  %dtype_ok = and i1 %order_ok, %number_ok
  br i1 %dtype_ok, label %shape, label %no"""


def _array_shape() -> str:
    """The extents, one after another; then the slot."""
    return f"""shape:
{load("dims", "%object", DIMENSIONS)}
{load("data", "%object", DATA)}
  br label %axis
axis:
  %j = phi i64 [ 0, %shape ], [ %j1, %extent ]
  %axes = icmp slt i64 %j, %rank
  br i1 %axes, label %extent, label %store_array
extent:
{load_item("dim", "%dims", "%j", "i64")}
{load_item("wanted_dim", "%extents", "%j", "i64")}
  %dim_ok = icmp eq i64 %dim, %wanted_dim
  %j1 = add i64 %j, 1
  br i1 %dim_ok, label %axis, label %no
store_array:
  %numbers = phi ptr [ %value, %scalar ], [ %data, %axis ]
  %by_object = icmp ne i64 %as_object, 0
  %array_word = select i1 %by_object, ptr %object, ptr %numbers
  store ptr %array_word, ptr %slot_at
  %array_end = getelementptr i64, ptr %extents, i64 %rank
  ret ptr %array_end"""


def _numbers() -> str:
    """Python's numbers: exact type; a value that fits; where it lies, the cell, or the object goes into the slot."""
    return f"""
read:
  br i1 %exact, label %store, label %no
integer:
  br i1 %exact, label %convert, label %no
convert:
  %integer_value = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %integer_value, -1
  br i1 %odd, label %suspect, label %cell
suspect:
  %error = call ptr @PyErr_Occurred()
  %fits = icmp eq ptr %error, null
  br i1 %fits, label %cell, label %clear
clear:
  call void @PyErr_Clear()
  br label %no
boolean:
{load_word("true", "%node", 5, "ptr")}
  %is_true = icmp eq ptr %object, %true
  %bit = zext i1 %is_true to i64
  br i1 %exact, label %cell, label %no
cell:
  %number_value = phi i64 [ %integer_value, %convert ], [ %integer_value, %suspect ], [ %bit, %boolean ]
{load_word("cell_number", "%node", 4)}
  %cell_at = getelementptr i64, ptr %table, i64 %cell_number
  store i64 %number_value, ptr %cell_at
  br label %store
store:
  %place = phi ptr [ %value, %read ], [ %cell_at, %cell ]
{load_word("number_as_object", "%node", 3)}
  %number_by_object = icmp ne i64 %number_as_object, 0
  %number_word = select i1 %number_by_object, ptr %object, ptr %place
  store ptr %number_word, ptr %slot_at
  ret ptr %leaf_end
"""


def _fixed() -> str:
    """Objects that are part of what was traced: the same, or of one type and equal."""
    return f"""
same:
{load_word("same_object", "%node", 2, "ptr")}
  %identical = icmp eq ptr %object, %same_object
  br i1 %identical, label %fixed, label %no
equal:
{load_word("equal_object", "%node", 2, "ptr")}
  %alike = icmp eq ptr %object, %equal_object
  br i1 %alike, label %fixed, label %other_object
other_object:
  br i1 %exact, label %compare, label %no
compare:
  %verdict = call i32 @PyObject_RichCompareBool(ptr %object, ptr %equal_object, i32 2)
  %is_equal = icmp eq i32 %verdict, 1
  br i1 %is_equal, label %fixed, label %no
bits:
  br i1 %exact, label %same_bits, label %no
same_bits:
  %has_bits = load i64, ptr %value
  %bits_ok = icmp eq i64 %has_bits, %word2
  br i1 %bits_ok, label %fixed, label %no
fixed:
  ret ptr %items_start
"""


def _containers() -> str:
    """Exact type, length, and each item in turn."""
    return f"""
sequence:
  %tuple_items = getelementptr i8, ptr %object, i64 {TUPLE_ITEMS}
  br i1 %exact, label %length, label %no
list:
  br i1 %exact, label %list_inside, label %no
list_inside:
{load("list_items", "%object", LIST_ITEMS)}
  br label %length
length:
  %items = phi ptr [ %tuple_items, %sequence ], [ %list_items, %list_inside ]
  %has_length = load i64, ptr %value
  %length_ok = icmp eq i64 %has_length, %word2
  br i1 %length_ok, label %item, label %no
item:
  %i = phi i64 [ 0, %length ], [ %i1, %next ]
  %at_item = phi ptr [ %items_start, %length ], [ %after_item, %next ]
  %items_left = icmp slt i64 %i, %word2
  br i1 %items_left, label %one, label %all
one:
{load_item("inner", "%items", "%i")}
  call void @hold(ptr %holds, ptr %inner)
  %after_item = call ptr @match(ptr %at_item, ptr %inner, ptr %table, ptr %holds)
  %item_fits = icmp ne ptr %after_item, null
  br i1 %item_fits, label %next, label %no
next:
  %i1 = add i64 %i, 1
  br label %item
all:
  ret ptr %at_item
{_members()}
"""


def _members() -> str:
    """Of a dict the size, and its members one after the other: each key is the same object as the pattern's, or a text
    or an integer that equals it. A function may go through a dict in its order.
    """
    return f"""dict:
  br i1 %exact, label %size, label %no
size:
  %has_size = call i64 @PyDict_Size(ptr %object)
  %size_ok = icmp eq i64 %has_size, %word2
  br i1 %size_ok, label %start, label %no
start:
  store i64 0, ptr %place_at
  br label %member
member:
  %m = phi i64 [ 0, %start ], [ %m1, %next_member ]
  %at_member = phi ptr [ %items_start, %start ], [ %after_member, %next_member ]
  %members_left = icmp slt i64 %m, %word2
  br i1 %members_left, label %look, label %all_members
look:
  %key = load ptr, ptr %at_member
  %some = call i32 @PyDict_Next(ptr %object, ptr %place_at, ptr %next_key_at, ptr %next_value_at)
  %ended = icmp eq i32 %some, 0
  br i1 %ended, label %no, label %compare_key
compare_key:
  %next_key = load ptr, ptr %next_key_at
  %next_value = load ptr, ptr %next_value_at
  %same_key = icmp eq ptr %next_key, %key
  br i1 %same_key, label %present, label %other_key
other_key:
{load("key_type", "%key", TYPE)}
{load("next_key_type", "%next_key", TYPE)}
  %same_type = icmp eq ptr %next_key_type, %key_type
  br i1 %same_type, label %equal_key, label %no
equal_key:
  %key_verdict = call i32 @PyObject_RichCompareBool(ptr %next_key, ptr %key, i32 2)
  %keys_equal = icmp eq i32 %key_verdict, 1
  br i1 %keys_equal, label %present, label %no
present:
  call void @hold(ptr %holds, ptr %next_value)
  %member_node = getelementptr i64, ptr %at_member, i64 1
  %after_member = call ptr @match(ptr %member_node, ptr %next_value, ptr %table, ptr %holds)
  %member_fits = icmp ne ptr %after_member, null
  br i1 %member_fits, label %next_member, label %no
next_member:
  %m1 = add i64 %m, 1
  br label %member
all_members:
  ret ptr %at_member"""


_END = """
no:
  ret ptr null
}
"""
