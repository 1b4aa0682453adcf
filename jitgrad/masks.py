"""Where cotangents are 0 because a where() downstream took the other side; which gradients are made is not told here.

A rule may make NaN of such a 0: 0/x of a logarithm at x = 0. So what a rule makes of it is masked again. The masks
follow the cotangents: a where() inside another narrows the mask of its own cotangent, a sum is 0 where all its addends
are, and through operations that only move and add elements a mask goes as the cotangent does, and into the gradients
of graph functions. They are made when one is needed: a graph without where() has nothing of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.gradient_rules import apply_rule, has_own_rule
from jitgrad.graph import Operation, Tensor
from jitgrad.opdef import Elementwise, Gather, Interpreted, Reduce, Reindex, Scan, Scatter, Shaped, View
from jitgrad.operators import call

Grads = Sequence[Tensor | None]

# Ops whose rules pass a cotangent on as it is, or negated.
_LINEAR = frozenset(("add", "subtract", "negative", "positive", "identity", "add_n"))
# Kinds whose rules move and add the elements of a cotangent, and ask no value of another tensor.
_MOVING = (Reindex, View, Shaped, Gather, Scatter)


class Mask:
    """A bool tensor, or how it is made of others: True where a cotangent may be other than 0. Where an assignment made
    it, ``given`` is the operation that puts what is assigned, all of it, in its places; ``outer`` is the mask behind.
    """

    __slots__ = ("_made", "_make", "_parts", "given", "outer")

    def __init__(
        self,
        parts: Sequence[Mask],
        make: Callable[..., Tensor],
        given: Operation | None = None,
        outer: Mask | None = None,
    ) -> None:
        self._parts = parts
        self._make = make
        self._made: Tensor | None = None
        self.given = given
        self.outer = outer

    def tensor(self) -> Tensor:
        """The mask, in the graph that is open."""
        pending = [self]
        while pending:
            mask = pending[-1]
            missing = [part for part in mask._parts if part._made is None]
            pending += missing
            if not missing:
                pending.pop()
                if mask._made is None:
                    mask._made = mask._make(*[part._made for part in mask._parts])
        assert self._made is not None
        return self._made


class Masks:
    """The masks of the cotangents of one walk; a cotangent that has none may be anything anywhere."""

    def __init__(self) -> None:
        self._of: dict[Tensor, Mask] = {}

    def of(self, g: Tensor | None) -> Tensor | None:
        """The mask of a cotangent, in the graph that is open; None when it has none."""
        mask = self._of.get(g) if g is not None else None
        return None if mask is None else mask.tensor()

    def enter(self, g: Tensor, mask: Tensor) -> None:
        """Say where a cotangent may be other than 0."""
        self._of[g] = Mask((), lambda: mask)

    def enter_zeros(self, g: Tensor) -> None:
        """Say that a cotangent is 0 everywhere, because nothing reads what it is the cotangent of."""
        self._of[g] = Mask((), lambda: call("zeros_like", g, np.dtype(bool)))

    def follow(self, after: Tensor, before: Tensor) -> None:
        """``after`` is ``before`` again."""
        if before in self._of:
            self._of[after] = self._of[before]

    def join(self, total: Tensor, addends: Iterable[Tensor]) -> None:
        """``total`` is the sum of the addends."""
        if not self._of:
            return
        masks = {self._of.get(g): None for g in addends}
        parts = [mask for mask in masks if mask is not None]
        if len(parts) == len(masks):
            self._of[total] = parts[0] if len(parts) == 1 else Mask(parts, _any_of)

    def behind(self, op: Operation, cotangents: Grads, grads: Grads) -> Grads:
        """The gradients of an op, 0 where its cotangent is 0 because of a where(); and their masks are entered."""
        if op.opdef.name == "where" and has_own_rule(op):
            self._choose(op, cotangents[0], grads)
            return grads
        mask = self._of.get(cotangents[0]) if len(cotangents) == 1 and cotangents[0] is not None else None
        if mask is not None and mask.given is op:
            mask = mask.outer
        if mask is None:
            return grads
        if _is_elementwise(op):
            return self._masked(op, mask, grads)
        if _moves(op):
            moved = _Moved(op)
            self._of.update((g, Mask((mask,), moved.of(k))) for k, g in enumerate(grads) if g is not None)
        return grads

    def _choose(self, op: Operation, cotangent: Tensor | None, grads: Grads) -> None:
        """The masks of the two sides of a where()."""
        outer = self._of.get(cotangent) if cotangent is not None else None
        first = Mask((), lambda: op.inputs[0])
        second = Mask((first,), functools.partial(call, "logical_not"))
        for g, side, given in zip(grads[1:], (first, second), (_given(op), None), strict=True):
            if g is not None:
                parts, make = (side._parts, side._make) if outer is None else ((outer, side), _both)
                self._of[g] = Mask(parts, make, given, outer)

    def _masked(self, op: Operation, mask: Mask, grads: Grads) -> Grads:
        if op.type not in _LINEAR or not has_own_rule(op):
            grads = [g if g is None else call("where", mask.tensor(), g, 0) for g in grads]
        self._of.update((g, mask) for g in grads if g is not None)
        return grads


def _both(outer: Tensor, side: Tensor) -> Tensor:
    return call("logical_and", outer, side)  # type: ignore[no-any-return]


def _any_of(*masks: Tensor) -> Tensor:
    return functools.reduce(functools.partial(call, "logical_or"), masks)


def _is_elementwise(op: Operation) -> bool:
    """Whether an op is computed element by element, in a kernel or in SciPy."""
    kind = op.opdef.kind
    return isinstance(kind, Elementwise) or (isinstance(kind, Interpreted) and kind.is_elementwise)


def _moves(op: Operation) -> bool:
    """Whether the rule of an op makes 0 of what is 0, whatever the op reads."""
    kind = op.opdef.kind
    is_sum = isinstance(kind, Reduce | Scan) and kind.combine == "add"
    return (is_sum or isinstance(kind, _MOVING)) and op.type != "custom_gradient" and has_own_rule(op)


class _Moved:
    """Masks of the gradients of an op that moves elements: the rule, applied once for all of them to 1 where the
    cotangent may be other than 0.
    """

    def __init__(self, op: Operation) -> None:
        self._op = op
        self._grads: Grads | None = None

    def of(self, k: int) -> Callable[[Tensor], Tensor]:
        """What makes the mask of the gradient of input ``k`` from that of the cotangent."""
        return functools.partial(self._made, k)

    def _made(self, k: int, given: Tensor) -> Tensor:
        if self._grads is None:
            ones = call("astype", given, self._op.outputs[0].dtype)
            self._grads = apply_rule(self._op, [ones], self._op.inputs)
        moved: Tensor = call("not_equal", self._grads[k], 0)
        return moved


def _given(op: Operation) -> Operation | None:
    """What puts the values of an assignment, which this where() then is, in their places, if none of them is covered;
    None elsewhere.
    """
    inside, given = op.inputs[0].op, op.inputs[1].op
    if given.type == "unslice":
        is_window = inside.type == "unslice" and inside.params == given.params
        true = _constant(inside.inputs[0]) if is_window else None
        return given if true is not None and bool(np.all(true)) else None
    if given.type not in ("scatter_take", "scatter_index"):
        return None
    mask, *places = map(_constant, (op.inputs[0], *given.inputs[2:]))
    if mask is None or any(place is None for place in places):
        return None
    axis = given.params["axis"] if given.type == "scatter_take" else given.params["axes"][0]
    shown = np.broadcast_to(mask, op.outputs[0].spec.known_shape)[(*(slice(None),) * axis, *places)]
    return given if bool(np.all(shown)) else None


def _constant(x: Tensor) -> Any:
    """The value of a constant, if need be before it was broadcast; None of what is none."""
    x = x.op.inputs[0] if x.op.type == "broadcast_to" else x
    return x.op.params["value"] if x.op.type == "constant" else None
