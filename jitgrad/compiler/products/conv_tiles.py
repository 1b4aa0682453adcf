"""Tiles of our own convolutions, in registers, as LLVM IR text: 8 rows of one register or three. It knows no images."""

from __future__ import annotations

from jitgrad.compiler.products.conv import tile_rows
from jitgrad.compiler.products.product_code import convolution_tile_names
from jitgrad.compiler.products.registers import Numbers, at_ir, declarations_ir, fma_ir, loop_ir, min_ir, spread_ir

WIDE = 3


def _tile_name(kind: Numbers, columns: int, is_window: bool) -> str:
    return convolution_tile_names(kind.suffix, "windows" if is_window else "filters")[columns > 1]


def tiles_ir(kind: Numbers, is_window: bool) -> str:
    """The module of the tiles."""
    return "\n".join((declarations_ir(kind), *(_tile(kind, columns, is_window) for columns in (1, WIDE))))


def tile_declarations_ir(kind: Numbers, is_window: bool) -> str:
    """The tiles, for those who call them."""
    numbers = "i64" if is_window else "i64, i64, i64"
    names = convolution_tile_names(kind.suffix, "windows" if is_window else "filters")
    return "\n".join(f"declare void @{name}(ptr, i64, i64, ptr, ptr, {numbers}, ptr, i64, i1) #0" for name in names)


def _tile(kind: Numbers, columns: int, is_window: bool) -> str:
    """C = or += over the terms: 8 rows of A, one element each, times registers of the image.

    Of windows: `count` terms, whose registers lie side by side, at %offsets[term]. Of filters: `count` rows of `width`
    places, registers apart, each column from %offsets[column] on; rows of A have no gaps.
    """
    v = kind.vector
    tile = [(r, c) for r in range(tile_rows(kind)) for c in range(columns)]
    rows = "\n".join(
        "\n".join((
            min_ir(f"r{r}", str(r), "%last"),
            f"  %start{r} = mul i64 %lda, %r{r}",
            at_ir(f"row{r}", kind, "%a", f"%start{r}"),
            f"  %down{r} = mul i64 %ldc, {r}",
            at_ir(f"c{r}", kind, "%c", f"%down{r}"),
            *(at_ir(f"c{r}_{c}", kind, f"%c{r}", str(c * kind.lanes)) for c in range(columns)),
        ))
        for r in range(tile_rows(kind))
    )  # fmt: skip
    before = "\n".join(f"  %old{r}_{c} = load {v}, ptr %c{r}_{c}, align {kind.bytes}" for r, c in tile)
    stores = "\n".join(f"  store {v} %t{r}_{c}, ptr %c{r}_{c}, align {kind.bytes}" for r, c in tile)
    steps = "\n".join(_tile_row(kind, r, columns) for r in range(tile_rows(kind)))
    loop = (_window_loop if is_window else _filter_loop)(kind, columns, steps)
    numbers = "i64 %count" if is_window else "i64 %count, i64 %width, i64 %gap"
    return f"""
define void @{_tile_name(kind, columns, is_window)}(ptr %a, i64 %lda, i64 %last, ptr %b, ptr %offsets,
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
    return "\n".join((
        at_ir(f"a{r}_at", kind, f"%row{r}", "%p"),
        f"  %x{r} = load {kind.type}, ptr %a{r}_at",
        spread_ir(f"w{r}", kind, f"%x{r}"),
        *(fma_ir(f"t{r}_{c}", kind, f"%w{r}", f"%b{c}", f"%s{r}_{c}") for c in range(columns)),
    ))  # fmt: skip


def _sums(kind: Numbers, columns: int, name: str, *sources: tuple[str, str]) -> str:
    """The sums as phis: the prefix of their names per block from which they come."""
    lines = []
    for r in range(tile_rows(kind)):
        for c in range(columns):
            pairs = ", ".join(f"[ %{prefix}{r}_{c}, %{label} ]" for prefix, label in sources)
            lines.append(f"  %{name}{r}_{c} = phi {kind.vector} {pairs}")
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
{_sums(kind, columns, "s", ("z", "begin"), ("t", "loop"))}
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
        f"{at_ir(f'b{c}_at', kind, f'%b_from{c}', '%q')}\n"
        f"  %b{c} = load {kind.vector}, ptr %b{c}_at, align {kind.bytes}"
        for c in range(columns)
    )
    return f"""{starts}
  br label %row
row:
  %p0 = phi i64 [ 0, %begin ], [ %row_end, %row_done ]
  %q0 = phi i64 [ 0, %begin ], [ %q_far, %row_done ]
{_sums(kind, columns, "u", ("z", "begin"), ("t", "row_done"))}
  %row_end = add i64 %p0, %width
  br label %loop
loop:
  %p = phi i64 [ %p0, %row ], [ %p1, %loop ]
  %q = phi i64 [ %q0, %row ], [ %q1, %loop ]
{_sums(kind, columns, "s", ("u", "row"), ("t", "loop"))}
{loads}
{steps}
  %p1 = add i64 %p, 1
  %q1 = add i64 %q, {kind.lanes}
  %along = icmp slt i64 %p1, %row_end
  br i1 %along, label %loop, label %row_done
row_done:
  %q_far = add i64 %q1, %gap
  %again = icmp slt i64 %row_end, %count
  br i1 %again, label %row, label %end"""


def loop_over_tiles_ir(
    kind: Numbers, is_window: bool, i: str, limit: str, unit: int, places: str, arguments: str
) -> str:
    """The loop of %i below `limit` over tiles, `WIDE` registers at a time while there are so many (a register is `unit`
    of %i), then one; `places` makes what the arguments name.
    """
    calls = "\n".join(
        f"{i}_tile{c}:\n  call void @{_tile_name(kind, c, is_window)}({arguments})\n  br label %{i}_made"
        for c in (WIDE, 1)
    )
    body = f"""
  %{i}_left = sub i64 {limit}, %{i}
  %{i}_wide = icmp sgt i64 %{i}_left, {(WIDE - 1) * unit}
  %{i}_step = select i1 %{i}_wide, i64 {WIDE * unit}, i64 {unit}
{places}
  br i1 %{i}_wide, label %{i}_tile{WIDE}, label %{i}_tile1
{calls}
{i}_made:"""
    return loop_ir(i, limit, f"%{i}_step", body)
