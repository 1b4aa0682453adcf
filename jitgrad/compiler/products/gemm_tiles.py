"""A tile of C in registers, of our own matrix product, as LLVM IR text; what is packed for it and what loops around it
is elsewhere (gemm_code.py).

    void tile(ptr a, i64 row, i64 step, ptr b, i64 k, ptr c, i64 ldc, i1 fresh)

With 32 registers of 64 bytes a tall tile is 12 x 2 of them, with 16 of 32 bytes 6 x 2: half of what they do beside
multiply-adds are steps of addresses, and a processor that gives half of its turns to another thread has none to spare.
So there four places of the sum are one turn of the loop, with fixed distances in the rows of A, which lie side by side
in the row. GFLOP/s of one Zen 3 core beside a busy neighbour, and of OpenBLAS on it (a peak of 80 to 100):

    places in a turn            1    2    4   OpenBLAS
    256 x 256 x 256            67   72   77    72
    512 x 512 x 512, B T       61   70   75    74
    512 x 256 x 784            65   75   80    75
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.products.product_code import tile_names
from jitgrad.compiler.products.registers import Numbers, at_ir, declarations_ir

LOW = 4
_SIDE_BY_SIDE = 4
_AHEAD = 16  # places of the sum in packed B
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0"
_ARGUMENTS = "ptr %a, i64 %row, i64 %step, ptr %b, i64 %k, ptr %c, i64 %ldc, i1 %fresh"


def tall(kind: Numbers) -> int:
    """Rows of a tile: with two registers each, they hold sums in three quarters of all."""
    return kind.registers * 3 // 8


def most_low(kind: Numbers) -> int:
    """The most rows that are left for low tiles."""
    return (-(-tall(kind) // LOW) - 1) * LOW


def reads_rows_only(kind: Numbers) -> bool:
    """Whether tall tiles want the places of the sum side by side in the rows of A."""
    return kind.registers < 32


def tiles_ir(kind: Numbers) -> str:
    """The module of the tiles, which `multiply_<type>` calls."""
    tall_name, low_name = tile_names(kind.suffix)
    if not reads_rows_only(kind):
        tiles = [_kernel(kind, tall_name, tall(kind))]
    else:
        few, many = f"{tall_name}_by_one", f"{tall_name}_by_{_SIDE_BY_SIDE}"
        tiles = [_PREFETCH, _kernel(kind, few, tall(kind)), _kernel(kind, many, tall(kind), _SIDE_BY_SIDE)]
        tiles.append(_many_and_few(kind, tall_name, many, few))
    return "\n".join((declarations_ir(kind), *tiles, _kernel(kind, low_name, LOW)))


def _kernel(kind: Numbers, name: str, rows: int, places: int = 1) -> str:
    """A whole tile: C = or += A times packed B over k >= 1; of A, rows lie `row` apart and places of the sum `step`.
    With several places in a turn, k is a multiple of them, and they lie side by side.

    Each address is made from the one before, as the processor's registers hold few; so half as many instructions are
    compiled as for products of each row with the distance, and none waits for another within a turn.
    """
    v = kind.vector
    tile = [(r, c) for r in range(rows) for c in range(2)]
    old = [f"  %old{r}_{c} = load {v}, ptr %old{r}_{c}_at, align {kind.size}" for r, c in tile]
    phis = "\n".join(
        f"  %s{r}_{c} = phi {v} [ zeroinitializer, %entry ], [ %old{r}_{c}, %more ], [ %t{r}_{c}, %loop ]"
        for r, c in tile
    )
    turn = "\n".join(_place(kind, rows, place, places) for place in range(places))
    stores = [f"  store {v} %t{r}_{c}, ptr %new{r}_{c}_at, align {kind.size}" for r, c in tile]
    return f"""
define void @{name}({_ARGUMENTS}) noinline #0 {{
entry:
  br i1 %fresh, label %loop, label %more
more:
{_tile_places(kind, "old", rows, old)}
  br label %loop
loop:
  %p = phi i64 [ 0, %entry ], [ 0, %more ], [ %p1, %loop ]
  %a0_at = phi ptr [ %a, %entry ], [ %a, %more ], [ %a_next, %loop ]
  %b_at = phi ptr [ %b, %entry ], [ %b, %more ], [ %b_next, %loop ]
{phis}
{turn}
{at_ir("a_next", kind, "%a0_at", "%step" if places == 1 else str(places))}
{at_ir("b_next", kind, "%b_at", str(places * kind.columns))}
  %p1 = add i64 %p, {places}
  %again = icmp slt i64 %p1, %k
  br i1 %again, label %loop, label %end
end:
{_tile_places(kind, "new", rows, stores)}
  ret void
}}"""


def _tile_places(kind: Numbers, name: str, rows: int, accesses: Sequence[str]) -> str:
    """The addresses of a tile's registers in C, those of each row from the row's before, with the access of each."""
    lines = []
    for r in range(rows):
        lines.append(at_ir(f"{name}{r}", kind, *((f"%{name}{r - 1}", "%ldc") if r else ("%c", "0"))))
        for c in range(2):
            lines += [at_ir(f"{name}{r}_{c}_at", kind, f"%{name}{r}", str(c * kind.lanes)), accesses[2 * r + c]]
    return "\n".join(lines)


def _place(kind: Numbers, rows: int, place: int, places: int) -> str:
    """One place of the sum in a turn: its row of packed B, and of each row of A one element."""
    v, after = kind.vector, f"_{place}" if place else ""
    lines = []
    for c in range(2):
        lines += [
            at_ir(f"b{c}_at{after}", kind, "%b_at", str(place * kind.columns + c * kind.lanes)),
            f"  %b{c}{after} = load {v}, ptr %b{c}_at{after}, align {kind.bytes}",
        ]
    if places > 1:
        lines += [
            at_ir(f"ahead{after}", kind, "%b_at", str((_AHEAD + place) * kind.columns)),
            f"  call void @llvm.prefetch.p0(ptr %ahead{after}, i32 0, i32 3, i32 1)",
        ]
    old = f"%t{{r}}_{{c}}_{place - 1}" if place else "%s{r}_{c}"
    new = "%t{r}_{c}" if place == places - 1 else f"%t{{r}}_{{c}}_{place}"
    return "\n".join((*lines, *(_row(kind, r, place, old, new) for r in range(rows))))


def _row(kind: Numbers, r: int, place: int, old: str, new: str) -> str:
    v, after = kind.vector, f"_{place}" if place else ""
    lines = [at_ir(f"a{r}_at", kind, f"%a{r - 1}_at", "%row")] if r and not place else []
    lines += [at_ir(f"a{r}_at{after}", kind, f"%a{r}_at", str(place))] if place else []
    lines += [
        f"  %x{r}{after} = load {kind.type}, ptr %a{r}_at{after}",
        f"  %y{r}{after} = insertelement {v} poison, {kind.type} %x{r}{after}, i64 0",
        f"  %z{r}{after} = shufflevector {v} %y{r}{after}, {v} poison, <{kind.lanes} x i32> zeroinitializer",
    ]
    fma = f"call {v} @llvm.fma.v{kind.lanes}{kind.suffix}"
    lines += [
        f"  {new.format(r=r, c=c)} = {fma}({v} %z{r}{after}, {v} %b{c}{after}, {v} {old.format(r=r, c=c)})"
        for c in range(2)
    ]
    return "\n".join(lines)


def _many_and_few(kind: Numbers, name: str, many: str, few: str) -> str:
    """A tall tile: what is a multiple of the places of a turn, and the rest of them."""
    return f"""
define void @{name}({_ARGUMENTS}) noinline #0 {{
entry:
  %whole = and i64 %k, -{_SIDE_BY_SIDE}
  %rest = sub i64 %k, %whole
  %has_whole = icmp sgt i64 %whole, 0
  br i1 %has_whole, label %multiply, label %add
multiply:
  call void @{many}(ptr %a, i64 %row, i64 1, ptr %b, i64 %whole, ptr %c, i64 %ldc, i1 %fresh)
  %has_rest = icmp sgt i64 %rest, 0
  br i1 %has_rest, label %add, label %done
add:
  %new = phi i1 [ %fresh, %entry ], [ false, %multiply ]
{at_ir("a_rest", kind, "%a", "%whole")}
  %b_down = mul i64 %whole, {kind.columns}
{at_ir("b_rest", kind, "%b", "%b_down")}
  call void @{few}(ptr %a_rest, i64 %row, i64 1, ptr %b_rest, i64 %rest, ptr %c, i64 %ldc, i1 %new)
  br label %done
done:
  ret void
}}"""
