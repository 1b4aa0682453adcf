"""A tile of C in registers, of our own matrix product, as LLVM IR text; what is packed for it and what loops around it
is elsewhere (gemm_code.py).

    void tile(ptr a, ptr b, i64 k, ptr c, i64 ldc, i1 fresh)        registers of 32 bytes
    void tile(ptr a, ptr b, i64 k, ptr c, i64 ldc, i1 fresh, i64 down, i64 along)        of 64, A where it lies
    void tile(ptr a, ptr b, i64 k, ptr c, i64 ldc, i1 fresh, ptr ahead, i64 lda)        of 64 in halves
    void tile(ptr a, ptr b, i64 k, ptr c, i64 ldc, i1 fresh, i64 lda)        the same, A transposed and not packed

A whole tile is 6 x 4 of 32 registers of 64 bytes, 6 x 2 of 16 of 32 bytes. All that it reads is packed, with fixed
distances, so next to nothing but loads and multiply-adds is done: steps of addresses would take their places, on
processors of Intel's even where only the multiply-adds are counted, since both go through the same ports. Two or four
places of the sum are one turn of the loop. GFLOP/s of one core of Intel's with a peak of 216, where panels of A change
from tile to tile:

    rows where they are, 12 x 2, places 1      164 to 180
    packed at fixed distances, 12 x 2, 2       184
    packed at fixed distances,  6 x 4, 2       192 to 198

That was so with 12 rows. With six, an address of the first and one of the fourth move on, once in 24 multiply-adds, and
the other rows lie once or twice a distance behind, which loads add by themselves: on a core with a peak of 179 a tile
that is told the distances of rows and places of A runs as fast as one that knows them, so one tile reads A where it
lies, transposed or not.

Where registers are multiplied in halves, each turn asks for a little of what comes next: first for rows of C, then for
what follows in six rows of A at `ahead`. Asked for at once they would be more than the first cache waits for at a time,
and B had to wait for them. GFLOP/s of one Zen 4 core with a peak of 118, where A, B and C come from far, medians:

                           C at once, A behind each tile        with each turn
    256 x 256 x 64, B T              81, 69                         79, 92
    256 x 64 x 256                   80, 74                         85, 88
    64 x 512 x 128, B T              58, 65                         67, 74
    the same as steps of attention: 256 x 256 x 64, B T    91 and 100;    256 x 64 x 256    84 and 105
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitgrad.compiler.products.product_code import tile_names, unpacked_name
from jitgrad.compiler.products.registers import Numbers, at_ir, declarations_ir, fma_ir, min_ir, places_ir, spread_ir

TALL, LOW = 6, 4
"""The rows of tiles."""
_AHEAD = 16  # places of the sum in packed B
_ORDER = '  call void asm sideeffect "", "~{memory}"()'  # loads of the next place would come first, and sums be spilled


def tile_declarations_ir(kind: Numbers) -> str:
    """The tiles, for the modules that call them."""
    more = ", ptr, i64" if kind.halves else ", i64, i64" if kind.in_place else ""
    names = tile_names(kind.suffix)
    return "\n".join(f"declare void @{name}(ptr, ptr, i64, ptr, i64, i1{more}) #0" for name in names)


def places(kind: Numbers) -> int:
    """The places of the sum in a turn: what is packed for a tile is filled up to a multiple with zeros."""
    return 2 if kind.halves else 4


def narrow(kind: Numbers) -> int:
    """The columns of a narrow tile."""
    return kind.columns // 2


def tiles_ir(kind: Numbers) -> str:
    """The module of the tiles, which `multiply_<type>` calls."""
    whole, low, few = tile_names(kind.suffix)
    return "\n".join((
        declarations_ir(kind), _kernel(kind, whole, TALL, kind.wide, places(kind)),
        _kernel(kind, low, LOW, kind.wide, 1), _kernel(kind, few, TALL, kind.wide // 2, 1),
    ))  # fmt: skip


def whole_tile_ir(kind: Numbers) -> str:
    """The module of whole tiles alone: half the code of all, which is what LLVM takes longest for in a first call."""
    return f"{declarations_ir(kind)}\n{_kernel(kind, tile_names(kind.suffix)[0], TALL, kind.wide, places(kind))}"


def unpacked_tile_ir(kind: Numbers) -> str:
    """The module of the tile with a transposed A."""
    made = _kernel(kind, unpacked_name(kind.suffix), TALL, kind.wide, places(kind), is_across=True)
    return f"{declarations_ir(kind)}\n{made}"


def _kernel(kind: Numbers, name: str, rows: int, wide: int, together: int, is_across: bool = False) -> str:
    """A tile of so many rows and registers: C = or += A times packed B over k >= 1, a multiple of the places of a turn.

    The distance of the rows of A is `Numbers.row`, of those of B `Numbers.columns`. Or A is read across its rows, and
    `lda` is the distance of its places.
    """
    tile = [(r, c) for r in range(rows) for c in range(wide)]
    sums = [
        f"  %s{r}_{c}_0 = phi {kind.vector} [ zeroinitializer, %entry ], [ %s{r}_{c}_{together}, %loop ]"
        for r, c in tile
    ]
    asks_itself = kind.halves or is_across
    more = ", i64 %lda" if is_across else _more(kind)
    turn = f"\n{_ORDER}\n".join(_place(kind, rows, wide, place, together, is_across) for place in range(together))
    asks = _asks(kind, rows, wide, together, is_across) if asks_itself else ""
    step = _step(kind, together, is_across)
    ask = [] if asks_itself else [_asked(f"ask{r}_{c}", 1) for r, c in tile]
    steps = {"a": "%a_step", "b": str(together * kind.columns)}
    return f"""
define void @{name}(ptr %a, ptr %b, i64 %k, ptr %c, i64 %ldc, i1 %fresh{more}) noinline #0 {{
entry:
{_at_tile(kind, "ask", wide, ask)}
{step}
{places_ir(kind, steps, chr(10).join(sums), f"{turn}{chr(10)}{asks}", together)}
  br i1 %fresh, label %put, label %add
put:
{_at_tile(kind, "new", wide, [_put(kind, f"{r}_{c}", together) for r, c in tile])}
  ret void
add:
{_at_tile(kind, "both", wide, [_add(kind, f"{r}_{c}", together) for r, c in tile])}
  ret void
}}"""


def _more(kind: Numbers) -> str:
    """The further parameters of a tile: what it asks for, or how far apart rows and places of A are."""
    if kind.in_place:
        return ", i64 %down, i64 %along"
    return ", ptr %ahead, i64 %lda" if kind.halves else ""


def _step(kind: Numbers, together: int, is_across: bool) -> str:
    """`a_step`: from a turn's places of A to the next; and the distances of its rows, if they are not known."""
    if kind.in_place and not is_across:
        return f"""  %a_step = mul i64 %along, {together}
  %down2 = mul i64 %down, 2
  %down3 = mul i64 %down, 3"""
    return f"  %a_step = mul i64 %lda, {together}" if is_across else f"  %a_step = add i64 0, {together}"


def _put(kind: Numbers, at: str, together: int) -> str:
    """The sums of a register of C, in its place."""
    return f"  store {kind.vector} %s{at}_{together}, ptr %new{at}, align {kind.size}"


def _add(kind: Numbers, at: str, together: int) -> str:
    """The same, added to what is there."""
    return f"""  %old{at} = load {kind.vector}, ptr %both{at}, align {kind.size}
  %sum{at} = fadd {kind.vector} %old{at}, %s{at}_{together}
  store {kind.vector} %sum{at}, ptr %both{at}, align {kind.size}"""


def _asked(pointer: str, is_written: int) -> str:
    return f"  call void @llvm.prefetch.p0(ptr %{pointer}, i32 {is_written}, i32 3, i32 1)"


def _asks(kind: Numbers, rows: int, wide: int, together: int, is_across: bool) -> str:
    """What a turn asks for: a row of C, the last one again and again, and a little of A."""
    lines = [
        f"  %turn = udiv i64 %p, {together}",
        min_ir("row", "%turn", str(rows - 1)),
        "  %row_down = mul i64 %row, %ldc",
        at_ir("c_row", kind, "%c", "%row_down"),
    ]
    for c in range(wide):
        lines += [at_ir(f"c_line{c}", kind, "%c_row", str(c * kind.lanes)), _asked(f"c_line{c}", 1)]
    return "\n".join((*lines, *(_asks_across if is_across else _asks_ahead)(kind, together)))


def _asks_across(kind: Numbers, together: int) -> Iterator[str]:
    """The next line of each row that the turn has read."""
    for place in range(together):
        yield at_ir(f"next_line{place}", kind, f"%a_place{place}", str(kind.line))
        yield _asked(f"next_line{place}", 0)


def _asks_ahead(kind: Numbers, together: int) -> Sequence[str]:
    """A line of as many of the rows at `ahead` as have to be asked for in a turn, so that all rows have been when their
    next lines begin.
    """
    turns = kind.line // together
    lines = [f"  %row0 = and i64 %turn, {turns - 1}", at_ir("ahead_place", kind, "%ahead", "%p")]
    for i in range(-(-TALL // turns)):
        if i:
            lines.append(f"  %row{i} = add i64 %row0, {i * turns}")
        lines += [
            f"  %row{i}_down = mul i64 %row{i}, %lda",
            at_ir(f"ahead_line{i}", kind, "%ahead_place", f"%row{i}_down"),
            _asked(f"ahead_line{i}", 0),
        ]
    return lines


def _at_tile(kind: Numbers, name: str, wide: int, accesses: Sequence[str]) -> str:
    """The addresses of a tile's registers in C, those of each row from the row's before, with the access of each."""
    lines = []
    for i, access in enumerate(accesses):
        r, c = divmod(i, wide)
        if c == 0:
            lines.append(at_ir(f"{name}_row{r}", kind, *((f"%{name}_row{r - 1}", "%ldc") if r else ("%c", "0"))))
        lines += [at_ir(f"{name}{r}_{c}", kind, f"%{name}_row{r}", str(c * kind.lanes)), access]
    return "\n".join(lines)


def _place(kind: Numbers, rows: int, wide: int, place: int, together: int, is_across: bool) -> str:
    """One place of the sum in a turn: its row of packed B, and of each row of A one element."""
    lines = []
    for c in range(wide):
        lines += [
            at_ir(f"b{c}_at_{place}", kind, "%b_at", str(place * kind.columns + c * kind.lanes)),
            f"  %b{c}_{place} = load {kind.vector}, ptr %b{c}_at_{place}, align {kind.bytes}",
        ]
    if together > 2 and not kind.in_place:
        lines += [
            at_ir(f"ahead{place}", kind, "%b_at", str((_AHEAD + place) * kind.columns)),
            f"  call void @llvm.prefetch.p0(ptr %ahead{place}, i32 0, i32 3, i32 1)",
        ]
    if is_across:
        lines.append(at_ir(f"a_place{place}", kind, *((f"%a_place{place - 1}", "%lda") if place else ("%a_at", "0"))))
    if kind.in_place and not is_across:
        lines += _place_of_a(kind, place)
    for r in range(rows):
        base, offset = _element(kind, r, place, is_across)
        lines += [
            at_ir(f"a{r}_at_{place}", kind, base, offset),
            f"  %x{r}_{place} = load {kind.type}, ptr %a{r}_at_{place}",
            spread_ir(f"z{r}_{place}", kind, f"%x{r}_{place}"),
        ]
        for c in range(wide):
            total = f"s{r}_{c}_{place + 1}"
            lines.append(fma_ir(total, kind, f"%z{r}_{place}", f"%b{c}_{place}", f"%s{r}_{c}_{place}"))
    return "\n".join(lines)


def _place_of_a(kind: Numbers, place: int) -> list[str]:
    """The elements of a place in the first row and in the fourth: the others have addresses that loads make."""
    before = place - 1
    return [
        at_ir(f"upper{place}", kind, *((f"%upper{before}", "%along") if place else ("%a_at", "0"))),
        at_ir(f"lower{place}", kind, *((f"%lower{before}", "%along") if place else ("%a_at", "%down3"))),
    ]


def _element(kind: Numbers, r: int, place: int, is_across: bool) -> tuple[str, str]:
    """The address from which an element of A is found, and how far it is."""
    if kind.in_place and not is_across:
        return f"%{'lower' if r >= 3 else 'upper'}{place}", ("0", "%down", "%down2")[r % 3]
    return (f"%a_place{place}", str(r)) if is_across else ("%a_at", str(r * kind.row + place))
