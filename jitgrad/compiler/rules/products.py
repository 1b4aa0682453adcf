"""Rules for matrix products: transposes become flags of the product, which BLAS takes for nothing."""

from __future__ import annotations

from jitgrad.compiler.rewriter import Rewriter
from jitgrad.program import Instruction


def swaps_last_two(axes: tuple[int, ...]) -> bool:
    """Whether a transposition is that of matrices on the last two axes."""
    rank = len(axes)
    return rank >= 2 and tuple(axes) == (*range(rank - 2), rank - 1, rank - 2)


def transposed_factor(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """matmul(aᵀ, b) = matmul(a, b, transpose_a), and so for b"""
    inputs, flags = list(ins.inputs), [ins.params["transpose_a"], ins.params["transpose_b"]]
    for place, v in enumerate(ins.inputs):
        inner = rw.producer(v, "transpose")
        if inner is not None and swaps_last_two(inner.params["axes"]):
            inputs[place], flags[place] = inner.inputs[0], not flags[place]
    if tuple(inputs) == ins.inputs:
        return None
    return rw.replace(ins, ins.op.name, *inputs, transpose_a=flags[0], transpose_b=flags[1])


def transposed_product(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """(a b)ᵀ = bᵀ aᵀ, when the product is not needed itself"""
    product = rw.producer(ins.inputs[0], "matmul")
    if product is None or not rw.is_read_once(ins.inputs[0]) or not swaps_last_two(ins.params["axes"]):
        return None
    (a, b), params = product.inputs, product.params
    flags = {"transpose_a": not params["transpose_b"], "transpose_b": not params["transpose_a"]}
    return rw.replace(ins, product.op.name, b, a, **flags)
