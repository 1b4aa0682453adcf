"""Foreseeing: the trace of a function for another shape, known without calling it; where it is not, nothing is lost.

A function is called for each new shape, for what it does may depend on shapes. It cannot where its code is constant and
is told no extent (constancy.py); then only code of this package sees extents, which compares them, and makes numbers of
them by counting elements. What it does with them is tried: the function is traced for small extents that are primes,
and for large ones, far apart, that many numbers divide. It must make the same operations each time, with numbers of
constants that are the same, or products of extents, less one or two, or one over that. From then on, as long as nothing
that the code reaches has changed, a further trace is the model's with other extents and numbers, and its operations are
made when somebody looks. That holds for the order of extents, from the least to the largest, in which it was tried;
code of this package that chooses by more than the order says so (`told_shape`). With ``verify`` the function is called
all the same, and must do what was foreseen.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.freezing.beside import Bound
from jitgrad.compiler.likeness import EXACT, Shape, UnlikeError, large
from jitgrad.compiler.symbols import Symbol
from jitgrad.config import Settings, config
from jitgrad.eagerness import local
from jitgrad.errors import CompileError
from jitgrad.following import Follower, Place, PromisedTensors
from jitgrad.forking import wait_for_when_forking
from jitgrad.graph import Operation
from jitgrad.records import NamedTuple
from jitgrad.running import Outlook
from jitgrad.sources import Source, user_source
from jitgrad.spec import TensorSpec
from jitgrad.trace import LeafKey, Results, Static, Trace, Traced, weak_types

if TYPE_CHECKING:
    from jitgrad.constancy import Constancy

Probe = Callable[[Sequence[LeafKey], Follower], Traced]
"""Traces the function for arrays of these keys beside the trace of another call."""

_AFTER = 2  # as many shapes are followed before the function is tried: most functions see two, and no third
_PRIMES = (67, 71, 73, 79, 83, 89, 97, 101, 103, 107)
_MULTIPLES = tuple([27720 * prime * 4**k for k, prime in enumerate(_PRIMES)])  # of all numbers to 12
_MOST_LESS = 2  # degrees of freedom that are taken off a count


Order = tuple[int, ...]
"""Extents of the model in the order of those that stand for them in a call."""


class Count(NamedTuple):
    """A number that is made of extents: their powers times a factor, less a few, or one over that."""

    powers: tuple[tuple[int, int], ...]
    factor: int
    less: int
    is_inverse: bool

    def value(self, extents: Mapping[int, int], dtype: np.dtype[Any]) -> Any:
        """The number for the extents that stand for those named here; UnlikeError where there is none."""
        count: Any = self.factor
        for extent, power in self.powers:
            for _ in range(power):
                count *= extents[extent]
        count -= self.less
        if count <= EXACT:
            raise UnlikeError
        make = _inverse_in(dtype) if self.is_inverse else _number_in(dtype)
        return count.computed(make) if type(count) is Symbol else make(count)


@functools.lru_cache
def _number_in(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    return lambda count: np.asarray(count, dtype)


@functools.lru_cache
def _inverse_in(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    return lambda count: np.asarray(1 / count, dtype)


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
        keys = [key for key in self._leaves if not isinstance(key, Static)]
        return [TensorSpec(key[1], key[0]) if type(key) is tuple else TensorSpec((), weak_types[key]) for key in keys]

    def _operations(self) -> Sequence[Operation]:
        return self.follower.graph.operations


class _Trial(NamedTuple):
    """A trace: which extents it has for those of the model, and what follows the model."""

    extents: Mapping[int, int]
    follower: Follower


class _Known(NamedTuple):
    """What a function does for all shapes of a kind and an order, under these settings, while its code is constant."""

    constancy: Constancy
    settings: Settings
    outlook: Outlook


class Foreseer:
    """What a function does for calls like one, of which others differ in shapes only."""

    def __init__(self, fn: Callable[..., Any], model: Traced) -> None:
        self._fn = fn
        self._model = model
        self._followed = Counter[Order]()
        self._known: dict[Order, _Known] = {}
        self._where: dict[int, tuple[int, int]] | None = None
        self._numbers = tuple([op.id for op in model.inputs])
        self._feeds = tuple([(number, 0) for number in self._numbers])
        self._places = tuple([(t.op.id, t.value_index) for t in model.outputs])

    def note_followed(self, leaves: Sequence[LeafKey], statics: Sequence[Any], probe: Probe) -> None:
        """A further call was traced and did what the model did: try the function once there were some."""
        order = self._order(leaves)
        self._followed[order] += 1
        if self._followed[order] == _AFTER:
            self._try(order, leaves, statics, probe)

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
        extents = self._extents(leaves)
        known = self._known.get(_by_size(extents))
        if known is None or known.settings is not config.settings or not known.constancy.holds():
            return None
        model, outlook = self._model, known.outlook
        if model.follower.obeys_registered_rules:
            return None
        follow = functools.partial(self._foretold, leaves, outlook, user_source())
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
        return known.outlook if known is not None and known.settings is config.settings else None

    def _foretold(self, leaves: Sequence[LeafKey], outlook: Outlook, here: Source) -> Follower:
        """What follows the model in the trace of a call; UnlikeError where that is not known."""
        model, graph = self._model.follower, Trace()
        follower = graph.follower = Follower(graph, None)
        follower.relate(model, dict(zip(self._numbers, _shapes(leaves), strict=True)), here)
        follower.foretell(model, outlook.numbers(follower.extents.large))
        return follower

    def _extents(self, leaves: Sequence[LeafKey]) -> dict[int, int]:
        """The extents of a call of the model's kind, by those of the model."""
        if self._where is None:
            self._where = self._located(leaves)
        return {n: leaves[leaf][1][axis] for n, (leaf, axis) in self._where.items()}

    def _located(self, leaves: Sequence[LeafKey]) -> dict[int, tuple[int, int]]:
        """The large extents of the model, each with a leaf and an axis that have it, in all calls of its kind."""
        found: dict[int, tuple[int, int]] = {}
        arrays = [leaf for leaf, key in enumerate(leaves) if not isinstance(key, Static)]
        for leaf, op in zip(arrays, self._model.inputs, strict=True):
            for axis, n in enumerate(op.outputs[0].spec.known_shape):
                if n > EXACT:
                    found.setdefault(n, (leaf, axis))
        return found

    # -- trying the function -------------------------------------------------------------------------------------------

    def _order(self, leaves: Sequence[LeafKey]) -> Order:
        return _by_size(self._extents(leaves))

    def _try(self, order: Order, leaves: Sequence[LeafKey], statics: Sequence[Any], probe: Probe) -> None:
        from jitgrad.constancy import constancy_of

        try:
            values = [key.value for key in leaves if isinstance(key, Static)]
            self._known[order] = self._tried(constancy_of(self._fn, *values, *statics), order, leaves, probe)
        except CompileError:
            raise
        except Exception:  # of the function, too: extents that go with one another are primes that do not
            self._known.pop(order, None)

    def _tried(self, constancy: Constancy, order: Order, leaves: Sequence[LeafKey], probe: Probe) -> _Known:
        """What the function does for all shapes of an order; UnlikeError where that is not known."""
        model, settings = self._model, config.settings
        graph = model.follower.graph
        if graph.tells_extents or graph.closed_over or model.effects or None in model.results.slots:
            raise UnlikeError
        rows = model.follower.whole.rows
        shapes = [shape for number in self._numbers for shape, _, _ in rows[number].outputs]
        trials = [self._trial(leaves, shapes, order, others, probe) for others in (_PRIMES, _MULTIPLES)]
        trials.append(_Trial({n: n for n in order}, trials[0].follower))
        counts = {}
        for number, row in enumerate(rows):
            values = [trial.follower.number_of(number) for trial in trials[:2]] if row.number is not None else []
            if any(value.tobytes() != row.number.tobytes() for value in values):
                counts[number] = _count_of([*values, row.number], trials), row.number.dtype
        return _Known(constancy, settings, Outlook(functools.partial(_counted, model.follower, counts)))

    def _trial(
        self, leaves: Sequence[LeafKey], shapes: Sequence[tuple[int, ...]], order: Order, others: Sequence[int],
        probe: Probe,
    ) -> _Trial:  # fmt: skip
        if len(order) > len(others):
            raise UnlikeError
        there = dict(zip(order, others, strict=False))
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
        if not large(a) <= extents.keys():
            raise UnlikeError
        return tuple([n if n is None or n <= EXACT else extents[n] for n in a])

    model.check_shapes(shape)
    return {n: count.value(extents, dtype) for n, (count, dtype) in counts.items()}


def _by_size(extents: Mapping[int, int]) -> Order:
    return tuple(sorted(extents, key=extents.__getitem__))


def _shapes(leaves: Sequence[LeafKey]) -> list[tuple[int, ...]]:
    return [key[1] if type(key) is tuple else () for key in leaves if not isinstance(key, Static)]


def _reshaped(key: LeafKey, shape: tuple[int, ...]) -> LeafKey:
    return (key[0], shape) if type(key) is tuple else key


def _count_of(values: Sequence[Any], trials: Sequence[_Trial]) -> Count:
    """How a number follows from extents, of the numbers of some trials, in the first of which extents are primes;
    UnlikeError where that is not seen.
    """
    number, dtype = values[0].item(), values[0].dtype
    if isinstance(number, complex) or not number > 0:
        raise UnlikeError
    for is_inverse in (False, True):
        whole = round(1 / number if is_inverse else number)
        for less in range(_MOST_LESS + 1):
            count = _factored(whole + less, trials[0].extents)._replace(less=less, is_inverse=is_inverse)
            if count.powers and all(
                count.value(trial.extents, dtype).tobytes() == value.tobytes()
                for value, trial in zip(values, trials, strict=True)
            ):
                return count
    raise UnlikeError


def _factored(count: int, primes: Mapping[int, int]) -> Count:
    powers = []
    for extent, prime in primes.items():
        power = 0
        while count and count % prime == 0:
            count, power = count // prime, power + 1
        powers += [(extent, power)] * (power > 0)
    return Count(tuple(powers), count, 0, False)
