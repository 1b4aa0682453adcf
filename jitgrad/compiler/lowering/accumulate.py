"""Accumulation: where a reduction or a scan keeps what it has combined so far: in a register, or in a row of memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.compiler.fusing.groups import Group, Placed
from jitgrad.compiler.fusing.looptree import LoopTree, TreeLoop, outermost_reduced
from jitgrad.compiler.fusing.nodes import REDUCE, SCAN, Node
from jitgrad.compiler.loopir.nests import Argument, Let, Literal
from jitgrad.spec import DType

INT64 = np.dtype(np.int64)
RECURRENCE = "recurrence"


def inner_kept(placed: Placed) -> tuple[int, ...]:
    """Kept axes inside the outermost combined one: over these the accumulator is a row in memory."""
    first = outermost_reduced(placed)
    reduced = {placed.axes[d] for d in placed.node.along}
    return tuple(
        sorted(a for a in placed.axes if a is not None and a not in reduced and first is not None and a > first)
    )


def register_axis(placed: Placed) -> int | None:
    """The axis whose loop, with all loops inside it, combines into a register; None when rows are combined directly."""
    last_kept = max(inner_kept(placed), default=-1)
    reduced = (a for d in placed.node.along if (a := placed.axes[d]) is not None)
    return min((a for a in reduced if a > last_kept), default=None)


def accumulating(group: Group, tree: LoopTree, loop: TreeLoop) -> list[Placed]:
    """The reductions and scans that run inside a loop, over its axis too."""
    return [
        p for p in group.nodes
        if p.node.form in (REDUCE, SCAN) and loop.axis in {p.axes[d] for d in p.node.along}
        and loop in tree.home[p.node.value].path
    ]  # fmt: skip


def initial_value(node: Node, operand_dtype: DType) -> Literal:
    """What a reduction or a scan starts from; a running sum of -0.0 stays -0.0, a sum does not, as in NumPy.

    A recurrence starts from -0.0, too, which its first step only adds.
    """
    combine = node.combine
    dtype = operand_dtype if combine.startswith("arg") else node.dtype
    if combine == RECURRENCE or (node.form == SCAN and combine == "add" and dtype.kind == "f"):
        return Literal(dtype.type(-0.0), dtype)
    return _identity_of(combine, dtype)


def recurrence(
    place: Argument, args: Sequence[Argument], before: str, names: Sequence[str], dtype: DType
) -> tuple[Let, ...]:
    """``term + factor * before``, as the last of ``names``; at place 0, where the factor is not read, it is 1.

    So what the next step waits for is a product and a sum, and no choice.
    """
    (term, factor), (is_first, used, scaled, after) = args, names
    return (
        Let(is_first, np.dtype(np.bool_), "equal", (place, Literal(np.int64(0), INT64))),
        Let(used, dtype, "where", (is_first, Literal(dtype.type(1), dtype), factor)),
        Let(scaled, dtype, "multiply", (used, before)),
        Let(after, dtype, "add", (term, scaled)),
    )


def _identity_of(combine: str, dtype: DType) -> Literal:
    if combine in ("add", "logical_or"):
        value = dtype.type(0)
    elif combine in ("multiply", "logical_and"):
        value = dtype.type(1)
    else:
        lowest = combine in ("maximum", "argmax", "logaddexp")
        if dtype.kind == "f":
            value = dtype.type(-np.inf if lowest else np.inf)
        elif dtype.kind == "b":
            value = dtype.type(not lowest)
        else:
            info = np.iinfo(dtype)
            value = dtype.type(info.min if lowest else info.max)
    return Literal(value, dtype)
