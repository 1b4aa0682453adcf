"""gradients(): the reverse walk over a graph that adds the gradient operations, their scopes and their sums."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jitgrad import operators
from jitgrad.aggregation import AggregationMethod, as_method, merges_after, pair_sum, sum_of
from jitgrad.collecting import collection_paused
from jitgrad.errors import DTypeError, JitgradError, ShapeError, layout
from jitgrad.gradient_rules import RuleError, apply_rule, passes_gradient, registered_rules
from jitgrad.graph import Graph, Operation, Tensor, default_graph, graph_of
from jitgrad.opdef import Control, Elementwise
from jitgrad.ops.creation import identity
from jitgrad.ops.state import Variable, group
from jitgrad.scopes import gradient_attrs, sum_attrs
from jitgrad.sources import operation_text
from jitgrad.spec import is_compatible, is_inexact


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: Any = None,
    stop_gradients: Any = None,
) -> list[Tensor | None]:
    """As ``jitgrad.gradients``, which tells the arguments and errors, with every gradient a dense tensor.

    Integer and bool ys carry no gradient.
    """
    method = as_method(aggregation_method)
    targets = _as_tensors(ys, default_graph())
    around = graph_of(targets)
    sources = _as_tensors(xs, around)
    stopped = set(_as_tensors(stop_gradients, around)) if stop_gradients is not None else set()
    graph = graph_of([*targets, *sources])
    for t in (*targets, *sources, *stopped):
        graph.as_graph_element(t)
    if targets and targets[0].graph.outer is not None:  # in a body, where others stand for what is read from around
        here = targets[0].graph.captured
        sources, stopped = [here(x) for x in sources], {here(x) for x in stopped}
    follower, asked = graph.follower, None
    if follower is not None:
        options = (name, colocate_gradients_with_ops, gate_gradients, method)
        asked = follower.ask(targets, sources, grad_ys, list(stopped), options)
        found = follower.recall(asked) if asked is not None else None
        if found is not None:
            return found
        first, names = len(graph), len(graph._names)
    with graph.name_scope(name or "gradients") as scope, graph.making_gradients(), collection_paused():
        walk = _Walk(graph, scope, sources, stopped, method, colocate_gradients_with_ops, gate_gradients)
        walk.seed(targets, grad_ys)
        walk.run(targets)
        found = [walk.gradient_of(x) for x in sources]
    if follower is not None and asked is not None:
        follower.note(asked, first, names, found)
    return found


def _as_tensors(value: Any, graph: Graph) -> list[Tensor]:
    """What a value lists, as tensors; a Variable is read in the graph."""
    if isinstance(value, str) or not (hasattr(value, "as_graph_element") or isinstance(value, Iterable)):
        raise TypeError(f"gradients takes tensors for ys and xs, got {value!r}")
    items = [value] if isinstance(value, Tensor) or hasattr(value, "as_graph_element") else list(value)
    return [_as_tensor(item, graph) for item in items]


def _as_tensor(item: Any, graph: Graph) -> Any:
    if isinstance(item, Variable):
        is_inside = graph.outer is not None
        return item.as_graph_element(graph) if is_inside else item.first_read(graph)  # which the other reads follow
    return item.as_graph_element() if hasattr(item, "as_graph_element") else item


_by_id = operator.attrgetter("id")
_nowhere = contextlib.nullcontext()
# Ops whose rules pass a cotangent on as it is, or negated.
_LINEAR = frozenset(("add", "subtract", "negative", "positive", "identity", "add_n"))


class _Walk:
    """One reverse walk: the addends that each tensor's gradient has so far, and the rules that are applied."""

    def __init__(
        self,
        graph: Graph,
        scope: str,
        sources: Sequence[Tensor],
        stopped: set[Tensor],
        method: AggregationMethod,
        is_colocated: bool,
        is_gated: bool,
    ) -> None:
        self.graph = graph
        self.scope = scope
        self.name = scope.rstrip("/")
        self.sources = set(sources)
        self.stopped = stopped
        self.method = method
        self.is_colocated = is_colocated
        self.is_gated = is_gated
        self.first_consumer: dict[Tensor, Operation] = {}
        self.addends: dict[Tensor, list[Tensor]] = {}  # the latest last; sums of them where the method sums early
        self.arrived: dict[Tensor, int] = {}  # how many addends those are, where the method sums early
        self.summed: dict[Tensor, Tensor] = {}
        self.masks: dict[Tensor, Tensor] = {}  # cotangent → where it is not 0 because of a where()

    def seed(self, targets: Sequence[Tensor], grad_ys: Any) -> None:
        cotangents = [None] * len(targets) if grad_ys is None else list(
            grad_ys if isinstance(grad_ys, list | tuple) else [grad_ys]
        )
        if len(cotangents) != len(targets):
            raise ValueError(f"grad_ys has {len(cotangents)} entries for {len(targets)} ys")
        for y, g in zip(targets, cotangents, strict=True):
            if g is None and not is_inexact(y.dtype):
                continue
            with self._scopes_of(y.op):
                seed = _seed(y, g)
            self._add(y, seed)

    def run(self, targets: Sequence[Tensor]) -> None:
        passes = self._passes if self.stopped else passes_gradient
        between = operations_between(tuple(self.sources), targets, passes)
        pending = sorted(between, key=_by_id, reverse=True)
        for op in pending:
            cotangents = [self.gradient_of(t) for t in op.outputs]
            missing = [g is None for g in cotangents]
            if False in missing:
                self._propagate(op, cotangents, True in missing, between)

    def _propagate(
        self, op: Operation, cotangents: list[Tensor | None], some_missing: bool, between: set[Operation]
    ) -> None:
        wanted = [x for x in op.inputs if self._carries(x, between)]
        if not wanted:
            return
        with self._scopes_of(op, f"{self.scope}{op.name}_grad/"):
            if some_missing:
                cotangents = [g if g is not None else _missing(t) for g, t in zip(cotangents, op.outputs, strict=True)]
            grads = apply_rule(op, cotangents, wanted)
            if self.masks or op.opdef.name == "where":
                grads = self._masked(op, cotangents, grads)
            if len(wanted) < len(op.inputs):
                carrying = set(wanted)
                grads = [g if x in carrying else None for x, g in zip(op.inputs, grads, strict=True)]
            if self.is_gated:
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
        self.masks |= {after: self.masks[g] for g, after in gated.items() if g in self.masks}
        return [g if g is None else gated[g] for g in grads]

    def _masked(
        self, op: Operation, cotangents: Sequence[Tensor | None], grads: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """The gradients of an op, 0 where a where() downstream did not take the side that the op belongs to.

        There the cotangent is 0, and a rule may make NaN of it: 0/x of a logarithm at x = 0. So a side that is not
        taken is masked again behind each element-wise op whose derivative can be infinite.
        """
        if op.opdef.name == "where":
            for g, side in zip(grads[1:], (op.inputs[0], operators.call("logical_not", op.inputs[0])), strict=True):
                if g is not None:
                    self.masks[g] = side
            return grads
        mask = self.masks.get(cotangents[0]) if cotangents[0] is not None else None
        if mask is None or not isinstance(op.opdef.kind, Elementwise):
            return grads
        if op.type not in _LINEAR:
            grads = [g if g is None else operators.call("where", mask, g, 0) for g in grads]
        self.masks.update((g, mask) for g in grads if g is not None)
        return grads

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
            self.summed[t] = self._sum(t, addends, functools.partial(sum_of, method=self.method))
        return self.summed[t]

    def _add(self, t: Tensor, g: Tensor) -> None:
        """Enter an addend, and sum as far as the method wants it now."""
        parts = self.addends.setdefault(t, [])
        parts.append(g)
        if self.method is AggregationMethod.ADD_N:
            return
        self.arrived[t] = arrived = self.arrived.get(t, 0) + 1
        for _ in range(merges_after(self.method, arrived, t.spec.is_known)):
            parts[-2:] = [self._sum(t, parts[-2:], lambda pair: pair_sum(*pair))]

    def _sum(self, t: Tensor, addends: list[Tensor], sum_up: Callable[[list[Tensor]], Tensor]) -> Tensor:
        attrs = sum_attrs([g.op for g in addends])
        with self.graph.in_scope(self.scope, attrs), self._place_of_sum(t, addends):
            total = sum_up(addends)
        if self.masks:
            masks = {self.masks.get(g) for g in addends}
            if len(masks) == 1 and (mask := masks.pop()) is not None:
                self.masks[total] = mask
        return total

    def _scopes_of(self, op: Operation, name_scope: str | None = None) -> contextlib.AbstractContextManager[None]:
        attrs = gradient_attrs(op, self.name)
        return self.graph.derived_from(op, attrs, name_scope, self.is_colocated)

    def _place_of_sum(self, t: Tensor, addends: list[Tensor]) -> contextlib.AbstractContextManager[None]:
        """Colocated, a sum is where the first reader of ``t`` is, or, over several devices, where t is made."""
        if not self.is_colocated:
            return _nowhere
        devices = {g.op.device for g in addends}
        op = t.op if len(devices) > 1 else self.first_consumer.get(t, t.op)
        return self.graph.colocate_with(op, ignore_existing=True)


def operations_between(
    sources: Sequence[Tensor], targets: Sequence[Tensor], passes: Callable[[Tensor], bool] = lambda t: True
) -> set[Operation]:
    """Operations on a path from a source to a target, none of whose tensors on the way is one that does not pass.

    Two walks, forward from the sources and backward from the targets, take turns; when one has seen all it can
    reach, the other is not needed any more: the cost is twice the smaller of the two, whatever else the graph holds.
    """
    sources_set = set(sources)
    last = max((t.op.id for t in targets), default=-1)
    first = min((x.op.id for x in sources), default=0)

    def down(op: Operation) -> Iterator[Operation]:
        if len(op.outputs) == 1:
            t = op.outputs[0]
            return iter(t._consumers if passes(t) else ())
        return (c for t in op.outputs if passes(t) for c in t._consumers)

    def up(op: Operation) -> Iterator[Operation]:
        return iter([x.op for x in op.inputs if passes(x)])

    forward = _Reach((c for x in sources for c in x._consumers), down, range(last + 1))
    ends = {t.op for t in targets if passes(t)}
    backward = _Reach(iter(ends), up, range(first + 1, last + 1))
    while forward.follow() and backward.follow():
        pass
    if forward.is_done:
        return _restrict(forward.seen, lambda op, kept: op in ends or any(
            c in kept for t in op.outputs if passes(t) for c in t._consumers
        ), reverse=True)
    return _restrict(backward.seen, lambda op, kept: any(
        x in sources_set or (x.op in kept and passes(x)) for x in op.inputs
    ), reverse=False)


class _Reach:
    """The operations of a range reachable in one direction, a few edges at a time: one may have any number of them."""

    def __init__(
        self, start: Iterator[Operation], neighbours: Callable[[Operation], Iterator[Operation]], within: range
    ) -> None:
        self.seen: set[Operation] = set()
        self.pending = [start]
        self.neighbours = neighbours
        self.within = within

    @property
    def is_done(self) -> bool:
        return not self.pending

    def follow(self, edges: int = 64) -> bool:
        """Follow so many edges; False when there are no more."""
        seen, pending = self.seen, self.pending
        for _ in range(edges):
            op = next(pending[-1], None)
            if op is None:
                pending.pop()
                if not pending:
                    return False
            elif op not in seen and op.id in self.within:
                seen.add(op)
                pending.append(self.neighbours(op))
        return True


def _restrict(ops: set[Operation], keep: Any, *, reverse: bool) -> set[Operation]:
    kept: set[Operation] = set()
    for op in sorted(ops, key=_by_id, reverse=reverse):
        if keep(op, kept):
            kept.add(op)
    return kept


def _seed(y: Tensor, g: Any) -> Tensor:
    if not is_inexact(y.dtype):
        raise DTypeError(
            layout(f"{y.name!r} of dtype {y.dtype.name} carries no gradient", op=operation_text(y.op),
                   hint="convert it to a float dtype, or leave it out")
        )  # fmt: skip
    if g is None:
        if y.dtype.kind == "c":
            raise DTypeError(layout(f"{y.name!r} is {y.dtype.name}: gradients of complex ys need grad_ys",
                                    op=operation_text(y.op), hint="give grad_ys, or take .real of it"))  # fmt: skip
        return operators.call("ones_like", y)  # type: ignore[no-any-return]
    g = g.as_graph_element() if hasattr(g, "as_graph_element") else g
    is_symbol = isinstance(g, Tensor)
    if not is_symbol and (kind := np.asarray(g).dtype).kind not in "biufc":
        raise DTypeError(layout(f"grad_ys of {y.name!r} does not fit: {kind} for {y.dtype.name}", expected=y.spec,
                                got=repr(g), op=operation_text(y.op)))  # fmt: skip
    found: Any = y.graph.as_graph_element(g) if is_symbol else operators.call("constant", g, graph=y.graph)
    return _as_cotangent(found, y)


def _as_cotangent(tensor: Tensor, y: Tensor) -> Tensor:
    """The seed in the dtype of ``y``; an error where it does not fit."""
    error = _misfit(tensor, y)
    if error is not None:
        fields = {"expected": y.spec, "got": tensor.spec, "op": operation_text(y.op)}
        what = "another shape" if error is ShapeError else f"{tensor.dtype.name} for {y.dtype.name}"
        raise error(layout(f"grad_ys of {y.name!r} does not fit: {what}", **fields))
    return tensor if tensor.dtype == y.dtype else operators.call("astype", tensor, y.dtype)


def _misfit(seed: Tensor, y: Tensor) -> type[JitgradError] | None:
    """What is wrong with a seed: a dtype that is no number's, complex for a real y, another shape; None: nothing."""
    if seed.dtype.kind not in ("fiuc" if y.dtype.kind == "c" else "fiu"):
        return DTypeError
    return None if is_compatible(seed.shape, y.shape) else ShapeError


def _missing(t: Tensor) -> Tensor | None:
    """Zeros for an output that no y depends on; None when its dtype carries none, and for a graph function, whose
    gradient is that of the other outputs alone.
    """
    kind = t.op.opdef.kind
    is_function = isinstance(kind, Control) and kind.form == "function"
    return operators.call("zeros_like", t) if is_inexact(t.dtype) and not is_function else None


__all__ = ["RuleError", "apply_rule", "gradients", "operations_between", "registered_rules"]
