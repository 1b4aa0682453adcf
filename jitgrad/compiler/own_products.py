"""Products and convolutions among the steps of a program: their sizes, and the code they will need; how they are cut is
decided elsewhere (blas.py, gemm.py, gemv.py, conv.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from jitgrad.compiler.blas import begin_stubs
from jitgrad.compiler.conv_steps import begin_convolution
from jitgrad.compiler.gemm import plan_product
from jitgrad.compiler.gemm_steps import begin_product
from jitgrad.compiler.gemv import plan_vector_product
from jitgrad.compiler.gemv_steps import begin_vector_product
from jitgrad.compiler.nodes import Convolution, Product
from jitgrad.program import Program


def product_sizes(program: Program, item: Product) -> tuple[tuple[int, int, int], int]:
    """The sizes (m, n, k) of a product, and how many there are in its batch."""
    a, c = program.specs[item.a].known_shape, program.specs[item.value].known_shape
    return (c[-2], c[-1], a[-2] if item.transpose_a else a[-1]), math.prod(c[:-2])


def begin_products(program: Program, steps: Iterable[object]) -> None:
    """Begin to compile the code of the products and convolutions among ``steps``; it is wanted when they are bound."""
    for item in steps:
        if isinstance(item, Convolution):
            begin_convolution(program.specs[item.value].dtype, item.form)
        elif isinstance(item, Product):
            _begin(program, item)


def _begin(program: Program, item: Product) -> None:
    dtype, (sizes, batch) = program.specs[item.value].dtype, product_sizes(program, item)
    transposed = item.transpose_a, item.transpose_b
    vector = plan_vector_product(dtype, sizes, batch, transposed)
    own = None if vector is not None else plan_product(dtype, sizes, batch, transposed)
    if vector is not None:
        begin_vector_product(dtype, vector.combines, vector.parts > 0)
    elif own is None:
        begin_stubs(dtype)
    else:
        begin_product(dtype, own.parts > 1)
