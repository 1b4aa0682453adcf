"""Packing for our own matrix product, as LLVM IR text: panels of A and of B, and tiles that C does not have all of. It
multiplies nothing.
"""

from __future__ import annotations

from jitgrad.compiler.products.gemm_tiles import places
from jitgrad.compiler.products.product_code import packing_names
from jitgrad.compiler.products.registers import Numbers, at_ir, declarations_ir, load_ir, loop_ir, mask_ir, store_ir
from jitgrad.compiler.products.transposes import turn_ir

GROUP = 96
"""Columns of a transposed A that are packed together: whole lines of the cache."""
_TOGETHER = 4  # registers of a row of A


def packing_ir(kind: Numbers) -> str:
    """The functions of `packing_names`, and `turn_<type>`."""
    return "\n".join((packing_a_ir(kind), _pack_b(kind), _pack_b_turned(kind)))


def packing_module_ir(kind: Numbers) -> str:
    """All of them as a module of its own, which quick code of several products calls: a third of what they would be."""
    parts = f"{declarations_ir(kind)}\n{packing_ir(kind)}"
    return parts.replace("define internal void @jitgrad_", "define void @jitgrad_")


def packing_declarations_ir(kind: Numbers) -> str:
    """For the modules that call them there."""
    copy, *pack = packing_names(kind.suffix)
    packs = (f"declare void @{name}(ptr, i64, i64, i64, ptr) #0" for name in pack)
    return "\n".join((f"declare void @{copy}(ptr, i64, ptr, i64, i64, i64) #0", *packs))


def packing_a_ir(kind: Numbers) -> str:
    """All but those of B."""
    return "\n".join(part(kind) for part in (_copy_tile, turn_ir, _pack_a, _pack_a_turned))


def copying_ir(kind: Numbers) -> str:
    """Of tiles that C does not have all of."""
    return _copy_tile(kind)


def packing_b_ir(kind: Numbers) -> str:
    """Those of B."""
    return "\n".join(part(kind) for part in (turn_ir, _pack_b, _pack_b_turned))


def packed_ir(kind: Numbers, x: str, count: str, to: str, turned: str, straight: str) -> str:
    """Some columns of B, or rows of A, by what `x` is, packed for a part of the sum; ``turned`` makes the address
    `%<x>_turned` of what lies transposed, ``straight`` that of what does not, `%<x>_straight`.
    """
    arguments = f"i64 %ld{x}, i64 {count}, i64 %depth, ptr {to}"
    return f"""  br i1 %t{x}, label %turned_{x}, label %straight_{x}
turned_{x}:
{turned}
  call void @jitgrad_pack_{x}_turned_{kind.suffix}(ptr %{x}_turned, {arguments})
  br label %packed_{x}
straight_{x}:
{straight}
  call void @jitgrad_pack_{x}_{kind.suffix}(ptr %{x}_straight, {arguments})
  br label %packed_{x}
packed_{x}:"""


def _copy_tile(kind: Numbers) -> str:
    """Rows of up to a panel's registers from one place to another."""
    lines = [
        "  %from_offset = mul i64 %r, %ldf",
        at_ir("from_row", kind, "%from", "%from_offset"),
        "  %to_offset = mul i64 %r, %ldt",
        at_ir("to_row", kind, "%to", "%to_offset"),
    ]
    for c in range(kind.wide):
        lines += [
            at_ir(f"from{c}", kind, "%from_row", str(c * kind.lanes)),
            load_ir(f"x{c}", kind, f"%from{c}", f"%mask{c}"),
            at_ir(f"to{c}", kind, "%to_row", str(c * kind.lanes)),
            store_ir(kind, f"%x{c}", f"%to{c}", f"%mask{c}"),
        ]
    return f"""
define internal void @jitgrad_copy_{kind.suffix}(ptr %from, i64 %ldf, ptr %to, i64 %ldt, i64 %height,
      i64 %width) noinline #0 {{
{chr(10).join(masks_ir(kind, "%width"))}
{loop_ir("r", "%height", "1", chr(10).join(lines))}
  ret void
}}"""


def _pack_a(kind: Numbers) -> str:
    """Rows of A, each as it is, with zeros up to whole registers."""
    whole = [at_ir("from0", kind, "%row_at", "%p"), at_ir("to0", kind, "%put_at", "%p")]
    for i in range(_TOGETHER):
        if i:
            whole += [at_ir(f"{end}{i}", kind, f"%{end}0", str(i * kind.lanes)) for end in ("from", "to")]
        whole += [
            f"  %x{i} = load {kind.vector}, ptr %from{i}, align {kind.size}",
            f"  store {kind.vector} %x{i}, ptr %to{i}, align {kind.bytes}",
        ]
    end = (
        "  %left = sub i64 %k, %q",
        mask_ir("mask", kind, "%left"),
        at_ir("end_from", kind, "%row_at", "%q"),
        load_ir("end", kind, "%end_from", "%mask"),
        at_ir("end_to", kind, "%put_at", "%q"),
        f"  store {kind.vector} %end, ptr %end_to, align {kind.bytes}",
    )
    body = f"""
  %row_offset = mul i64 %r, %lda
{at_ir("row_at", kind, "%a", "%row_offset")}
  %put_offset = mul i64 %r, {kind.row}
{at_ir("put_at", kind, "%panel", "%put_offset")}
{loop_ir("p", "%most", str(_TOGETHER * kind.lanes), chr(10).join(whole))}
{loop_ir("q", "%k", str(kind.lanes), chr(10).join(end), first="%most")}"""
    return f"""
define internal void @jitgrad_pack_a_{kind.suffix}(ptr %a, i64 %lda, i64 %height, i64 %k, ptr %panel) noinline #0 {{
  %most = and i64 %k, -{_TOGETHER * kind.lanes}
{loop_ir("r", "%height", "1", body)}
  ret void
}}"""


def _pack_a_turned(kind: Numbers) -> str:
    """Rows of panels of a transposed A, by squares of registers."""
    square = f"""
  %columns = sub i64 %height, %r
  %from_offset = add i64 %down, %r
{at_ir("from", kind, "%a", "%from_offset")}
  %row_offset = mul i64 %r, {kind.row}
  %to_offset = add i64 %row_offset, %p
{at_ir("to", kind, "%panel", "%to_offset")}
  call void @turn_{kind.type}(ptr %from, i64 %lda, i64 %rows, i64 0, i64 %columns, i64 %further, ptr %to,
      i64 {kind.row})"""
    squares = f"""
  %rows = sub i64 %k, %p
  %down = mul i64 %p, %lda
{loop_ir("r", "%height", str(kind.lanes), square)}"""
    return f"""
define internal void @jitgrad_pack_a_turned_{kind.suffix}(ptr %a, i64 %lda, i64 %height, i64 %k,
      ptr %panel) noinline #0 {{
  %further = mul i64 %lda, {kind.lanes}
{loop_ir("p", "%k", str(kind.lanes), squares)}
  ret void
}}"""


def _pack_b(kind: Numbers) -> str:
    """Panels of B: the rows of each, zeros in the place of missing columns, and rows of zeros after the last, up to
    whole turns. Row by row, because where rows lie whole pages apart, a few columns of many rows come slowly from
    memory; what lies two rows further is asked for.
    """
    lines = [
        "  %columns = sub i64 %width, %j",
        *masks_ir(kind, "%columns"),
        at_ir("from", kind, "%row", "%j"),
        "  %panel_offset = mul i64 %j, %apart",
        at_ir("to", kind, "%line", "%panel_offset"),
    ]
    for c in range(kind.wide):
        lines += [
            at_ir(f"from{c}", kind, "%from", str(c * kind.lanes)),
            load_ir(f"x{c}", kind, f"%from{c}", f"%mask{c}"),
            at_ir(f"ahead{c}", kind, f"%from{c}", "%further"),
            f"  call void @llvm.prefetch.p0(ptr %ahead{c}, i32 0, i32 3, i32 1)",
            at_ir(f"to{c}", kind, "%to", str(c * kind.lanes)),
            f"  store {kind.vector} %x{c}, ptr %to{c}, align {kind.bytes}",
        ]
    line = chr(10).join(lines)
    line = line if kind.bytes == 64 else _whole_line(kind, line)
    body = f"""
  %is_row = icmp slt i64 %p, %k
  %width = select i1 %is_row, i64 %n, i64 0
  %row_offset = mul i64 %p, %ldb
{at_ir("row", kind, "%b", "%row_offset")}
  %line_offset = mul i64 %p, {kind.columns}
{at_ir("line", kind, "%packed", "%line_offset")}
{loop_ir("j", "%n", str(kind.columns), line)}"""
    return f"""
define internal void @jitgrad_pack_b_{kind.suffix}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
  %further = mul i64 %ldb, 2
{filled_ir(kind, "%k")}
{apart_ir(kind, "%k")}
{loop_ir("p", "%filled", "1", body)}
  ret void
}}"""


def masks_ir(kind: Numbers, count: str) -> list[str]:
    """`mask0`, `mask1`, ... of the registers of a row of so many elements."""
    lines = []
    for c in range(kind.wide):
        lines += [f"  %left{c} = sub i64 {count}, {c * kind.lanes}", mask_ir(f"mask{c}", kind, f"%left{c}")]
    return lines


def filled_ir(kind: Numbers, k: str) -> str:
    """`filled`: places of the sum, up to whole turns."""
    return f"""  %beyond = add i64 {k}, {places(kind) - 1}
  %filled = and i64 %beyond, -{places(kind)}"""


def apart_ir(kind: Numbers, k: str) -> str:
    """`apart`: from a panel of packed B to the next, in rows: where A is not packed, nothing lies between them, so that
    what the second cache asks for by itself at the end of one panel is the beginning of the next.
    """
    if not kind.in_place:
        return f"  %apart = add i64 {kind.depth}, 0"
    return f"""  %apart_more = add i64 {k}, {kind.lanes - 1}
  %apart = and i64 %apart_more, -{kind.lanes}"""


def _whole_line(kind: Numbers, line: str) -> str:
    """A line of a panel that B has all of, without masks, or ``line``."""
    copies = []
    for c in range(kind.wide):
        copies += [
            at_ir(f"whole_from{c}", kind, "%whole_from", str(c * kind.lanes)),
            f"  %whole{c} = load {kind.vector}, ptr %whole_from{c}, align {kind.size}",
            at_ir(f"whole_to{c}", kind, "%whole_to", str(c * kind.lanes)),
            f"  store {kind.vector} %whole{c}, ptr %whole_to{c}, align {kind.bytes}",
        ]
    return f"""
  %next_panel = add i64 %j, {kind.columns}
  %is_whole = icmp sle i64 %next_panel, %width
  br i1 %is_whole, label %whole_line, label %masked_line
whole_line:
{at_ir("whole_from", kind, "%row", "%j")}
  %whole_offset = mul i64 %j, %apart
{at_ir("whole_to", kind, "%line", "%whole_offset")}
{at_ir("whole_ahead", kind, "%whole_from", "%further")}
  call void @llvm.prefetch.p0(ptr %whole_ahead, i32 0, i32 3, i32 1)
{chr(10).join(copies)}
  br label %line_made
masked_line:
{line}
  br label %line_made
line_made:"""


def _pack_b_turned(kind: Numbers) -> str:
    """Panels of a transposed B, by squares of registers."""
    square = f"""
  %width = sub i64 %k, %p
  %from_offset = add i64 %down, %p
{at_ir("from", kind, "%b", "%from_offset")}
  %deep = mul i64 %p, {kind.columns}
  %to_offset = add i64 %across, %deep
{at_ir("to", kind, "%packed", "%to_offset")}
  call void @turn_{kind.type}(ptr %from, i64 %ldb, i64 %height, i64 0, i64 %width, i64 {4 * kind.lanes},
      ptr %to, i64 {kind.columns})"""
    squares = f"""
  %height = sub i64 %n, %j
  %down = mul i64 %j, %ldb
  %half = urem i64 %j, {kind.columns}
  %first = sub i64 %j, %half
  %panel_offset = mul i64 %first, %apart
  %across = add i64 %panel_offset, %half
{loop_ir("p", "%k", str(kind.lanes), square)}"""
    return f"""
define internal void @jitgrad_pack_b_turned_{kind.suffix}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
{apart_ir(kind, "%k")}
{loop_ir("j", "%n", str(kind.lanes), squares)}
  ret void
}}"""
