"""Solutions of triangular systems with one right side, as LLVM IR text; they are called in compiler/triangles.py, and
are steps of a cluster (triangle_steps.py).

    i64 <rows>(ptr a, i64 n, ptr x, i64 form)       x = inv(a) x; 1 where a zero is on the diagonal, else 0
    i64 <columns>(ptr a, i64 n, ptr x, i64 form)    x = inv(aᵀ) x, likewise
    void <rows or columns>_step(...)                    the same behind the kernel ABI, of a copy of the right side

The form is `LOWER` or 0, and `UNIT` where ones are on the diagonal, whatever lies there.

Both read a triangle of ``a`` by its rows, as many at a time as a register has lanes: these are multiplied by what is
known of x, or times elements of x, taken from what is not. Between them is the block on the diagonal, in registers. One
row after the other waits for each sum, and takes nearly three times as long: of 300 rows 18 us in place of 7 (Zen 4).
"""

from __future__ import annotations

from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    arrays_ir,
    at_ir,
    block_ir,
    declarations_ir,
    fma_ir,
    load_ir,
    loop_ir,
    mask_ir,
    min_ir,
    module_ir,
    spread_ir,
    store_ir,
)
from jitgrad.compiler.products.transposes import turn_ir, turned_ir
from jitgrad.compiler.products.triangle_steps import (
    BLOCK,
    FUNCTIONS,
    LANES,
    LOWER,
    LU_BLOCK,
    LU_STEPS,
    STEPS,
    UNIT,
)

_HEAD = "(ptr %a, i64 %n, ptr %x, i64 %form) #0"


def triangles_ir(kind: Numbers) -> str:
    """The module with both, their steps, and the number of lanes."""
    helpers = (turn_ir(kind), _dots(kind), _take(kind, 1), _take(kind, kind.lanes), _ones(kind), _diagonal(kind))
    functions = (_rows(kind), _columns(kind))
    steps = (_step(kind, *names) for names in zip(FUNCTIONS, STEPS, strict=True))
    both = (_both_step(kind, is_turned) for is_turned in (False, True))
    return module_ir(declarations_ir(kind), *helpers, *functions, *steps, *both, _lanes(kind.lanes))


def no_triangles_ir() -> str:
    """The same for a machine without such registers: functions that do nothing."""
    functions = (f"define i64 @{name}{_HEAD} {{\n  ret i64 0\n}}" for name in FUNCTIONS)
    steps = (f"define void @{name}({KERNEL}) #0 {{\n  ret void\n}}" for name in (*STEPS, *LU_STEPS))
    return module_ir(*functions, *steps, _lanes(0))


def _lanes(count: int) -> str:
    return f"define i64 @{LANES}() #0 {{\n  ret i64 {count}\n}}"


def _step(kind: Numbers, function: str, name: str) -> str:
    """The right side is copied, and solved for where it is wanted."""
    return f"""
define void @{name}({KERNEL}) #0 {{
{block_ir(BLOCK)}
{arrays_ir("a", "b", "x", "status")}
{_copied(kind)}
  %bad = call i64 @{function}(ptr %a, i64 %n, ptr %x, i64 %form)
{tell_ir("%bad")}
  ret void
}}"""


def _copied(kind: Numbers) -> str:
    register = f"""  %left = sub i64 %n, %c
{mask_ir("inside", kind, "%left")}
{at_ir("from", kind, "%b", "%c")}
{at_ir("to", kind, "%x", "%c")}
{load_ir("some", kind, "%from", "%inside")}
{store_ir(kind, "%some", "%to", "%inside")}"""
    return loop_ir("c", "%n", str(kind.lanes), register)


def tell_ir(found: str) -> str:
    """The status becomes the code where a zero was ``found`` on a diagonal, unless it is one already."""
    return f"""  %told = load i64, ptr %status
  %is_told = icmp ne i64 %told, 0
  %new = mul i64 {found}, %code
  %status_now = select i1 %is_told, i64 %told, i64 %new
  store i64 %status_now, ptr %status"""


def _both_step(kind: Numbers, is_turned: bool) -> str:
    """A system with the factors of a matrix, which lie transposed, or of its transpose: rows change places before, or
    after.
    """
    name = FUNCTIONS[0 if is_turned else 1]
    upper = f"  %bad = call i64 @{name}(ptr %factors, i64 %n, ptr %x, i64 {LOWER})"
    unit = f"  %none = call i64 @{name}(ptr %factors, i64 %n, ptr %x, i64 {UNIT})"
    exchange = f"""  %back = sub i64 %bottom, %e
  %i = add i64 {"%back" if is_turned else "%e"}, 0
  %row_at = getelementptr i64, ptr %rows, i64 %i
  %row = load i64, ptr %row_at
  %j = sub i64 %row, 1
{at_ir("one", kind, "%x", "%i")}
{at_ir("two", kind, "%x", "%j")}
  %first = load {kind.type}, ptr %one
  %second = load {kind.type}, ptr %two
  store {kind.type} %second, ptr %one
  store {kind.type} %first, ptr %two"""
    exchanges = loop_ir("e", "%n", "1", exchange)
    parts = (upper, unit, exchanges) if is_turned else (exchanges, unit, upper)
    return f"""
define void @{LU_STEPS[is_turned]}({KERNEL}) #0 {{
{block_ir(LU_BLOCK)}
{arrays_ir("factors", "rows", "b", "x", "status")}
  %bottom = sub i64 %n, 1
{_copied(kind)}
{chr(10).join(parts)}
{tell_ir("%bad")}
  ret void
}}"""


def _rows(kind: Numbers) -> str:
    """Elements of x from those known before, sums of products along their rows."""
    body = f"""{_block(kind, "%forward")}
  call void @dots(ptr %a, i64 %n, i64 %i, ptr %x, i64 %first, i64 %end, ptr %v)
  %sums = load {kind.vector}, ptr %v
  %rest = fsub {kind.vector} %given, %sums
  %known = select {kind.mask} %inside, {kind.vector} %rest, {kind.vector} zeroinitializer
  store {kind.vector} %known, ptr %v
  call void @turn_{kind.type}(ptr %corner, i64 %n, i64 %left, i64 0, i64 %left, i64 0, ptr %d, i64 {kind.lanes})
{_solved(kind, "%forward")}"""
    return _solution(kind, 0, body)


def _columns(kind: Numbers) -> str:
    """Elements of x that are known are taken, times their rows, from those that are not."""
    row = f"""  %row_down = mul i64 %r, %n
  %row_line = mul i64 %r, {kind.lanes}
{at_ir("row_from", kind, "%corner", "%row_down")}
{at_ir("row_to", kind, "%d", "%row_line")}
{load_ir("row", kind, "%row_from", "%inside")}
  store {kind.vector} %row, ptr %row_to, align {kind.size}"""
    one = f"""  %one_row = add i64 %i, %t
{at_ir("one_at", kind, "%own", "%t")}
  call void @take_1(ptr %a, i64 %n, i64 %one_row, ptr %one_at, ptr %x, i64 %first, i64 %end)"""
    body = f"""{_block(kind, "%backward")}
  store {kind.vector} %given, ptr %v
{loop_ir("r", "%height", "1", row)}
{_solved(kind, "%backward")}
  %is_whole = icmp eq i64 %height, {kind.lanes}
  br i1 %is_whole, label %whole, label %part
whole:
  call void @take_{kind.lanes}(ptr %a, i64 %n, i64 %i, ptr %own, ptr %x, i64 %first, i64 %end)
  br label %taken
part:
{loop_ir("t", "%height", "1", one)}
  br label %taken
taken:"""
    return _solution(kind, 1, body)


def _solution(kind: Numbers, which: int, body: str) -> str:
    """A function that goes through the blocks on the diagonal."""
    n = kind.lanes
    return f"""
define i64 @{FUNCTIONS[which]}{_HEAD} {{
  %d = alloca [{n * n} x {kind.type}], align {kind.bytes}
  %v = alloca {kind.vector}, align {kind.bytes}
  %bad = alloca i64
  store i64 0, ptr %bad
  %lower = and i64 %form, {LOWER}
  %forward = icmp ne i64 %lower, 0
  %unit = and i64 %form, {UNIT}
  %is_unit = icmp ne i64 %unit, 0
  %backward = xor i1 %forward, true
  %filled = add i64 %n, {n - 1}
  %blocks = udiv i64 %filled, {n}
  %last = sub i64 %blocks, 1
{loop_ir("s", "%blocks", "1", body)}
  %told = load i64, ptr %bad
  ret i64 %told
}}"""


def _block(kind: Numbers, is_rising: str) -> str:
    """The s-th block: its row, how many it has, its elements of x, and the columns of the triangle beside it, of which
    the first begins a register.
    """
    return f"""  %falling = sub i64 %last, %s
  %b = select i1 {is_rising}, i64 %s, i64 %falling
  %i = mul i64 %b, {kind.lanes}
  %left = sub i64 %n, %i
{min_ir("height", "%left", str(kind.lanes))}
  %behind = add i64 %i, %height
  %first = select i1 %forward, i64 0, i64 %behind
  %end = select i1 %forward, i64 %i, i64 %n
{mask_ir("inside", kind, "%left")}
{at_ir("own", kind, "%x", "%i")}
{load_ir("given", kind, "%own", "%inside")}
  %corner_down = mul i64 %i, %n
  %corner_place = add i64 %corner_down, %i
{at_ir("corner", kind, "%a", "%corner_place")}"""


def _solved(kind: Numbers, is_rising: str) -> str:
    """Solves the block on the diagonal for what is in `v`."""
    return f"""  call void @ones(ptr %d, i64 %height, i1 %is_unit)
  %zeros = call i64 @diagonal(ptr %d, ptr %v, i1 {is_rising})
  %zeros_before = load i64, ptr %bad
  %zeros_now = or i64 %zeros, %zeros_before
  store i64 %zeros_now, ptr %bad
  %solved = load {kind.vector}, ptr %v
{store_ir(kind, "%solved", "%own", "%inside")}"""


def _ones(kind: Numbers) -> str:
    """Zeros in the rows of a block behind the last one that there is, and ones on its diagonal there, or everywhere."""
    n = kind.lanes
    zeros = f"""  %line = mul i64 %r, {n}
{at_ir("row", kind, "%d", "%line")}
  store {kind.vector} zeroinitializer, ptr %row, align {kind.size}"""
    ones = f"""  %place = mul i64 %s, {n + 1}
{at_ir("one", kind, "%d", "%place")}
  store {kind.type} 1.0, ptr %one"""
    return f"""
define internal void @ones(ptr %d, i64 %height, i1 %is_unit) #0 {{
  %first = select i1 %is_unit, i64 0, i64 %height
{loop_ir("r", str(n), "1", zeros, "%height")}
{loop_ir("s", str(n), "1", ones, "%first")}
  ret void
}}"""


def _diagonal(kind: Numbers) -> str:
    """Solves a block for a register of right sides: element by element, each then taken from those that wait for it,
    which have their factors in its row of ``d``. Whether there is a zero on the diagonal.
    """
    places = range(kind.lanes)
    return f"""
define internal i64 @diagonal(ptr %d, ptr %v, i1 %forward) noinline #0 {{
  %given = load {kind.vector}, ptr %v
  br i1 %forward, label %rising, label %falling
rising:
{_eliminated(kind, "r", list(places))}
falling:
{_eliminated(kind, "f", list(places)[::-1])}
}}"""


def _eliminated(kind: Numbers, name: str, order: list[int]) -> str:
    """One of the two directions."""
    v, before, zeros, lines = kind.vector, "%given", "0", []
    for k, r in enumerate(order):
        waiting = ", ".join(f"i1 {int(lane in order[k + 1 :])}" for lane in range(kind.lanes))
        lines += [
            at_ir(f"{name}_row{r}", kind, "%d", str(r * kind.lanes)),
            f"  %{name}_factors{r} = load {v}, ptr %{name}_row{r}, align {kind.size}",
            f"  %{name}_pivot{r} = extractelement {v} %{name}_factors{r}, i64 {r}",
            f"  %{name}_is_zero{r} = fcmp oeq {kind.type} %{name}_pivot{r}, 0.0",
            f"  %{name}_zero{r} = zext i1 %{name}_is_zero{r} to i64",
            f"  %{name}_zeros{r} = or i64 %{name}_zero{r}, {zeros}",
            f"  %{name}_own{r} = extractelement {v} {before}, i64 {r}",
            f"  %{name}_x{r} = fdiv {kind.type} %{name}_own{r}, %{name}_pivot{r}",
            f"  %{name}_minus{r} = fneg {kind.type} %{name}_x{r}",
            spread_ir(f"{name}_less{r}", kind, f"%{name}_minus{r}"),
            fma_ir(f"{name}_all{r}", kind, f"%{name}_less{r}", f"%{name}_factors{r}", before),
            f"  %{name}_rest{r} = select {kind.mask} <{waiting}>, {v} %{name}_all{r}, {v} {before}",
            f"  %{name}_now{r} = insertelement {v} %{name}_rest{r}, {kind.type} %{name}_x{r}, i64 {r}",
        ]
        before, zeros = f"%{name}_now{r}", f"%{name}_zeros{r}"
    lines += [f"  store {v} {before}, ptr %v", f"  ret i64 {zeros}"]
    return "\n".join(lines)


def _dots(kind: Numbers) -> str:
    """Products of a block of rows with x, from column `first` up to `end`, summed."""
    n, v = kind.lanes, kind.vector
    rows = range(n)
    starts = "\n".join(f"  %s{r} = phi {v} [ zeroinitializer, %enter ], [ %s{r}_n, %loop ]" for r in rows)
    sums = "\n".join(f"  %w{r} = phi {v} [ zeroinitializer, %entry ], [ %s{r}_n, %loop ]" for r in rows)
    turning, turned = turned_ir(kind, [f"%t{r}" for r in rows])
    return f"""
define internal void @dots(ptr %a, i64 %n, i64 %row, ptr %x, i64 %first, i64 %end, ptr %v) noinline #0 {{
entry:
{_row_addresses(kind, n, True)}
{_whole_registers(kind)}
  br i1 %some, label %enter, label %rest
enter:
  br label %loop
loop:
  %c = phi i64 [ %first, %enter ], [ %c_next, %loop ]
{starts}
{_multiplied(kind, "c", "", "s", [f"s{r}_n" for r in rows])}
  %c_next = add i64 %c, {n}
  %more = icmp slt i64 %c_next, %stop
  br i1 %more, label %loop, label %rest
rest:
{sums}
{mask_ir("inside", kind, "%over")}
{_multiplied(kind, "stop", "%inside", "w", [f"t{r}" for r in rows])}
{chr(10).join(turning)}
{_added(kind, turned)}
  store {v} %total, ptr %v
  ret void
}}"""


def _multiplied(kind: Numbers, c: str, mask: str, sums: str, names: list[str]) -> str:
    """A register of each row times one of x, added to sums."""
    lines = [_beside(kind, f"x_{c}", "%x", c, mask)]
    for r, name in enumerate(names):
        lines.append(_beside(kind, f"a{r}_{c}", f"%row{r}", c, mask))
        lines.append(fma_ir(name, kind, f"%a{r}_{c}", f"%x_{c}", f"%{sums}{r}"))
    return "\n".join(lines)


def _beside(kind: Numbers, name: str, base: str, c: str, mask: str) -> str:
    """The register of a row from column `c` on."""
    whole = f"  %{name} = load {kind.vector}, ptr %{name}_at, align {kind.size}"
    loaded = load_ir(name, kind, f"%{name}_at", mask) if mask else whole
    return "\n".join((at_ir(f"{name}_at", kind, base, f"%{c}"), loaded))


def _added(kind: Numbers, names: list[str]) -> str:
    """The sum of registers, in pairs."""
    lines = []
    while len(names) > 1:
        made = ["%total"] if len(names) == 2 else [f"%sum{len(names)}_{k}" for k in range(len(names) // 2)]
        pairs = zip(made, names[::2], names[1::2], strict=True)
        lines += [f"  {name} = fadd {kind.vector} {a}, {b}" for name, a, b in pairs]
        names = made
    return "\n".join(lines)


def _take(kind: Numbers, count: int) -> str:
    """Takes so many elements, times their rows, from x, from column `first` up to `end`."""
    known = "\n".join(
        "\n".join((
            at_ir(f"known{r}_at", kind, "%known", str(r)),
            f"  %known{r} = load {kind.type}, ptr %known{r}_at",
            f"  %minus{r} = fneg {kind.type} %known{r}",
            spread_ir(f"less{r}", kind, f"%minus{r}"),
        ))
        for r in range(count)
    )  # fmt: skip
    return f"""
define internal void @take_{count}(ptr %a, i64 %n, i64 %row, ptr %known, ptr %x, i64 %first, i64 %end) noinline #0 {{
{_row_addresses(kind, count, False)}
{known}
{_whole_registers(kind)}
{loop_ir("c", "%stop", str(kind.lanes), _taken(kind, count, "c", ""), "%first")}
{mask_ir("inside", kind, "%over")}
{_taken(kind, count, "stop", "%inside")}
  ret void
}}"""


def _taken(kind: Numbers, count: int, c: str, mask: str) -> str:
    """A register of x."""
    lines, name = [_beside(kind, f"x_{c}", "%x", c, mask)], f"x_{c}"
    for r in range(count):
        made = f"x{r}_{c}"
        lines.append(_beside(kind, f"a{r}_{c}", f"%row{r}", c, mask))
        lines.append(fma_ir(made, kind, f"%less{r}", f"%a{r}_{c}", f"%{name}"))
        name = made
    whole = f"  store {kind.vector} %{name}, ptr %x_{c}_at, align {kind.size}"
    return "\n".join((*lines, store_ir(kind, f"%{name}", f"%x_{c}_at", mask) if mask else whole))


def _whole_registers(kind: Numbers) -> str:
    """Up to where columns fill registers, whether there are any, and how many are left."""
    return f"""  %count = sub i64 %end, %first
  %whole = and i64 %count, {-kind.lanes}
  %stop = add i64 %first, %whole
  %over = sub i64 %end, %stop
  %some = icmp sgt i64 %whole, 0"""


def _row_addresses(kind: Numbers, count: int, is_clamped: bool) -> str:
    """The addresses of rows, from `row` on; the last one for those behind it."""
    lines = ["  %last = sub i64 %n, 1"]
    for r in range(count):
        lines.append(f"  %next{r} = add i64 %row, {r}")
        here = f"%next{r}"
        if is_clamped:
            lines.append(min_ir(f"here{r}", here, "%last"))
            here = f"%here{r}"
        lines += [f"  %down{r} = mul i64 {here}, %n", at_ir(f"row{r}", kind, "%a", f"%down{r}")]
    return "\n".join(lines)
