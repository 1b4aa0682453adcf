"""Where elements lie: indices along dimensions as sums of terms in a flat buffer. It reads and writes nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Plan
from jitgrad.compiler.loopir.nests import LITERAL_STRIDES, Index, Term
from jitgrad.compiler.loopir.quantities import product
from jitgrad.compiler.lowering.signature import Signature
from jitgrad.opdef import AxisIndex


def index_of(
    v: int, dims: Sequence[AxisIndex], plan: Plan, signature: Signature, var: Callable[[int], str]
) -> tuple[Index, int]:
    """The place of ``v[dims]`` in its flat buffer, and the innermost axis that it depends on (-1: none); ``var`` gives
    the variable of the loop over an axis.
    """
    terms: list[Term] = []
    offset, depth = 0, -1
    strides: list[int] = []
    shape, classes = plan.specs[v].known_shape, plan.classes[v]
    for d, index in enumerate(dims):
        if index.offset and index.divisor == 1:
            offset += index.offset * math.prod(shape[d + 1 :])
            strides += shape[d + 1 :]
        if index.axis is None:
            continue
        depth = max(depth, index.axis)
        inner = tuple(c for c in classes[d + 1 :] if c != ONE)
        terms.append(_term(index, var(index.axis), inner, signature))
    terms.sort(key=lambda term: int(term.var[1:]))
    place = signature.number((v, tuple(dims)), offset, strides) if offset else None
    return Index(tuple(terms), place), depth


def _term(index: AxisIndex, var: str, inner: tuple[int, ...], signature: Signature) -> Term:
    """What an index adds, of the variable ``var``, where ``inner`` are the classes of the dimensions behind its own."""
    is_literal = index.scale in LITERAL_STRIDES and not inner
    stride = index.scale if is_literal else signature.product(product(inner, index.scale))
    if index.divisor == 1:
        return Term(var, stride)
    shift = signature.number(("divided", index), index.offset) if index.offset else None
    return Term(var, stride, shift, index.divisor)
