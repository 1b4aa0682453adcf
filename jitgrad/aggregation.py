"""How the addends of one gradient are summed; which they are is the reverse walk's business."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

from jitgrad import operators
from jitgrad.graph import Tensor, apply
from jitgrad.opdef import find


class AggregationMethod(enum.IntEnum):
    """One n-ary sum, sums in pairs (addends are freed early), or one running total: the same up to rounding."""

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def as_method(given: Any) -> AggregationMethod:
    """The method of that name or number, the default for None. ValueError for anything else."""
    if given is None:
        return AggregationMethod.DEFAULT
    if type(given) in (int, AggregationMethod) and given in list(AggregationMethod):
        return AggregationMethod(given)
    known = ", ".join(AggregationMethod.__members__)
    raise ValueError(f"aggregation_method={given!r} is none of AggregationMethod's: {known}")


def sum_of(addends: Sequence[Tensor], method: AggregationMethod) -> Tensor:
    """The sum of two tensors or more. The running total is only for more than two of known shapes."""
    if method is AggregationMethod.EXPERIMENTAL_TREE:
        return _tree(addends)
    is_known = len(addends) > 2 and all(g.spec.is_known for g in addends)
    if method is AggregationMethod.EXPERIMENTAL_ACCUMULATE_N and is_known:
        return _running_total(addends)
    total: Tensor = apply(find("add_n"), *addends)
    return total


def _tree(addends: Sequence[Tensor]) -> Tensor:
    level = list(addends)
    while len(level) > 1:
        pairs = [operators.call("add", x, y) for x, y in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(pairs) * 2 :]
    return level[0]


def _running_total(addends: Sequence[Tensor]) -> Tensor:
    total, *rest = addends
    for g in rest:
        total = operators.call("add", total, g)
    return total
