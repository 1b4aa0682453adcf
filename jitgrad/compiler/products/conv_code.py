"""Convolutions of our own for processors with 32 registers of 64 bytes or 16 of 32, as LLVM IR text: the steps behind
the kernel ABI. It plans nothing.

    jitgrad_windows_<type>    out[n, o] = sum over c, tap of w[o, c, tap] * x[n, c, shifted by the tap]
    jitgrad_filters_<type>    parts of dw[o, c, tap] = sum over n and places of g[n, o] * x[n, c, shifted by the tap]
    jitgrad_gather_<type>     dw from its parts

No matrix of patches is made. A band of an example is copied with its padding, row behind row, and with zeros between
two rows once: behind one, and in front of the next. Then a tap is one number of elements by which the copy is read
further on, for all places in a row and from row to row. What runs over the end of a row is computed for nothing (as
many columns as zeros between rows), and is not stored. So windows are a matrix product whose
right operand's rows are addresses, as in Dukhan's indirect convolution (arXiv:1907.02129); filters are one whose sum
runs over places, with the channels of the copy in lanes. Tiles are rows of three registers, or of one at the end, 8 of
them, or 4 where there are 16 registers: sums in three quarters of all, each of its products in order, by fused
multiply-add.

Milliseconds of two Zen 3 cores (AVX2), and by products, in turns; examples, channels, results, side, window:

    windows   32 3 16 32 3    0.28 (0.62)    32 16 2 28 3    0.32 (2.44)    8 64 64 28 3     4.2 (6.4)
    filters                   0.54 (0.76)                    0.63 (2.82)                     3.7 (7.1)
    windows   1 3 8 200 5     0.49 (2.08)    16 32 64 8 3    0.38 (0.89)    4 128 128 14 3   2.3 (3.5)
    filters                   1.15 (1.98)                    0.47 (1.22)                     2.6 (6.0)
    as fast by products: 32 16 16 28 1
"""

from __future__ import annotations

from jitgrad.compiler.products.conv import tile_rows
from jitgrad.compiler.products.conv_images import bring_rows_ir, copy_image_ir, turn_image_ir
from jitgrad.compiler.products.conv_steps import (
    FILTERS_BLOCK,
    FILTERS_STUBS,
    GATHER_BLOCK,
    GATHER_STUBS,
    WINDOWS_BLOCK,
    WINDOWS_STUBS,
)  # fmt: skip
from jitgrad.compiler.products.conv_tiles import loop_over_tiles_ir, tile_declarations_ir, tiles_ir
from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    array_ir,
    arrays_ir,
    at_ir,
    block_ir,
    declarations_ir,
    loop_ir,
    mask_ir,
    min_ir,
    module_ir,
    numbers_of,
)  # fmt: skip
from jitgrad.compiler.products.transposes import turn_ir


def stub_ir(stub: str) -> str:
    """The module of one of the stubs."""
    made_of = ((WINDOWS_STUBS, _windows_parts), (FILTERS_STUBS, _filters_parts), (GATHER_STUBS, _gather_parts))
    kind = numbers_of(stub, *(stubs for stubs, _ in made_of))
    made = next(made for stubs, made in made_of if stub in stubs.values())
    return module_ir(declarations_ir(kind), *made(kind, stub))


def tiles_of_stub_ir(stub: str) -> str:
    """The module of the tiles that one of the stubs calls."""
    return module_ir(tiles_ir(numbers_of(stub, WINDOWS_STUBS, FILTERS_STUBS), stub in WINDOWS_STUBS.values()))


def _windows_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    return tile_declarations_ir(kind, True), copy_image_ir(kind), bring_rows_ir(kind), _windows(kind, stub)


def _filters_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    return tile_declarations_ir(kind, False), turn_ir(kind), turn_image_ir(kind), _filters(kind, stub)


def _gather_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    return _scatter_declaration(kind), _gather(kind, stub)


def _scratch() -> str:
    return f"""{array_ir("scratches")}
  %scratch_offset = mul i64 %worker, %scratch_bytes
  %offsets = getelementptr i8, ptr %scratches, i64 %scratch_offset
  %image = getelementptr i8, ptr %offsets, i64 %image_at"""


def _offsets(entry: str) -> str:
    """The table of offsets: channel by channel, tap by tap; `entry` makes %entry of %channel, %ky and %kx."""
    body = f"""
  %across = mul i64 %kx, %gap_x
  %deep = mul i64 %ky, %down_step
  %tap = add i64 %across, %deep
{entry}
  %row_number = mul i64 %ky, %kernel_x
  %number = add i64 %row_number, %kx
  %first_number = mul i64 %channel, %taps
  %index = add i64 %first_number, %number
  %offset_at = getelementptr i64, ptr %offsets, i64 %index
  store i64 %entry, ptr %offset_at"""
    rows = loop_ir("ky", "%kernel_y", "1", loop_ir("kx", "%kernel_x", "1", body))
    return f"""  %taps = mul i64 %kernel_y, %kernel_x
  %down_step = mul i64 %gap_y, %pitch
{loop_ir("channel", "%at_once", "1", rows)}"""


def _band() -> str:
    """Example and band of cell %i; the band's first row, how many it has, and where its image begins."""
    return f"""
  %example = udiv i64 %i, %bands
  %number_in = urem i64 %i, %bands
  %y0 = mul i64 %number_in, %band
  %rows_left = sub i64 %out_height, %y0
{min_ir("rows", "%rows_left", "%band")}
  %first = sub i64 %y0, %top
  %image_rows = add i64 %rows, %halo
  %first_channel = mul i64 %example, %channels"""


def _windows(kind: Numbers, stub: str) -> str:
    entry = """  %of_channel = mul i64 %channel, %plane
  %entry = add i64 %of_channel, %tap"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
{block_ir(WINDOWS_BLOCK)}
{arrays_ir("x", "w", "out")}
{_scratch()}
  %flat = getelementptr i8, ptr %offsets, i64 %flat_at
  %area = mul i64 %height, %width
  %out_area = mul i64 %out_height, %out_width
{_offsets(entry)}
  %terms = mul i64 %channels, %taps
{loop_ir("i", "%hi", "1", _windows_cell(kind), "%lo")}
  ret void
}}"""


def _windows_cell(kind: Numbers) -> str:
    """A band of an example: some channels after another, and the rows brought to their places."""
    return f"""
{_band()}
  %rows_above = sub i64 %rows, 1
  %places_above = mul i64 %rows_above, %pitch
  %places = add i64 %places_above, %out_width
{loop_ir("c", "%channels", "%at_once", _windows_of_channels(kind))}
  %out_channel = mul i64 %example, %outputs
  %out_first = mul i64 %out_channel, %out_area
  %out_down = mul i64 %y0, %out_width
  %out_offset = add i64 %out_first, %out_down
{at_ir("out_at", kind, "%out", "%out_offset")}
  call void @bring_{kind.type}(ptr %flat, i64 %ldc, i64 %pitch, i64 %outputs, i64 %rows, i64 %out_width, ptr %out_at,
      i64 %out_area)"""


def _windows_of_channels(kind: Numbers) -> str:
    """What some channels add to all results."""
    return f"""
  %channels_left = sub i64 %channels, %c
{min_ir("some", "%channels_left", "%at_once")}
  %count = mul i64 %some, %taps
  %fresh = icmp eq i64 %c, 0
  %x_channel = add i64 %first_channel, %c
  %x_offset = mul i64 %x_channel, %area
{at_ir("x_at", kind, "%x", "%x_offset")}
  call void @copy_image_{kind.type}(ptr %x_at, i64 %some, i64 %height, i64 %width, i64 %first, i64 %image_rows,
      i64 %left, i64 %reach, i64 %pitch, i64 %plane, ptr %image)
{loop_ir("o", "%outputs", str(tile_rows(kind)), _windows_panel(kind))}"""


def _windows_panel(kind: Numbers) -> str:
    """What they add to as many results as a tile has rows."""
    places = f"""{at_ir("b_at", kind, "%image", "%p")}
{at_ir("c_at", kind, "%c_row", "%p")}"""
    operands = "ptr %a_at, i64 %terms, i64 %last, ptr %b_at, ptr %offsets, i64 %count, ptr %c_at, i64 %ldc, i1 %fresh"
    return f"""
  %height_left = sub i64 %outputs, %o
{min_ir("tall", "%height_left", str(tile_rows(kind)))}
  %last = sub i64 %tall, 1
  %a_down = mul i64 %o, %terms
  %a_across = mul i64 %c, %taps
  %a_offset = add i64 %a_down, %a_across
{at_ir("a_at", kind, "%w", "%a_offset")}
  %c_down = mul i64 %o, %ldc
{at_ir("c_row", kind, "%flat", "%c_down")}
{loop_over_tiles_ir(kind, True, "p", "%places", kind.lanes, places, operands)}"""


def _filters(kind: Numbers, stub: str) -> str:
    entry = f"""  %of_channel = mul i64 %channel, %plane_lanes
  %tap_lanes = mul i64 %tap, {kind.lanes}
  %entry = add i64 %of_channel, %tap_lanes"""
    clear = f"""{at_ir("clear_at", kind, "%part", "%e")}
  store {kind.vector} zeroinitializer, ptr %clear_at, align {kind.bytes}"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
{block_ir(FILTERS_BLOCK)}
{arrays_ir("x", "g", "parts")}
{_scratch()}
  %area = mul i64 %height, %width
  %out_area = mul i64 %out_height, %out_width
  %step = mul i64 %at_once, {kind.lanes}
  %plane_lanes = mul i64 %plane, {kind.lanes}
  %over = sub i64 %pitch, %out_width
  %gap = mul i64 %over, {kind.lanes}
{_offsets(entry)}
  %part_offset = mul i64 %chunk, %part_elements
{at_ir("part", kind, "%parts", "%part_offset")}
{loop_ir("e", "%part_elements", str(kind.lanes), clear)}
{loop_ir("i", "%hi", "1", _filters_cell(kind), "%lo")}
  ret void
}}"""


def _filters_cell(kind: Numbers) -> str:
    """A band of an example: some channels after another."""
    return f"""
{_band()}
  %places = mul i64 %rows, %out_width
  %g_channel = mul i64 %example, %outputs
  %g_places = mul i64 %y0, %out_width
{loop_ir("c", "%channels", "%step", _filters_of_channels(kind))}"""


def _filters_of_channels(kind: Numbers) -> str:
    """What the band adds to the filters of some channels, which lie in lanes."""
    return f"""
  %channels_left = sub i64 %channels, %c
{min_ir("some", "%channels_left", "%step")}
  %some_up = add i64 %some, {kind.lanes - 1}
  %some_blocks = udiv i64 %some_up, {kind.lanes}
  %columns = mul i64 %some_blocks, %taps
  %x_channel = add i64 %first_channel, %c
  %x_offset = mul i64 %x_channel, %area
{at_ir("x_at", kind, "%x", "%x_offset")}
  call void @turn_image_{kind.type}(ptr %x_at, i64 %some, i64 %height, i64 %width, i64 %first, i64 %image_rows,
      i64 %left, i64 %reach, i64 %pitch, i64 %plane, ptr %image)
{loop_ir("o", "%outputs", str(tile_rows(kind)), _filters_panel(kind))}"""


def _filters_panel(kind: Numbers) -> str:
    """What it adds to those of as many results as a tile has rows."""
    columns = f"""  %offsets_at = getelementptr i64, ptr %offsets, i64 %q
  %c_across = mul i64 %q, {kind.lanes}
{at_ir("c_at", kind, "%c_row", "%c_across")}"""
    operands = """ptr %a_at, i64 %out_area, i64 %last, ptr %image, ptr %offsets_at, i64 %places,
      i64 %out_width, i64 %gap, ptr %c_at, i64 %ldc, i1 false"""
    return f"""
  %height_left = sub i64 %outputs, %o
{min_ir("tall", "%height_left", str(tile_rows(kind)))}
  %last = sub i64 %tall, 1
  %a_channel = add i64 %g_channel, %o
  %a_down = mul i64 %a_channel, %out_area
  %a_offset = add i64 %a_down, %g_places
{at_ir("a_at", kind, "%g", "%a_offset")}
  %c_down = mul i64 %o, %ldc
  %c_columns = mul i64 %c, %taps
  %c_offset = add i64 %c_down, %c_columns
{at_ir("c_row", kind, "%part", "%c_offset")}
{loop_over_tiles_ir(kind, False, "q", "%columns", 1, columns, operands)}"""


def _scatter_declaration(kind: Numbers) -> str:
    name = f"llvm.masked.scatter.v{kind.lanes}{kind.suffix}.v{kind.lanes}p0"
    return f"declare void @{name}({kind.vector}, <{kind.lanes} x ptr>, i32, {kind.mask}) #0"


def _gather(kind: Numbers, stub: str) -> str:
    """Rows of dw: the sum of the parts, and the channels out of their lanes."""
    n, v = kind.lanes, kind.vector
    many = f"<{n} x i64>"
    numbers = ", ".join(f"i64 {k}" for k in range(n))
    row = f"""
  %down = mul i64 %o, %ldc
{loop_ir("channel", "%channels", str(n), loop_ir("tap", "%taps", "1", _gathered(kind)))}"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
  %sum = alloca {v}, align {kind.bytes}
{block_ir(GATHER_BLOCK)}
{arrays_ir("parts", "out")}
  %terms = mul i64 %channels, %taps
  %taps_one = insertelement {many} poison, i64 %taps, i64 0
  %taps_all = shufflevector {many} %taps_one, {many} poison, <{n} x i32> zeroinitializer
  %strides = mul {many} %taps_all, <{numbers}>
{loop_ir("o", "%hi", "1", row, "%lo")}
  ret void
}}"""


def _gathered(kind: Numbers) -> str:
    """A tap of a register of channels: the sum over the parts, put in the places of the channels."""
    n, v = kind.lanes, kind.vector
    add = f"""
  %part_offset = mul i64 %part, %part_elements
  %from_offset = add i64 %part_offset, %lane_offset
{at_ir("from", kind, "%parts", "%from_offset")}
  %x = load {v}, ptr %from, align {kind.bytes}
  %old = load {v}, ptr %sum, align {kind.bytes}
  %new = fadd {v} %old, %x
  store {v} %new, ptr %sum, align {kind.bytes}"""
    return f"""
  %block_number = udiv i64 %channel, {n}
  %column_block = mul i64 %block_number, %taps
  %column = add i64 %column_block, %tap
  %lanes_before = mul i64 %column, {n}
  %lane_offset = add i64 %lanes_before, %down
  store {v} zeroinitializer, ptr %sum, align {kind.bytes}
{loop_ir("part", "%count", "1", add)}
  %total = load {v}, ptr %sum, align {kind.bytes}
  %left = sub i64 %channels, %channel
{mask_ir("mask", kind, "%left")}
  %own = mul i64 %channel, %taps
  %row = mul i64 %o, %terms
  %before = add i64 %own, %row
  %to_offset = add i64 %before, %tap
{at_ir("to", kind, "%out", "%to_offset")}
  %to_all = getelementptr {kind.type}, ptr %to, <{n} x i64> %strides
  call void @llvm.masked.scatter.v{n}{kind.suffix}.v{n}p0({v} %total, <{n} x ptr> %to_all, i32 {kind.size},
      {kind.mask} %mask)"""
