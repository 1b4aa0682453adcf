"""LU factors with partial pivoting, on one thread, as LLVM IR text; called in compiler/lu.py, and a step of a cluster
(factor_steps.py).

    void <function>(ptr source, ptr factors, ptr rows, ptr memory, i64 n)
    void <module>(...)                                            the same behind the kernel ABI

Factors are those of LAPACK's `getrf`: both in one matrix, transposed, and the row, counted from 1, that was exchanged
with each. A column of which all that is left is zero is left alone, so that a singular matrix has a zero on the
diagonal; the pivot is the first of the largest elements in magnitude, or a NaN.

Panels are as many columns as a register has lanes, from the left on. What is left of it (G. Golub and C. Van Loan,
"Matrix computations", 3.2: gaxpy LU) is found when its turn comes:

    U[i, p] = inv(L[i, i]) (A[i, p] - sum over q < i of L[i, q] U[q, p])      above the diagonal
    X[i]    = A[i, p] - sum over q < p of L[i, q] U[q, p]                     from it on, which then is factored

A panel lies in registers one behind another, elements of L are read from rows of the working matrix: a tile of rows has
a sum of products in a register each. No row is written but in its own panel, so that rows change places as they lie.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.products.lu_steps import BLOCK, FUNCTION, MODULE, ROWS
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
from jitgrad.compiler.products.transposes import turn_ir

_SAFE = "0x0010000000000000"
"""The least number with a reciprocal; those below are divided by."""


def lu_ir(kind: Numbers) -> str:
    """The module with the function and the step."""
    parts = [declarations_ir(kind), f"declare {kind.type} @llvm.fabs.{kind.suffix}({kind.type}) #0", turn_ir(kind)]
    parts += [_rows(kind, "above", kind.lanes), _rows(kind, "below", ROWS)]
    parts += [_search(kind), _eliminate(kind), _exchange(kind), _panel(kind), _copy(kind), _put(kind)]
    return module_ir(*parts, _function(kind), _step())


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _register(kind: Numbers, name: str, base: str, row: str) -> str:
    """A register of a panel."""
    return f"""  %{name}_place = mul i64 {row}, {kind.lanes}
{at_ir(f"{name}_at", kind, base, f"%{name}_place")}
  %{name} = load {kind.vector}, ptr %{name}_at, align {kind.bytes}"""


def _taken(kind: Numbers, name: str, r: int, element: str, known: str, before: str) -> str:
    """A row of a tile, less an element of its row of L times a row that is known."""
    return f"""{at_ir(f"{name}_at", kind, f"%w{r}", element)}
  %{name}_is = load {kind.type}, ptr %{name}_at
  %{name}_less = fneg {kind.type} %{name}_is
{spread_ir(f"{name}_all", kind, f"%{name}_less")}
{fma_ir(name, kind, f"%{name}_all", known, before)}"""


def _rows(kind: Numbers, name: str, count: int) -> str:
    """So many rows of a panel `p`, at `x`, from their rows of L at `w` and the first k rows of the panel; `above` those
    solved for, which are the k-th to the next panel's.
    """
    v, many = kind.vector, range(count)
    starts = [
        _lines((
            at_ir(f"w{r}", kind, *(("%w", "0") if r == 0 else (f"%w{r - 1}", "%ld"))),
            at_ir(f"x{r}_at", kind, "%x", str(r * kind.lanes)),
            f"  %x{r} = load {v}, ptr %x{r}_at, align {kind.bytes}",
        ))
        for r in many
    ]  # fmt: skip
    phis = [f"  %s{r} = phi {v} [ %x{r}, %entry ], [ %n{r}, %loop ]" for r in many]
    solved, names = [], [f"%s{r}" for r in many]
    for r in many if name == "above" else ():
        for s in range(r):
            made = f"l{r}_{s}"
            solved += [f"  %{made}_k = add i64 %k, {s}", _taken(kind, made, r, f"%{made}_k", names[s], names[r])]
            names[r] = f"%{made}"
    stores = [f"  store {v} {names[r]}, ptr %x{r}_at, align {kind.bytes}" for r in many]
    return f"""
define internal void @{name}(ptr %w, i64 %ld, ptr %p, ptr %x, i64 %k) noinline #0 {{
entry:
{_lines(starts)}
  br label %head
head:
  %q = phi i64 [ 0, %entry ], [ %q1, %loop ]
{_lines(phis)}
  %more = icmp slt i64 %q, %k
  br i1 %more, label %loop, label %end
loop:
{_register(kind, "known", "%p", "%q")}
{_lines(_taken(kind, f"n{r}", r, "%q", "%known", f"%s{r}") for r in many)}
  %q1 = add i64 %q, 1
  br label %head
end:
{_lines(solved)}
{_lines(stores)}
  ret void
}}"""


def _integers(kind: Numbers) -> str:
    return f"<{kind.lanes} x i64>"


def _found(kind: Numbers, register: str) -> str:
    """Per lane, the first of the largest elements yet in magnitude, and its row: as integers, of which those of a NaN
    are the largest.
    """
    i = _integers(kind)
    return f"""  %bits = bitcast {kind.vector} {register} to {i}
  %size = and {i} %bits, splat (i64 9223372036854775807)
  %larger = icmp sgt {i} %size, %best
  %row_one = insertelement {i} poison, i64 %r, i64 0
  %row_all = shufflevector {i} %row_one, {i} poison, <{kind.lanes} x i32> zeroinitializer
  %best_n = select {kind.mask} %larger, {i} %size, {i} %best
  %place_n = select {kind.mask} %larger, {i} %row_all, {i} %place"""


def _finding(kind: Numbers, head: str, body: str, last: str) -> str:
    """A loop over rows `first` to `end` that gives the row of the largest element of `lane`; ``last`` is the last block
    of its body.
    """
    i = _integers(kind)
    return f"""
{head}
  br label %head
head:
  %r = phi i64 [ %first, %entry ], [ %r1, %{last} ]
  %best = phi {i} [ splat (i64 -1), %entry ], [ %best_n, %{last} ]
  %place = phi {i} [ zeroinitializer, %entry ], [ %place_n, %{last} ]
  %more = icmp slt i64 %r, %end
  br i1 %more, label %loop, label %done
loop:
{body}
  %r1 = add i64 %r, 1
  br label %head
done:
  %found = extractelement {i} %place, i64 %lane
  ret i64 %found
}}"""


def _search(kind: Numbers) -> str:
    """The pivot's row of a column of a panel."""
    body = f"""{_register(kind, "x", "%p", "%r")}
{_found(kind, "%x")}"""
    head = "define internal i64 @look(ptr %p, i64 %first, i64 %end, i64 %lane) noinline #0 {\nentry:"
    return _finding(kind, head, body, "loop")


def _eliminate(kind: Numbers) -> str:
    """Takes the row of a pivot, in lane c of `u`, from rows of a panel, whose elements in that lane become those of L;
    gives the pivot's row of the next column.
    """
    v, i = kind.vector, _integers(kind)
    numbers = ", ".join(f"i64 {lane}" for lane in range(kind.lanes))
    head = f"""define internal i64 @eliminate(ptr %p, i64 %first, i64 %end, ptr %pivot_row, i64 %c) noinline #0 {{
entry:
  %u = load {v}, ptr %pivot_row, align {kind.bytes}
  %pivot = extractelement {v} %u, i64 %c
  %pivot_size = call {kind.type} @llvm.fabs.{kind.suffix}({kind.type} %pivot)
  %divides = fcmp olt {kind.type} %pivot_size, {_SAFE}
  %inverse = fdiv {kind.type} 1.0, %pivot
  %c_one = insertelement {i} poison, i64 %c, i64 0
  %c_all = shufflevector {i} %c_one, {i} poison, <{kind.lanes} x i32> zeroinitializer
  %after = icmp sgt {i} <{numbers}>, %c_all
  %own = icmp eq {i} <{numbers}>, %c_all
  %next_lane = add i64 %c, 1
  %last_lane = icmp eq i64 %next_lane, {kind.lanes}
  %lane = select i1 %last_lane, i64 0, i64 %next_lane"""
    body = f"""{_register(kind, "x", "%p", "%r")}
{at_ir("own_at", kind, "%x_at", "%c")}
  %element = load {kind.type}, ptr %own_at
  br i1 %divides, label %dividing, label %multiplying
dividing:
  %quotient = fdiv {kind.type} %element, %pivot
  br label %going
multiplying:
  %product = fmul {kind.type} %element, %inverse
  br label %going
going:
  %l = phi {kind.type} [ %quotient, %dividing ], [ %product, %multiplying ]
{spread_ir("l_all", kind, "%l")}
  %l_less = fneg {v} %l_all
{fma_ir("less", kind, "%l_less", "%u", "%x")}
  %rest = select {kind.mask} %after, {v} %less, {v} %x
  %made = select {kind.mask} %own, {v} %l_all, {v} %rest
  store {v} %made, ptr %x_at, align {kind.bytes}
{_found(kind, "%made")}"""
    return _finding(kind, head, body, "going")


def _exchange(kind: Numbers) -> str:
    """Two rows of so many registers change places."""
    body = f"""{_register(kind, "x", "%a", "%r")}
{_register(kind, "y", "%b", "%r")}
  store {kind.vector} %x, ptr %y_at, align {kind.bytes}
  store {kind.vector} %y, ptr %x_at, align {kind.bytes}"""
    return f"""
define internal void @exchange(ptr %a, ptr %b, i64 %count) #0 {{
{loop_ir("r", "%count", "1", body)}
  ret void
}}"""


def _panel(kind: Numbers) -> str:
    """Factors the columns of a panel from the k-th on, so many, and exchanges rows of it and of the working matrix."""
    column = f"""  %i = add i64 %k, %c
  %pivot_place = load i64, ptr %found
  %told = add i64 %pivot_place, 1
  %rows_at = getelementptr i64, ptr %rows, i64 %i
  store i64 %told, ptr %rows_at
{_register(kind, "u", "%p", "%i")}
  %moves = icmp ne i64 %pivot_place, %i
  br i1 %moves, label %moving, label %moved
moving:
{_register(kind, "v", "%p", "%pivot_place")}
  call void @exchange(ptr %u_at, ptr %v_at, i64 1)
  %down = mul i64 %i, %ld
{at_ir("one", kind, "%w", "%down")}
  %other_down = mul i64 %pivot_place, %ld
{at_ir("other", kind, "%w", "%other_down")}
  call void @exchange(ptr %one, ptr %other, i64 %registers)
  br label %moved
moved:
{at_ir("pivot_at", kind, "%u_at", "%c")}
  %pivot = load {kind.type}, ptr %pivot_at
  %below = add i64 %i, 1
  %none = fcmp oeq {kind.type} %pivot, 0.0
  br i1 %none, label %leave, label %take
leave:
  %next_lane = add i64 %c, 1
  %any = icmp slt i64 %next_lane, %width
  br i1 %any, label %look, label %over
look:
  %looked = call i64 @look(ptr %p, i64 %below, i64 %n, i64 %next_lane)
  br label %over
take:
  %eliminated = call i64 @eliminate(ptr %p, i64 %below, i64 %n, ptr %u_at, i64 %c)
  br label %over
over:
  %next = phi i64 [ 0, %leave ], [ %looked, %look ], [ %eliminated, %take ]
  store i64 %next, ptr %found"""
    return f"""
define internal void @panel(ptr %w, i64 %ld, ptr %p, ptr %rows, i64 %n, i64 %k, i64 %width) noinline #0 {{
  %found = alloca i64
  %registers = udiv i64 %ld, {kind.lanes}
  %start = call i64 @look(ptr %p, i64 %k, i64 %n, i64 0)
  store i64 %start, ptr %found
{loop_ir("c", "%width", "1", column)}
  ret void
}}"""


def _copy(kind: Numbers) -> str:
    """The working matrix, with zeros behind the last column and the last row."""
    register = f"""  %room = sub i64 %n, %c
{mask_ir("inside", kind, "%room")}
{at_ir("from", kind, "%row_from", "%c")}
{at_ir("to", kind, "%row_to", "%c")}
{load_ir("x", kind, "%from", "%inside")}
  store {kind.vector} %x, ptr %to, align {kind.bytes}"""
    zeros = f"""{at_ir("zero_at", kind, "%w", "%z")}
  store {kind.vector} zeroinitializer, ptr %zero_at, align {kind.bytes}"""
    row = f"""  %down = mul i64 %r, %n
  %down_to = mul i64 %r, %ld
{at_ir("row_from", kind, "%a", "%down")}
{at_ir("row_to", kind, "%w", "%down_to")}
{loop_ir("c", "%ld", str(kind.lanes), register)}"""
    return f"""
define internal void @copy(ptr %a, ptr %w, i64 %ld, i64 %n, i64 %filled) noinline #0 {{
{loop_ir("r", "%n", "1", row)}
  %end = mul i64 %n, %ld
  %all = mul i64 %filled, %ld
{loop_ir("z", "%all", str(kind.lanes), zeros, "%end")}
  ret void
}}"""


def _put(kind: Numbers) -> str:
    """The working matrix, transposed, to rows of n."""
    n = kind.lanes
    line = f"""{_register(kind, "x", "%square", "%s")}
  %s_row = add i64 %c, %s
  %s_down = mul i64 %s_row, %n
  %s_place = add i64 %s_down, %r
{at_ir("to", kind, "%factors", "%s_place")}
{store_ir(kind, "%x", "%to", "%inside")}"""
    block = f"""  %across = add i64 %r_down, %c
{at_ir("from", kind, "%w", "%across")}
  call void @turn_{kind.type}(ptr %from, i64 %ld, i64 {n}, i64 0, i64 {n}, i64 0, ptr %square, i64 {n})
  %under = sub i64 %n, %c
{min_ir("height", "%under", str(n))}
{loop_ir("s", "%height", "1", line)}"""
    row = f"""  %r_down = mul i64 %r, %ld
  %beside = sub i64 %n, %r
{mask_ir("inside", kind, "%beside")}
{loop_ir("c", "%n", str(n), block)}"""
    return f"""
define internal void @put(ptr %w, i64 %ld, i64 %n, ptr %factors) noinline #0 {{
  %square = alloca [{n * n} x {kind.type}], align {kind.bytes}
{loop_ir("r", "%n", str(n), row)}
  ret void
}}"""


def _function(kind: Numbers) -> str:
    """Panel by panel."""
    fetch = f"""  %f_down = mul i64 %f, %ld
  %f_place = add i64 %f_down, %k
{at_ir("f_from", kind, "%w", "%f_place")}
  %f_register = load {kind.vector}, ptr %f_from, align {kind.bytes}
  %f_to_place = mul i64 %f, {kind.lanes}
{at_ir("f_to", kind, "%p", "%f_to_place")}
  store {kind.vector} %f_register, ptr %f_to, align {kind.bytes}"""
    leave = f"""  %g_down = mul i64 %g, %ld
  %g_place = add i64 %g_down, %k
{at_ir("g_to", kind, "%w", "%g_place")}
{_register(kind, "g_register", "%p", "%g")}
  store {kind.vector} %g_register, ptr %g_to, align {kind.bytes}"""
    rows = {
        name: f"""  %{i}_down = mul i64 %{i}, %ld
{at_ir(f"{i}_w", kind, "%w", f"%{i}_down")}
  %{i}_line = mul i64 %{i}, {kind.lanes}
{at_ir(f"{i}_x", kind, "%p", f"%{i}_line")}
  call void @{name}(ptr %{i}_w, i64 %ld, ptr %p, ptr %{i}_x, i64 %{depth})"""
        for name, i, depth in (("above", "i", "i"), ("below", "j", "k"))
    }
    panel = f"""{loop_ir("f", "%filled", "1", fetch)}
{loop_ir("i", "%k", str(kind.lanes), rows["above"])}
{loop_ir("j", "%n", str(ROWS), rows["below"], "%k")}
  %left = sub i64 %n, %k
{min_ir("width", "%left", str(kind.lanes))}
  call void @panel(ptr %w, i64 %ld, ptr %p, ptr %rows, i64 %n, i64 %k, i64 %width)
{loop_ir("g", "%n", "1", leave)}"""
    return f"""
define void @{FUNCTION}(ptr %source, ptr %factors, ptr %rows, ptr %memory, i64 %n) #0 {{
  %more_rows = add i64 %n, {ROWS - 1}
  %tiles = udiv i64 %more_rows, {ROWS}
  %odd = or i64 %tiles, 1
  %ld = mul i64 %odd, {ROWS}
  %whole = mul i64 %tiles, {ROWS}
  %filled = add i64 %whole, {ROWS}
  %first = ptrtoint ptr %memory to i64
  %raised = add i64 %first, 63
  %aligned = and i64 %raised, -64
  %w = inttoptr i64 %aligned to ptr
  %size = mul i64 %filled, %ld
{at_ir("p", kind, "%w", "%size")}
  call void @copy(ptr %source, ptr %w, i64 %ld, i64 %n, i64 %filled)
{loop_ir("k", "%n", str(kind.lanes), panel)}
  call void @put(ptr %w, i64 %ld, i64 %n, ptr %factors)
  ret void
}}"""


def _step() -> str:
    return f"""
define void @{MODULE}({KERNEL}) #0 {{
{block_ir(BLOCK)}
{arrays_ir("source", "factors", "rows", "memory")}
  call void @{FUNCTION}(ptr %source, ptr %factors, ptr %rows, ptr %memory, i64 %n)
  ret void
}}"""
