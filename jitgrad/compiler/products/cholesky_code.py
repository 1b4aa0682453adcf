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

U stays where the factor has made it, for the gradient: its blocks, and what is made of those on its diagonal. Without a
factor beside it a gradient makes them first: of 300 rows that takes 12 us, and on two threads 8 to 14.

Tiles are tasks (A. Buttari, J. Langou, J. Kurzak and J. Dongarra, "A class of parallel tiled linear algebra algorithms
for multicore architectures", 2009), which threads take row by row. A thread waits for the tasks that its own one needs:
they come before it in the order of tasks, so those who have taken them are at work, and no number of threads can stop.
What a task does depends on the sizes alone, so the bits are the same for any number of threads.
"""

from __future__ import annotations

from jitgrad.compiler.products.cholesky_steps import (
    BLOCK,
    CODE,
    COTANGENT_TASKS,
    TASKS,
    WIDE,
    WORDS,
    function_of,
)
from jitgrad.compiler.products.cholesky_tasks import (
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
    parts += [_words(), _clear(), _fill(kind)]
    parts += [_tasks(TASKS, _FACTOR), _tasks(COTANGENT_TASKS, _GRADIENT)]
    parts += map(_step, CODE.names)
    return module_ir(*parts)


def _step(name: str) -> str:
    """A step of a cluster: finds where all lies, and does its part."""
    return f"""
define void @{name}({KERNEL}, i32 %limit) #0 {{
  %words = alloca [{len(WORDS)} x i64]
  call void @find_words(ptr %table, ptr %block, i32 %limit, ptr %words)
  call void @{name}_part(ptr %words, i64 %lo, i64 %hi, i64 %worker)
  ret void
}}"""


def _words() -> str:
    """The words of a call, from the table and the block of a step."""
    arrays = ("source", "factor", "memory", "kept", "result", "status")
    inside = {"diagonals": "kept", "flags": "memory"}
    places = (f"  %{name} = getelementptr i8, ptr %{base}, i64 %{name}_place" for name, base in inside.items())
    types = dict.fromkeys((*arrays, *inside, "work"), "ptr")
    stores = (
        f"""  %{name}_to = getelementptr i64, ptr %words, i64 {place}
  store {types.get(name, "i64")} %{"memory" if name == "work" else name}, ptr %{name}_to"""
        for place, name in enumerate(WORDS)
    )
    return f"""
define internal void @find_words(ptr %table, ptr %block, i32 %limit, ptr %words) noinline #0 {{
{block_ir(BLOCK)}
{arrays_ir(*arrays)}
{chr(10).join(places)}
  %threads = zext i32 %limit to i64
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

define internal void @{function_of("clear")}_part({PART}) #0 {{
  call void @clear_flags(ptr %block)
  ret void
}}"""


def _fill(kind: Numbers) -> str:
    """What a factor leaves, from the factor alone: columns of blocks, and those on the diagonal; the first chunk sees
    to it that no task is taken yet.
    """
    body = f"""
{_diagonal(kind)}
  %beside = add i64 %j, 1
  call void @fetch(ptr %block, ptr %factor, ptr %kept, i64 %j, i64 %beside, i64 %blocks)"""
    return f"""
define internal void @{function_of("fill")}_part({PART}) #0 {{
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


class _Order(NamedTuple):
    """The tasks of one of both, which are calls of `task`. Of the j-th turn: the row, `%row`, and the panel, `%first`,
    behind which all tiles of the row belong to threads; what a thread does before its own tiles, between them and those
    of others, and behind all. What comes behind all turns; and the row whose end tells that no task is left.
    """

    task: str
    turn: str
    before: str
    between: str
    behind: str
    after: str
    last: str


def _alone(task: str, row: str, panel: str, first: str, is_any: str = "true") -> str:
    """A task that belongs to nobody, if there is one."""
    return f"""  call void @{task}_alone(ptr %block, i64 {row}, i64 {panel}, i64 {first}, i1 {is_any})"""


_FACTOR = _Order(
    task="factor_task",
    turn=f"""\
  %row = add i64 %j, 0
  %first = udiv i64 %row, {WIDE}""",
    before=_alone("factor_task", "%row", "%first", "%first"),
    between="",
    behind=_alone("factor_task", "%row", "%panels", "%first"),
    after="",
    last="%bottom",
)
"""A row's block on the diagonal first, last the rows of the result. That a row's other tiles do not wait for the block,
because it was made in the row's turn before, changes nothing (two threads, 300 rows: 118 us either way).
"""
_GRADIENT = _Order(
    task="gradient_task",
    turn=f"""\
  %row = sub i64 %bottom, %j
  %next = add i64 %row, 1
  %has_next = icmp slt i64 %next, %blocks
  %first = udiv i64 %next, {WIDE}
  %has_tiles = icmp slt i64 %first, %panels
  %behind_next = add i64 %next, 1
  %next_first = udiv i64 %behind_next, {WIDE}""",
    before="",
    between=f"""\
{_alone("gradient_task", "%next", "%panels", "%next_first", "%has_next")}
{_alone("gradient_task", "%row", "%first", "%first", "%has_tiles")}""",
    behind="",
    after=_alone("gradient_task", "0", "%panels", "0"),
    last="0",
)
"""The block on the diagonal of the row below comes in front of the tile that is the first to need it, not behind the
other tiles of its own row, for which it would have to wait (two threads, 300 rows: 188 us in place of 197). That of the
first row, which no tile needs, comes last.
"""


def _tasks(step: str, order: _Order) -> str:
    """Takes tasks until there are none left: turn by turn, of the factor the first row first, of the gradient the last
    one. Panels are the threads' in turns: first a thread takes its own, whose columns are in its cache, then those that
    others have left. It leaves a turn when all of it is taken, so that others are at work on what it waits for.
    """
    others = f"""  %further = add i64 %me, %shift
  %other = urem i64 %further, %owners
  call void @{order.task}s_of(ptr %block, i64 %row, i64 %other, i64 %first)"""
    turn = f"""
{order.turn}
{order.before}
  call void @{order.task}s_of(ptr %block, i64 %row, i64 %me, i64 %first)
{order.between}
{loop_ir("shift", "%owners", "1", others, "1")}
{order.behind}"""
    return f"""{_taking(order.task)}
define internal void @{function_of(step)}_part({PART}) #0 {{
{block_words_ir()}
  %bottom = sub i64 %blocks, 1
  %stride = add i64 %panels, 1
{min_ir("owners", "%threads", "%panels")}
  %me = urem i64 %worker, %owners
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


def _taking(task: str) -> str:
    """Runs a task that nobody has taken; or all tiles of a row that are in panels of one thread, from the right on to
    those behind the panel `first`: who takes the first one has taken all of them, for all agree whose they are. So two
    threads write half as often to lines that both read as where each tile was taken by itself (a factor of 300 rows and
    its gradient: 321 us, 319).
    """
    return f"""
define internal void @{task}_alone(ptr %block, i64 %row, i64 %panel, i64 %first, i1 %is_any) noinline #0 {{
  br i1 %is_any, label %ask, label %done
ask:
{_asked("%panel")}
run:
  call void @{task}(ptr %block, i64 %row, i64 %panel, i64 %first)
  br label %done
done:
  ret void
}}

define internal void @{task}s_of(ptr %block, i64 %row, i64 %owner, i64 %first) noinline #0 {{
{block_words_ir()}
{min_ir("owners", "%threads", "%panels")}
  %last = sub i64 %panels, 1
  %behind = sub i64 %last, %owner
  %over = urem i64 %behind, %owners
  %lead = sub i64 %last, %over
  %is_any = icmp sgt i64 %lead, %first
  br i1 %is_any, label %ask, label %done
ask:
{_asked("%lead")}
run:
  %panel = phi i64 [ %lead, %ask ], [ %left, %run ]
  call void @{task}(ptr %block, i64 %row, i64 %panel, i64 %first)
  %left = sub i64 %panel, %owners
  %more = icmp sgt i64 %left, %first
  br i1 %more, label %run, label %done
done:
  ret void
}}
"""


def _asked(panel: str) -> str:
    """Goes to `run` if nobody has taken a task, else to `done`."""
    return f"""  %is_free = call i1 @take(ptr %block, i64 %row, i64 {panel})
  br i1 %is_free, label %run, label %done"""
