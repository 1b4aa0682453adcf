"""What our own factorization of positive definite matrices, and its gradient, are made of, as LLVM IR text: tiles of
one block of rows. A block has as many rows as a register has lanes; the order of tiles is elsewhere (cholesky_code.py).

    void sum_<w>(ptr p, ptr q, i64 k, ptr t, i64 column)      t -= pᵀ q, over k rows; w blocks wide
    void sum_turned_<w>(...)                                  t -= p q, of blocks of p that lie beside one another
    void forward(ptr d, ptr t, i64 column, i64 count)         t = inv(Uᵀ) t, for so many blocks beside
    void backward(ptr d, ptr t, i64 column, i64 count)        t = inv(U) t
    i1 factor(ptr t, ptr d)                                   Uᵀ U = t; whether it is not positive definite
    void reverse(ptr d, ptr t)                                the cotangent of Uᵀ U from that of U, in t

Rows of a block, and blocks of a column, lie behind one another; blocks beside one another are `column` apart.
A block on the diagonal, ``d``, holds a square U with zeros below its diagonal, and behind it one over each element of
the diagonal. Three registers of each row hold sums, as many as registers allow.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.products.cholesky_steps import WIDE
from jitgrad.compiler.products.registers import Numbers, at_ir, fma_ir, loop_ir, spread_ir
from jitgrad.compiler.products.transposes import turn_ir, turned_ir


def cholesky_tiles_ir(kind: Numbers) -> str:
    """All of them, `turn_<type>`, and `turn_whole`: for a square with all rows and columns."""
    sums = (_sum(kind, wide, is_turned) for is_turned in (False, True) for wide in range(1, WIDE + 1))
    solutions = (_solve(kind, True), _solve(kind, False))
    return "\n".join((turn_ir(kind), _turn_whole(kind), *sums, *solutions, _factor(kind), _reverse(kind)))


def diagonal_elements(kind: Numbers) -> int:
    """Elements of a block on the diagonal, with what is behind it."""
    return kind.lanes * (kind.lanes + 1)


def turn_block_ir(kind: Numbers, source: str, to: str) -> str:
    """A whole block transposed."""
    return f"  call void @turn_whole(ptr {source}, i64 {kind.lanes}, ptr {to})"


def _turn_whole(kind: Numbers) -> str:
    """A square with all rows and columns, transposed in registers."""
    rows = range(kind.lanes)
    turning, turned = turned_ir(kind, [f"%x{r}" for r in rows])
    lines = []
    for r in rows:
        lines += [
            at_ir(f"from{r}", kind, *((f"%from{r - 1}", "%ldf") if r else ("%from", "0"))),
            f"  %x{r} = load {kind.vector}, ptr %from{r}, align {kind.size}",
        ]
    stores = []
    for r in rows:
        stores += [
            at_ir(f"to{r}", kind, "%to", str(r * kind.lanes)),
            f"  store {kind.vector} {turned[r]}, ptr %to{r}, align {kind.size}",
        ]
    return f"""
define internal void @turn_whole(ptr %from, i64 %ldf, ptr %to) noinline #0 {{
{chr(10).join((*lines, *turning, *stores))}
  ret void
}}"""


def _lane(kind: Numbers, name: str, register: str, lane: int) -> str:
    """A lane of a register in all lanes."""
    lanes = ", ".join(f"i32 {lane}" for _ in range(kind.lanes))
    return f"  %{name} = shufflevector {kind.vector} {register}, {kind.vector} poison, <{kind.lanes} x i32> <{lanes}>"


def _from_lane(kind: Numbers, lane: int, above: str, below: str) -> str:
    """A select of one register from a lane on, and of another before it."""
    bits = ", ".join(f"i1 {int(k >= lane)}" for k in range(kind.lanes))
    return f"select {kind.mask} <{bits}>, {kind.vector} {above}, {kind.vector} {below}"


def _loads(kind: Numbers, name: str, base: str) -> str:
    """The rows of a block in registers; their addresses stay known."""
    places = (at_ir(f"{name}_at{r}", kind, base, str(r * kind.lanes)) for r in range(kind.lanes))
    loads = (f"  %{name}{r} = load {kind.vector}, ptr %{name}_at{r}, align {kind.size}" for r in range(kind.lanes))
    return "\n".join((*places, *loads))


def _beside(kind: Numbers, name: str, wide: int) -> str:
    """The addresses of blocks beside one another."""
    places = [(f"%{name}{c - 1}", "%column") if c else (f"%{name}", "0") for c in range(wide)]
    return "\n".join(at_ir(f"{name}{c}", kind, *place) for c, place in enumerate(places))


def _sum(kind: Numbers, wide: int, is_turned: bool) -> str:
    """Sums of a block of rows and so many registers: an element of p is spread to all lanes for each row."""
    v = kind.vector
    tile = [(r, c) for r in range(kind.lanes) for c in range(wide)]
    phis = "\n".join(f"  %s{r}_{c} = phi {v} [ zeroinitializer, %entry ], [ %s{r}_{c}_n, %loop ]" for r, c in tile)
    takes = "\n".join(_taken(kind, r, c) for r, c in tile)
    name = f"sum_turned_{wide}" if is_turned else f"sum_{wide}"
    return f"""
define internal void @{name}(ptr %p, ptr %q, i64 %k, ptr %t, i64 %column) noinline #0 {{
entry:
{_beside(kind, "q", wide)}
{_beside(kind, "t", wide)}
  %stop = mul i64 %k, {kind.lanes}
  %some = icmp sgt i64 %k, 0
  br i1 %some, label %loop, label %done
loop:
  %place = phi i64 [ 0, %entry ], [ %next, %loop ]
{phis}
{_summed_row(kind, wide, is_turned)}
  %next = add i64 %place, {kind.lanes}
  %again = icmp slt i64 %next, %stop
  br i1 %again, label %loop, label %end
end:
{takes}
  br label %done
done:
  ret void
}}"""


def _summed_row(kind: Numbers, wide: int, is_turned: bool) -> str:
    """A row of p, or a column of its blocks, and a row of q: outer products of their elements, added to the sums."""
    apart = kind.lanes if is_turned else 1
    lines = [_column_of_blocks(kind), at_ir("p_here", kind, "%p", "%p_place" if is_turned else "%place")]
    for c in range(wide):
        lines += [
            at_ir(f"q{c}_here", kind, f"%q{c}", "%place"),
            f"  %y{c} = load {kind.vector}, ptr %q{c}_here, align {kind.size}",
        ]
    for r in range(kind.lanes):
        lines += [
            at_ir(f"p{r}_at", kind, "%p_here", str(apart * r)),
            f"  %p{r} = load {kind.type}, ptr %p{r}_at",
            spread_ir(f"x{r}", kind, f"%p{r}"),
            *(fma_ir(f"s{r}_{c}_n", kind, f"%x{r}", f"%y{c}", f"%s{r}_{c}") for c in range(wide)),
        ]
    return "\n".join(lines)


def _column_of_blocks(kind: Numbers) -> str:
    """Where a column begins of blocks beside one another."""
    n = kind.lanes
    return f"""  %p_block = udiv i64 %place, {n * n}
  %p_across = mul i64 %p_block, %column
  %p_column = udiv i64 %place, {n}
  %p_inside = urem i64 %p_column, {n}
  %p_place = add i64 %p_across, %p_inside"""


def _taken(kind: Numbers, r: int, c: int) -> str:
    """The sums of a register, taken from what is in its place."""
    return f"""{at_ir(f"t{r}_{c}", kind, f"%t{c}", str(r * kind.lanes))}
  %old{r}_{c} = load {kind.vector}, ptr %t{r}_{c}, align {kind.size}
  %new{r}_{c} = fsub {kind.vector} %old{r}_{c}, %s{r}_{c}_n
  store {kind.vector} %new{r}_{c}, ptr %t{r}_{c}, align {kind.size}"""


def _solve(kind: Numbers, is_forward: bool) -> str:
    """Each row that is known is taken from all that wait for it."""
    n, lines = kind.lanes, [_loads(kind, "x", "%t_here")]
    order = list(range(n)) if is_forward else list(range(n))[::-1]
    names = {r: f"x{r}" for r in order}
    for place, r in enumerate(order):
        lines += [
            at_ir(f"inverse{r}_at", kind, "%d", str(n * n + r)),
            f"  %inverse{r}_scalar = load {kind.type}, ptr %inverse{r}_at",
            spread_ir(f"inverse{r}", kind, f"%inverse{r}_scalar"),
            f"  %solved{r} = fmul {kind.vector} %{names[r]}, %inverse{r}",
            f"  store {kind.vector} %solved{r}, ptr %x_at{r}, align {kind.size}",
            f"  %less{r} = fneg {kind.vector} %solved{r}",
        ]
        for s in order[place + 1 :]:
            name = f"x{s}_{place}"
            lines += [
                at_ir(f"u{r}_{s}_at", kind, "%d", str(n * r + s if is_forward else n * s + r)),
                f"  %u{r}_{s}_scalar = load {kind.type}, ptr %u{r}_{s}_at",
                spread_ir(f"u{r}_{s}", kind, f"%u{r}_{s}_scalar"),
                fma_ir(name, kind, f"%less{r}", f"%u{r}_{s}", f"%{names[s]}"),
            ]
            names[s] = name
    body = f"""  %across = mul i64 %b, %column
{at_ir("t_here", kind, "%t", "%across")}
{chr(10).join(lines)}"""
    return f"""
define internal void @{"forward" if is_forward else "backward"}(ptr %d, ptr %t, i64 %column, i64 %count) noinline #0 {{
{loop_ir("b", "%count", "1", body)}
  ret void
}}"""


def _factor(kind: Numbers) -> str:
    """Row by row: the square root of its pivot, what it is divided by, and taken from all rows below, in registers."""
    n, v = kind.lanes, kind.vector
    lines, names, bad = [_loads(kind, "x", "%t")], [f"x{r}" for r in range(n)], "false"
    for r in range(n):
        lines += [
            f"  %pivot{r} = extractelement {v} %{names[r]}, i64 {r}",
            f"  %bad{r}_here = fcmp ole {kind.type} %pivot{r}, 0.0",
            f"  %bad{r} = or i1 %bad{r}_here, {bad}",
            f"  %root{r} = call {kind.type} @llvm.sqrt.{kind.suffix}({kind.type} %pivot{r})",
            f"  %inverse{r} = fdiv {kind.type} 1.0, %root{r}",
            at_ir(f"inverse{r}_at", kind, "%d", str(n * n + r)),
            f"  store {kind.type} %inverse{r}, ptr %inverse{r}_at",
            spread_ir(f"roots{r}", kind, f"%root{r}"),
            f"  %scaled{r} = fdiv {v} %{names[r]}, %roots{r}",
            f"  %row{r}_upper = {_from_lane(kind, r, f'%scaled{r}', 'zeroinitializer')}",
            f"  %row{r} = insertelement {v} %row{r}_upper, {kind.type} %root{r}, i64 {r}",
            at_ir(f"d{r}_at", kind, "%d", str(n * r)),
            f"  store {v} %row{r}, ptr %d{r}_at, align {kind.size}",
        ]
        bad = f"%bad{r}"
        for s in range(r + 1, n):
            lines += [
                _lane(kind, f"u{r}_{s}", f"%row{r}", s),
                f"  %less{r}_{s} = fneg {v} %u{r}_{s}",
                fma_ir(f"x{s}_{r}", kind, f"%less{r}_{s}", f"%row{r}", f"%{names[s]}"),
            ]
            names[s] = f"x{s}_{r}"
    return f"""
declare {kind.type} @llvm.sqrt.{kind.suffix}({kind.type}) #0

define internal i1 @factor(ptr %t, ptr %d) noinline #0 {{
{chr(10).join(lines)}
  ret i1 {bad}
}}"""


def _reverse(kind: Numbers) -> str:
    """inv(U) M inv(U)ᵀ, where M is the symmetric matrix of the upper triangle of t Uᵀ: I. Murray, "Differentiation of
    the Cholesky decomposition", 2016. It is twice the cotangent of a symmetric matrix, as is all of the working matrix.
    """
    n, newline = kind.lanes, "\n"
    turning, l_rows = turned_ir(kind, [f"%u{r}" for r in range(n)])
    return f"""
define internal void @reverse(ptr %d, ptr %t) noinline #0 {{
  %one = alloca [{n * n} x {kind.type}], align {kind.bytes}
  %two = alloca [{n * n} x {kind.type}], align {kind.bytes}
{_loads(kind, "t", "%t")}
{_loads(kind, "u", "%d")}
{newline.join(turning)}
{newline.join(_upper_row(kind, l_rows, i) for i in range(n))}
{turn_block_ir(kind, "%one", "%two")}
{newline.join(_whole_row(kind, i) for i in range(n))}
  call void @backward(ptr %d, ptr %one, i64 0, i64 1)
{turn_block_ir(kind, "%one", "%two")}
  call void @backward(ptr %d, ptr %two, i64 0, i64 1)
{turn_block_ir(kind, "%two", "%one")}
{newline.join(_mean_row(kind, i) for i in range(n))}
  ret void
}}"""


def _upper_row(kind: Numbers, l_rows: Sequence[str], i: int) -> str:
    """A row of t Uᵀ, `upper` from the diagonal on; what is beyond it, in the first square."""
    lines, name = [], "zeroinitializer"
    for k in range(i, kind.lanes):
        lines += [
            _lane(kind, f"t{i}_{k}", f"%t{i}", k),
            fma_ir(f"m{i}_{k}", kind, f"%t{i}_{k}", l_rows[k], name),
        ]
        name = f"%m{i}_{k}"
    lines += [
        f"  %upper{i} = {_from_lane(kind, i, name, 'zeroinitializer')}",
        f"  %beyond{i} = {_from_lane(kind, i + 1, name, 'zeroinitializer')}",
        at_ir(f"one{i}", kind, "%one", str(kind.lanes * i)),
        f"  store {kind.vector} %beyond{i}, ptr %one{i}, align {kind.size}",
    ]
    return "\n".join(lines)


def _whole_row(kind: Numbers, i: int) -> str:
    """A row of the symmetric matrix of an upper triangle, in the first square; the second has what is below."""
    return f"""{at_ir(f"two{i}", kind, "%two", str(kind.lanes * i))}
  %lower{i} = load {kind.vector}, ptr %two{i}, align {kind.size}
  %whole{i} = fadd {kind.vector} %upper{i}, %lower{i}
  store {kind.vector} %whole{i}, ptr %one{i}, align {kind.size}"""


def _mean_row(kind: Numbers, i: int) -> str:
    """A row of t: the mean of both squares, of which one is the other transposed."""
    return f"""  %x{i} = load {kind.vector}, ptr %one{i}, align {kind.size}
  %y{i} = load {kind.vector}, ptr %two{i}, align {kind.size}
  %both{i} = fadd {kind.vector} %x{i}, %y{i}
  %mean{i} = fmul {kind.vector} %both{i}, splat ({kind.type} 0.5)
  store {kind.vector} %mean{i}, ptr %t_at{i}, align {kind.size}"""
