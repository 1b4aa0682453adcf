"""The reverse walk over a graph that adds the gradient operations, their scopes and their sums."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad.aggregation import AggregationMethod, as_method, merges_after, pair_sum, sum_of
from jitgrad.gradient_rules import apply_rule, passes_gradient
from jitgrad.graph import Graph, Operation, Tensor
from jitgrad.masks import Masks
from jitgrad.operators import call
from jitgrad.ops.creation import identity
from jitgrad.ops.state import group
from jitgrad.ops.updating import added_in_place
from jitgrad.reachability import by_id, operations_between
from jitgrad.records import dataclass
from jitgrad.scopes import gradient_attrs, sum_attrs
from jitgrad.seeds import listed_seeds, missing_seed, seed_of
from jitgrad.shifts import cancelling_shifts
from jitgrad.side_by_side import MOST_ADDED, side_by_side
from jitgrad.spec import is_inexact

_nowhere = contextlib.nullcontext()


@dataclass(frozen=True)
class Options:
    """How gradients are made: the name of their scope, where they are placed, when they are used and how summed."""

    name: str = "gradients"
    is_colocated: bool = False
    is_gated: bool = False
    method: AggregationMethod = AggregationMethod.DEFAULT
    stopped: Any = None

    @classmethod
    def checked(
        cls, name: Any, colocate_gradients_with_ops: Any, gate_gradients: Any, aggregation_method: Any,
        stop_gradients: Any = None,
    ) -> Options:  # fmt: skip
        """The options of ``jitgrad.gradients``. TypeError for a name or flag that is none, ValueError for a method."""
        if not isinstance(name, str | None):
            raise TypeError(f"name must be a string or None, got {name!r}")
        flags = {"colocate_gradients_with_ops": colocate_gradients_with_ops, "gate_gradients": gate_gradients}
        for key, flag in flags.items():
            if not isinstance(flag, bool):
                raise TypeError(f"{key} must be a bool, got {flag!r}")
        method = as_method(aggregation_method)
        return cls(name or "gradients", colocate_gradients_with_ops, gate_gradients, method, stop_gradients)


class Walk:
    """One reverse walk: the addends that each tensor's gradient has so far, and the rules that are applied."""

    def __init__(
        self, graph: Graph, scope: str, sources: Sequence[Tensor], stopped: set[Tensor], options: Options, masks: Masks
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.name = scope.rstrip("/")
        self.sources = set(sources)
        self.stopped = stopped
        self.options = options
        self.masks = masks
        self.first_consumer: dict[Tensor, Operation] = {}
        self.addends: dict[Tensor, list[Tensor]] = {}  # the latest last; sums of them where the method sums early
        self.arrived: dict[Tensor, int] = {}  # how many addends those are, where the method sums early
        self.summed: dict[Tensor, Tensor] = {}

    def seed(self, targets: Sequence[Tensor], grad_ys: Any) -> None:
        """Enter the cotangents of the targets; integers and bools without one have none."""
        for y, g in zip(targets, listed_seeds(targets, grad_ys), strict=True):
            if g is None and not is_inexact(y.dtype):
                continue
            with self._scopes_of(y.op):
                seed = seed_of(y, g)
            self._add(y, seed)

    def run(self, targets: Sequence[Tensor]) -> None:
        """Apply the rules of all operations between the sources and the targets, the latest first."""
        passes = self._passes if self.stopped else passes_gradient
        between = operations_between(tuple(self.sources), targets, passes)
        shifts = set[Tensor]()
        if not self.stopped and not self.graph.takes_feeds:
            shifts, weighs_numbers = cancelling_shifts(between, {*self.sources, *targets})
            self.stopped = shifts
            self.graph.weighs_numbers |= weighs_numbers
        for op in sorted(between, key=by_id, reverse=True):
            cotangents = [self.gradient_of(t) for t in op.outputs]
            missing = [g is None for g in cotangents]
            if False in missing:
                self._propagate(op, cotangents, True in missing, between)
        if shifts:
            self._enter_zeros_behind(shifts)

    def _enter_zeros_behind(self, shifts: set[Tensor]) -> None:
        """Zeros for sources that reach the targets through shifts alone: these depend on them, if only in name."""
        for x in sorted(self.sources - self.addends.keys(), key=lambda x: by_id(x.op)):
            if is_inexact(x.dtype) and operations_between((x,), tuple(shifts), passes_gradient):
                with self._scopes_of(x.op):
                    self._add(x, call("zeros_like", x))

    def _propagate(
        self, op: Operation, cotangents: list[Tensor | None], some_missing: bool, between: set[Operation]
    ) -> None:
        wanted = [x for x in op.inputs if self._carries(x, between)]
        if not wanted:
            return
        with self._scopes_of(op, f"{self.scope}{op.name}_grad/"):
            if some_missing:
                pairs = zip(cotangents, op.outputs, strict=True)
                cotangents = [g if g is not None else missing_seed(t) for g, t in pairs]
            grads = self.masks.behind(op, cotangents, apply_rule(op, cotangents, wanted, self.masks))
            if len(wanted) < len(op.inputs):
                carrying = set(wanted)
                grads = [g if x in carrying else None for x, g in zip(op.inputs, grads, strict=True)]
            if self.options.is_gated:
                grads = self._gated(grads)
        for x, g in zip(op.inputs, grads, strict=True):
            if g is not None:
                self.first_consumer[x] = op
                self._add(x, g)

    def _gated(self, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients again, each available only when all of them are."""
        present = [g for g in grads if g is not None]
        if len(present) < 2:
            return grads
        with self.graph.control_dependencies([group(*present, name="gate")]):
            gated = {g: identity(g) for g in dict.fromkeys(present)}
        for g, after in gated.items():
            self.masks.follow(after, g)
        return [g if g is None else gated[g] for g in grads]

    def _passes(self, t: Tensor) -> bool:
        return t not in self.stopped and passes_gradient(t)

    def _carries(self, x: Tensor, between: set[Operation]) -> bool:
        reached = x in self.sources or (x.op in between and x not in self.stopped)
        return reached and is_inexact(x.spec.dtype)

    def gradient_of(self, t: Tensor) -> Tensor | None:
        """The sum of the addends of ``t``, in the order of its consumers."""
        addends = self.addends.get(t)
        if addends is None:
            return None
        if len(addends) == 1:
            return addends[0]
        if t not in self.summed:
            self.summed[t] = self._sum(t, addends, self._sum_of)
        return self.summed[t]

    def _sum_of(self, addends: Sequence[Tensor]) -> Tensor:
        """The sum of all addends: of what is traced, with those of single items side by side."""
        if self.graph.is_repeated:
            addends = added_in_place(addends)
        if self.graph.is_trace and len(addends) > MOST_ADDED:
            fewer = side_by_side(addends)
            if len(fewer) < len(addends):
                self.graph.weighs_numbers = True  # where items stand may follow from extents
                addends = fewer
        return addends[0] if len(addends) == 1 else sum_of(addends, self.options.method)

    def _add(self, t: Tensor, g: Tensor) -> None:
        """Enter an addend, and sum as far as the method wants it now."""
        parts = self.addends.setdefault(t, [])
        parts.append(g)
        method = self.options.method
        if method is AggregationMethod.ADD_N:
            return
        self.arrived[t] = arrived = self.arrived.get(t, 0) + 1
        for _ in range(merges_after(method, arrived, t.spec.is_known)):
            parts[-2:] = [self._sum(t, parts[-2:], lambda pair: pair_sum(*pair))]

    def _sum(self, t: Tensor, addends: list[Tensor], sum_up: Callable[[list[Tensor]], Tensor]) -> Tensor:
        attrs = sum_attrs([g.op for g in addends])
        with self.graph.in_scope(self.scope, attrs), self._place_of_sum(t, addends):
            total = sum_up(addends)
        self.masks.join(total, addends)
        return total

    def _scopes_of(self, op: Operation, name_scope: str | None = None) -> contextlib.AbstractContextManager[None]:
        attrs = gradient_attrs(op, self.name)
        return self.graph.derived_from(op, attrs, name_scope, self.options.is_colocated)

    def _place_of_sum(self, t: Tensor, addends: list[Tensor]) -> contextlib.AbstractContextManager[None]:
        """Colocated, a sum is where the first reader of ``t`` is, or, over several devices, where t is made."""
        if not self.options.is_colocated:
            return _nowhere
        devices = {g.op.device for g in addends}
        op = t.op if len(devices) > 1 else self.first_consumer.get(t, t.op)
        return self.graph.colocate_with(op, ignore_existing=True)
