"""Compiled functions called with eager tensors: one recorded op, whose forward pass keeps what its gradient reads.

The function and its gradient are traced together and cut in two: the forward part gives the results and the values that
gradient ops read of it (residuals), the gradient part gives the cotangents. Both run compiled; no forward op runs
twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.again import make_again
from jitgrad.eager.calls import Given, given
from jitgrad.eager.closures import noting_origins, tell
from jitgrad.eager.recorder import Entry, OwnRules, keep, leading_to, unchanging
from jitgrad.eager.tensor import EagerTensor, plain, run, wrap
from jitgrad.eagerness import local, number_of, settled
from jitgrad.gradients import gradients as dense_gradients
from jitgrad.graph import Operation, Tensor, default_graph
from jitgrad.ops.slices import IndexedSlices
from jitgrad.ops.state import Variable, assign_op, read_op, scatter_op
from jitgrad.program import needed_operations
from jitgrad.records import dataclass
from jitgrad.running import Runner
from jitgrad.sparse import gradients
from jitgrad.spec import is_inexact
from jitgrad.streams import Streams
from jitgrad.trace import LeafKey, Results, Scope, trace, traced_result


@dataclass(frozen=True, eq=False)
class Traceable:
    """What it takes to trace a call: the function with its scope, the call's leaves without their values, and the
    streams of random numbers that the function reads.
    """

    fn: Callable[..., Any]
    structure: Any
    keys: Sequence[LeafKey]
    rebuild: Callable[[Any, Any], tuple[Any, Any]]
    scope: Scope
    results: Results
    outputs: Sequence[Tensor]
    streams: Streams


Residuals = tuple[Any, tuple[int, ...], tuple[int | None, ...]]


@dataclass(frozen=True, eq=False)
class Split:
    """A function cut into its forward part and its gradient.

    ``reads`` are, per input of the backward part, ("leaf", k), ("value", k) for results and residuals, or ("seed", k).
    The tensors that the function has ``closed_over`` count as leaves after the call's; ``origins`` are the entries of
    the calls that made them. ``gives`` is, per leaf and then per Variable, the backward part's output, those of values
    and indices with the shape where rows were looked up, or None. ``drawn`` are the residuals that a
    draw of random numbers or a py_func made, which nothing makes again. ``scope`` is that of the function, and
    ``untrained`` are the Variables that it reads of which there is no gradient here.
    """

    forward: Runner
    backward: BackwardCall
    results: Results
    count: int
    variables: tuple[Variable, ...]
    reads: tuple[tuple[str, int], ...]
    gives: tuple[Given, ...]
    carrying: tuple[int, ...]
    inputs: tuple[Tensor, ...]
    drawn: tuple[int, ...]
    scope: Scope
    closed_over: tuple[EagerTensor, ...]
    origins: tuple[Entry, ...]
    untrained: tuple[Variable, ...]

    def lacks_one(self) -> bool:
        """Whether a tape of this thread watches a Variable of which this has no gradient."""
        return any(map(_is_watched, self.untrained))

    @functools.cached_property
    def of_residuals(self) -> Residuals:
        """The gradient of the residuals as a function of leaves, Variables, what was drawn, and cotangents; the places
        of those residuals; per leaf and Variable the number of its output.
        """
        return _gradient_of_residuals(self)


def _is_watched(variable: Variable) -> bool:
    return any(tape.watches(variable) for tape in local.tapes)


class BackwardCall(OwnRules):
    """The gradient part as a function: of arrays run compiled, of traced values made into ops again."""

    def __init__(self, fetches: Sequence[Tensor], feeds: Sequence[Tensor], scope: Scope) -> None:
        super().__init__()
        self._scope = scope
        self._runner = Runner(fetches, feeds, name="gradient")
        self._fetches, self._feeds = tuple(fetches), tuple(feeds)
        self.operations = needed_operations(fetches, (), feeds)

    def __call__(self, *values: Any) -> list[Any]:
        if any(isinstance(x, Tensor) for x in values):
            return _made_again(self._fetches, self._feeds, self.operations, values, self._scope)
        return self._runner.run([np.ascontiguousarray(plain(x)).reshape(np.shape(x)) for x in values])


def _made_again(
    fetches: Sequence[Tensor],
    feeds: Sequence[Tensor],
    operations: Sequence[Operation],
    values: Sequence[Any],
    scope: Scope,
) -> list[Any]:
    """The fetches computed by the same ops, made again in a scope, from other values of the feeds."""
    made: dict[Tensor, Any] = dict(zip(feeds, values, strict=True))
    with scope():
        make_again(operations, made)
    return [made[t] for t in fetches]


@dataclass(frozen=True, eq=False)
class SplitRule:
    """The gradient of one call: the backward part, with what the forward part kept.

    What is kept are the inputs of the backward part, then the call's leaves, Variables and what was drawn. Cotangents
    of residuals come from a tape that watched the backward part run: they go through the forward part, which is
    differentiated then.
    """

    split: Split
    specs: tuple[Any, ...]

    def places(self, leaves: int) -> Sequence[int]:
        """Nothing: what is needed is handed over with the rule's entry."""
        return ()

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Cotangents of the leaves, then of the Variables."""
        split = self.split
        pending = iter(kept)
        grads: list[Any] = [None] * len(split.gives)
        if any(g is not None for g in cotangents[: split.count]):
            values = [self._seed(cotangents[k], k) if what == "seed" else next(pending) for what, k in split.reads]
            made = run(split.backward, tuple(values), {}) if any(k is not None for k in split.gives) else []
            grads = [given(place, made) for place in split.gives]
        if any(g is not None for g in cotangents[split.count :]):
            grads = [_added(g, h) for g, h in zip(grads, self._through_residuals(kept, cotangents), strict=True)]
        return grads

    def _through_residuals(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        """What the cotangents of residuals add to those of leaves and Variables."""
        split = self.split
        backward, places, gives = split.of_residuals
        leaves = kept[len(kept) - len(split.inputs) - len(split.drawn) :]
        seeds = [self._seed(cotangents[k], k) for k in places]
        made = run(backward, (*leaves, *seeds), {})
        return [None if k is None else made[k] for k in gives]

    def _seed(self, cotangent: Any, k: int) -> Any:
        spec = self.specs[k]
        return np.zeros(spec.known_shape, spec.dtype) if cotangent is None else settled(cotangent)


def _added(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _gradient_of_residuals(split: Split) -> Residuals:
    fetches = split.forward.fetches
    places = tuple(k for k, t in enumerate(fetches) if k >= split.count and is_inexact(t.dtype))
    wanted = [fetches[k] for k in places]
    fixed = (*split.inputs, *[fetches[k] for k in split.drawn])
    operations = needed_operations(wanted, (), fixed)
    found: dict[str, Any] = {}

    def differentiated(inputs: list[Tensor], seeds: list[Tensor]) -> Any:
        ys = _made_again(wanted, fixed, operations, inputs, split.scope)
        xs = inputs[: len(split.inputs)]
        found.update(inputs=inputs, seeds=seeds, grads=dense_gradients(ys, xs, grad_ys=list(seeds)))
        return []

    keys = [(t.dtype, t.shape) for t in (*fixed, *wanted)]
    tree = [list(range(len(fixed))), list(range(len(wanted)))]
    trace(differentiated, pytree.flatten((tuple(tree), {}))[1], keys, [f"x{k}" for k in range(len(keys))])
    place: dict[Tensor, int] = {}
    gives = tuple(None if g is None else place.setdefault(g, len(place)) for g in found["grads"])
    return BackwardCall(list(place), [*found["inputs"], *found["seeds"]], split.scope), places, gives


def call_split(split: Split, arrays: Sequence[Any], leaves: Sequence[Any]) -> Any:
    """Run a call with its tapes told: ``arrays`` are the plain dynamic leaves, ``leaves`` what was given for them."""
    variables = [v.eager_value() for v in split.variables]
    leaves = (*leaves, *split.closed_over)
    tell(local.tapes, split.origins)
    numbers = tuple(map(number_of, (*leaves, *variables)))
    telling = [tape for tape in local.tapes if not tape.watched.isdisjoint(numbers)]
    values = split.forward.run(arrays)
    outs = [wrap(value) for value in values]
    if telling:
        sources: Mapping[str, Sequence[Any]] = {"leaf": leaves, "value": outs}
        kept = tuple(sources[what][k] for what, k in split.reads if what != "seed")
        specs = tuple(t.spec for t in split.forward.fetches)
        drawn = [outs[k] for k in split.drawn]
        keep(telling, SplitRule(split, specs), numbers, outs, unchanging((*kept, *leaves, *variables, *drawn)))
    return build_eager(split.results, outs[: split.count])


def build_eager(results: Results, outs: Sequence[EagerTensor]) -> Any:
    """The results of a call with eager tensors in the places of arrays."""
    leaves = [value if slot is None else outs[slot] for slot, value in zip(results.slots, results.fixed, strict=True)]
    return pytree.unflatten(results.structure, leaves)


def make_split(call: Traceable, variables: Collection[Variable] = ()) -> Split:
    """Trace a call with its gradient, and cut. There are gradients of Variables that may be trained, of those that a
    tape of this thread watches, and of ``variables``.
    """
    outputs = call.outputs
    carrying = tuple(k for k, t in enumerate(outputs) if is_inexact(t.dtype))
    seed_keys = [(outputs[k].dtype, outputs[k].shape) for k in carrying]
    found: dict[str, Any] = {}
    chosen = frozenset(variables)

    def differentiated(given: Any, seeds: list[Tensor]) -> Any:
        leaves = [x for x in pytree.flatten(given)[0] if isinstance(x, Tensor)]
        args, kwargs = call.rebuild(*given)
        with call.scope(), noting_origins() as origins:
            result = call.fn(*args, **kwargs)
        graph = default_graph()
        results = map(traced_result, pytree.flatten(result)[0])
        flat = [x.as_graph_element() if isinstance(x, Variable) else x for x in results]
        ys = [y for y in flat if isinstance(y, Tensor)]
        reads = {v: t for v, t in graph.variables.items() if v.trainable or v in chosen or _is_watched(v)}
        found["untrained"] = [v for v in graph.variables if v not in reads and is_inexact(v.dtype)]
        effects = [op for op in graph.operations if op.opdef in (assign_op, scatter_op)]
        closed_over = {held: x for held, x in graph.closed_over if is_inexact(x.dtype)}
        found.update(first=len(graph), leaves=leaves, ys=ys, seeds=seeds, reads=reads, effects=effects)
        found.update(closed_over=closed_over, origins=origins.entries)
        xs = [*leaves, *closed_over, *reads.values()]
        found["grads"] = gradients([ys[k] for k in carrying], xs, grad_ys=list(seeds))
        return []

    tree = pytree.unflatten(call.structure, list(range(len(call.keys))))
    structure = pytree.flatten(((tree, list(range(len(seed_keys)))), {}))[1]
    names = [f"x{k}" for k in range(len(call.keys))] + [f"g{k}" for k in range(len(seed_keys))]
    trace(differentiated, structure, [*call.keys, *seed_keys], names)
    return _cut(call.results, call.scope, call.streams, carrying, **found)


def _cut(
    results: Results,
    scope: Scope,
    streams: Streams,
    carrying: tuple[int, ...],
    first: int,
    leaves: Sequence[Tensor],
    ys: Sequence[Tensor],
    seeds: Sequence[Tensor],
    reads: Mapping[Variable, Tensor],
    effects: Sequence[Operation],
    closed_over: Mapping[Tensor, EagerTensor],
    origins: Sequence[Entry],
    untrained: Sequence[Variable],
    grads: Sequence[Tensor | IndexedSlices | None],
) -> Split:
    """The two parts: what was made before operation ``first`` is the forward part, except constants."""
    sources = _sources((*leaves, *closed_over), ys, dict(zip(carrying, seeds, strict=True)))
    place: dict[Tensor, int] = {}
    gives = tuple(_give(g, place) for g in grads)
    residuals = _residuals(list(place), first, sources)
    drawn = _drawn([t for t in residuals if is_inexact(t.dtype)], leaves)
    residuals = list(dict.fromkeys([*residuals, *[t for t in drawn if t not in sources]]))
    for k, t in enumerate(residuals, len(ys)):
        sources[t] = ("value", k)
    operations = needed_operations(list(place), (), list(sources))
    used = {x for op in operations for x in op.inputs} | place.keys()
    feeds = [t for t in sources if t in used]
    return Split(
        Runner([*ys, *residuals], leaves, effects, "forward", streams),
        BackwardCall(list(place), feeds, scope),
        results,
        len(ys),
        tuple(reads),
        tuple(sources[t] for t in feeds),
        gives,
        carrying,
        (*leaves, *closed_over, *reads.values()),
        tuple([sources[t][1] for t in drawn]),
        scope,
        tuple(closed_over.values()),
        tuple(leading_to(origins, [x.number for x in closed_over.values()])[0][::-1]),
        tuple(untrained),
    )


def _sources(
    leaves: Sequence[Tensor], ys: Sequence[Tensor], seeds: Mapping[int, Tensor]
) -> dict[Tensor, tuple[str, int]]:
    """Where the backward part finds what it is given: the first place of each."""
    sources: dict[Tensor, tuple[str, int]] = {}
    for k, x in enumerate(leaves):
        sources.setdefault(x, ("leaf", k))
    for k, y in enumerate(ys):
        sources.setdefault(y, ("value", k))
    for k, g in seeds.items():
        sources.setdefault(g, ("seed", k))
    return sources


def _give(g: Tensor | IndexedSlices | None, place: dict[Tensor, int]) -> Given:
    """Where a cotangent will be found among the outputs, which are numbered as they come."""
    if isinstance(g, IndexedSlices):
        assert g.dense_shape is not None
        return place.setdefault(g.values, len(place)), place.setdefault(g.indices, len(place)), g.dense_shape
    return None if g is None else place.setdefault(g, len(place))


def _drawn(wanted: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """What draws and Python functions made of all that tensors follow from."""
    operations = needed_operations(wanted, (), leaves)
    return [t for op in operations if op.opdef.stateful and op.opdef is not read_op for t in op.outputs]


def _residuals(grads: Sequence[Tensor], first: int, sources: Mapping[Tensor, Any]) -> list[Tensor]:
    """Values of forward ops that gradient ops read; what is made of constants alone is made again."""
    operations = needed_operations(grads, (), list(sources))
    varying: set[Operation] = set()
    for op in operations:
        if (op.inputs and any(x in sources or x.op in varying for x in op.inputs)) or op.opdef.stateful:
            varying.add(op)
    read = [x for op in operations if op.id >= first for x in op.inputs]
    made = [x for x in (*read, *grads) if x.op.id < first and x not in sources and x.op in varying]
    return list(dict.fromkeys(made))
