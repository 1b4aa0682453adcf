"""Our own factorization of a positive definite matrix, and its gradient, as LLVM IR text: their steps, and the order of
tasks. What a task does is elsewhere (cholesky_tasks.py), as are names and memory (cholesky_steps.py).

A = Uᵀ U is made row of blocks by row of blocks, from the first on, twice the cotangent of A, S, by Ū, that of U, from
the last:

    U[j, c] = inv(U[j, j]ᵀ) (A[j, c] - sum over k < j of U[k, j]ᵀ U[k, c])
    S[j, c] = inv(U[j, j]) (Ū[j, c] - sum over k > j of U[j, k] S[k, c])        c > j

which takes n³/3 and 2 n³/3 operations. The second line says that U S is Ū above the diagonal: for a symmetric S/2,
<S/2, dA> = <U S, dU>. On the diagonal it is what I. Murray, "Differentiation of the Cholesky decomposition", 2016, says
of the whole matrix. The working matrix has whole blocks, with ones on the diagonal behind the last element, in columns
of blocks: what a sum reads lies in up to four rows of lines, which a processor fetches before they are asked for, also
from the other one's cache. Of S it has both triangles: what is above the diagonal, transposed, is below it.

Tiles are tasks (A. Buttari, J. Langou, J. Kurzak and J. Dongarra, "A class of parallel tiled linear algebra algorithms
for multicore architectures", 2009), which threads take row by row. A thread waits for the tasks that its own one needs:
they come before it in the order of tasks, so those who have taken them are at work, and no number of threads can stop.
What a task does depends on the sizes alone, so the bits are the same for any number of threads.
"""

from __future__ import annotations

from jitgrad.compiler.products.cholesky_steps import BLOCK, COTANGENT, MODULE, STEPS, THREADS, WIDE, WORDS
from jitgrad.compiler.products.cholesky_tasks import (
    block_at_ir,
    block_words_ir,
    diagonal_at_ir,
    factor_task_ir,
    given_at_ir,
    gradient_task_ir,
    helpers_ir,
    waiting_ir,
)
from jitgrad.compiler.products.cholesky_tiles import cholesky_tiles_ir
from jitgrad.compiler.products.registers import (
    KERNEL,
    Numbers,
    arrays_ir,
    at_ir,
    block_ir,
    declarations_ir,
    loop_ir,
    mask_ir,
    min_ir,
    module_ir,
)
from jitgrad.records import NamedTuple

PART = "ptr %block, i64 %lo, i64 %hi, i64 %worker"
"""The parameters of a step's part: the words of the call, its part of the indices, and who runs it."""


def cholesky_ir(kind: Numbers) -> str:
    """The module with the steps of both."""
    parts = [declarations_ir(kind), cholesky_tiles_ir(kind)]
    parts += [waiting_ir(), helpers_ir(kind), factor_task_ir(kind), gradient_task_ir(kind)]
    parts += [_words(), _clear(), _tasks(MODULE, _FACTOR), _fill(kind), _tasks(COTANGENT, _GRADIENT)]
    parts += [_step(f"{prefix}_{step}") for prefix, steps in STEPS.items() for step in steps]
    return module_ir(*parts)


def _step(name: str) -> str:
    """A step of a cluster: finds where all lies, and does its part."""
    return f"""
define void @{name}({KERNEL}) #0 {{
  %words = alloca [{len(WORDS)} x i64]
  call void @find_words(ptr %table, ptr %block, ptr %words)
  call void @{name}_part(ptr %words, i64 %lo, i64 %hi, i64 %worker)
  ret void
}}"""


def _words() -> str:
    """The words of a call, from the table and the block of a step."""
    arrays = ("source", "factor", "memory", "result", "status")
    inside = ("packed", "diagonals", "flags")
    places = (f"  %{name} = getelementptr i8, ptr %memory, i64 %{name}_place" for name in inside)
    types = dict.fromkeys((*arrays, *inside, "work"), "ptr")
    stores = (
        f"""  %{name}_to = getelementptr i64, ptr %words, i64 {place}
  store {types.get(name, "i64")} %{"memory" if name == "work" else name}, ptr %{name}_to"""
        for place, name in enumerate(WORDS)
    )
    return f"""
declare i32 @{THREADS}() #0

define internal void @find_words(ptr %table, ptr %block, ptr %words) noinline #0 {{
{block_ir(BLOCK)}
{arrays_ir(*arrays)}
{chr(10).join(places)}
  %limit = call i32 @{THREADS}()
  %some = icmp sgt i32 %limit, 1
  %limit_some = select i1 %some, i32 %limit, i32 1
  %threads = zext i32 %limit_some to i64
{chr(10).join(stores)}
  ret void
}}"""


def _clear() -> str:
    """No task is taken yet."""
    one = """  %flag_at = getelementptr i32, ptr %flags, i64 %f
  store i32 0, ptr %flag_at"""
    return f"""
define internal void @clear_flags(ptr %block) #0 {{
{block_words_ir()}
  %stride = add i64 %panels, 1
  %all = mul i64 %blocks, %stride
{loop_ir("f", "%all", "1", one)}
  ret void
}}

define internal void @{MODULE}_clear_part({PART}) #0 {{
  call void @clear_flags(ptr %block)
  ret void
}}"""


def _fill(kind: Numbers) -> str:
    """Columns of blocks of the factor, and its blocks on the diagonal; the first chunk sees to it that no task is taken
    yet.
    """
    copied = f"""
{given_at_ir(kind, "from", "%factor", "%k", "%j")}
{block_at_ir(kind, "to", "%packed", "%k", "%j")}
  call void @pack(ptr %from, i64 %n, i64 %from_height, ptr %to)"""
    body = f"""
{_diagonal(kind)}
  %below = add i64 %j, 1
{loop_ir("k", "%blocks", "1", copied, "%below")}"""
    return f"""
{_pack(kind)}

define internal void @{COTANGENT}_fill_part({PART}) #0 {{
{block_words_ir()}
  %is_first = icmp eq i64 %lo, 0
  br i1 %is_first, label %first, label %filling
first:
  call void @clear_flags(ptr %block)
  br label %filling
filling:
{loop_ir("j", "%hi", "1", body, "%lo")}
  ret void
}}"""


def _pack(kind: Numbers) -> str:
    """So many rows of a block that has all columns."""
    copied = f"""  %from_down = mul i64 %r, %n
  %to_down = mul i64 %r, {kind.lanes}
{at_ir("row_from", kind, "%from", "%from_down")}
{at_ir("row_to", kind, "%to", "%to_down")}
  %row = load {kind.vector}, ptr %row_from, align {kind.size}
  store {kind.vector} %row, ptr %row_to, align {kind.size}"""
    return f"""
define internal void @pack(ptr %from, i64 %n, i64 %height, ptr %to) #0 {{
{min_ir("rows", "%height", str(kind.lanes))}
{loop_ir("r", "%rows", "1", copied)}
  ret void
}}"""


def _diagonal(kind: Numbers) -> str:
    """A block of U from one of the lower factor, ones behind its last element, and one over its diagonal."""
    n = kind.lanes
    each = f"""{mask_ir("lower", kind, "%r")}
  %u_place = mul i64 %r, {n}
{at_ir("u_row", kind, "%d", "%u_place")}
  %all = load {kind.vector}, ptr %u_row, align {kind.size}
  %upper = select {kind.mask} %lower, {kind.vector} zeroinitializer, {kind.vector} %all
  store {kind.vector} %upper, ptr %u_row, align {kind.size}
  %beyond = icmp sge i64 %r, %given_height
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
{given_at_ir(kind, "given", "%factor", "%j", "%j")}
  call void @turn_{kind.type}(ptr %given, i64 %n, i64 %given_height, i64 0, i64 %given_width, i64 0, ptr %d, i64 {n})
{loop_ir("r", str(n), "1", each)}"""


_LAST_BLOCK = """\
  %is_left = call i1 @take(ptr %flags, i64 %panels)
  br i1 %is_left, label %last_block, label %gone
last_block:
  call void @gradient_task(ptr %block, i64 0, i64 %panels, i64 0)"""
"""The block on the diagonal of the first row, which no tile needs."""


class _Order(NamedTuple):
    """The tasks of one of both: those of the j-th turn are `%count` in this order, and one more behind them, when all
    are taken. Of one of them the row, the panel (`%tile`), whether there is such a task, and whether every thread takes
    it at once; what comes behind all turns; the row whose end tells that no task is left; and the call of a task.
    """

    turn: str
    has_end: bool
    task: str
    after: str
    last: str
    call: str


_FACTOR = _Order(
    f"""\
  %row = add i64 %j, 0
  %row_first = udiv i64 %row, {WIDE}
  %count = sub i64 %panels, %row_first""",
    True,
    """\
  %tile = add i64 %row_first, %number
  %exists = add i1 true, false
  %urgent = icmp eq i64 %number, 0""",
    "",
    "%bottom",
    "  call void @factor_task(ptr %block, i64 %row, i64 %panel, i64 %row_first)",
)
"""A row's block on the diagonal first, last the rows of the result. That a row's other tiles do not wait for the block,
because it was made in the row's turn before, changes nothing (two threads, 300 rows: 118 us either way).
"""
_GRADIENT = _Order(
    f"""\
  %j_row = sub i64 %bottom, %j
  %next = add i64 %j_row, 1
  %has_next = icmp slt i64 %next, %blocks
  %first = udiv i64 %next, {WIDE}
  %tiles = sub i64 %panels, %first
  %has_tiles = icmp sgt i64 %tiles, 0
  %last_tile = sub i64 %tiles, 1
  %count = add i64 %tiles, 1""",
    False,
    f"""\
  %is_next = icmp eq i64 %number, %last_tile
  %is_last = icmp eq i64 %number, %tiles
  %row = select i1 %is_next, i64 %next, i64 %j_row
  %after = sub i64 %panels, %number
  %from_right = sub i64 %after, 1
  %beside = select i1 %is_last, i64 %first, i64 %from_right
  %tile = select i1 %is_next, i64 %panels, i64 %beside
  %exists = select i1 %is_next, i1 %has_next, i1 %has_tiles
  %urgent = and i1 %is_next, %has_next
  %row_from = add i64 %row, 1
  %row_first = udiv i64 %row_from, {WIDE}""",
    _LAST_BLOCK,
    "0",
    "  call void @gradient_task(ptr %block, i64 %row, i64 %panel, i64 %row_first)",
)
"""The block on the diagonal of the row below comes in front of the tile that is the first to need it, not behind the
other tiles of its own row, for which it would have to wait (two threads, 300 rows: 188 us in place of 197).
"""


def _tasks(prefix: str, order: _Order) -> str:
    """Takes tasks until there are none left: turn by turn, of the factor the first row first, of the gradient the last
    one, and of each the panels from the right to the diagonal.

    A thread first asks for the tiles of panels that are its own, whose columns are in its cache, then for those that
    others have left. It leaves a turn when all of it is taken, so that others are at work on what it waits for.
    """
    turn = f"""
{order.turn}
  %twice = mul i64 %count, 2
  %asks = add i64 %twice, {int(order.has_end)}
{loop_ir("ask", "%asks", "1", _ask(order))}"""
    return f"""
define internal void @{prefix}_tasks_part({PART}) #0 {{
{block_words_ir()}
  %bottom = sub i64 %blocks, 1
  %stride = add i64 %panels, 1
  %me = urem i64 %worker, %threads
  %end_row = mul i64 {order.last}, %stride
  %end_flag = add i64 %end_row, %panels
  %end_at = getelementptr i32, ptr %flags, i64 %end_flag
  %end = load atomic i32, ptr %end_at monotonic, align 4
  %none_left = icmp ne i32 %end, 0
  br i1 %none_left, label %gone, label %begin
begin:
{loop_ir("j", "%blocks", "1", turn)}
{order.after}
  br label %gone
gone:
  ret void
}}"""


def _ask(order: _Order) -> str:
    """Runs a task that nobody has taken: in the first round one's own tiles, then all, last the one behind them."""
    return f"""  %is_second = icmp sge i64 %ask, %count
  %again = sub i64 %ask, %count
  %number = select i1 %is_second, i64 %again, i64 %ask
{order.task}
  %is_end = icmp eq i64 %ask, %twice
  %panel = select i1 %is_end, i64 %panels, i64 %tile
  %owner = urem i64 %panel, %threads
  %is_mine = icmp eq i64 %owner, %me
  %in_first = or i1 %is_mine, %urgent
  %in_turn = or i1 %in_first, %is_second
  %wanted = and i1 %in_turn, %exists
  br i1 %wanted, label %claim, label %ask_latch
claim:
  %task_row = mul i64 %row, %stride
  %task = add i64 %task_row, %panel
  %is_taken = call i1 @take(ptr %flags, i64 %task)
  br i1 %is_taken, label %run, label %ask_latch
run:
{order.call}"""

