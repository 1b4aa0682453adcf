"""Images for our own convolutions, as LLVM IR text: copies of bands with their padding, and results without what lies
between rows. It multiplies nothing.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import Numbers, at_ir, load_ir, loop_ir, mask_ir, min_ir, store_ir

_IMAGE = """ptr %x, i64 %channels, i64 %height, i64 %width, i64 %first, i64 %rows, i64 %left, i64 %reach,
      i64 %pitch, i64 %plane, ptr %image"""


def _row_start() -> str:
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
  %seen_end = add i64 %seen, %left
  %to_end_1 = sub i64 %seen_end, %column
  %to_start_2 = select i1 %none, i64 0, i64 %to_start_1
  %to_end_2 = select i1 %none, i64 0, i64 %to_end_1
  %negative = icmp slt i64 %to_start_2, 0
  %to_start = select i1 %negative, i64 0, i64 %to_start_2
  %past = icmp slt i64 %to_end_2, %to_start
  %to_end = select i1 %past, i64 %to_start, i64 %to_end_2"""


def copy_image_ir(kind: Numbers) -> str:
    """Rows of channels with their padding: a register of each row, from the end of rows to their beginning, with one
    mask for all. What runs over the end of a row lies in front of the next one, or comes later.
    """
    row = f"""
  %row = add i64 %first, %y
  %far = mul i64 %row, %width
  %from_offset = add i64 %far, %across
{at_ir("from", kind, "%source", "%from_offset")}
{load_ir("v", kind, "%from", "%mask")}
{_target(kind, "y", "to")}
  store {kind.vector} %v, ptr %to, align {kind.size}"""
    column = f"""
  %column = sub i64 %last_column, %turn
  %across = sub i64 %column, %left
  %to_start = sub i64 0, %across
  %to_end = add i64 %to_start, %width
{mask_ir("below", kind, "%to_end")}
{mask_ir("before", kind, "%to_start")}
  %behind = xor {kind.mask} %before, splat (i1 true)
  %mask = and {kind.mask} %below, %behind
{loop_ir("above", "%from_y", "1", _zeros(kind, "above"))}
{loop_ir("y", "%to_y", "1", row, "%from_y")}
{loop_ir("under", "%rows", "1", _zeros(kind, "under"), "%to_y")}"""
    channel = f"""
  %channel_offset = mul i64 %channel, %area
{at_ir("source", kind, "%x", "%channel_offset")}
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("turn", "%reach", str(kind.lanes), column)}"""
    return f"""
define internal void @copy_image_{kind.type}({_IMAGE}) #0 {{
  %area = mul i64 %height, %width
  %last = sub i64 %reach, 1
  %last_turn = udiv i64 %last, {kind.lanes}
  %last_column = mul i64 %last_turn, {kind.lanes}
{_rows_inside()}{loop_ir("channel", "%channels", "1", channel)}
  ret void
}}"""


def _rows_inside() -> str:
    """The rows of the copy that lie in x: from `%from_y` to `%to_y`."""
    return f"""  %missing = sub i64 0, %first
  %is_missing = icmp sgt i64 %missing, 0
  %top = select i1 %is_missing, i64 %missing, i64 0
{min_ir("from_y", "%top", "%rows")}
  %there = sub i64 %height, %first
  %is_there = icmp sgt i64 %there, %from_y
  %bottom = select i1 %is_there, i64 %there, i64 %from_y
{min_ir("to_y", "%bottom", "%rows")}
"""


def _target(kind: Numbers, row: str, name: str) -> str:
    """Where column `%column` of a row of the copy is."""
    return f"""  %{row}_down = mul i64 %{row}, %pitch
  %{row}_place = add i64 %{row}_down, %column
{at_ir(name, kind, "%base", f"%{row}_place")}"""


def _zeros(kind: Numbers, row: str) -> str:
    """A register of a row that is padding."""
    return f"""{_target(kind, row, f"{row}_to")}
  store {kind.vector} zeroinitializer, ptr %{row}_to, align {kind.size}"""


def turn_image_ir(kind: Numbers) -> str:
    """The same with the channels in lanes: per place a register of them, zeros in the place of missing ones."""
    n = kind.lanes
    places = f"""
{_column_start()}
  %from_place = add i64 %shifted, %column
  %from_offset = add i64 %channel_offset, %from_place
{at_ir("from", kind, "%x", "%from_offset")}
  %along = mul i64 %column, {n}
{at_ir("to", kind, "%target", "%along")}
  call void @turn_{kind.type}(ptr %from, i64 %area, i64 %some, i64 %to_start, i64 %to_end, i64 {n}, ptr %to, i64 {n})"""
    row = f"""
{_row_start()}
  %down_places = mul i64 %y, %pitch
  %down = mul i64 %down_places, {n}
{at_ir("target", kind, "%base", "%down")}
{loop_ir("column", "%reach", str(n), places)}"""
    channel = f"""
  %some = sub i64 %channels, %channel
  %channel_offset = mul i64 %channel, %area
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @turn_image_{kind.type}({_IMAGE}) #0 {{
  %area = mul i64 %height, %width
{loop_ir("channel", "%channels", str(n), channel)}
  ret void
}}"""


def bring_rows_ir(kind: Numbers) -> str:
    """The places of a band, without what runs over the ends of rows, into the result: a register of each row, with one
    mask for all.
    """
    row = f"""
  %along = mul i64 %y, %pitch
  %from_place = add i64 %along, %column
{at_ir("from", kind, "%line", "%from_place")}
{load_ir("v", kind, "%from", "%mask")}
  %put = mul i64 %y, %width
  %to_place = add i64 %put, %column
{at_ir("to", kind, "%plane", "%to_place")}
{store_ir(kind, "%v", "%to", "%mask")}"""
    column = f"""
  %left = sub i64 %width, %column
{mask_ir("mask", kind, "%left")}
{loop_ir("y", "%rows", "1", row)}"""
    channel = f"""
  %line_offset = mul i64 %channel, %ldc
{at_ir("line", kind, "%flat", "%line_offset")}
  %plane_offset = mul i64 %channel, %area
{at_ir("plane", kind, "%out", "%plane_offset")}
{loop_ir("column", "%width", str(kind.lanes), column if kind.bytes == 64 else _early_column(kind, column))}"""
    return f"""
define internal void @bring_{kind.type}(ptr %flat, i64 %ldc, i64 %pitch, i64 %channels, i64 %rows, i64 %width,
      ptr %out, i64 %area) #0 {{
{loop_ir("channel", "%channels", "1", channel)}
  ret void
}}"""


def _early_column(kind: Numbers, some: str) -> str:
    """Whole registers, the last of a row from where it ends with it; ``some`` only of rows that have less. (A masked
    store takes 12 cycles where it is not one instruction with a mask of bits: Zen 3.)
    """
    row = f"""
  %whole_along = mul i64 %whole_y, %pitch
  %whole_place = add i64 %whole_along, %early
{at_ir("whole_from", kind, "%line", "%whole_place")}
  %whole = load {kind.vector}, ptr %whole_from, align {kind.size}
  %whole_put = mul i64 %whole_y, %width
  %whole_target = add i64 %whole_put, %early
{at_ir("whole_to", kind, "%plane", "%whole_target")}
  store {kind.vector} %whole, ptr %whole_to, align {kind.size}"""
    return f"""
  %last = sub i64 %width, {kind.lanes}
  %is_short = icmp slt i64 %last, 0
  br i1 %is_short, label %some_of_it, label %all_of_it
all_of_it:
{min_ir("early", "%column", "%last")}
{loop_ir("whole_y", "%rows", "1", row)}
  br label %brought
some_of_it:
{some}
  br label %brought
brought:"""
