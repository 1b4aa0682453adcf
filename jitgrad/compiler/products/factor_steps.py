"""Factors of matrices, gradients of Cholesky's, systems with triangles or factors, inverses and decompositions, as
steps; which are our own is decided elsewhere (fusing/factors.py). Their code, names and words are in other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitgrad.compiler.products import cholesky_steps, columns_steps, decomposition_steps, lu_steps, triangle_steps
from jitgrad.compiler.products.blas import BlasStep
from jitgrad.compiler.products.cholesky_steps import Layout
from jitgrad.compiler.products.product_code import Functions
from jitgrad.records import NamedTuple

FACTORS = frozenset(cholesky_steps.STEPS)
"""The routines that work on tiles."""
ONE_TRIANGLE = frozenset(("solve_triangular_columns", "solve_turned_columns"))
COLUMNS = ONE_TRIANGLE | {"lu_solve_columns", "lu_inv"}
"""Those with several right sides."""
DECOMPOSITIONS = frozenset(("eigh", "eigvalsh", "svd", "svdvals", "qr"))
"""Those by NumPy's loops."""
_SOLUTIONS = ("solve_triangular", "solve_turned")
"""Those that solve with a triangle, and with its transpose."""
_MOST_CHUNKS = 64


class Request(NamedTuple):
    """What the steps of a routine are made for.

    ``slots`` are those of the operands and of the results; of LU factors also that of memory of its own; of many right
    sides that, and that of the memory of each thread; of a Cholesky factor and of its gradient its own, and that in
    which the factor leaves its blocks, for a factor the same. These two have the sizes of a `Layout`; those of many
    right sides are rows and columns, those of decompositions are told by `decomposition_step`, those of others their
    rows. The slot of the status is ``status``; the status becomes ``code`` if a matrix is not positive definite, has a
    zero on its diagonal, or values that are not found.
    """

    routine: str
    is_lower: bool
    is_transposed: bool
    sizes: Sequence[int]
    slots: Sequence[int]
    status: int
    code: int


Steps = list[tuple[str, BlasStep]]
"""Steps with what their names begin with."""


def sizes_of(rows: int) -> Layout:
    """What a factor of a matrix of so many rows, or its gradient, is cut into on this machine, and its memory."""
    from jitgrad.compiler.products.registers import kinds

    return cholesky_steps.layout_for(rows, kinds()["float64"].lanes)


def factor_steps(request: Request) -> Steps:
    """The steps of a routine."""
    return _ROUTINES[request.routine][1](request)


def factor_modules(routine: str) -> dict[str, tuple[Callable[[], str], bool]]:
    """The module that the steps of a routine refer to. It is compiled well at once: loops on registers, as tiles of
    products.
    """
    return _ROUTINES[routine][0].modules()


def _tiles(request: Request) -> Steps:
    made, layout = cholesky_steps.CODE.code(), Layout(*request.sizes)
    *operands, result, memory, kept = request.slots
    block = (
        operands[-1], operands[0], memory, kept, result, request.status, request.code, layout.n, layout.column,
        layout.blocks, layout.panels, layout.diagonals, layout.flags,
    )  # fmt: skip
    steps = [
        BlasStep(step, made[cholesky_steps.function_of(step)], block, *cholesky_steps.cut(step, layout))
        for step in cholesky_steps.STEPS[request.routine]
    ]
    return [("factor" if cholesky_steps.is_tasks(step.name) else step.name, step) for step in steps]


def _lu(request: Request) -> Steps:
    return _one(lu_steps.CODE, lu_steps.MODULE, (*request.slots, *request.sizes))


def _lu_solution(request: Request) -> Steps:
    name = triangle_steps.LU_STEPS[request.is_transposed]
    return _one(triangle_steps.CODE, name, (*request.slots, request.status, request.code, *request.sizes))


def _solution(request: Request) -> Steps:
    name = triangle_steps.STEPS[_SOLUTIONS.index(request.routine)]
    form = triangle_steps.LOWER if request.is_lower else 0
    return _one(triangle_steps.CODE, name, (*request.slots, request.status, request.code, *request.sizes, form))


def _one(functions: Functions, name: str, block: tuple[int, ...]) -> Steps:
    """One step on one thread."""
    return [("factor", BlasStep(name, functions.code()[name], block, 1, 1))]


def _columns(request: Request) -> Steps:
    """Many right sides with both factors or one triangle. An inverse has none: it makes them in the place of its
    result. Where there is one triangle no rows are exchanged, and its slot stands for theirs.
    """
    (n, columns), is_inverse, is_one = request.sizes, request.routine == "lu_inv", request.routine in ONE_TRIANGLE
    *operands, result, memory, scratch = request.slots
    if is_one:
        operands = [operands[0], *operands]
    elif is_inverse:
        operands = [*operands, result]
    last = request.is_lower if is_one else is_inverse
    turned = request.is_transposed or request.routine == "solve_turned_columns"
    block = (
        *operands, result, memory, scratch, request.status, request.code, n, columns, int(turned), int(last)
    )  # fmt: skip
    blocks, made = -(-columns // _width()), columns_steps.CODE.code()
    first, last_step = columns_steps.PREPARE_ONE if is_one else columns_steps.PREPARE, columns_steps.SOLVE
    return [
        ("prepare", BlasStep(first, made[first], block, 1, 1)),
        ("factor", BlasStep(last_step, made[last_step], block, blocks, min(blocks, _MOST_CHUNKS))),
    ]


def _width() -> int:
    """How many right sides are solved for together."""
    from jitgrad.compiler.products.registers import kinds

    return kinds()["float64"].columns


def _decomposition(request: Request) -> Steps:
    routine, is_lower, _, sizes, slots, status, code = request
    return [("factor", decomposition_steps.decomposition_step(routine, is_lower, sizes, slots, status, code))]


_ROUTINES: dict[str, tuple[Functions, Callable[[Request], Steps]]] = {
    "lu": (lu_steps.CODE, _lu), "lu_solve": (triangle_steps.CODE, _lu_solution),
    **dict.fromkeys(_SOLUTIONS, (triangle_steps.CODE, _solution)),
    **dict.fromkeys(FACTORS, (cholesky_steps.CODE, _tiles)),
    **dict.fromkeys(COLUMNS, (columns_steps.CODE, _columns)),
    **dict.fromkeys(DECOMPOSITIONS, (decomposition_steps.CODE, _decomposition)),
}  # fmt: skip
"""Of each routine its code, and what describes its steps."""
