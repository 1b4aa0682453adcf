"""Items of tensors with values by integers, slices, None and ..., and tuples of them, as LLVM IR text: views over
the same memory, made without asking NumPy; one element alone is copied.

    basic_item(x, index)    a new tensor; null for what is left to NumPy, which says what is wrong too

Where an exception is set too, that is to be raised.
"""

from __future__ import annotations

from jitgrad.compiler.eager_code.view import MOST_AXES
from jitgrad.compiler.machine.ir_text import DATA, DESCR, DIMENSIONS, RANK, STRIDES, TYPE, load, load_item


def index_ir() -> str:
    """The functions."""
    one = _AXES_USED, _AT_INTEGER, _AT_SLICE, _COPY_AXES, _AT_ITEM
    return "\n".join((*one, _WALK_ITEMS, _GOT, _INTEGER_ITEM, _ITEM))


# How many axes the items of an index take, without those of a `...`; -1 for an index that is left to NumPy.
_AXES_USED = f"""
define internal i64 @axes_used(ptr %items, i64 %n) #0 {{
entry:
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %counted ]
  %used = phi i64 [ 0, %entry ], [ %used1, %counted ]
  %dots = phi i1 [ false, %entry ], [ %dots1, %counted ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %done
look:
{load_item("item", "%items", "%k")}
{load("type", "%item", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  %is_slice = icmp eq ptr %type, @jitgrad_type_slice
  %takes = or i1 %is_int, %is_slice
  %is_none = icmp eq ptr %item, @jitgrad_none
  %is_dots = icmp eq ptr %type, @jitgrad_type_ellipsis
  %is_simple = or i1 %takes, %is_none
  %again = and i1 %dots, %is_dots
  %fits = xor i1 %again, true
  %is_known = or i1 %is_simple, %is_dots
  %is_usual = and i1 %is_known, %fits
  br i1 %is_usual, label %counted, label %unusual
counted:
  %one = zext i1 %takes to i64
  %used1 = add i64 %used, %one
  %dots1 = or i1 %dots, %is_dots
  %k1 = add i64 %k, 1
  br label %head
unusual:
  ret i64 -1
done:
  ret i64 %used
}}
"""

# What `data` becomes by an integer along an axis; null for one outside.
_AT_INTEGER = f"""
define internal ptr @at_integer(ptr %x, i64 %axis, ptr %data, ptr %integer) #0 {{
entry:
  %given = call i64 @PyLong_AsLongLong(ptr %integer)
{load("dims", "%x", DIMENSIONS)}
{load("strides", "%x", STRIDES)}
{load_item("n", "%dims", "%axis", "i64")}
{load_item("stride", "%strides", "%axis", "i64")}
  %is_negative = icmp slt i64 %given, 0
  %from_end = add i64 %given, %n
  %k = select i1 %is_negative, i64 %from_end, i64 %given
  %is_inside = icmp ult i64 %k, %n
  br i1 %is_inside, label %look, label %outside
look:
  %may_be_large = icmp eq i64 %given, -1
  br i1 %may_be_large, label %check, label %move
check:
  %error = call ptr @PyErr_Occurred()
  %is_large = icmp ne ptr %error, null
  br i1 %is_large, label %outside, label %move
move:
  %bytes = mul i64 %k, %stride
  %moved = getelementptr i8, ptr %data, i64 %bytes
  ret ptr %moved
outside:
  call void @PyErr_Clear()
  ret ptr null
}}
"""

# The same by a slice, which makes an axis, whose extent and stride are put where it is said; null for a wrong one.
_AT_SLICE = f"""
define internal ptr @at_slice(ptr %x, i64 %axis, ptr %data, ptr %slice, ptr %extent_to, ptr %stride_to) #0 {{
entry:
  %start_at = alloca i64
  %stop_at = alloca i64
  %step_at = alloca i64
  %state = call i32 @PySlice_Unpack(ptr %slice, ptr %start_at, ptr %stop_at, ptr %step_at)
  %is_wrong = icmp slt i32 %state, 0
  br i1 %is_wrong, label %wrong, label %adjust
adjust:
{load("dims", "%x", DIMENSIONS)}
{load("strides", "%x", STRIDES)}
{load_item("n", "%dims", "%axis", "i64")}
{load_item("stride", "%strides", "%axis", "i64")}
  %step = load i64, ptr %step_at
  %count = call i64 @PySlice_AdjustIndices(i64 %n, ptr %start_at, ptr %stop_at, i64 %step)
  %start = load i64, ptr %start_at
  %is_void = icmp eq i64 %count, 0
  %first = select i1 %is_void, i64 0, i64 %start
  %each = select i1 %is_void, i64 1, i64 %step
  %wide = mul i64 %each, %stride
  store i64 %count, ptr %extent_to
  store i64 %wide, ptr %stride_to
  %bytes = mul i64 %first, %stride
  %moved = getelementptr i8, ptr %data, i64 %bytes
  ret ptr %moved
wrong:
  call void @PyErr_Clear()
  ret ptr null
}}
"""

# Axes of x from one on, as they are; gives how many have been made then.
_COPY_AXES = f"""
define internal i64 @copy_axes(ptr %x, i64 %axis, i64 %number, ptr %dims, ptr %strides, i64 %made) #0 {{
entry:
{load("from_dims", "%x", DIMENSIONS)}
{load("from_strides", "%x", STRIDES)}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %one ]
  %more = icmp slt i64 %k, %number
  %to = add i64 %made, %k
  br i1 %more, label %one, label %done
one:
  %from = add i64 %axis, %k
{load_item("n", "%from_dims", "%from", "i64")}
{load_item("stride", "%from_strides", "%from", "i64")}
  %extent_to = getelementptr i64, ptr %dims, i64 %to
  %stride_to = getelementptr i64, ptr %strides, i64 %to
  store i64 %n, ptr %extent_to
  store i64 %stride, ptr %stride_to
  %k1 = add i64 %k, 1
  br label %head
done:
  ret i64 %to
}}
"""

# One item of an index: where the data begin then (null where NumPy is to say what is wrong), and how many axes of x are
# taken and of the view are made.
_AT_ITEM = f"""
define internal {{ ptr, i64, i64 }} @at_item(ptr %x, ptr %item, i64 %free, ptr %dims, ptr %strides, ptr %data,
    i64 %axis, i64 %made) #0 {{
entry:
  %dim_at = getelementptr i64, ptr %dims, i64 %made
  %stride_at = getelementptr i64, ptr %strides, i64 %made
  %next_axis = add i64 %axis, 1
  %one_more = add i64 %made, 1
{load("type", "%item", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  br i1 %is_int, label %integer, label %other
integer:
  %chosen = call ptr @at_integer(ptr %x, i64 %axis, ptr %data, ptr %item)
  br label %done
other:
  %is_slice = icmp eq ptr %type, @jitgrad_type_slice
  br i1 %is_slice, label %slice, label %rest
slice:
  %cut = call ptr @at_slice(ptr %x, i64 %axis, ptr %data, ptr %item, ptr %dim_at, ptr %stride_at)
  br label %done
rest:
  %is_none = icmp eq ptr %item, @jitgrad_none
  br i1 %is_none, label %new, label %dots
new:
  store i64 1, ptr %dim_at
  store i64 0, ptr %stride_at
  br label %done
dots:
  %all = call i64 @copy_axes(ptr %x, i64 %axis, i64 %free, ptr %dims, ptr %strides, i64 %made)
  %behind = add i64 %axis, %free
  br label %done
done:
  %at = phi ptr [ %chosen, %integer ], [ %cut, %slice ], [ %data, %new ], [ %data, %dots ]
  %axis1 = phi i64 [ %next_axis, %integer ], [ %next_axis, %slice ], [ %axis, %new ], [ %behind, %dots ]
  %made1 = phi i64 [ %made, %integer ], [ %one_more, %slice ], [ %one_more, %new ], [ %all, %dots ]
  %r0 = insertvalue {{ ptr, i64, i64 }} poison, ptr %at, 0
  %r1 = insertvalue {{ ptr, i64, i64 }} %r0, i64 %axis1, 1
  %r2 = insertvalue {{ ptr, i64, i64 }} %r1, i64 %made1, 2
  ret {{ ptr, i64, i64 }} %r2
}}
"""

# All items, then the axes that none has taken: where the data begin, null where NumPy is to be asked; how many axes.
_WALK_ITEMS = f"""
define internal {{ ptr, i64 }} @walk_items(ptr %x, ptr %items, i64 %n, i64 %free, ptr %dims, ptr %strides) #0 {{
entry:
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
{load("start", "%x", DATA)}
  br label %head
head:
  %k = phi i64 [ 0, %entry ], [ %k1, %next ]
  %data = phi ptr [ %start, %entry ], [ %data1, %next ]
  %axis = phi i64 [ 0, %entry ], [ %axis1, %next ]
  %made = phi i64 [ 0, %entry ], [ %made1, %next ]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %one, label %last
one:
{load_item("item", "%items", "%k")}
  %state = call {{ ptr, i64, i64 }} @at_item(ptr %x, ptr %item, i64 %free, ptr %dims, ptr %strides, ptr %data,
      i64 %axis, i64 %made)
  %data1 = extractvalue {{ ptr, i64, i64 }} %state, 0
  %axis1 = extractvalue {{ ptr, i64, i64 }} %state, 1
  %made1 = extractvalue {{ ptr, i64, i64 }} %state, 2
  %k1 = add i64 %k, 1
  %is_wrong = icmp eq ptr %data1, null
  br i1 %is_wrong, label %wrong, label %next
next:
  br label %head
wrong:
  ret {{ ptr, i64 }} zeroinitializer
last:
  %left = sub i64 %rank, %axis
  %all = call i64 @copy_axes(ptr %x, i64 %axis, i64 %left, ptr %dims, ptr %strides, i64 %made)
  %part = insertvalue {{ ptr, i64 }} poison, ptr %data, 0
  %both = insertvalue {{ ptr, i64 }} %part, i64 %all, 1
  ret {{ ptr, i64 }} %both
}}
"""

# What an index has found: a view, or a number, which is copied, so that it keeps no large array alive.
_GOT = f"""
define internal ptr @got(ptr %x, ptr %data, i64 %rank, ptr %dims, ptr %strides) #0 {{
entry:
  %is_number = icmp eq i64 %rank, 0
  br i1 %is_number, label %look, label %several
several:
  %rank32 = trunc i64 %rank to i32
  %view = call ptr @view(ptr %x, i32 %rank32, ptr %dims, ptr %strides, ptr %data)
  ret ptr %view
look:
{load("descr", "%x", DESCR)}
  %is_double = icmp eq ptr %descr, @jitgrad_float64
  br i1 %is_double, label %copy, label %other
copy:
  %value = load double, ptr %data, align 1
  %float = call ptr @PyFloat_FromDouble(double %value)
  %number = call ptr @number(ptr %float)
  ret ptr %number
other:
  ret ptr null
}}
"""

# By one integer: the rest of the axes are as they are.
_INTEGER_ITEM = f"""
define internal ptr @integer_item(ptr %x, ptr %index) #0 {{
entry:
{load("rank", "%x", RANK, "i32")}
  %is_none = icmp eq i32 %rank, 0
  br i1 %is_none, label %other, label %move
move:
{load("start", "%x", DATA)}
  %data = call ptr @at_integer(ptr %x, i64 0, ptr %start, ptr %index)
  %is_wrong = icmp eq ptr %data, null
  br i1 %is_wrong, label %other, label %done
done:
  %rest32 = sub i32 %rank, 1
  %rest = zext i32 %rest32 to i64
{load("all_dims", "%x", DIMENSIONS)}
{load("all_strides", "%x", STRIDES)}
  %dims = getelementptr i64, ptr %all_dims, i64 1
  %strides = getelementptr i64, ptr %all_strides, i64 1
  %out = call ptr @got(ptr %x, ptr %data, i64 %rest, ptr %dims, ptr %strides)
  ret ptr %out
other:
  ret ptr null
}}
"""

_ITEM = f"""
define internal ptr @basic_item(ptr %x, ptr %index) #0 {{
entry:
{load("type", "%index", TYPE)}
  %is_int = icmp eq ptr %type, @jitgrad_type_int
  br i1 %is_int, label %integer, label %several
integer:
  %single = call ptr @integer_item(ptr %x, ptr %index)
  ret ptr %single
several:
  %all = call ptr @combined_item(ptr %x, ptr %index)
  ret ptr %all
}}

define internal ptr @combined_item(ptr %x, ptr %index) #0 {{
entry:
  %dims = alloca [{MOST_AXES} x i64]
  %strides = alloca [{MOST_AXES} x i64]
  %room = alloca ptr
  %list = call {{ ptr, i64 }} @items_of(ptr %index, ptr %room)
  %items = extractvalue {{ ptr, i64 }} %list, 0
  %n = extractvalue {{ ptr, i64 }} %list, 1
  %used = call i64 @axes_used(ptr %items, i64 %n)
{load("rank32", "%x", RANK, "i32")}
  %rank = sext i32 %rank32 to i64
  %free = sub i64 %rank, %used
  %is_usual = icmp sge i64 %used, 0
  %is_enough = icmp sge i64 %free, 0
  %most = add i64 %rank, %n
  %has_room = icmp sle i64 %most, {MOST_AXES}
  %fits = and i1 %is_enough, %has_room
  %goes = and i1 %is_usual, %fits
  br i1 %goes, label %walk, label %other
walk:
  %found = call {{ ptr, i64 }} @walk_items(ptr %x, ptr %items, i64 %n, i64 %free, ptr %dims, ptr %strides)
  %data = extractvalue {{ ptr, i64 }} %found, 0
  %made = extractvalue {{ ptr, i64 }} %found, 1
  %is_wrong = icmp eq ptr %data, null
  br i1 %is_wrong, label %other, label %done
done:
  %out = call ptr @got(ptr %x, ptr %data, i64 %made, ptr %dims, ptr %strides)
  ret ptr %out
other:
  ret ptr null
}}
"""
