"""Solutions of triangular systems with one right side, as LLVM IR text; they are called in compiler/triangles.py.

    void <rows>(ptr a, i64 n, ptr x, i64 is_lower)       x = inv(a) x
    void <columns>(ptr a, i64 n, ptr x, i64 is_lower)    x = inv(aᵀ) x

Both read a triangle of ``a`` by its rows: a row is multiplied by what is known of x, or times an element of x, taken
from what is not. ``x`` has room for whole registers.
"""

from __future__ import annotations

from jitgrad.compiler.products.cholesky_steps import LANES, TRIANGLES
from jitgrad.compiler.products.registers import (
    Numbers,
    at_ir,
    declarations_ir,
    fma_ir,
    load_ir,
    loop_ir,
    mask_ir,
    module_ir,
    spread_ir,
)

_HEAD = "(ptr %a, i64 %n, ptr %x, i64 %is_lower) #0"


def triangles_ir(kind: Numbers) -> str:
    """The module with both, and the number of lanes."""
    return module_ir(declarations_ir(kind), _rows(kind), _columns(kind), _lanes(kind.lanes))


def no_triangles_ir() -> str:
    """The same for a machine without such registers: functions that do nothing."""
    return module_ir(*(f"define void @{name}{_HEAD} {{\n  ret void\n}}" for name in TRIANGLES), _lanes(0))


def _lanes(count: int) -> str:
    return f"define i64 @{LANES}() #0 {{\n  ret i64 {count}\n}}"


def _rows(kind: Numbers) -> str:
    """Each element of x from those known before, a sum of products along its row."""
    v = kind.vector
    add = f"""{_piece(kind)}
{load_ir("known", kind, "%x_at", "%here")}
  %sum = load {v}, ptr %sums
{fma_ir("more", kind, "%piece", "%known", "%sum")}
  store {v} %more, ptr %sums"""
    body = f"""{_row(kind, "%forward")}
  store {v} zeroinitializer, ptr %sums
{loop_ir("c", "%end", str(kind.lanes), add, "%start")}
  %all = load {v}, ptr %sums
  %total = call reassoc {kind.type} @llvm.vector.reduce.fadd.v{kind.lanes}{kind.suffix}({kind.type} 0.0, {v} %all)
  %given = load {kind.type}, ptr %own
  %left = fsub {kind.type} %given, %total
  %solved = fdiv {kind.type} %left, %pivot
  store {kind.type} %solved, ptr %own"""
    return f"""
declare {kind.type} @llvm.vector.reduce.fadd.v{kind.lanes}{kind.suffix}({kind.type}, {v}) #0

define void @{TRIANGLES[0]}{_HEAD} {{
  %sums = alloca {v}, align {kind.bytes}
  %forward = icmp ne i64 %is_lower, 0
  %last = sub i64 %n, 1
{loop_ir("s", "%n", "1", body)}
  ret void
}}"""


def _columns(kind: Numbers) -> str:
    """Each element of x that is known is taken, times its row, from those that are not."""
    v = kind.vector
    take = f"""{_piece(kind)}
  %before = load {v}, ptr %x_at, align {kind.size}
{fma_ir("after", kind, "%piece", "%less", "%before")}
  %now = select {kind.mask} %here, {v} %after, {v} %before
  store {v} %now, ptr %x_at, align {kind.size}"""
    body = f"""{_row(kind, "%backward")}
  %given = load {kind.type}, ptr %own
  %solved = fdiv {kind.type} %given, %pivot
  store {kind.type} %solved, ptr %own
  %opposite = fneg {kind.type} %solved
{spread_ir("less", kind, "%opposite")}
{loop_ir("c", "%end", str(kind.lanes), take, "%start")}"""
    return f"""
define void @{TRIANGLES[1]}{_HEAD} {{
  %forward = icmp ne i64 %is_lower, 0
  %backward = xor i1 %forward, true
  %last = sub i64 %n, 1
{loop_ir("s", "%n", "1", body)}
  ret void
}}"""


def _row(kind: Numbers, is_rising: str) -> str:
    """The row of the s-th step: its pivot, the element of x, and the columns of the triangle beside the pivot, from a
    whole register on.
    """
    return f"""  %falling = sub i64 %last, %s
  %i = select i1 {is_rising}, i64 %s, i64 %falling
  %down = mul i64 %i, %n
{at_ir("row", kind, "%a", "%down")}
{at_ir("pivot_at", kind, "%row", "%i")}
  %pivot = load {kind.type}, ptr %pivot_at
{at_ir("own", kind, "%x", "%i")}
  %behind = add i64 %i, 1
  %first = select i1 %forward, i64 0, i64 %behind
  %end = select i1 %forward, i64 %i, i64 %n
  %start = and i64 %first, {-kind.lanes}"""


def _piece(kind: Numbers) -> str:
    """A register of the row, zeros where it is not in the triangle, and where x lies."""
    return f"""  %to_end = sub i64 %end, %c
  %to_first = sub i64 %first, %c
{mask_ir("inside", kind, "%to_end")}
{mask_ir("outside", kind, "%to_first")}
  %not_outside = xor {kind.mask} %outside, splat (i1 true)
  %here = and {kind.mask} %inside, %not_outside
{at_ir("a_at", kind, "%row", "%c")}
{at_ir("x_at", kind, "%x", "%c")}
{load_ir("piece", kind, "%a_at", "%here")}"""
