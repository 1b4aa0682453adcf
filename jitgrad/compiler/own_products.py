"""Our own products and convolutions among the steps of a program: their sizes, and the code they will need; how they
are cut is decided elsewhere (gemm.py, conv.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from jitgrad.compiler.conv_steps import begin_convolution
from jitgrad.compiler.gemm import plan_product
from jitgrad.compiler.gemm_steps import begin_product
from jitgrad.compiler.nodes import Convolution, Product
from jitgrad.program import Program


def product_sizes(program: Program, item: Product) -> tuple[tuple[int, int, int], int]:
    """The sizes (m, n, k) of a product, and how many there are in its batch."""
    a, c = program.specs[item.a].known_shape, program.specs[item.value].known_shape
    return (c[-2], c[-1], a[-2] if item.transpose_a else a[-1]), math.prod(c[:-2])


def begin_products(program: Program, steps: Iterable[object]) -> None:
    """Begin to compile the code of our own products and convolutions among ``steps``; it is wanted when they are
    bound.
    """
    for item in steps:
        if isinstance(item, Convolution):
            begin_convolution(program.specs[item.value].dtype, item.form)
        elif isinstance(item, Product):
            dtype, (sizes, batch) = program.specs[item.value].dtype, product_sizes(program, item)
            if plan_product(dtype, sizes, batch, (item.transpose_a, item.transpose_b)) is not None:
                begin_product(dtype)
