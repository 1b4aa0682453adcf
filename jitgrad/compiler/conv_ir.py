"""Convolutions of our own for processors with 32 registers of 64 bytes, as LLVM IR text: steps behind the kernel ABI, and
the tiles in registers. It plans nothing.

    jitgrad_windows_<type>    out[n, o] = sum over c, tap of w[o, c, tap] * x[n, c, shifted by the tap]
    jitgrad_filters_<type>    parts of dw[o, c, tap] = sum over n and places of g[n, o] * x[n, c, shifted by the tap]
    jitgrad_gather_<type>     dw from its parts

No matrix of patches is made. A band of an example is copied with its padding, row behind row; then a tap is one number
of elements by which the copy is read further on, for all places in a row and from row to row. What runs over the end of
a row is computed for nothing (as many columns as padding), and is not stored. So windows are a matrix product whose
right operand's rows are addresses, as in Dukhan's indirect convolution (arXiv:1907.02129); filters are one whose sum
runs over places, with the channels of the copy in lanes. Tiles are 8 rows of up to three registers: 24 sums, each of
its products in order, by fused multiply-add.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.conv import TALL
from jitgrad.compiler.conv_steps import (
    FILTERS_BLOCK,
    FILTERS_STUBS,
    GATHER_BLOCK,
    GATHER_STUBS,
    WINDOWS_BLOCK,
    WINDOWS_STUBS,
)  # fmt: skip
from jitgrad.compiler.gemm_ir import transpose_ir
from jitgrad.compiler.register_ir import (
    KINDS,
    Numbers,
    at_ir,
    declarations_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    store_ir,
    word_ir,
)  # fmt: skip

WIDE = 3
_KERNEL = "ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker"


def stub_ir(stub: str) -> str:
    """The module of one of the stubs."""
    for stubs, made in ((WINDOWS_STUBS, _windows_parts), (FILTERS_STUBS, _filters_parts), (GATHER_STUBS, _gather_parts)):
        for dtype, name in stubs.items():
            if name == stub:
                kind = KINDS[dtype]
                return "\n".join((declarations_ir(kind), *made(kind, stub))) + "\nattributes #0 = { nounwind }\n"
    raise ValueError(f"no stub {stub}")


def _windows_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    tiles = [_tile(kind, columns, True) for columns in range(1, WIDE + 1)]
    return (*tiles, _copy_image(kind), _bring_rows(kind), _windows(kind, stub))


def _filters_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    tiles = [_tile(kind, columns, False) for columns in range(1, WIDE + 1)]
    return (*tiles, _turn_image(kind), _filters(kind, stub))


def _gather_parts(kind: Numbers, stub: str) -> tuple[str, ...]:
    return _scatter_declaration(kind), _gather(kind, stub)


def _words(block: Sequence[str]) -> str:
    return "\n".join(word_ir(name, block) for name in block)


def _array(name: str) -> str:
    """The address in a slot of the table."""
    return f"""  %{name}_entry = getelementptr ptr, ptr %table, i64 %{name}_slot
  %{name} = load ptr, ptr %{name}_entry"""


def _scratch() -> str:
    return f"""{_array("scratches")}
  %scratch_offset = mul i64 %worker, %scratch_bytes
  %offsets = getelementptr i8, ptr %scratches, i64 %scratch_offset
  %image = getelementptr i8, ptr %offsets, i64 %image_at"""


# -- tiles -------------------------------------------------------------------------------------------------------------


def _tile_name(kind: Numbers, columns: int, is_window: bool) -> str:
    return f"{'window' if is_window else 'filter'}_tile_{kind.type}_{columns}"


def _tile(kind: Numbers, columns: int, is_window: bool) -> str:
    """C = or += over the terms: 8 rows of A, one element each, times registers of the image.

    Of windows: `count` terms, whose registers lie side by side, at %offsets[term]. Of filters: `count` rows of `width`
    places, registers apart, each column from %offsets[column] on; rows of A have no gaps.
    """
    v = kind.vector
    tile = [(r, c) for r in range(TALL) for c in range(columns)]
    rows = "\n".join(
        "\n".join((
            min_ir(f"r{r}", str(r), "%last"),
            f"  %start{r} = mul i64 %lda, %r{r}",
            at_ir(f"row{r}", kind, "%a", f"%start{r}"),
            f"  %down{r} = mul i64 %ldc, {r}",
            at_ir(f"c{r}", kind, "%c", f"%down{r}"),
            *(at_ir(f"c{r}_{c}", kind, f"%c{r}", str(c * kind.lanes)) for c in range(columns)),
        ))
        for r in range(TALL)
    )  # fmt: skip
    before = "\n".join(f"  %old{r}_{c} = load {v}, ptr %c{r}_{c}, align 64" for r, c in tile)
    stores = "\n".join(f"  store {v} %t{r}_{c}, ptr %c{r}_{c}, align 64" for r, c in tile)
    steps = "\n".join(_tile_row(kind, r, columns) for r in range(TALL))
    loop = (_window_loop if is_window else _filter_loop)(kind, columns, steps)
    numbers = "i64 %count" if is_window else "i64 %count, i64 %width, i64 %gap"
    return f"""
define internal void @{_tile_name(kind, columns, is_window)}(ptr %a, i64 %lda, i64 %last, ptr %b, ptr %offsets,
      {numbers}, ptr %c, i64 %ldc, i1 %fresh) noinline #0 {{
entry:
{rows}
  br i1 %fresh, label %begin, label %more
more:
{before}
  br label %begin
begin:
{chr(10).join(f"  %z{r}_{c} = phi {v} [ zeroinitializer, %entry ], [ %old{r}_{c}, %more ]" for r, c in tile)}
{loop}
end:
{stores}
  ret void
}}"""


def _tile_row(kind: Numbers, r: int, columns: int) -> str:
    v = kind.vector
    lines = [
        at_ir(f"a{r}_at", kind, f"%row{r}", "%p"),
        f"  %x{r} = load {kind.type}, ptr %a{r}_at",
        f"  %y{r} = insertelement {v} poison, {kind.type} %x{r}, i64 0",
        f"  %w{r} = shufflevector {v} %y{r}, {v} poison, <{kind.lanes} x i32> zeroinitializer",
    ]
    lines += [
        f"  %t{r}_{c} = call {v} @llvm.fma.v{kind.lanes}{kind.suffix}({v} %w{r}, {v} %b{c}, {v} %s{r}_{c})"
        for c in range(columns)
    ]
    return "\n".join(lines)


def _sums(kind: Numbers, columns: int, *sources: tuple[str, str]) -> str:
    """The sums as phis: the prefix of their names per block from which they come."""
    lines = []
    for r in range(TALL):
        for c in range(columns):
            pairs = ", ".join(f"[ %{prefix}{r}_{c}, %{label} ]" for prefix, label in sources)
            lines.append(f"  %s{r}_{c} = phi {kind.vector} {pairs}")
    return "\n".join(lines)


def _window_loop(kind: Numbers, columns: int, steps: str) -> str:
    loads = "\n".join(
        f"{at_ir(f'b{c}_at', kind, '%b_at', str(c * kind.lanes))}\n"
        f"  %b{c} = load {kind.vector}, ptr %b{c}_at, align {kind.size}"
        for c in range(columns)
    )
    return f"""  br label %loop
loop:
  %p = phi i64 [ 0, %begin ], [ %p1, %loop ]
{_sums(kind, columns, ("z", "begin"), ("t", "loop"))}
  %offset_at = getelementptr i64, ptr %offsets, i64 %p
  %offset = load i64, ptr %offset_at
{at_ir("b_at", kind, "%b", "%offset")}
{loads}
{steps}
  %p1 = add i64 %p, 1
  %again = icmp slt i64 %p1, %count
  br i1 %again, label %loop, label %end"""


def _filter_loop(kind: Numbers, columns: int, steps: str) -> str:
    starts = "\n".join(
        f"""  %offset{c}_at = getelementptr i64, ptr %offsets, i64 {c}
  %offset{c} = load i64, ptr %offset{c}_at
{at_ir(f"b_from{c}", kind, "%b", f"%offset{c}")}"""
        for c in range(columns)
    )
    loads = "\n".join(
        f"{at_ir(f'b{c}_at', kind, f'%b_from{c}', '%q')}\n  %b{c} = load {kind.vector}, ptr %b{c}_at, align 64"
        for c in range(columns)
    )
    return f"""{starts}
  br label %loop
loop:
  %p = phi i64 [ 0, %begin ], [ %p1, %latch ]
  %q = phi i64 [ 0, %begin ], [ %q2, %latch ]
  %row_end = phi i64 [ %width, %begin ], [ %row_end2, %latch ]
{_sums(kind, columns, ("z", "begin"), ("t", "latch"))}
{loads}
{steps}
  %p1 = add i64 %p, 1
  %q1 = add i64 %q, {kind.lanes}
  %ends = icmp eq i64 %p1, %row_end
  br i1 %ends, label %next_row, label %latch
next_row:
  %q_far = add i64 %q1, %gap
  %row_end1 = add i64 %row_end, %width
  br label %latch
latch:
  %q2 = phi i64 [ %q1, %loop ], [ %q_far, %next_row ]
  %row_end2 = phi i64 [ %row_end, %loop ], [ %row_end1, %next_row ]
  %again = icmp slt i64 %p1, %count
  br i1 %again, label %loop, label %end"""


def _call_tile(kind: Numbers, is_window: bool, registers: str, arguments: str) -> str:
    """The call of the tile that has so many columns, at most `WIDE`."""
    cases = "\n".join(
        f"columns{c}:\n  call void @{_tile_name(kind, c, is_window)}({arguments})\n  br label %made"
        for c in range(1, WIDE + 1)
    )
    targets = " ".join(f"i64 {c}, label %columns{c}" for c in range(1, WIDE))
    return f"""  switch i64 {registers}, label %columns{WIDE} [ {targets} ]
{cases}
made:"""


# -- the image -----------------------------------------------------------------------------------------------------------


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


def _copy_image(kind: Numbers) -> str:
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


def _turn_image(kind: Numbers) -> str:
    """The same with the channels in lanes: per place a register of them, zeros in the place of missing ones."""
    n = kind.lanes
    lines = [_column_start(), _seen(kind), "  %from_offset = add i64 %shifted, %column"]
    for r in range(n):
        lines += [
            f"  %channel{r} = add i64 %channel, {r}",
            f"  %there{r} = icmp slt i64 %channel{r}, %channels",
            f"  %mask{r} = select i1 %there{r}, {kind.mask} %mask, {kind.mask} zeroinitializer",
            f"  %channel_offset{r} = mul i64 %channel{r}, %area",
            f"  %place{r} = add i64 %channel_offset{r}, %from_offset",
            at_ir(f"from{r}", kind, "%x", f"%place{r}"),
            load_ir(f"x{r}", kind, f"%from{r}", f"%mask{r}"),
        ]
    turned, names = transpose_ir(kind, [f"%x{r}" for r in range(n)])
    lines += [*turned, f"  %along = mul i64 %column, {n}", at_ir("to", kind, "%target", "%along")]
    for r in range(n):
        lines += [at_ir(f"to{r}", kind, "%to", str(r * n)), f"  store {kind.vector} {names[r]}, ptr %to{r}, align 64"]
    row = f"""
{_row_start(kind)}
  %down_places = mul i64 %y, %pitch
  %down = mul i64 %down_places, {n}
{at_ir("target", kind, "%base", "%down")}
{loop_ir("column", "%pitch", str(n), chr(10).join(lines))}"""
    channel = f"""
  %plane_offset = mul i64 %channel, %plane
{at_ir("base", kind, "%image", "%plane_offset")}
{loop_ir("y", "%rows", "1", row)}"""
    return f"""
define internal void @turn_image_{kind.type}({_IMAGE}) #0 {{
  %area = mul i64 %height, %width
{loop_ir("channel", "%channels", str(n), channel)}
  ret void
}}"""


def _bring_rows(kind: Numbers) -> str:
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


# -- the steps ---------------------------------------------------------------------------------------------------------


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
    tile = f"""
  %left_places = sub i64 %places, %p
  %rounded = add i64 %left_places, {kind.lanes - 1}
  %registers = udiv i64 %rounded, {kind.lanes}
{at_ir("b_at", kind, "%image", "%p")}
{at_ir("c_at", kind, "%c_row", "%p")}
{_call_tile(kind, True, "%registers", "ptr %a_at, i64 %terms, i64 %last, ptr %b_at, ptr %offsets, i64 %count, ptr %c_at, i64 %ldc, i1 %fresh")}"""
    panel = f"""
  %height_left = sub i64 %outputs, %o
{min_ir("tall", "%height_left", str(TALL))}
  %last = sub i64 %tall, 1
  %a_down = mul i64 %o, %terms
  %a_across = mul i64 %c, %taps
  %a_offset = add i64 %a_down, %a_across
{at_ir("a_at", kind, "%w", "%a_offset")}
  %c_down = mul i64 %o, %ldc
{at_ir("c_row", kind, "%flat", "%c_down")}
{loop_ir("p", "%places", str(WIDE * kind.lanes), tile)}"""
    part = f"""
  %channels_left = sub i64 %channels, %c
{min_ir("some", "%channels_left", "%at_once")}
  %count = mul i64 %some, %taps
  %fresh = icmp eq i64 %c, 0
  %x_channel = add i64 %first_channel, %c
  %x_offset = mul i64 %x_channel, %area
{at_ir("x_at", kind, "%x", "%x_offset")}
  call void @copy_image_{kind.type}(ptr %x_at, i64 %some, i64 %height, i64 %width, i64 %first, i64 %image_rows, i64 %left,
      i64 %pitch, i64 %plane, ptr %image)
{loop_ir("o", "%outputs", str(TALL), panel)}"""
    cell = f"""
{_band()}
  %rows_above = sub i64 %rows, 1
  %places_above = mul i64 %rows_above, %pitch
  %places = add i64 %places_above, %out_width
{loop_ir("c", "%channels", "%at_once", part)}
  %out_channel = mul i64 %example, %outputs
  %out_first = mul i64 %out_channel, %out_area
  %out_down = mul i64 %y0, %out_width
  %out_offset = add i64 %out_first, %out_down
{at_ir("out_at", kind, "%out", "%out_offset")}
  call void @bring_{kind.type}(ptr %flat, i64 %ldc, i64 %pitch, i64 %outputs, i64 %rows, i64 %out_width, ptr %out_at,
      i64 %out_area)"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
{_words(WINDOWS_BLOCK)}
{_array("x")}
{_array("w")}
{_array("out")}
{_scratch()}
  %flat = getelementptr i8, ptr %offsets, i64 %flat_at
  %area = mul i64 %height, %width
  %out_area = mul i64 %out_height, %out_width
{_offsets("  %of_channel = mul i64 %channel, %plane" + chr(10) + "  %entry = add i64 %of_channel, %tap")}
  %terms = mul i64 %channels, %taps
{loop_ir("i", "%hi", "1", cell, "%lo")}
  ret void
}}"""


def _filters(kind: Numbers, stub: str) -> str:
    tile = f"""
  %registers = sub i64 %columns, %q
  %offsets_at = getelementptr i64, ptr %offsets, i64 %q
  %c_across = mul i64 %q, {kind.lanes}
{at_ir("c_at", kind, "%c_row", "%c_across")}
{_call_tile(kind, False, "%registers", "ptr %a_at, i64 %out_area, i64 %last, ptr %image, ptr %offsets_at, i64 %places, i64 %out_width, i64 %gap, ptr %c_at, i64 %ldc, i1 false")}"""
    panel = f"""
  %height_left = sub i64 %outputs, %o
{min_ir("tall", "%height_left", str(TALL))}
  %last = sub i64 %tall, 1
  %a_channel = add i64 %g_channel, %o
  %a_down = mul i64 %a_channel, %out_area
  %a_offset = add i64 %a_down, %g_places
{at_ir("a_at", kind, "%g", "%a_offset")}
  %c_down = mul i64 %o, %ldc
  %c_columns = mul i64 %c, %taps
  %c_offset = add i64 %c_down, %c_columns
{at_ir("c_row", kind, "%part", "%c_offset")}
{loop_ir("q", "%columns", str(WIDE), tile)}"""
    some = f"""
  %channels_left = sub i64 %channels, %c
{min_ir("some", "%channels_left", "%step")}
  %some_up = add i64 %some, {kind.lanes - 1}
  %some_blocks = udiv i64 %some_up, {kind.lanes}
  %columns = mul i64 %some_blocks, %taps
  %x_channel = add i64 %first_channel, %c
  %x_offset = mul i64 %x_channel, %area
{at_ir("x_at", kind, "%x", "%x_offset")}
  call void @turn_image_{kind.type}(ptr %x_at, i64 %some, i64 %height, i64 %width, i64 %first, i64 %image_rows, i64 %left,
      i64 %pitch, i64 %plane, ptr %image)
{loop_ir("o", "%outputs", str(TALL), panel)}"""
    cell = f"""
{_band()}
  %places = mul i64 %rows, %out_width
  %g_channel = mul i64 %example, %outputs
  %g_places = mul i64 %y0, %out_width
{loop_ir("c", "%channels", "%step", some)}"""
    clear = f"{at_ir('clear_at', kind, '%part', '%e')}\n  store {kind.vector} zeroinitializer, ptr %clear_at, align 64"
    return f"""
define void @{stub}({_KERNEL}) #0 {{
{_words(FILTERS_BLOCK)}
{_array("x")}
{_array("g")}
{_array("parts")}
{_scratch()}
  %area = mul i64 %height, %width
  %out_area = mul i64 %out_height, %out_width
  %step = mul i64 %at_once, {kind.lanes}
  %plane_lanes = mul i64 %plane, {kind.lanes}
  %over = sub i64 %pitch, %out_width
  %gap = mul i64 %over, {kind.lanes}
{_offsets(f"  %of_channel = mul i64 %channel, %plane_lanes{chr(10)}  %tap_lanes = mul i64 %tap, {kind.lanes}{chr(10)}"
          "  %entry = add i64 %of_channel, %tap_lanes")}
  %part_offset = mul i64 %chunk, %part_elements
{at_ir("part", kind, "%parts", "%part_offset")}
{loop_ir("e", "%part_elements", str(kind.lanes), clear)}
{loop_ir("i", "%hi", "1", cell, "%lo")}
  ret void
}}"""


def _scatter_declaration(kind: Numbers) -> str:
    name = f"llvm.masked.scatter.v{kind.lanes}{kind.suffix}.v{kind.lanes}p0"
    return f"declare void @{name}({kind.vector}, <{kind.lanes} x ptr>, i32, {kind.mask}) #0"


def _gather(kind: Numbers, stub: str) -> str:
    """Rows of dw: the sum of the parts, and the channels out of their lanes."""
    n, v = kind.lanes, kind.vector
    many = f"<{n} x i64>"
    numbers = ", ".join(f"i64 {k}" for k in range(n))
    add = f"""
  %part_offset = mul i64 %part, %part_elements
  %from_offset = add i64 %part_offset, %lane_offset
{at_ir("from", kind, "%parts", "%from_offset")}
  %x = load {v}, ptr %from, align 64
  %old = load {v}, ptr %sum, align 64
  %new = fadd {v} %old, %x
  store {v} %new, ptr %sum, align 64"""
    tap = f"""
  %block_number = udiv i64 %channel, {n}
  %column_block = mul i64 %block_number, %taps
  %column = add i64 %column_block, %tap
  %lanes_before = mul i64 %column, {n}
  %lane_offset = add i64 %lanes_before, %down
  store {v} zeroinitializer, ptr %sum, align 64
{loop_ir("part", "%count", "1", add)}
  %total = load {v}, ptr %sum, align 64
  %left = sub i64 %channels, %channel
{mask_ir("mask", kind, "%left")}
  %own = mul i64 %channel, %taps
  %row = mul i64 %o, %terms
  %before = add i64 %own, %row
  %to_offset = add i64 %before, %tap
{at_ir("to", kind, "%out", "%to_offset")}
  %to_all = getelementptr {kind.type}, ptr %to, {many} %strides
  call void @llvm.masked.scatter.v{n}{kind.suffix}.v{n}p0({v} %total, <{n} x ptr> %to_all, i32 {kind.size},
      {kind.mask} %mask)"""
    row = f"""
  %down = mul i64 %o, %ldc
{loop_ir("channel", "%channels", str(n), loop_ir("tap", "%taps", "1", tap))}"""
    return f"""
define void @{stub}({_KERNEL}) #0 {{
  %sum = alloca {v}, align 64
{_words(GATHER_BLOCK)}
{_array("parts")}
{_array("out")}
  %terms = mul i64 %channels, %taps
  %taps_one = insertelement {many} poison, i64 %taps, i64 0
  %taps_all = shufflevector {many} %taps_one, {many} poison, <{n} x i32> zeroinitializer
  %strides = mul {many} %taps_all, <{numbers}>
{loop_ir("o", "%hi", "1", row, "%lo")}
  ret void
}}"""
