"""Packing for our own matrix product, as LLVM IR text: panels of A and of B, and tiles that C does not have all of. It
multiplies nothing.
"""

from __future__ import annotations

from jitgrad.compiler.products.gemm_tiles import reads_rows_only
from jitgrad.compiler.products.registers import Numbers, at_ir, load_ir, loop_ir, mask_ir, min_ir, store_ir
from jitgrad.compiler.products.transposes import turned_ir

GROUP = 96
"""Columns of a transposed A that are packed together where tiles read rows only."""


def packing_ir(kind: Numbers) -> str:
    """The functions `copy_<type>`, `pack_a_<type>`, `pack_a_turned_<type>`, `pack_b_<type>`, `pack_b_turned_<type>`."""
    pack_a_turned = _turn_a(kind) if reads_rows_only(kind) else _pack_a_turned(kind)
    return "\n".join((_copy_tile(kind), _pack_a(kind), pack_a_turned, _pack_b(kind), _pack_b_turned(kind)))


def pitch(kind: Numbers) -> int:
    """The distance of the places of the sum in a packed panel of a transposed A."""
    return kind.registers // 2


def _copy_tile(kind: Numbers) -> str:
    """Rows of up to two registers from one place to another."""
    body = "\n".join(
        (
            "  %from_offset = mul i64 %r, %ldf",
            at_ir("from_row", kind, "%from", "%from_offset"),
            "  %to_offset = mul i64 %r, %ldt",
            at_ir("to_row", kind, "%to", "%to_offset"),
            *(
                "\n".join(
                    (
                        at_ir(f"from{c}", kind, "%from_row", str(c * kind.lanes)),
                        load_ir(f"x{c}", kind, f"%from{c}", f"%mask{c}"),
                        at_ir(f"to{c}", kind, "%to_row", str(c * kind.lanes)),
                        store_ir(kind, f"%x{c}", f"%to{c}", f"%mask{c}"),
                    )
                )
                for c in range(2)
            ),
        )
    )
    return f"""
define internal void @copy_{kind.type}(ptr %from, i64 %ldf, ptr %to, i64 %ldt, i64 %height, i64 %width) noinline #0 {{
  %left = sub i64 %width, {kind.lanes}
{mask_ir("mask0", kind, "%width")}
{mask_ir("mask1", kind, "%left")}
{loop_ir("r", "%height", "1", body)}
  ret void
}}"""


def _pack_a(kind: Numbers) -> str:
    """Rows of A, each as it is; in the place of missing rows the last one again."""
    load = "\n".join(
        (
            "  %left = sub i64 %k, %p",
            mask_ir("mask", kind, "%left"),
            at_ir("from", kind, "%row_at", "%p"),
            load_ir("x", kind, "%from", "%mask"),
        )
    )
    copy = "\n".join(
        (
            load if kind.bytes == 64 else _whole_or(kind, load),
            at_ir("to", kind, "%put_at", "%p"),
            f"  store {kind.vector} %x, ptr %to, align {kind.bytes}",
        )
    )
    body = f"""
{min_ir("row", "%r", "%last")}
  %row_offset = mul i64 %row, %lda
{at_ir("row_at", kind, "%a", "%row_offset")}
  %put_offset = mul i64 %r, {kind.row}
{at_ir("put_at", kind, "%panel", "%put_offset")}
{loop_ir("p", "%k", str(kind.lanes), copy)}"""
    return f"""
define internal void @pack_a_{kind.type}(ptr %a, i64 %lda, i64 %height, i64 %rows, i64 %k, ptr %panel) noinline #0 {{
  %last = sub i64 %height, 1
{loop_ir("r", "%rows", "1", body)}
  ret void
}}"""


def _whole_or(kind: Numbers, load: str) -> str:
    """A whole register of a row of A without a mask, or what ``load`` makes of its end."""
    return f"""  %next = add i64 %p, {kind.lanes}
  %is_whole = icmp sle i64 %next, %k
  br i1 %is_whole, label %all, label %some
all:
{at_ir("all_from", kind, "%row_at", "%p")}
  %x_all = load {kind.vector}, ptr %all_from, align {kind.size}
  br label %loaded
some:
{load.replace("%x = ", "%x_some = ")}
  br label %loaded
loaded:
  %x = phi {kind.vector} [ %x_all, %all ], [ %x_some, %some ]"""


def _pack_a_turned(kind: Numbers) -> str:
    """Columns of a panel of a transposed A, zeros in the place of missing rows."""
    copies = []
    for t in range(pitch(kind) // kind.lanes):
        copies += [
            at_ir(f"from{t}", kind, "%from", str(t * kind.lanes)),
            load_ir(f"x{t}", kind, f"%from{t}", f"%mask{t}"),
            at_ir(f"to{t}", kind, "%to", str(t * kind.lanes)),
            f"  store {kind.vector} %x{t}, ptr %to{t}, align {kind.bytes}",
        ]
    masks = "\n".join(
        "\n".join((f"  %left{t} = sub i64 %height, {t * kind.lanes}", mask_ir(f"mask{t}", kind, f"%left{t}")))
        for t in range(pitch(kind) // kind.lanes)
    )
    body = "\n".join(
        (
            "  %from_offset = mul i64 %p, %lda",
            at_ir("from", kind, "%a", "%from_offset"),
            f"  %to_offset = mul i64 %p, {pitch(kind)}",
            at_ir("to", kind, "%panel", "%to_offset"),
            *copies,
        )
    )
    return f"""
define internal void @pack_a_turned_{kind.type}(ptr %a, i64 %lda, i64 %height, i64 %k, ptr %panel) noinline #0 {{
{masks}
{loop_ir("p", "%k", "1", body)}
  ret void
}}"""


def _turn_a(kind: Numbers) -> str:
    """Rows of a panel of a transposed A, by squares of registers, the last from where it ends with the sum; of a sum
    of less, by elements. Zeros, or nothing, in the place of missing rows.
    """
    fetch, put = [], []
    turn, turned = turned_ir(kind, [f"%x{r}" for r in range(kind.lanes)])
    for r, name in enumerate(turned):
        fetch.append(at_ir(f"from{r}", kind, *((f"%from{r - 1}", "%lda") if r else ("%a_at", "%down"))))
        fetch.append(load_ir(f"x{r}", kind, f"%from{r}", "%mask"))
        fetch.append(at_ir(f"ahead{r}", kind, f"%from{r}", "%further"))
        fetch.append(f"  call void @llvm.prefetch.p0(ptr %ahead{r}, i32 0, i32 3, i32 1)")
        put.append(at_ir(f"to{r}", kind, "%to", str(r * kind.row)))
        put.append(f"  store {kind.vector} {name}, ptr %to{r}, align {kind.size}")
    square = "\n".join((
        "  %left = sub i64 %height, %r", mask_ir("mask", kind, "%left"), at_ir("a_at", kind, "%a", "%r"),
        f"  %panel_offset = mul i64 %r, {kind.row}", at_ir("panel_at", kind, "%panel", "%panel_offset"),
        at_ir("to", kind, "%panel_at", "%early"), *fetch, *turn, *put,
    ))  # fmt: skip
    squares = f"""
{min_ir("early", "%p", "%last")}
  %down = mul i64 %early, %lda
{loop_ir("r", "%height", str(kind.lanes), square)}"""
    element = f"""
  %one_down = mul i64 %q, %lda
  %one_from = add i64 %one_down, %s
{at_ir("one_at", kind, "%a", "%one_from")}
  %one = load {kind.type}, ptr %one_at
  %one_row = mul i64 %s, {kind.row}
  %one_to = add i64 %one_row, %q
{at_ir("put_at", kind, "%panel", "%one_to")}
  store {kind.type} %one, ptr %put_at"""
    return f"""
define internal void @pack_a_turned_{kind.type}(ptr %a, i64 %lda, i64 %height, i64 %k, ptr %panel) noinline #0 {{
  %further = mul i64 %lda, {kind.lanes}
  %last = sub i64 %k, {kind.lanes}
  %is_short = icmp slt i64 %last, 0
  br i1 %is_short, label %short, label %long
long:{loop_ir("p", "%k", str(kind.lanes), squares)}
  ret void
short:{loop_ir("s", "%height", "1", loop_ir("q", "%k", "1", element))}
  ret void
}}"""


def _pack_b(kind: Numbers) -> str:
    """Panels of B: the rows of each, zeros in the place of missing columns. Row by row, because where rows lie whole
    pages apart, a few columns of many rows come slowly from memory; one row ahead is asked for.
    """
    lines = [
        f"  %left0 = sub i64 %n, %j\n  %left1 = sub i64 %left0, {kind.lanes}",
        mask_ir("mask0", kind, "%left0"),
        mask_ir("mask1", kind, "%left1"),
        at_ir("from", kind, "%row", "%j"),
        f"  %panel_offset = mul i64 %j, {kind.depth}",
        at_ir("to", kind, "%line", "%panel_offset"),
    ]
    for c in range(2):
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
  %row_offset = mul i64 %p, %ldb
{at_ir("row", kind, "%b", "%row_offset")}
  %line_offset = mul i64 %p, {kind.columns}
{at_ir("line", kind, "%packed", "%line_offset")}
{loop_ir("j", "%n", str(kind.columns), line)}"""
    return f"""
define internal void @pack_b_{kind.type}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
  %further = mul i64 %ldb, 2
{loop_ir("p", "%k", "1", body)}
  ret void
}}"""


def _whole_line(kind: Numbers, line: str) -> str:
    """A line of a panel that B has all of, without masks, or ``line``."""
    copies = []
    for c in range(2):
        copies += [
            at_ir(f"whole_from{c}", kind, "%whole_from", str(c * kind.lanes)),
            f"  %whole{c} = load {kind.vector}, ptr %whole_from{c}, align {kind.size}",
            at_ir(f"whole_to{c}", kind, "%whole_to", str(c * kind.lanes)),
            f"  store {kind.vector} %whole{c}, ptr %whole_to{c}, align {kind.bytes}",
        ]
    return f"""
  %next_panel = add i64 %j, {kind.columns}
  %is_whole = icmp sle i64 %next_panel, %n
  br i1 %is_whole, label %whole_line, label %masked_line
whole_line:
{at_ir("whole_from", kind, "%row", "%j")}
  %whole_offset = mul i64 %j, {kind.depth}
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
    n = kind.lanes
    fetch = f"""
  %column = add i64 %j, %r
{min_ir("row", "%column", "%last")}
  %row_offset = mul i64 %row, %ldb
  %from_offset = add i64 %row_offset, %p
{at_ir("from", kind, "%b", "%from_offset")}
{load_ir("x", kind, "%from", "%mask")}
  %square_offset = mul i64 %r, {n}
{at_ir("square_at", kind, "%square", "%square_offset")}
  store {kind.vector} %x, ptr %square_at, align {kind.bytes}"""
    put = f"""
  %turned_offset = mul i64 %t, {n}
{at_ir("turned_at", kind, "%square", "%turned_offset")}
  %y = load {kind.vector}, ptr %turned_at, align {kind.bytes}
  %down = mul i64 %t, {kind.columns}
{at_ir("put_at", kind, "%to", "%down")}
  store {kind.vector} %y, ptr %put_at, align {kind.bytes}"""
    turn = f"\n  call void @turn_{kind.type}(ptr %square)"
    square = f"""
  %left = sub i64 %k, %p
{mask_ir("mask", kind, "%left")}
{loop_ir("r", str(n), "1", fetch) + turn if kind.bytes == 64 else _fetch_square(kind)}
  %half = urem i64 %j, {kind.columns}
  %first = sub i64 %j, %half
  %panel_offset = mul i64 %first, {kind.depth}
  %deep = mul i64 %p, {kind.columns}
  %inside = add i64 %deep, %half
  %to_offset = add i64 %panel_offset, %inside
{at_ir("to", kind, "%packed", "%to_offset")}
{loop_ir("t", str(n), "1", put) if kind.bytes == 64 else _put_square(kind)}"""
    return f"""
define internal void @pack_b_turned_{kind.type}(ptr %b, i64 %ldb, i64 %n, i64 %k, ptr %packed) noinline #0 {{
  %square = alloca [{n} x {kind.vector}], align {kind.bytes}
  %last = sub i64 %n, 1
{loop_ir("j", "%n", str(n), loop_ir("p", "%k", str(n), square))}
  ret void
}}"""


def _fetch_square(kind: Numbers) -> str:
    """A square of rows of a transposed B, turned in registers."""
    lines = []
    for r in range(kind.lanes):
        lines += [
            f"  %column{r} = add i64 %j, {r}",
            min_ir(f"row{r}", f"%column{r}", "%last"),
            f"  %row_offset{r} = mul i64 %row{r}, %ldb",
            f"  %from_offset{r} = add i64 %row_offset{r}, %p",
            at_ir(f"from{r}", kind, "%b", f"%from_offset{r}"),
            load_ir(f"x{r}", kind, f"%from{r}", "%mask"),
        ]
    return "\n".join((*lines, *turned_ir(kind, [f"%x{r}" for r in range(kind.lanes)])[0]))


def _put_square(kind: Numbers) -> str:
    """Its places in a panel."""
    lines = []
    for r, name in enumerate(turned_ir(kind, ["%x"] * kind.lanes)[1]):
        lines += [
            at_ir(f"put{r}", kind, "%to", str(r * kind.columns)),
            f"  store {kind.vector} {name}, ptr %put{r}, align {kind.bytes}",
        ]
    return "\n".join(lines)
