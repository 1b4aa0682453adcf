"""Products, convolutions and factorizations among the steps of a program: their sizes, and the code they will need; how
they are cut is decided elsewhere (blas.py, gemm.py, gemv.py, conv.py).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jitgrad.compiler.fusing.nodes import Convolution, Factor, Product, Transform
from jitgrad.compiler.products.blas import batch_chunks, stub_modules
from jitgrad.compiler.products.conv_steps import convolution_modules
from jitgrad.compiler.products.factor_steps import FACTORS, factor_modules
from jitgrad.compiler.products.gemm import plan_product
from jitgrad.compiler.products.gemm_steps import product_modules, shared_modules, unpacked_modules
from jitgrad.compiler.products.gemv import plan_vector_product
from jitgrad.compiler.products.gemv_steps import vector_modules
from jitgrad.compiler.products.product_code import Module, begin_modules
from jitgrad.compiler.products.registers import kinds
from jitgrad.compiler.products.short_steps import short_modules
from jitgrad.compiler.products.tall_steps import FORMS, tall_modules
from jitgrad.compiler.products.transform_steps import CODE as TRANSFORMS
from jitgrad.compiler.symbols import at_once
from jitgrad.lapack import uses_own
from jitgrad.opdef import Library
from jitgrad.program import Instruction, Program


def product_sizes(program: Program, item: Product) -> tuple[tuple[int, int, int], int]:
    """The sizes (m, n, k) of a product, and how many there are in its batch."""
    a, c = program.specs[item.a].known_shape, program.specs[item.value].known_shape
    return (c[-2], c[-1], a[-2] if item.transpose_a else a[-1]), math.prod(c[:-2])


def calls_in_chunks(program: Program, item: Product) -> int:
    """In how many chunks the products of a batch along one axis run, if each of them is one call of BLAS; else 0."""
    if sum(n != 1 for n in program.specs[item.value].known_shape[:-2]) != 1:
        return 0
    sizes, count = product_sizes(program, item)
    chunks = _batch_chunks(program.specs[item.value].dtype, (item.transpose_a, item.transpose_b))
    found: int = at_once(chunks, *sizes, count)
    return found


@functools.lru_cache
def _batch_chunks(dtype: np.dtype[Any], transposed: tuple[bool, bool]) -> Callable[[int, int, int, int], int]:
    return lambda m, n, k, batch: batch_chunks(dtype, (m, n, k), batch, transposed)


def begin_products(program: Program, steps: Iterable[object], is_repeated: bool) -> None:
    """Begin to compile the code of the products, convolutions and factors among ``steps``, those of a loop if it
    ``is_repeated``; it is wanted when they are bound.
    """
    modules: dict[str, Module] = {}
    for item in steps:
        if isinstance(item, Convolution):
            modules |= convolution_modules(program.specs[item.value].dtype, item.form)
        elif isinstance(item, Transform):
            modules |= TRANSFORMS.modules()
        elif isinstance(item, Factor):
            modules |= factor_modules(item.routine)
        elif isinstance(item, Product):
            modules |= _modules_of(program, item, is_repeated)
    begin_modules(modules)


def begin_routines(program: Program, numbers: Iterable[int]) -> None:
    """Begin to compile our own code for those of a program's interpreted instructions that will call it."""
    called = [program.instructions[number] for number in numbers]
    if kinds() and any(_calls_own_factor(program, ins) for ins in called):
        begin_modules(factor_modules("cholesky"))


def _calls_own_factor(program: Program, ins: Instruction) -> bool:
    match ins.op.kind:
        case Library(routine) if routine in FACTORS:
            return uses_own(routine, program.specs[ins.inputs[0]])
    return False


def _modules_of(program: Program, item: Product, is_repeated: bool) -> dict[str, Module]:
    dtype, (sizes, batch) = program.specs[item.value].dtype, product_sizes(program, item)
    transposed = item.transpose_a, item.transpose_b
    vector = plan_vector_product(dtype, sizes, batch, transposed, is_repeated)
    if vector is not None:
        return vector_modules(dtype, vector.combines, vector.parts > 0)
    own = plan_product(dtype, sizes, batch, transposed)
    if own is None:
        return stub_modules(dtype)
    if own.form == "shared":
        return shared_modules(dtype)
    if own.form == "unpacked":
        return unpacked_modules(dtype)
    if own.form in FORMS:
        return tall_modules(dtype, own.parts > 1)
    if own.form != "tiles":
        return short_modules(dtype, own.form, own.parts > 1)
    return product_modules(dtype, own.parts > 1)
