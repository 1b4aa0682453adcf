"""Our own factorization of a positive definite matrix, and its gradient, as LLVM IR text: its three steps, and the
order of tasks. What a task does is elsewhere (cholesky_tasks.py), as are memory and the call (compiler/cholesky.py).

A = Uᵀ U is made row of blocks by row of blocks, from the first on, twice the cotangent of A, S, by Ū, that of U, from
the last:

    U[j, c] = inv(U[j, j]ᵀ) (A[j, c] - sum over k < j of U[k, j]ᵀ U[k, c])
    S[j, c] = inv(U[j, j]) (Ū[j, c] - sum over k > j of U[j, k] S[k, c])        c > j

which takes n³/3 and 2 n³/3 operations. The second line says that U S is Ū above the diagonal: for a symmetric S/2,
<S/2, dA> = <U S, dU>. On the diagonal it is what I. Murray, "Differentiation of the Cholesky decomposition", 2016, says
of the whole matrix. The working matrix has whole blocks, with ones on the diagonal behind the last element, rows an odd
number of lines apart, and both triangles: what is above the diagonal, transposed, is below it.

Tiles are tasks (A. Buttari, J. Langou, J. Kurzak and J. Dongarra, "A class of parallel tiled linear algebra algorithms
for multicore architectures", 2009) in one order, which threads take one after another. A thread waits for the tasks
that its own one needs: they come before it in the order, so those who have taken them are at work, and no number of
threads can stop. What a task does depends on the sizes alone, so the bits are the same for any number of threads.
"""

from __future__ import annotations

from jitgrad.compiler.products.cholesky_steps import PREFIXES, STEPS, WIDE
from jitgrad.compiler.products.cholesky_tasks import (
    block_at_ir,
    block_words_ir,
    diagonal_at_ir,
    factor_task_ir,
    gradient_task_ir,
    helpers_ir,
    waiting_ir,
)
from jitgrad.compiler.products.cholesky_tiles import cholesky_tiles_ir
from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    at_ir,
    declarations_ir,
    load_ir,
    loop_ir,
    mask_ir,
    module_ir,
    store_ir,
)


def cholesky_ir(kind: Numbers) -> str:
    """The module with the steps of both."""
    parts = [declarations_ir(kind), cholesky_tiles_ir(kind), waiting_ir(), helpers_ir(kind)]
    for prefix, is_gradient in zip(PREFIXES, (False, True), strict=True):
        parts += [
            _fill(kind, prefix, is_gradient),
            _tasks(prefix, is_gradient),
            gradient_task_ir(kind) if is_gradient else factor_task_ir(kind),
            _finish(kind, prefix, is_gradient),
        ]
    return module_ir(*parts)


def _fill(kind: Numbers, prefix: str, is_gradient: bool) -> str:
    """Rows of blocks of the working matrix from the source's lower triangle, flags that nobody has set; and, where the
    factor is given, its blocks on the diagonal.
    """
    fetch = f"""
{block_at_ir(kind, "from", "%source", "%c", "%j", "%n")}
{block_at_ir(kind, "to", "%work", "%j", "%c")}
  %height = sub i64 %n, %from_row
  %end = sub i64 %n, %from_column
  call void @turn_{kind.type}(ptr %from, i64 %n, i64 %height, i64 0, i64 %end, i64 0, ptr %to, i64 %ld)"""
    body = f"""
{loop_ir("c", "%blocks", "1", fetch, "%j")}
{block_at_ir(kind, "own", "%work", "%j", "%j")}
  %left = sub i64 %n, %own_row
{_diagonal(kind) if is_gradient else _ones(kind)}
  %stride = add i64 %panels, 1
  %first_flag = mul i64 %j, %stride
  %last_flag = add i64 %first_flag, %stride
{loop_ir("f", "%last_flag", "1", _clear_flag(), "%first_flag")}"""
    return f"""
define void @{prefix}_{STEPS[0]}({KERNEL}) #0 {{
{block_words_ir()}
{loop_ir("j", "%hi", "1", body, "%lo")}
  ret void
}}"""


def _clear_flag() -> str:
    return """  %flag_at = getelementptr i32, ptr %flags, i64 %f
  store i32 0, ptr %flag_at"""


def _ones(kind: Numbers) -> str:
    """On the diagonal behind the last element."""
    one = f"""  %down = mul i64 %r, %ld
  %place = add i64 %down, %r
{at_ir("one", kind, "%own", "%place")}
  store {kind.type} 1.0, ptr %one"""
    return loop_ir("r", str(kind.lanes), "1", one, "%left")


def _diagonal(kind: Numbers) -> str:
    """A block of U from one of the lower factor, ones behind its last element, and one over its diagonal."""
    n = kind.lanes
    each = f"""{mask_ir("lower", kind, "%r")}
  %u_place = mul i64 %r, {n}
{at_ir("u_row", kind, "%d", "%u_place")}
  %all = load {kind.vector}, ptr %u_row, align {kind.size}
  %upper = select {kind.mask} %lower, {kind.vector} zeroinitializer, {kind.vector} %all
  store {kind.vector} %upper, ptr %u_row, align {kind.size}
  %beyond = icmp sge i64 %r, %left
  %diagonal_place = mul i64 %r, {n + 1}
{at_ir("element_at", kind, "%d", "%diagonal_place")}
  %element = load {kind.type}, ptr %element_at
  %inside = select i1 %beyond, {kind.type} 1.0, {kind.type} %element
  store {kind.type} %inside, ptr %element_at
  %inverse = fdiv {kind.type} 1.0, %inside
  %inverse_place = add i64 %r, {n * n}
{at_ir("inverse_at", kind, "%d", "%inverse_place")}
  store {kind.type} %inverse, ptr %inverse_at"""
    return f"""{diagonal_at_ir(kind, "%j")}
{block_at_ir(kind, "given", "%factor", "%j", "%j", "%n")}
  call void @turn_{kind.type}(ptr %given, i64 %n, i64 %left, i64 0, i64 %left, i64 0, ptr %d, i64 {n})
{loop_ir("r", str(n), "1", each)}"""


_FACTOR_ROW = f"""\
  %first = udiv i64 %j, {WIDE}
  %count = sub i64 %panels, %first"""
_FACTOR_CALL = """\
  %panel = add i64 %first, %number
  call void @factor_task(ptr %block, i64 %j, i64 %panel)"""
_GRADIENT_ROW = f"""\
  %row = sub i64 %last_block, %j
  %from = add i64 %row, 1
  %first = udiv i64 %from, {WIDE}
  %tiles = sub i64 %panels, %first
  %count = add i64 %tiles, 1"""
_GRADIENT_CALL = """\
  %back = sub i64 %panels, %number
  %is_last = icmp eq i64 %number, %tiles
  %before = sub i64 %back, 1
  %panel = select i1 %is_last, i64 %panels, i64 %before
  call void @gradient_task(ptr %block, i64 %row, i64 %panel, i64 %first)"""
"""The first panel of the j-th row in the order, and how many tasks it has; the task of a number in it. The gradient's
last one of a row, behind all panels, is the block on the diagonal.
"""


def _tasks(prefix: str, is_gradient: bool) -> str:
    """Takes tasks until there are none left: row by row, of the factor each row's block on the diagonal first; of the
    gradient the last row first, and of each the panels from the right to the diagonal.
    """
    return f"""
define void @{prefix}_{STEPS[1]}({KERNEL}) #0 {{
entry:
{block_words_ir()}
  %last_block = sub i64 %blocks, 1
  br label %take
take:
  %j_seen = phi i64 [ 0, %entry ], [ %j, %run ]
  %base_seen = phi i64 [ 0, %entry ], [ %base, %run ]
  %taken32 = atomicrmw add ptr %claims, i32 1 monotonic
  %taken = zext i32 %taken32 to i64
  br label %seek
seek:
  %j = phi i64 [ %j_seen, %take ], [ %j1, %further ]
  %base = phi i64 [ %base_seen, %take ], [ %base1, %further ]
  %more = icmp slt i64 %j, %blocks
  br i1 %more, label %look, label %done
look:
{_GRADIENT_ROW if is_gradient else _FACTOR_ROW}
  %number = sub i64 %taken, %base
  %here = icmp slt i64 %number, %count
  br i1 %here, label %run, label %further
further:
  %j1 = add i64 %j, 1
  %base1 = add i64 %base, %count
  br label %seek
run:
{_GRADIENT_CALL if is_gradient else _FACTOR_CALL}
  br label %take
done:
  ret void
}}"""


def _finish(kind: Numbers, prefix: str, is_gradient: bool) -> str:
    """Rows of the result: of the lower factor with zeros behind the diagonal, or of S, halved."""
    end = "%n" if is_gradient else "%row_end"
    scale = "0.5" if is_gradient else "1.0"
    columns = f"""
  %left = sub i64 {end}, %c
  %room = sub i64 %n, %c
{mask_ir("given", kind, "%left")}
{mask_ir("whole", kind, "%room")}
{at_ir("from", kind, "%row_from", "%c")}
{at_ir("to", kind, "%row_to", "%c")}
{load_ir("x", kind, "%from", "%given")}
  %y = fmul {kind.vector} %x, splat ({kind.type} {scale})
{store_ir(kind, "%y", "%to", "%whole")}"""
    body = f"""
  %row_end = add i64 %i, 1
  %from_down = mul i64 %i, %ld
  %to_down = mul i64 %i, %n
{at_ir("row_from", kind, "%work", "%from_down")}
{at_ir("row_to", kind, "%result", "%to_down")}
{loop_ir("c", "%n", str(kind.lanes), columns)}"""
    return f"""
define void @{prefix}_{STEPS[2]}({KERNEL}) #0 {{
{block_words_ir()}
{loop_ir("i", "%hi", "1", body, "%lo")}
  ret void
}}"""
