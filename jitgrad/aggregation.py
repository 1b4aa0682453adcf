"""How the addends of one gradient are summed; which they are is the reverse walk's business."""

from __future__ import annotations

import enum
import functools
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


def merges_after(method: AggregationMethod, arrived: int, is_known: bool) -> int:
    """How many sums of the two latest parts are due when so many addends have arrived.

    In a tree parts of equally many addends are put together at once, so that as many are kept as the number has binary
    digits; a running total takes in each addend from the third on, where the shape is known.
    """
    if method is AggregationMethod.EXPERIMENTAL_TREE:
        return (arrived & -arrived).bit_length() - 1
    if method is AggregationMethod.EXPERIMENTAL_ACCUMULATE_N and is_known and arrived > 2:
        return 2 if arrived == 3 else 1
    return 0


def sum_of(parts: Sequence[Tensor], method: AggregationMethod) -> Tensor:
    """The sum of what is left in the end, two tensors or more, the latest last; of a tree the smallest parts first."""
    if method is not AggregationMethod.EXPERIMENTAL_TREE:
        total: Tensor = apply(find("add_n"), *parts[::-1])
        return total
    return functools.reduce(pair_sum, parts[::-1])


def pair_sum(x: Tensor, y: Tensor) -> Tensor:
    """The sum of two tensors."""
    total: Tensor = operators.call("add", x, y)
    return total
