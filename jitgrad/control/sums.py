"""Sums over the steps of a scan: how the gradient of a constant is added up, in the loop or once after it.

A step's share of a gradient is taken apart as far as it is linear. Rows added to a table, a few elements added to one,
and products over few terms, are not added up step by step: the rows with their positions, and the factors, come out of
the loop as items, and one scatter, or one matrix product over all steps, makes the sum of them. So a gradient of rows
stays one of rows, a step that reads a diagonal does not write the matrix, and the weights of a recurrent network take
one large product in place of a small one per step. What is left is carried.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from jitgrad.graph import Tensor, apply_one
from jitgrad.opdef import Contract, Scatter, View
from jitgrad.operators import call
from jitgrad.ops.gathering import scatter_take_op, zeros_like_shape
from jitgrad.records import dataclass

# A factor that comes out of the loop may be so many times as large as the product.
_MOST_FACTOR = 2
# Elements come out of the loop where the table is at least so many times as large: they are stored and read again.
_LEAST_TABLE = 4
_SAME_ORDER = frozenset(("expand_dims", "squeeze", "reshape", "identity"))
_LINEAR = frozenset(("transpose", "expand_dims", "squeeze", "reshape", "identity", "negative", "unslice"))


@dataclass(frozen=True, eq=False)
class Carried:
    """Added up step by step."""

    share: Tensor


@dataclass(frozen=True, eq=False)
class Reduced:
    """The sum along axes of something that comes out of the loop anyway."""

    share: Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows added to zeros at positions along the first axis."""

    share: Tensor


@dataclass(frozen=True, eq=False)
class Elements:
    """Elements added to zeros at positions along another axis than the first, along several, or along rows."""

    share: Tensor


@dataclass(frozen=True, eq=False)
class Product:
    """A product of two matrices."""

    share: Tensor


@dataclass(frozen=True, eq=False)
class Moved:
    """The first input of a linear operation, and that operation."""

    share: Tensor
    part: Sum


@dataclass(frozen=True, eq=False)
class Total:
    """The sum of several."""

    parts: tuple[Sum, ...]


Sum = Carried | Reduced | Rows | Elements | Product | Moved | Total


def plan_sums(shares: Sequence[Tensor], moving: Callable[[Tensor], bool], fixed: Collection[Tensor]) -> list[Sum]:
    """How the sums of some gradients are made; ``moving`` tells what depends on cotangents, ``fixed`` is the same in
    all steps.
    """
    sums = [_planned(share, moving, fixed) for share in shares]
    out = {source for one in sums for source in sources_of(one) if moving(source)}
    return [_reduced(one, out) for one in sums]


def plan_rows(shares: Sequence[Tensor]) -> list[Sum]:
    """The same for a body that runs once: rows stay rows, all else is as it is."""
    return [_planned(share, lambda x: False, ()) for share in shares]


def _planned(share: Tensor, moving: Callable[[Tensor], bool], fixed: Collection[Tensor]) -> Sum:
    op = share.op
    if op.type in ("add", "add_n"):
        parts = tuple(_planned(x, moving, fixed) for x in op.inputs)
        return Carried(share) if all(isinstance(part, Carried) for part in parts) else Total(parts)
    if op.type in _LINEAR and len(op.inputs) == 1 and op.inputs[0].spec.is_known:
        part = _planned(op.inputs[0], moving, fixed)
        return Carried(share) if isinstance(part, Carried) and op.type != "unslice" else Moved(share, part)
    if _are_rows(share):
        return Rows(share)
    if _are_elements(share, moving):
        return Elements(share)
    if isinstance(op.opdef.kind, Contract) and _is_product(share, moving, fixed):
        return Product(share)
    return Carried(share)


def _are_rows(share: Tensor) -> bool:
    op = share.op
    if not isinstance(op.opdef.kind, Scatter) or len(op.inputs) != 3 or op.type.startswith("batched"):
        return False
    first = op.params["axis"] if op.type == "scatter_take" else op.params.get("axes")
    updates = op.inputs[1].spec
    is_smaller = not (updates.is_known and share.spec.is_known) or updates.nbytes <= share.spec.nbytes
    return first in (0, (0,)) and is_smaller


def _are_elements(share: Tensor, moving: Callable[[Tensor], bool]) -> bool:
    op = share.op
    if op.type not in ("scatter_take", "scatter_index", "scatter_take_along_axis") or not moving(op.inputs[1]):
        return False
    specs = [x.spec for x in op.inputs[1:]]
    if not all(spec.is_known for spec in (share.spec, *specs)):
        return False
    return 0 < _LEAST_TABLE * sum(spec.nbytes for spec in specs) <= share.spec.nbytes


def _is_product(share: Tensor, moving: Callable[[Tensor], bool], fixed: Collection[Tensor]) -> bool:
    factors = share.op.inputs
    if len(share.spec.known_shape if share.spec.is_known else ()) != 2 or not all(x.spec.is_known for x in factors):
        return False
    if any(source_of(x) in fixed for x in factors) or not any(map(moving, factors)):
        return False
    return sum(x.spec.nbytes for x in factors if moving(x)) <= _MOST_FACTOR * share.spec.nbytes


def _reduced(one: Sum, out: Collection[Tensor]) -> Sum:
    """The sum with sums along axes taken after the loop, where their argument comes out of it."""
    if isinstance(one, Total):
        return Total(tuple(_reduced(part, out) for part in one.parts))
    if isinstance(one, Carried):
        op = one.share.op
        is_sum = op.type == "sum" and not op.params["keepdims"] and op.inputs[0].spec.is_known
        if one.share in out or (is_sum and source_of(op.inputs[0]) in out):
            return Reduced(one.share)
    return one


def source_of(x: Tensor) -> Tensor:
    """The tensor whose elements these are, in the same order."""
    while (x.op.type in _SAME_ORDER or isinstance(x.op.opdef.kind, View)) and x.spec.is_known:
        x = x.op.inputs[0]
    return x


def sources_of(one: Sum) -> list[Tensor]:
    """What has to come out of the loop, or is there anyway, an item per step."""
    match one:
        case Total(parts):
            return [source for part in parts for source in sources_of(part)]
        case Moved(_, part):
            return sources_of(part)
        case Rows(share) | Elements(share):
            return [source_of(x) for x in share.op.inputs[1:]]
        case Product(share):
            return [source_of(x) for x in share.op.inputs]
        case Reduced(share):
            return [share] if share.op.type != "sum" else [source_of(share.op.inputs[0])]
        case Carried():
            return []


def carried_in(one: Sum) -> list[Tensor]:
    """What is added up in the loop."""
    match one:
        case Total(parts):
            return [share for part in parts for share in carried_in(part)]
        case Moved(_, part):
            return carried_in(part)
        case Carried(share):
            return [share]
        case _:
            return []


# -- after the loop ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Outside:
    """What came out of a loop: the sums that it carried, and per source its items, stacked; one item if it ran once."""

    totals: Mapping[Tensor, Tensor]
    items: Mapping[Tensor, Tensor]
    is_stacked: bool = True

    def sum(self, one: Sum, like: Tensor) -> Tensor:
        """The sum for the constant ``like``, or for what the body makes of it by a linear operation."""
        match one:
            case Carried(share):
                return self.totals[share]
            case Total(parts):
                made: Tensor = call("add_n", [self.sum(part, like) for part in parts])
                return made
            case Moved(share, part):
                op = share.op
                return apply_one(op.opdef, self.sum(part, op.inputs[0]), **op.params)
            case Rows(share):
                _, updates, index = share.op.inputs
                stack = self._stack(updates)
                return apply_one(scatter_take_op, _zeros(like, stack), stack, self._stack(index), axis=0)
            case Elements(share):
                return self._elements(share, like)
            case Product(share):
                return self._product(share)
            case Reduced(share):
                return self._reduced(share)

    def _stack(self, x: Tensor) -> Tensor:
        """All items of ``x``, along a new first axis."""
        source = source_of(x)
        if source is x:
            return self.items[x]
        lead = (-1,) if self.is_stacked else ()
        made: Tensor = call("reshape", self.items[source], (*lead, *x.spec.known_shape))
        return made

    def _elements(self, share: Tensor, like: Tensor) -> Tensor:
        """Steps are the first of the axes of positions, which stand in the place of those that they look up."""
        (_, updates, *index), params = share.op.inputs, share.op.params
        if share.op.type == "scatter_take_along_axis":
            beside, positions = (self._side_by_side(x, params["axis"]) for x in (updates, *index))
            return apply_one(share.op.opdef, _zeros(like, beside), beside, positions, **params)
        place = params["axes"][0] if "axes" in params else params["axis"]
        stack = call("moveaxis", self._stack(updates), 0, place)
        return apply_one(share.op.opdef, _zeros(like, stack), stack, *map(self._stack, index), **params)

    def _side_by_side(self, x: Tensor, axis: int) -> Tensor:
        """The items of ``x`` one behind the other along an axis of theirs."""
        shape = x.spec.known_shape
        moved = call("moveaxis", self._stack(x), 0, axis)
        return call("reshape", moved, (*shape[:axis], -1, *shape[axis + 1 :]))  # type: ignore[no-any-return]

    def _product(self, share: Tensor) -> Tensor:
        (a, b), params = share.op.inputs, share.op.params
        left, right = self._terms(a, params["transpose_a"]), self._terms(b, not params["transpose_b"])
        return apply_one(share.op.opdef, left, right, transpose_a=True, transpose_b=False)

    def _terms(self, x: Tensor, terms_first: bool) -> Tensor:
        """The terms of all steps, a row each."""
        rows, columns = x.spec.known_shape
        stack = self._stack(x)
        if not terms_first:
            stack = call("transpose", stack, (0, 2, 1)) if columns > 1 else stack
            columns = rows
        made: Tensor = call("reshape", stack, (-1, columns))
        return made

    def _reduced(self, share: Tensor) -> Tensor:
        op = share.op
        if op.type != "sum":
            return call("sum", self._stack(share), axis=0)  # type: ignore[no-any-return]
        rank, axis = op.inputs[0].ndim, op.params["axis"]
        axes = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
        moved = (0, *(a % rank + 1 for a in axes))
        return call("sum", self._stack(op.inputs[0]), axis=moved)  # type: ignore[no-any-return]


def _zeros(like: Tensor, stack: Tensor) -> Tensor:
    """Of the shape of ``like``, beside ``stack``: ``like`` may be of the body."""
    return zeros_like_shape(like, stack.graph)
