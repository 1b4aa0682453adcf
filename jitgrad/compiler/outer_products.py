"""Outer products: matrix products of one term as products element by element; it makes no kernel.

BLAS writes each to memory, at a quarter of its rate, and gradients of matrices that many vectors are multiplied
with are sums of as many: twenty steps of a power iteration of 500 x 500 wrote and read twenty matrices. As operations
on elements they are made where they are read. A sum that begins with 0.0 is never -0.0, so 0.0 is added, once per sum
(rules/algebra.py). In bodies of loops they are those that are left: what is only added up over the steps has become one
product behind the loop.
"""

from __future__ import annotations

from jitgrad.compiler.constants import splat
from jitgrad.compiler.likeness import exact_in
from jitgrad.compiler.remaking import Remaking
from jitgrad.opdef import find
from jitgrad.program import Instruction, Program

_FLOATS = ("float32", "float64")
_NARROW = 8
"""Rows of fewer elements are left to BLAS: their loops leave most lanes empty. Value and gradients of
sum(tanh(X @ b)), by BLAS and so, in microseconds (two Zen 4 cores, two processes in turns):

               200000 x 3     200000 x 10      50000 x 64    10 x 200000    1000 x 1000
    float64    1118, 1173      2488, 1983      2670, 2111     3049, 2443       503, 262
    float32      746, 931      1894, 1186        791, 653      1319, 777       232, 101
"""


def outer_products_by_element(program: Program) -> Program:
    """An equal program without matrix products of one term that could be compiled; the same object where there are
    none.
    """
    narrow = min(_NARROW, exact_in(program) + 1)
    outer = {ins.outputs[0] for ins in program.instructions if _is_outer(program, ins, narrow)}
    if not outer or any(ins.after for ins in program.instructions):
        return program
    remaking = Remaking(program)
    for ins in program.instructions:
        if outer.isdisjoint(ins.outputs):
            remaking.instructions.append(ins)
        else:
            _write_elements(ins, remaking)
    return remaking.remade(program.outputs)


def _is_outer(program: Program, ins: Instruction, narrow: int) -> bool:
    """Whether an instruction is a product of matrices, one of a single column with one of a single row, of any number
    of elements but 2 to ``narrow`` - 1.
    """
    if ins.op.name != "matmul" or ins.origin.scope is None or ins.origin.is_refused:
        return False
    (a, b), spec = ins.inputs, program.specs[ins.outputs[0]]
    shapes = program.specs[a].known_shape, program.specs[b].known_shape
    if 1 < spec.known_shape[-1] < narrow:
        return False
    is_single = shapes[0][-2 if ins.params["transpose_a"] else -1] == 1
    return is_single and len(shapes[0]) == len(shapes[1]) == 2 and spec.dtype.name in _FLOATS


def _write_elements(ins: Instruction, new: Remaking) -> None:
    """x yᵀ + 0.0, for the vectors that the matrices are."""
    new.origin, (rows, columns) = ins.origin, new.specs[ins.outputs[0]].known_shape
    x = new.emit("reshape", ins.inputs[0], shape=(rows, 1))
    y = new.emit("reshape", ins.inputs[1], shape=(1, columns))
    wide = [new.emit("broadcast_to", v, shape=(rows, columns)) for v in (x, y)]
    zero = new.emit("constant", value=splat(0.0, (rows, columns), new.specs[ins.outputs[0]].dtype))
    product = new.emit("multiply", *wide)
    new.put(ins.outputs[0], find("add"), (product, zero), {})
