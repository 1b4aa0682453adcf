"""Other shapes and orders of tensors with values as LLVM IR text: other extents and strides over the same memory, made
without asking NumPy; items are in index.py.

    reshaped(x, args, n)      by integers or one tuple of them, for elements in C order
    raveled(x, args, n)       without arguments
    swapped(x, args, n)       by two integers
    transposed(x, args, n)    without arguments, or by integers or one tuple of them

Each gives a new tensor, or null for what is left to NumPy: all that is unusual, and all that is wrong, so that errors
are NumPy's. Where an exception is set too, that is to be raised.
"""

from __future__ import annotations

from jitgrad.compiler.machine.ir_text import (
    DATA,
    DIMENSIONS,
    FLAGS,
    HEAD,
    RANK,
    STRIDES,
    TUPLE_ITEMS,
    TYPE,
    load,
    load_item,
)

MOST_AXES = 32
"""So many axes have the views that are made here."""

_C_ORDER, _MOST_ELEMENTS = 0x1, 1 << 31  # the product of two numbers of elements is no larger than a word


def view_ir() -> str:
    """The functions."""
    shapes = _SIZE, _SHAPE, _RESHAPED, _RAVELED
    return "\n".join((_LIST, *shapes, _PERMUTED, _AXIS, _ORDER, _TRANSPOSED, _SWAPPED))


# The items of a tuple, or an object alone, which is put in `room`.
_LIST = f"""
define internal {{ ptr, i64 }} @items_of(ptr %object, ptr %room) #0 {{
entry:
{load("type", "%object", TYPE)}
  %is_tuple = icmp eq ptr %type, @jitgrad_type_tuple
  br i1 %is_tuple, label %tuple, label %alone
tuple:
{load("n", "%object", HEAD, "i64")}
  %items = getelementptr i8, ptr %object, i64 {TUPLE_ITEMS}
  br label %done
alone:
  store ptr %object, ptr %room
  br label %done
done:
  %first = phi ptr [ %items, %tuple ], [ %room, %alone ]
  %number = phi i64 [ %n, %tuple ], [ 1, %alone ]
  %part = insertvalue {{ ptr, i64 }} poison, ptr %first, 0
  %both = insertvalue {{ ptr, i64 }} %part, i64 %number, 1
  ret {{ ptr, i64 }} %both
}}
"""

# How many elements there are, where they lie in C order and there are any; else 0.
_SIZE = f"""
define internal i64 @ordered_size(ptr %x) #0 {{
entry:
{load("flags", "%x", FLAGS, "i32")}
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
{load("dims", "%x", DIMENSIONS)}
  %in_order = and i32 %flags, {_C_ORDER}
  %other = icmp eq i32 %in_order, 0
  br i1 %other, label %none, label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %size = phi i64 [ 1, %entry ], [ %size1, %one ]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %one, label %done
one:
{load_item("n", "%dims", "%k", "i64")}
  %size1 = mul i64 %size, %n
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i64 %size
none:
  ret i64 0
}}
"""

# Reads extents from integers, of which one may be -1; whether there are as many elements as `size`.
_SHAPE = f"""
define internal i1 @read_shape(ptr %items, i64 %n, i64 %size, ptr %dims) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %product = phi i64 [ 1, %entry ], [ %product1, %next ]
  %open = phi i64 [ -1, %entry ], [ %open1, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %finish
look:
{load_item("item", "%items", "%k")}
{load("type", "%item", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  br i1 %is_int, label %read, label %no
read:
  %extent = call i64 @PyLong_AsLongLong(ptr %item)
  %is_open = icmp eq i64 %extent, -1
  %is_first = icmp slt i64 %open, 0
  %opens = and i1 %is_open, %is_first
  %is_positive = icmp sgt i64 %extent, 0
  %is_small = icmp sle i64 %extent, %size
  %is_usual = and i1 %is_positive, %is_small
  %is_fine = or i1 %opens, %is_usual
  %factor = select i1 %opens, i64 1, i64 %extent
  %product1 = mul i64 %product, %factor
  %fits = icmp ule i64 %product1, %size
  %goes = and i1 %is_fine, %fits
  br i1 %goes, label %next, label %clear
next:
  %at = getelementptr i64, ptr %dims, i64 %k
  store i64 %extent, ptr %at
  %open1 = select i1 %opens, i64 %k, i64 %open
  %k1 = add i64 %k, 1
  br label %head
finish:
  %rest = udiv i64 %size, %product
  %all = mul i64 %rest, %product
  %is_whole = icmp eq i64 %all, %size
  %is_closed = icmp slt i64 %open, 0
  br i1 %is_closed, label %compare, label %fill
fill:
  %error = call ptr @PyErr_Occurred()
  %is_large = icmp ne ptr %error, null
  br i1 %is_large, label %clear, label %put
put:
  %open_at = getelementptr i64, ptr %dims, i64 %open
  store i64 %rest, ptr %open_at
  ret i1 %is_whole
compare:
  %is_same = icmp eq i64 %product, %size
  ret i1 %is_same
clear:
  call void @PyErr_Clear()
  br label %no
no:
  ret i1 false
}}
"""

_RESHAPED = f"""
define internal ptr @reshaped(ptr %x, ptr %args, i64 %n) #0 {{
entry:
  %dims = alloca [{MOST_AXES} x i64]
  %size = call i64 @ordered_size(ptr %x)
  %is_some = icmp ne i64 %size, 0
  %is_small = icmp ult i64 %size, {_MOST_ELEMENTS}
  %has_order = and i1 %is_some, %is_small
  %is_alone = icmp eq i64 %n, 1
  br i1 %is_alone, label %open, label %count
open:
  %object = load ptr, ptr %args
  %list = call {{ ptr, i64 }} @items_of(ptr %object, ptr %args)
  %inner = extractvalue {{ ptr, i64 }} %list, 0
  %number = extractvalue {{ ptr, i64 }} %list, 1
  br label %count
count:
  %items = phi ptr [ %args, %entry ], [ %inner, %open ]
  %rank = phi i64 [ %n, %entry ], [ %number, %open ]
  %has_room = icmp ule i64 %rank, {MOST_AXES}
  %is_given = icmp ne i64 %n, 0
  %may = and i1 %has_room, %is_given
  %usual = and i1 %has_order, %may
  br i1 %usual, label %read, label %other
read:
  %is_whole = call i1 @read_shape(ptr %items, i64 %rank, i64 %size, ptr %dims)
  br i1 %is_whole, label %make, label %other
make:
  %rank32 = trunc i64 %rank to i32
{load("data", "%x", DATA)}
  %out = call ptr @view(ptr %x, i32 %rank32, ptr %dims, ptr null, ptr %data)
  ret ptr %out
other:
  ret ptr null
}}
"""

_RAVELED = f"""
define internal ptr @raveled(ptr %x, ptr %args, i64 %n) #0 {{
entry:
  %dim = alloca i64
  %size = call i64 @ordered_size(ptr %x)
  store i64 %size, ptr %dim
  %has_order = icmp ne i64 %size, 0
  %is_bare = icmp eq i64 %n, 0
  %usual = and i1 %has_order, %is_bare
  br i1 %usual, label %make, label %other
make:
{load("data", "%x", DATA)}
  %out = call ptr @view(ptr %x, i32 1, ptr %dim, ptr null, ptr %data)
  ret ptr %out
other:
  ret ptr null
}}
"""

# A view whose axes are those of x in another order, which is said by their numbers.
_PERMUTED = f"""
define internal ptr @permuted(ptr %x, ptr %order) #0 {{
entry:
  %dims = alloca [{MOST_AXES} x i64]
  %strides = alloca [{MOST_AXES} x i64]
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
{load("from_dims", "%x", DIMENSIONS)}
{load("from_strides", "%x", STRIDES)}
{load("data", "%x", DATA)}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %one, label %make
one:
{load_item("from", "%order", "%k", "i64")}
{load_item("extent", "%from_dims", "%from", "i64")}
{load_item("stride", "%from_strides", "%from", "i64")}
  %extent_to = getelementptr i64, ptr %dims, i64 %k
  %stride_to = getelementptr i64, ptr %strides, i64 %k
  store i64 %extent, ptr %extent_to
  store i64 %stride, ptr %stride_to
  %k1 = add i64 %k, 1
  br label %head
make:
  %out = call ptr @view(ptr %x, i32 %rank32, ptr %dims, ptr %strides, ptr %data)
  ret ptr %out
}}
"""

# The number of an axis of x that an integer stands for; -1 for none.
_AXIS = f"""
define internal i64 @axis_of(ptr %integer, i64 %rank) #0 {{
entry:
{load("type", "%integer", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  br i1 %is_int, label %read, label %no
read:
  %given = call i64 @PyLong_AsLongLong(ptr %integer)
  %from_end = add i64 %given, %rank
  %is_negative = icmp slt i64 %given, 0
  %axis = select i1 %is_negative, i64 %from_end, i64 %given
  %is_inside = icmp ult i64 %axis, %rank
  br i1 %is_inside, label %look, label %clear
look:
  %may_be_large = icmp eq i64 %given, -1
  br i1 %may_be_large, label %check, label %done
check:
  %error = call ptr @PyErr_Occurred()
  %is_large = icmp ne ptr %error, null
  br i1 %is_large, label %clear, label %done
done:
  ret i64 %axis
clear:
  call void @PyErr_Clear()
  br label %no
no:
  ret i64 -1
}}
"""

# The axes from the last to the first, or as integers say; whether each stands there once.
_ORDER = """
define internal void @put_reversed(i64 %rank, ptr %order) #0 {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %rank
  %k1 = add i64 %k, 1
  br i1 %more, label %one, label %done
one:
  %from = sub i64 %rank, %k1
  %to = getelementptr i64, ptr %order, i64 %k
  store i64 %from, ptr %to
  br label %head
done:
  ret void
}

define internal i1 @read_order(ptr %items, i64 %rank, ptr %order) #0 {
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %seen = phi i64 [ 0, %entry ], [ %seen1, %next ]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %one, label %yes
one:
  %item_at = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %item_at
  %axis = call i64 @axis_of(ptr %item, i64 %rank)
  %is_wrong = icmp slt i64 %axis, 0
  br i1 %is_wrong, label %no, label %look
look:
  %bit = shl i64 1, %axis
  %again = and i64 %seen, %bit
  %is_new = icmp eq i64 %again, 0
  br i1 %is_new, label %next, label %no
next:
  %seen1 = or i64 %seen, %bit
  %to = getelementptr i64, ptr %order, i64 %k
  store i64 %axis, ptr %to
  %k1 = add i64 %k, 1
  br label %head
yes:
  ret i1 true
no:
  ret i1 false
}
"""

_TRANSPOSED = f"""
define internal ptr @transposed(ptr %x, ptr %args, i64 %n) #0 {{
entry:
  %order = alloca [{MOST_AXES} x i64]
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
  %has_room = icmp sle i64 %rank, {MOST_AXES}
  br i1 %has_room, label %look, label %other
look:
  %is_bare = icmp eq i64 %n, 0
  br i1 %is_bare, label %reverse, label %open
reverse:
  call void @put_reversed(i64 %rank, ptr %order)
  br label %make
open:
  %object = load ptr, ptr %args
  %list = call {{ ptr, i64 }} @items_of(ptr %object, ptr %args)
  %inner = extractvalue {{ ptr, i64 }} %list, 0
  %inside = extractvalue {{ ptr, i64 }} %list, 1
  %is_alone = icmp eq i64 %n, 1
  %items = select i1 %is_alone, ptr %inner, ptr %args
  %number = select i1 %is_alone, i64 %inside, i64 %n
  %are_all = icmp eq i64 %number, %rank
  br i1 %are_all, label %read, label %other
read:
  %is_order = call i1 @read_order(ptr %items, i64 %rank, ptr %order)
  br i1 %is_order, label %make, label %other
make:
  %out = call ptr @permuted(ptr %x, ptr %order)
  ret ptr %out
other:
  ret ptr null
}}
"""

_SWAPPED = f"""
define internal void @put_swapped(i64 %rank, i64 %a, i64 %b, ptr %order) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %rank
  br i1 %more, label %one, label %done
one:
  %is_a = icmp eq i64 %k, %a
  %is_b = icmp eq i64 %k, %b
  %unless_b = select i1 %is_b, i64 %a, i64 %k
  %from = select i1 %is_a, i64 %b, i64 %unless_b
  %to = getelementptr i64, ptr %order, i64 %k
  store i64 %from, ptr %to
  %k1 = add i64 %k, 1
  br label %head
done:
  ret void
}}

define internal ptr @swapped(ptr %x, ptr %args, i64 %n) #0 {{
entry:
  %order = alloca [{MOST_AXES} x i64]
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
  %has_room = icmp sle i64 %rank, {MOST_AXES}
  %are_two = icmp eq i64 %n, 2
  %may_be = and i1 %has_room, %are_two
  br i1 %may_be, label %read, label %other
read:
{load_item("first", "%args", "0")}
{load_item("second", "%args", "1")}
  %a = call i64 @axis_of(ptr %first, i64 %rank)
  %b = call i64 @axis_of(ptr %second, i64 %rank)
  %either = or i64 %a, %b
  %is_wrong = icmp slt i64 %either, 0
  br i1 %is_wrong, label %other, label %make
make:
  call void @put_swapped(i64 %rank, i64 %a, i64 %b, ptr %order)
  %out = call ptr @permuted(ptr %x, ptr %order)
  ret ptr %out
other:
  ret ptr null
}}
"""
