"""Solutions of triangular systems with many right sides, as LLVM IR text; it is called in compiler/columns.py, and
are steps of a cluster (factor_steps.py).

    step <columns>      x = inv(T2) inv(T1) P b, for blocks of columns; words as in columns_steps.py
    step <prepare>      the words of that, for LU factors; <prepare_one>: for one triangle
    step <solve>        what they tell

A block is as many columns as fill the registers of a row of a tile. Its rows are copied to memory of the thread, where
they are solved for in first and second cache, whatever the distance of rows of the right sides is; LAPACK's copies them
twice, and solves for few rows at a time. Four rows share what they read of the rows before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jitgrad.compiler.products.columns_steps import (
    BLOCK,
    FACTORS_BLOCK,
    ONE_BLOCK,
    PREPARE,
    PREPARE_ONE,
    SOLVE,
    STEP,
    TRIANGLE,
    WIDTH,
    WORDS,
)
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
    module_ir,
    spread_ir,
    store_ir,
    word_ir,
)
from jitgrad.compiler.products.triangle_code import tell_ir

_ROWS = 4
"""The rows that are solved for together: with the columns of a block they take half of the registers."""


def columns_ir(kind: Numbers) -> str:
    """The module with the step, and the number of columns in a block."""
    rows = [_rows(kind, count) for count in (_ROWS, 1)]
    steps = _step(kind), _prepare(kind), _prepare_one(kind), _solve_prepared()
    return module_ir(declarations_ir(kind), *rows, _triangle(), *steps, _width(kind.columns))


def no_columns_ir() -> str:
    """The same for a machine without such registers: functions that do nothing."""
    steps = (f"define void @{name}({KERNEL}) #0 {{\n  ret void\n}}" for name in (STEP, PREPARE, PREPARE_ONE, SOLVE))
    return module_ir(*steps, _width(0))


def _width(columns: int) -> str:
    return f"define i64 @{WIDTH}() #0 {{\n  ret i64 {columns}\n}}"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _rows(kind: Numbers, count: int) -> str:
    """So many rows from the i-th on: less what those before them give, then one after the other."""
    v, many, wide = kind.vector, range(count), range(kind.wide)
    sums = [(r, w) for r in many for w in wide]
    starts = [_start(kind, r) for r in many]
    given = [_load(kind, f"given_{r}_{w}", f"%own_{r}", w) for r, w in sums]
    ats = [f"  %at_{r} = phi ptr [ %t_{r}, %entry ], [ %next_{r}, %loop ]" for r in many]
    phis = [f"  %sum_{r}_{w} = phi {v} [ %given_{r}_{w}, %entry ], [ %more_{r}_{w}, %loop ]" for r, w in sums]
    known = [_load(kind, f"known_{w}", "%x_at", w) for w in wide]
    taken = [_take(kind, r, f"%at_{r}", [f"known_{w}" for w in wide], "sum", "more") for r in many]
    return f"""
define internal void @rows_{count}(ptr %t, i64 %down, i64 %across, ptr %inverses, ptr %x, i64 %step, i64 %i) #0 {{
entry:
{_lines(starts)}
{_lines(given)}
  br label %head
head:
  %p = phi i64 [ 0, %entry ], [ %p1, %loop ]
  %x_at = phi ptr [ %x, %entry ], [ %x_next, %loop ]
{_lines(ats)}
{_lines(phis)}
  %again = icmp slt i64 %p, %i
  br i1 %again, label %loop, label %end
loop:
{_lines(known)}
{_lines(taken)}
{_lines(at_ir(f"next_{r}", kind, f"%at_{r}", "%across") for r in many)}
{at_ir("x_next", kind, "%x_at", "%step")}
  %p1 = add i64 %p, 1
  br label %head
end:
{_lines(_solve(kind, r, count) for r in many)}
  ret void
}}"""


def _start(kind: Numbers, r: int) -> str:
    """Where the r-th of the rows begins, in the triangle and in what is solved for."""
    return f"""  %i_{r} = add i64 %i, {r}
  %below_{r} = mul i64 %i_{r}, %down
{at_ir(f"t_{r}", kind, "%t", f"%below_{r}")}
  %place_{r} = mul i64 %i_{r}, %step
{at_ir(f"own_{r}", kind, "%x", f"%place_{r}")}"""


def _load(kind: Numbers, name: str, row: str, w: int) -> str:
    """A register of a row of the work, whose rows begin at lines."""
    return f"""{at_ir(f"{name}_at", kind, row, str(w * kind.lanes))}
  %{name} = load {kind.vector}, ptr %{name}_at, align {kind.bytes}"""


def _take(kind: Numbers, r: int, place: str, known: list[str], before: str, after: str) -> str:
    """The sums of a row, less an element of the triangle times a row that is known."""
    element = f"{after}_{r}"
    lines = [f"  %{element}_is = load {kind.type}, ptr {place}", f"  %{element}_less = fneg {kind.type} %{element}_is"]
    lines.append(spread_ir(f"{element}_all", kind, f"%{element}_less"))
    for w, x in enumerate(known):
        lines.append(fma_ir(f"{after}_{r}_{w}", kind, f"%{element}_all", f"%{x}", f"%{before}_{r}_{w}"))
    return _lines(lines)


def _solve(kind: Numbers, r: int, count: int) -> str:
    """The r-th row, stored; it is taken from the rows behind it."""
    wide = range(kind.wide)
    left = f"left{r}" if r else "sum"
    lines = [at_ir(f"inverse_{r}_at", kind, "%inverses", f"%i_{r}")]
    lines.append(f"  %inverse_{r} = load {kind.type}, ptr %inverse_{r}_at")
    lines.append(spread_ir(f"inverse_{r}_all", kind, f"%inverse_{r}"))
    for w in wide:
        lines.append(f"  %solved_{r}_{w} = fmul {kind.vector} %{left}_{r}_{w}, %inverse_{r}_all")
        lines.append(at_ir(f"solved_{r}_{w}_at", kind, f"%own_{r}", str(w * kind.lanes)))
        lines.append(f"  store {kind.vector} %solved_{r}_{w}, ptr %solved_{r}_{w}_at, align {kind.bytes}")
    if r + 1 < count:
        lines.append(f"  %across_{r} = mul i64 %across, {r}")
    for s in range(r + 1, count):
        lines.append(at_ir(f"beside_{r}_{s}", kind, f"%at_{s}", f"%across_{r}"))
        solved = [f"solved_{r}_{w}" for w in wide]
        lines.append(_take(kind, s, f"%beside_{r}_{s}", solved, left, f"left{r + 1}"))
    return _lines(lines)


def _triangle() -> str:
    """All rows of a block of columns."""
    arguments = "ptr %t, i64 %down, i64 %across, ptr %inverses, ptr %x, i64 %step"
    rows = {count: f"  call void @rows_{count}({arguments}, i64 %{name})" for count, name in ((_ROWS, "i"), (1, "l"))}
    return f"""
define internal void @triangle({arguments}, i64 %n) #0 {{
  %whole = and i64 %n, {-_ROWS}
{loop_ir("i", "%whole", str(_ROWS), rows[_ROWS])}
{loop_ir("l", "%n", "1", rows[1], "%whole")}
  ret void
}}"""


def _step(kind: Numbers) -> str:
    """Blocks of columns: rows are copied, solved for, and copied to their places."""
    own = f"""  %from_column = mul i64 %c, {kind.columns}
  %left_over = sub i64 %columns, %from_column
{_lines(_mask(kind, w) for w in range(kind.wide))}
{loop_ir("i", "%n", "1", _copy_in(kind))}
{loop_ir("t", "%count", "1", _solve_one(kind))}
{loop_ir("o", "%n", "1", _copy_out(kind))}"""
    return f"""
define void @{STEP}({KERNEL}) #0 {{
{block_ir(BLOCK)}
  %from = inttoptr i64 %source to ptr
  %to = inttoptr i64 %result to ptr
  %memory = inttoptr i64 %work to ptr
  %in = inttoptr i64 %rows_in to ptr
  %out = inttoptr i64 %rows_out to ptr
  %words = inttoptr i64 %triangles to ptr
  %share = mul i64 %n, {kind.columns}
  %before = mul i64 %share, %worker
{at_ir("mine", kind, "%memory", "%before")}
{loop_ir("c", "%hi", "1", own, "%lo")}
  ret void
}}"""


def _solve_prepared() -> str:
    return f"""
define void @{SOLVE}({KERNEL}) #0 {{
{block_ir(FACTORS_BLOCK)}
{arrays_ir("memory")}
  call void @{STEP}(ptr %table, ptr %memory, i64 %lo, i64 %hi, i64 %chunk, i64 %worker)
  ret void
}}"""


def _prepare(kind: Numbers) -> str:
    """Rows in their order, one over each element of the diagonal in the order of solving, ones, and words."""
    each = f"""{_words_at("i", {"order": "%i", "same": "%i"})}
{_inverse(kind, "%factors", "%turned")}
{at_ir("one_at", kind, "%ones", "%i")}
  store {kind.type} 1.0, ptr %one_at"""
    exchange = """  %row_at = getelementptr i64, ptr %rows, i64 %e
  %row = load i64, ptr %row_at
  %other = sub i64 %row, 1
  %here_at = getelementptr i64, ptr %order, i64 %e
  %there_at = getelementptr i64, ptr %order, i64 %other
  %here = load i64, ptr %here_at
  %there = load i64, ptr %there_at
  store i64 %there, ptr %here_at
  store i64 %here, ptr %there_at"""
    zeros = f"""{at_ir("zero_at", kind, "%x", "%z")}
  store {kind.type} 0.0, ptr %zero_at"""
    unit = f"""  %unit_place = mul i64 %u, %next_row
{at_ir("unit_at", kind, "%x", "%unit_place")}
  store {kind.type} 1.0, ptr %unit_at"""
    return f"""
define void @{PREPARE}({KERNEL}) #0 {{
{block_ir(FACTORS_BLOCK)}
{arrays_ir("factors", "rows", "b", "x", "memory", "scratch", "status")}
  %bad = alloca i64
  store i64 0, ptr %bad
  %inverting = icmp ne i64 %is_inverse, 0
{_sizes()}
  %order = getelementptr i64, ptr %inverses, i64 %n
  %ones = getelementptr i64, ptr %order, i64 %n
{loop_ir("i", "%n", "1", each)}
{loop_ir("e", "%n", "1", exchange)}
  br i1 %inverting, label %identity, label %telling
identity:
{loop_ir("z", "%all", "1", zeros)}
{loop_ir("u", "%n", "1", unit)}
  br label %telling
telling:
{_words(kind)}
  %found = load i64, ptr %bad
{tell_ir("%found")}
  ret void
}}"""


def _sizes() -> str:
    """What follows from the size of a triangle, and where rows as they are and one over its diagonal lie."""
    return f"""  %turned = icmp ne i64 %is_transposed, 0
  %next_row = add i64 %n, 1
  %last = sub i64 %n, 1
  %all = mul i64 %n, %n
  %less_n = sub i64 0, %n
  %same = getelementptr i64, ptr %memory, i64 {WORDS}
  %inverses = getelementptr i64, ptr %same, i64 %n"""


def _inverse(kind: Numbers, matrix: str, is_rising: str) -> str:
    """One over the i-th element of the diagonal, in the order of solving."""
    return f"""  %diagonal_place = mul i64 %i, %next_row
{at_ir("diagonal_at", kind, matrix, "%diagonal_place")}
  %diagonal = load {kind.type}, ptr %diagonal_at
  %is_zero = fcmp oeq {kind.type} %diagonal, 0.0
  %zero = zext i1 %is_zero to i64
  %bad_before = load i64, ptr %bad
  %bad_now = or i64 %bad_before, %zero
  store i64 %bad_now, ptr %bad
  %inverse = fdiv {kind.type} 1.0, %diagonal
  %falling = sub i64 %last, %i
  %solved_place = select i1 {is_rising}, i64 %i, i64 %falling
{at_ir("inverse_at", kind, "%inverses", "%solved_place")}
  store {kind.type} %inverse, ptr %inverse_at"""


def _prepare_one(kind: Numbers) -> str:
    """The same of one triangle."""
    each = f"""{_words_at("i", {"same": "%i"})}
{_inverse(kind, "%factors", "%rising")}"""
    words = {
        "source": "%b_word", "result": "%x_word", "work": "%scratch_word", "n": "%n", "columns": "%columns",
        "rows_in": "%same_word", "rows_out": "%same_word", "triangles": "%triangles", "count": "1",
    }  # fmt: skip
    own = {
        "a": "%a_word", "down": "%down", "across": "%across", "inverses": "%inverses_word", "start": "%start",
        "step": "%step",
    }  # fmt: skip
    return f"""
define void @{PREPARE_ONE}({KERNEL}) #0 {{
{block_ir(ONE_BLOCK)}
{arrays_ir("factors", "b", "x", "memory", "scratch", "status")}
  %bad = alloca i64
  store i64 0, ptr %bad
  %lower = icmp ne i64 %is_lower, 0
{_sizes()}
  %rising = xor i1 %lower, %turned
{loop_ir("i", "%n", "1", each)}
{_addresses(kind, "factors", "b", "x", "memory", "scratch", "same", "inverses")}
  %a_word = select i1 %rising, i64 %factors_word, i64 %end_word
  %start = select i1 %rising, i64 0, i64 %last
  %step = select i1 %rising, i64 1, i64 -1
  %down_size = select i1 %turned, i64 1, i64 %n
  %across_size = select i1 %turned, i64 %n, i64 1
  %down = mul i64 %down_size, %step
  %across = mul i64 %across_size, %step
{_stored([words[name] for name in BLOCK] + [own[name] for name in TRIANGLE])}
  %found = load i64, ptr %bad
{tell_ir("%found")}
  ret void
}}"""


def _addresses(kind: Numbers, *names: str) -> str:
    """Addresses as words, that of the last element of the matrix, and of the words of triangles."""
    lines = [f"  %{name}_word = ptrtoint ptr %{name} to i64" for name in names]
    return _lines((
        *lines,
        f"  %triangles = add i64 %memory_word, {8 * len(BLOCK)}",
        "  %end = sub i64 %all, 1",
        f"  %end_bytes = mul i64 %end, {kind.size}",
        "  %end_word = add i64 %factors_word, %end_bytes",
    ))  # fmt: skip


def _stored(words: Iterable[str]) -> str:
    """Words at the beginning of the memory."""
    return _lines(
        f"""  %word{k}_at = getelementptr i64, ptr %memory, i64 {k}
  store i64 {word}, ptr %word{k}_at"""
        for k, word in enumerate(words)
    )


def _words_at(place: str, words: Mapping[str, str]) -> str:
    """Integers at a place of lists."""
    return _lines(
        f"""  %{name}_{place} = getelementptr i64, ptr %{name}, i64 %{place}
  store i64 {word}, ptr %{name}_{place}"""
        for name, word in words.items()
    )


def _words(kind: Numbers) -> str:
    """The words of the step, for factors that lie transposed: with ones on the diagonal is the upper triangle. It is
    solved with first, or, where the matrix is transposed, last.
    """
    pairs = {  # of words where the matrix is not transposed, and where it is
        "source": ("%source", "%source"), "result": ("%x_word", "%x_word"), "work": ("%scratch_word", "%scratch_word"),
        "n": ("%n", "%n"), "columns": ("%columns", "%columns"), "rows_in": ("%order_word", "%same_word"),
        "rows_out": ("%same_word", "%order_word"), "triangles": ("%triangles", "%triangles"), "count": ("2", "2"),
    }  # fmt: skip
    rising = {"start": "0", "step": "1"}
    falling = {"start": "%last", "step": "-1"}
    own = (
        ({"a": "%factors_word", "down": "1", "across": "%n", "inverses": "%ones_word", **rising},
         {"a": "%factors_word", "down": "%n", "across": "1", "inverses": "%inverses_word", **rising}),
        ({"a": "%end_word", "down": "-1", "across": "%less_n", "inverses": "%inverses_word", **falling},
         {"a": "%end_word", "down": "%less_n", "across": "-1", "inverses": "%ones_word", **falling}),
    )  # fmt: skip
    words = [pairs[name] for name in BLOCK]
    words += [(plain[name], turned[name]) for plain, turned in own for name in TRIANGLE]
    lines = [
        _addresses(kind, "factors", "b", "x", "memory", "scratch", "order", "same", "inverses", "ones"),
        "  %source = select i1 %inverting, i64 %x_word, i64 %b_word",
    ]
    for k, (plain, turned) in enumerate(words):
        lines.append(f"  %word{k} = select i1 %turned, i64 {turned}, i64 {plain}")
    return _lines((*lines, _stored(f"%word{k}" for k in range(len(words)))))


def _mask(kind: Numbers, w: int) -> str:
    return f"""  %left_{w} = sub i64 %left_over, {w * kind.lanes}
{mask_ir(f"here_{w}", kind, f"%left_{w}")}"""


def _copy_in(kind: Numbers) -> str:
    lines = [_row("in_row", "%in", "%i"), _place(kind, "b", "%from", "%in_row"), _work_row(kind, "w", "%i")]
    for w in range(kind.wide):
        offset = str(w * kind.lanes)
        lines += [at_ir(f"b_{w}_at", kind, "%b", offset), load_ir(f"b_{w}", kind, f"%b_{w}_at", f"%here_{w}")]
        lines += [at_ir(f"w_{w}_at", kind, "%w", offset)]
        lines += [f"  store {kind.vector} %b_{w}, ptr %w_{w}_at, align {kind.bytes}"]
    return _lines(lines)


def _copy_out(kind: Numbers) -> str:
    lines = [_row("out_row", "%out", "%o"), _place(kind, "r", "%to", "%out_row"), _work_row(kind, "s", "%o")]
    for w in range(kind.wide):
        lines += [_load(kind, f"s_{w}", "%s", w), at_ir(f"r_{w}_at", kind, "%r", str(w * kind.lanes))]
        lines += [store_ir(kind, f"%s_{w}", f"%r_{w}_at", f"%here_{w}")]
    return _lines(lines)


def _row(name: str, rows: str, i: str) -> str:
    """The number of a row in a list."""
    return f"""  %{name}_at = getelementptr i64, ptr {rows}, i64 {i}
  %{name} = load i64, ptr %{name}_at"""


def _place(kind: Numbers, name: str, base: str, row: str) -> str:
    """The block of a row of the right sides."""
    return f"""  %{name}_down = mul i64 {row}, %columns
  %{name}_place = add i64 %{name}_down, %from_column
{at_ir(name, kind, base, f"%{name}_place")}"""


def _work_row(kind: Numbers, name: str, i: str) -> str:
    return f"""  %{name}_down = mul i64 {i}, {kind.columns}
{at_ir(name, kind, "%mine", f"%{name}_down")}"""


def _solve_one(kind: Numbers) -> str:
    """The t-th triangle."""
    words = _lines(word_ir(name, TRIANGLE).replace("%block", "%own_words") for name in TRIANGLE)
    return f"""  %own_first = mul i64 %t, {len(TRIANGLE)}
  %own_words = getelementptr i64, ptr %words, i64 %own_first
{words}
  %a_first = inttoptr i64 %a to ptr
  %inverse_first = inttoptr i64 %inverses to ptr
{_work_row(kind, "x_first", "%start")}
  %x_step = mul i64 %step, {kind.columns}
  call void @triangle(ptr %a_first, i64 %down, i64 %across, ptr %inverse_first, ptr %x_first, i64 %x_step, i64 %n)"""
