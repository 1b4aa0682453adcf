"""Images for our own convolutions, as LLVM IR text: copies of bands with their padding, and results without what lies
between rows. It multiplies nothing.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import Numbers, at_ir, load_ir, loop_ir, mask_ir, store_ir

_IMAGE = """ptr %x, i64 %channels, i64 %height, i64 %width, i64 %first, i64 %rows, i64 %left, i64 %pitch,
      i64 %plane, ptr %image"""


def _seen(kind: Numbers) -> str:
    """The part of a row of the copy that is seen in x: `%mask` at `%column` of row `%y`."""
    return f"""{mask_ir("below", kind, "%to_end")}
{mask_ir("before", kind, "%to_start")}
  %mask = xor {kind.mask} %below, %before"""


def _row_start(kind: Numbers) -> str:
    """Whether row `%y` lies in x, and how far its elements are from those of the channel's first row."""
    return """  %place = add i64 %first, %y
  %inside = icmp ult i64 %place, %height
  %seen = select i1 %inside, i64 %width, i64 0
  %row = select i1 %inside, i64 %place, i64 0
  %far = mul i64 %row, %width
  %shifted = sub i64 %far, %left"""


def _column_start() -> str:
    """How many lanes lie before the row of x, and before its end."""
    return """  %to_start_1 = sub i64 %left, %column
  %none = icmp eq i64 %seen, 0
  %reach = add i64 %seen, %left
  %to_end_1 = sub i64 %reach, %column
  %to_start_2 = select i1 %none, i64 0, i64 %to_start_1
  %to_end_2 = select i1 %none, i64 0, i64 %to_end_1
  %negative = icmp slt i64 %to_start_2, 0
  %to_start = select i1 %negative, i64 0, i64 %to_start_2
  %past = icmp slt i64 %to_end_2, %to_start
  %to_end = select i1 %past, i64 %to_start, i64 %to_end_2"""


def copy_image_ir(kind: Numbers) -> str:
    """Rows of channels with their padding. What runs over the end of a row, the next one overwrites."""
    body = f"""
{_column_start()}
{_seen(kind)}
  %from_offset = add i64 %shifted, %column
{at_ir("from", kind, "%source", "%from_offset")}
{load_ir("v", kind, "%from", "%mask")}
{at_ir("to", kind, "%target", "%column")}
  store {kind.vector} %v, ptr %to, align {kind.size}"""
    row = f"""
{_row_start(kind)}
  %down = mul i64 %y, %pitch
{at_ir("target", kind, "%base", "%down")}
{loop_ir("column", "%pitch", str(kind.lanes), body)}"""
    channel = f"""
  %channel_offset = mul i64 %channel, %area
{at_ir("source", kind, "%x", "%channel_offset")}
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @copy_image_{kind.type}({_IMAGE}) #0 {{
  %area = mul i64 %height, %width
{loop_ir("channel", "%channels", "1", channel)}
  ret void
}}"""


def turn_image_ir(kind: Numbers) -> str:
    """The same with the channels in lanes: per place a register of them, zeros in the place of missing ones."""
    n = kind.lanes
    fetch = f"""
  %own = add i64 %channel, %r
  %there = icmp slt i64 %own, %channels
  %own_mask = select i1 %there, {kind.mask} %mask, {kind.mask} zeroinitializer
  %channel_offset = mul i64 %own, %area
  %from_place = add i64 %channel_offset, %from_offset
{at_ir("from", kind, "%x", "%from_place")}
{load_ir("seen_there", kind, "%from", "%own_mask")}
  %square_offset = mul i64 %r, {n}
{at_ir("square_at", kind, "%square", "%square_offset")}
  store {kind.vector} %seen_there, ptr %square_at, align 64"""
    put = f"""
  %put_offset = mul i64 %t, {n}
{at_ir("turned_at", kind, "%square", "%put_offset")}
  %v = load {kind.vector}, ptr %turned_at, align 64
{at_ir("put_at", kind, "%to", "%put_offset")}
  store {kind.vector} %v, ptr %put_at, align 64"""
    places = f"""
{_column_start()}
{_seen(kind)}
  %from_offset = add i64 %shifted, %column
{loop_ir("r", str(n), "1", fetch)}
  call void @turn_{kind.type}(ptr %square)
  %along = mul i64 %column, {n}
{at_ir("to", kind, "%target", "%along")}
{loop_ir("t", str(n), "1", put)}"""
    row = f"""
{_row_start(kind)}
  %down_places = mul i64 %y, %pitch
  %down = mul i64 %down_places, {n}
{at_ir("target", kind, "%base", "%down")}
{loop_ir("column", "%pitch", str(n), places)}"""
    channel = f"""
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @turn_image_{kind.type}({_IMAGE}) #0 {{
  %square = alloca [{n} x {kind.vector}], align 64
  %area = mul i64 %height, %width
{loop_ir("channel", "%channels", str(n), channel)}
  ret void
}}"""


def bring_rows_ir(kind: Numbers) -> str:
    """The places of a band, without what runs over the ends of rows, into the result."""
    body = f"""
  %left = sub i64 %width, %column
{mask_ir("mask", kind, "%left")}
{at_ir("at", kind, "%source", "%column")}
{load_ir("v", kind, "%at", "%mask")}
{at_ir("to", kind, "%target", "%column")}
{store_ir(kind, "%v", "%to", "%mask")}"""
    row = f"""
  %along = mul i64 %y, %pitch
{at_ir("source", kind, "%line", "%along")}
  %put = mul i64 %y, %width
{at_ir("target", kind, "%plane", "%put")}
{loop_ir("column", "%width", str(kind.lanes), body)}"""
    channel = f"""
  %line_offset = mul i64 %channel, %ldc
{at_ir("line", kind, "%flat", "%line_offset")}
  %plane_offset = mul i64 %channel, %area
{at_ir("plane", kind, "%out", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @bring_{kind.type}(ptr %flat, i64 %ldc, i64 %pitch, i64 %channels, i64 %rows, i64 %width,
      ptr %out, i64 %area) #0 {{
{loop_ir("channel", "%channels", "1", channel)}
  ret void
}}"""
