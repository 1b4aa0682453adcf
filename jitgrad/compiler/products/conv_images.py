"""Images for our own convolutions, as LLVM IR text: copies of bands with their padding, and results without what lies
between rows. It multiplies nothing.
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import Numbers, at_ir, load_ir, loop_ir, mask_ir, min_ir, store_ir

_IMAGE = """ptr %x, i64 %channels, i64 %height, i64 %width, i64 %first, i64 %rows, i64 %left, i64 %pitch,
      i64 %plane, ptr %image"""


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
{mask_ir("below", kind, "%to_end")}
{mask_ir("before", kind, "%to_start")}
  %mask = xor {kind.mask} %below, %before
  %from_offset = add i64 %shifted, %column
{at_ir("from", kind, "%source", "%from_offset")}
{load_ir("v", kind, "%from", "%mask")}
{at_ir("to", kind, "%target", "%column")}
  store {kind.vector} %v, ptr %to, align {kind.size}"""
    columns = loop_ir("column", "%pitch", str(kind.lanes), body)
    row = f"""
{_row_start()}
  %down = mul i64 %y, %pitch
{at_ir("target", kind, "%base", "%down")}
{columns if kind.bytes == 64 else _plain_row(kind, columns)}"""
    channel = f"""
  %channel_offset = mul i64 %channel, %area
{at_ir("source", kind, "%x", "%channel_offset")}
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @copy_image_{kind.type}({_IMAGE}) #0 {{
  %area = mul i64 %height, %width
{"" if kind.bytes == 64 else _is_plain(kind)}{loop_ir("channel", "%channels", "1", channel)}
  ret void
}}"""


def _is_plain(kind: Numbers) -> str:
    """Whether rows of x fill a register, and lie in those of the copy."""
    return f"""  %fills = icmp sge i64 %width, {kind.lanes}
  %begins = icmp sge i64 %left, 0
  %row_end = add i64 %left, %width
  %ends = icmp sle i64 %row_end, %pitch
  %fills_begins = and i1 %fills, %begins
  %is_plain = and i1 %fills_begins, %ends
"""


def _plain_row(kind: Numbers, columns: str) -> str:
    """A row of zeros and on it, if it lies in x, whole registers, the last from where it ends with the row; ``columns``
    for rows that are not plain. Two masks per register take longer than the sums over windows of one element.
    """
    clear = f"""{at_ir("zeros_at", kind, "%target", "%z")}
  store {kind.vector} zeroinitializer, ptr %zeros_at, align {kind.size}"""
    put = f"""{min_ir("early", "%e", "%last_early")}
{at_ir("whole_at", kind, "%source_row", "%early")}
  %whole = load {kind.vector}, ptr %whole_at, align {kind.size}
{at_ir("whole_to", kind, "%target_row", "%early")}
  store {kind.vector} %whole, ptr %whole_to, align {kind.size}"""
    return f"""
  br i1 %is_plain, label %plain, label %masked
plain:
  %last_early = sub i64 %width, {kind.lanes}
{at_ir("source_row", kind, "%source", "%far")}
{at_ir("target_row", kind, "%target", "%left")}
{loop_ir("z", "%pitch", str(kind.lanes), clear)}
{loop_ir("e", "%seen", str(kind.lanes), put)}
  br label %row_made
masked:
{columns}
  br label %row_made
row_made:"""


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
{loop_ir("column", "%pitch", str(n), places)}"""
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
    """The places of a band, without what runs over the ends of rows, into the result."""
    some = f"""
  %left = sub i64 %width, %column
{mask_ir("mask", kind, "%left")}
{at_ir("at", kind, "%source", "%column")}
{load_ir("v", kind, "%at", "%mask")}
{at_ir("to", kind, "%target", "%column")}
{store_ir(kind, "%v", "%to", "%mask")}"""
    body = some if kind.bytes == 64 else _early(kind, some)
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


def _early(kind: Numbers, some: str) -> str:
    """A whole register, the last of a row from where it ends with it; ``some`` only of rows that have less. (A masked
    store takes 12 cycles where it is not one instruction with a mask of bits: Zen 3.)
    """
    return f"""
  %last = sub i64 %width, {kind.lanes}
  %is_short = icmp slt i64 %last, 0
  br i1 %is_short, label %some_of_it, label %all_of_it
all_of_it:
{min_ir("early", "%column", "%last")}
{at_ir("whole_at", kind, "%source", "%early")}
  %whole = load {kind.vector}, ptr %whole_at, align {kind.size}
{at_ir("whole_to", kind, "%target", "%early")}
  store {kind.vector} %whole, ptr %whole_to, align {kind.size}
  br label %brought
some_of_it:
{some}
  br label %brought
brought:"""
