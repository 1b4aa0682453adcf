"""Foreseeing: the trace of a function for another shape, known without calling it; where it is not, nothing is lost.

A function is called for each new shape, for what it does may depend on shapes. It cannot where its code is constant and
is told no extent (constancy.py); then only code of this package sees extents, which compares them, and makes numbers of
them by counting elements. What it does with them is tried: the function is traced for small extents that are primes,
and for large ones, far apart, that many numbers divide. It must make the same operations each time, with numbers of
constants that are the same, or products of extents, less a few, or one over that. Extents that no argument has, as
those of slices, must be sums or products of those of arguments in the same way. Where a function knows some extents, as
the widths of its weights, those that have been the same so far stay in all trials. From then on, as long as nothing
that the code reaches has changed, a further trace is the model's with other extents and numbers, and its operations are
made when somebody looks. That holds for the order of extents, from the least to the largest, in which it was tried;
code of this package that chooses by more than the order says so (`told_shape`). With ``verify`` the function is called
all the same, and must do what was foreseen.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.freezing.beside import Bound
from jitgrad.compiler.likeness import Shape, UnlikeError, large
from jitgrad.config import Settings, config
from jitgrad.copying import Place
from jitgrad.eagerness import local
from jitgrad.errors import CompileError
from jitgrad.extent_formulas import Count, Derived, Order, find_count, find_derived, least_extents, most_extents
from jitgrad.following import Follower, PromisedTensors
from jitgrad.forking import wait_for_when_forking
from jitgrad.graph import Operation
from jitgrad.outlook import Outlook
from jitgrad.records import NamedTuple
from jitgrad.sources import Source, user_source
from jitgrad.spec import TensorSpec
from jitgrad.trace import LeafKey, Results, Static, Trace, Traced, specs_of_leaves

if TYPE_CHECKING:
    from jitgrad.constancy import Constancy

Probe = Callable[[Sequence[LeafKey], Follower], Traced]
"""Traces the function for arrays of these keys beside the trace of another call."""

_AFTER = 2  # as many shapes are followed before the function is tried: most functions see two, and no third


_looking = threading.RLock()  # held while a trace is made that somebody looks at
wait_for_when_forking(_looking)


class Foreseen:
    """What a call does that was not traced, as `Traced`; and what binds it, if a formula has given that."""

    def __init__(
        self, leaves: Sequence[LeafKey], results: Results, places: tuple[Place, ...], feeds: tuple[Place, ...],
        follow: Callable[[], Follower], bound: Bound | None = None,
    ) -> None:  # fmt: skip
        self._leaves = leaves
        self.results = results
        self.outputs = PromisedTensors(self._operations, places)
        self.feeds = PromisedTensors(self._operations, feeds)
        self.bound = bound
        self._follow = follow

    @property
    def follower(self) -> Follower:
        """That of its graph, made when somebody looks."""
        with _looking:
            return self._follower

    @functools.cached_property
    def _follower(self) -> Follower:
        return self._follow()

    def specs(self) -> list[TensorSpec]:
        """Those of the arrays."""
        return specs_of_leaves(self._leaves)

    def _operations(self) -> Sequence[Operation]:
        return self.follower.graph.operations


class _Trial(NamedTuple):
    """A trace: which extents it has for those of the model, and what follows the model."""

    extents: Mapping[int, int]
    follower: Follower


class _Known(NamedTuple):
    """What a function does for all shapes of a kind and an order, under these settings, while its code is constant:
    where some extents are ``fixed``, for those only; where extents are ``derived`` from others, for the ``ranges`` of
    these at whose ends it was tried.
    """

    constancy: Constancy
    settings: Settings
    outlook: Outlook
    exact: int
    fixed: frozenset[int]
    derived: Mapping[int, Derived]
    ranges: Mapping[int, tuple[int, int]]

    def completed(self, extents: Mapping[int, int]) -> Mapping[int, int]:
        """The extents with those that are derived; UnlikeError where nothing is known of such."""
        if any(extents[n] != n for n in self.fixed):
            raise UnlikeError
        if not self.ranges:
            return extents
        found = dict(extents)
        for n, (least, most) in self.ranges.items():
            if not least <= extents[n] <= most:
                raise UnlikeError
        found |= {n: derived.value(extents) for n, derived in self.derived.items()}
        if any(found[n] <= self.exact for n in self.derived) or len(set(found.values())) < len(found):
            raise UnlikeError
        return found


class Foreseer:
    """What a function does for calls like one, of which others differ in shapes only."""

    def __init__(self, fn: Callable[..., Any], model: Traced) -> None:
        self._fn = fn
        self._model = model
        self._exact = model.follower.exact
        self._followed = Counter[Order]()
        self._varying = set[int]()
        self._known: dict[Order, _Known] = {}
        self._where: dict[int, tuple[int, int]] | None = None
        self._numbers = tuple([op.id for op in model.inputs])
        self._feeds = tuple([(number, 0) for number in self._numbers])
        self._places = tuple([(t.op.id, t.value_index) for t in model.outputs])

    def note_followed(self, leaves: Sequence[LeafKey], statics: Sequence[Any], probe: Probe) -> None:
        """A further call was traced and did what the model did: try the function once there were some."""
        extents = self._extents(leaves)
        order = _by_size(extents)
        self._varying |= {n for n, here in extents.items() if n != here}
        if order in self._known and not self._known[order].fixed.isdisjoint(self._varying):
            del self._known[order], self._followed[order]  # what was fixed is so no longer
        self._followed[order] += 1
        if self._followed[order] == _AFTER:
            self._try(order, leaves, statics, probe)

    @property
    def is_of_use(self) -> bool:
        """Whether calls are foreseen."""
        return any(known.settings is config.settings and known.constancy.holds() for known in self._known.values())

    def check(self, leaves: Sequence[LeafKey], statics: Sequence[Any], probe: Probe, traced: Traced) -> None:
        """CompileError if what is foreseen for a call that was traced is something else."""
        order = self._order(leaves)
        if order not in self._known:
            self._try(order, leaves, statics, probe)
        foreseen = self.trace(leaves)
        if foreseen is not None:
            foreseen.follower.check_foretold(traced.follower.graph)

    def trace(self, leaves: Sequence[LeafKey]) -> Foreseen | None:
        """The trace of a call; None where it cannot be foreseen."""
        if not self._known or local.tapes:
            return None
        extents: Mapping[int, int] = self._extents(leaves)
        known = self._known.get(_by_size(extents))
        if known is None or known.settings is not config.settings or not known.constancy.holds():
            return None
        model, outlook = self._model, known.outlook
        if model.follower.obeys_registered_rules:
            return None
        try:
            extents = known.completed(extents)
        except UnlikeError:
            return None
        follow = functools.partial(self._foretold, leaves, outlook, extents, user_source())
        foretold = outlook.foretold
        bound = foretold.find(extents) if foretold is not None else None
        if bound is not None:
            return Foreseen(leaves, model.results, self._places, self._feeds, follow, bound)
        try:
            follower = follow()
        except UnlikeError:
            return None
        return Foreseen(leaves, model.results, self._places, self._feeds, lambda: follower)

    def outlook(self, leaves: Sequence[LeafKey]) -> Outlook | None:
        """What is known of calls like one."""
        known = self._known.get(_by_size(self._extents(leaves)))
        is_so = known is not None and known.settings is config.settings and known.constancy.holds()
        return known.outlook if known is not None and is_so else None

    def _foretold(
        self, leaves: Sequence[LeafKey], outlook: Outlook, extents: Mapping[int, int], here: Source
    ) -> Follower:  # fmt: skip
        """What follows the model in the trace of a call; UnlikeError where that is not known."""
        model, graph = self._model.follower, Trace()
        follower = graph.follower = Follower(graph, None)
        follower.relate(model, dict(zip(self._numbers, _shapes(leaves), strict=True)), here)
        follower.extents.enter(tuple(extents), tuple(extents.values()))
        follower.foretell(model, outlook.numbers(follower.extents.large))
        return follower

    def _extents(self, leaves: Sequence[LeafKey]) -> dict[int, int]:
        """The extents of a call of the model's kind, by those of the model."""
        if self._where is None:
            self._where = self._located(leaves)
        return {n: leaves[leaf][1][axis] for n, (leaf, axis) in self._where.items()}

    def _located(self, leaves: Sequence[LeafKey]) -> dict[int, tuple[int, int]]:
        """The extents of the model that are no part of its pattern, each with a leaf and an axis that have it, in all
        calls of its kind.
        """
        found: dict[int, tuple[int, int]] = {}
        arrays = [leaf for leaf, key in enumerate(leaves) if not isinstance(key, Static)]
        for leaf, op in zip(arrays, self._model.inputs, strict=True):
            for axis, n in enumerate(op.outputs[0].spec.known_shape):
                if n > self._exact:
                    found.setdefault(n, (leaf, axis))
        return found

    # -- trying the function -------------------------------------------------------------------------------------------

    def _order(self, leaves: Sequence[LeafKey]) -> Order:
        return _by_size(self._extents(leaves))

    def _try(self, order: Order, leaves: Sequence[LeafKey], statics: Sequence[Any], probe: Probe) -> None:
        from jitgrad.constancy import constancy_of

        values = [key.value for key in leaves if isinstance(key, Static)]
        self._known.pop(order, None)
        kinds = dict.fromkeys((frozenset[int](), frozenset(order) - self._varying))
        for fixed, least in itertools.product(kinds, (self._exact, 2 * self._exact)):
            try:
                constancy = constancy_of(self._fn, *values, *statics, for_all_shapes=True)
                self._known[order] = self._tried(constancy, order, fixed, least, leaves, probe)
                return
            except CompileError:
                raise
            except Exception:  # of the function, too: extents that go with one another are primes that do not
                continue

    def _tried(
        self, constancy: Constancy, order: Order, fixed: frozenset[int], least: int, leaves: Sequence[LeafKey],
        probe: Probe,
    ) -> _Known:  # fmt: skip
        """What the function does for all shapes of an order that have the ``fixed`` extents, and others above the
        ``least``; UnlikeError where that is not known.
        """
        model, settings, exact = self._model, config.settings, self._exact
        graph = model.follower.graph
        if graph.tells_extents or graph.closed_over or model.effects or None in model.results.slots:
            raise UnlikeError
        shapes = [shape for number in self._numbers for shape, _, _ in model.follower.whole.rows[number].outputs]
        ends = least_extents(order, fixed, least), most_extents(order, fixed)
        if not all(ends[0][n] < ends[1][n] for n in ends[0]):
            raise UnlikeError
        trials = [self._trial(leaves, shapes, others, probe) for others in ends]
        outlook = Outlook(exact, functools.partial(_counted, model.follower, self._counts(trials)))
        derived = self._derived(order, trials)
        is_bounded = derived or fixed or least > exact
        ranges = {n: (ends[0][n], ends[1][n]) for n in ends[0]} if is_bounded else {}
        return _Known(constancy, settings, outlook, exact, fixed, derived, ranges)

    def _counts(self, trials: Sequence[_Trial]) -> Mapping[int, tuple[Count, np.dtype[Any]]]:
        """The numbers of constants that follow from extents, by operation."""
        extents, found = self._tried_extents(trials), {}
        for number, row in enumerate(self._model.follower.whole.rows):
            values = [trial.follower.number_of(number) for trial in trials] if row.number is not None else []
            if any(value.tobytes() != row.number.tobytes() for value in values):
                found[number] = find_count([*values, row.number], extents), row.number.dtype
        return found

    def _derived(self, order: Order, trials: Sequence[_Trial]) -> Mapping[int, Derived]:
        """The extents that no argument has, as they follow from those of arguments."""
        extents, shapes = self._tried_extents(trials), self._model.follower.whole.shapes
        unknown = set[int]().union(*[large(shape, self._exact) for shape in shapes]).difference(order)
        return {n: find_derived([*[t.follower.extents.large[n] for t in trials], n], extents) for n in unknown}

    def _tried_extents(self, trials: Sequence[_Trial]) -> list[Mapping[int, int]]:
        """Those of the trials and the model's own, for those of the model."""
        return [*[trial.extents for trial in trials], {n: n for n in trials[0].extents}]

    def _trial(
        self, leaves: Sequence[LeafKey], shapes: Sequence[tuple[int, ...]], there: Mapping[int, int], probe: Probe
    ) -> _Trial:  # fmt: skip
        renamed = iter([tuple([there.get(n, n) for n in shape]) for shape in shapes])
        keys = [key if isinstance(key, Static) else _reshaped(key, next(renamed)) for key in leaves]
        traced = probe(keys, self._model.follower)
        places = tuple([(t.op.id, t.value_index) for t in traced.outputs])
        is_like = traced.follower.is_whole and not traced.follower.has_other_arrays and places == self._places
        results, before = traced.results, self._model.results
        if not is_like or (results.slots, results.structure) != (before.slots, before.structure):
            raise UnlikeError
        return _Trial(there, traced.follower)


def _counted(
    model: Follower, counts: Mapping[int, tuple[Count, np.dtype[Any]]], extents: Mapping[int, Any]
) -> Mapping[int, Any]:  # fmt: skip
    """The numbers for extents that stand for those of a model; UnlikeError where shapes do not follow from these."""

    def shape(a: Shape) -> Any:
        if not large(a, model.exact) <= extents.keys():
            raise UnlikeError
        return tuple([n if n is None or n <= model.exact else extents[n] for n in a])

    model.check_shapes(shape)
    return {n: count.value(extents, dtype) for n, (count, dtype) in counts.items()}


def _by_size(extents: Mapping[int, int]) -> Order:
    return tuple(sorted(extents, key=extents.__getitem__))


def _shapes(leaves: Sequence[LeafKey]) -> list[tuple[int, ...]]:
    return [key[1] if type(key) is tuple else () for key in leaves if not isinstance(key, Static)]


def _reshaped(key: LeafKey, shape: tuple[int, ...]) -> LeafKey:
    return (key[0], shape) if type(key) is tuple else key
