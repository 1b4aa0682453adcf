"""Optimisers: compiled steps of gradient descent on pytrees and Variables; SciPy's minimisers are in minimizing."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eager.tensor import plain
from jitgrad.eagerness import settled
from jitgrad.errors import DTypeError, IndexingError, ShapeError, TracedValueError, layout
from jitgrad.graph import Tensor, in_graph
from jitgrad.minimizing import minimize
from jitgrad.ops.rows import change_rows
from jitgrad.ops.slices import IndexedSlices, concatenated
from jitgrad.ops.state import Variable
from jitgrad.sources import source_text, user_source
from jitgrad.transforms import compile

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "RMSProp", "minimize"]

Step = Callable[..., tuple[Any, tuple[Any, ...]]]


@dataclass(eq=False)
class Optimizer:
    """A rule that turns parameters, gradients and its own state into new ones.

    Functions of pytrees: ``state = init(params)``, then ``params, state = update(grads, state, params)`` each step;
    nothing is changed in place, and each step is one compiled call. With Variables: ``apply_gradients([(gradient,
    variable), ...])``, as ``jg.implicit_grad`` gives them, where gradients that are None are
    passed over; the state is kept here. Of a Variable whose gradient is IndexedSlices only those rows are changed, and
    their state. Numbers such as the learning rate may be set anew at any time: the next step takes them.
    """

    _kept: _Kept = field(default_factory=lambda: _Kept(), init=False, repr=False)
    _counts: _Kept = field(default_factory=lambda: _Kept(), init=False, repr=False)

    def slots(self) -> int:
        """How many arrays of a parameter's shape the state holds for it."""
        raise NotImplementedError

    def step(self, p: Any, g: Any, t: Any, *slots: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its slots after step ``t`` = 1, 2, ...; arrays of one shape, plain NumPy."""
        raise NotImplementedError

    def init(self, params: Any) -> Any:
        """The state before the first step: the number of steps, and zeros of the parameters' shapes."""
        zeros = [pytree.tree_map(np.zeros_like, params) for _ in range(self.slots())]
        return np.int64(0), tuple(zeros)

    def update(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Parameters and state after a step. ValueError when the structures differ, ShapeError when the shapes do,
        TypeError for a gradient that is None.
        """
        leaves, structure = pytree.flatten(params)
        flat = pytree.flatten_up_to(params, grads)
        for k, (p, g) in enumerate(zip(leaves, flat, strict=True)):
            if g is None:
                raise TypeError(
                    layout(f"the gradient of parameter {k} of {len(leaves)}, of shape {np.shape(p)}, is None",
                           hint="the target does not depend on it: leave it out of params, or give np.zeros_like(p)")
                )  # fmt: skip
            if np.shape(p) != np.shape(g):
                raise ShapeError(f"a gradient of shape {np.shape(g)} for a parameter of shape {np.shape(p)}")
        count, slots = state
        columns = [pytree.flatten_up_to(params, tree) for tree in slots]
        table = self._padded(columns, lambda: [np.zeros_like(p) for p in leaves])
        number = count + 1
        t = number * 1.0 if isinstance(number, Tensor) else float(number)
        made, kept = self._run(leaves, flat, [t] * len(leaves), table)
        trees = tuple(pytree.unflatten(structure, column) for column in kept)
        return pytree.unflatten(structure, made), (number, trees)

    def apply_gradients(self, pairs: Iterable[tuple[Any, Variable]]) -> None:
        """Assign to each Variable its value after a step; the gradients of one that is given twice are added.

        ShapeError, DTypeError for a gradient that does not fit; TypeError for other pairs; TracedValueError in graphs
        and traced functions.
        """
        if in_graph():
            raise TracedValueError(
                layout("apply_gradients changes Variables now, and cannot be part of a graph or a traced function",
                       hint="use update() with pytrees inside compiled functions")
            )  # fmt: skip
        given = _added(pairs)
        for v, g in given.items():
            if isinstance(g, IndexedSlices):
                self._apply_rows(g, v)
        found = [(g, v) for v, g in given.items() if not isinstance(g, IndexedSlices)]
        if not found:
            return
        values = [v.present() for _, v in found]
        slots = [self._slots_of(v) for _, v in found]
        columns = [[row[k] for row in slots] for k in range(self.slots())]
        made, kept = self._run(values, [g for g, _ in found], [self._counted(v) for _, v in found], columns)
        for k, (_, v) in enumerate(found):
            v.hold(made[k])
            self._kept.put(v, tuple(column[k] for column in kept))

    def _counted(self, v: Variable) -> float:
        """The number of the step that a Variable takes now."""
        before = self._counts.of(v)
        (count,) = self._counts.put(v, (before[0] + 1.0 if before else 1.0,))
        return float(count)

    def _slots_of(self, v: Variable) -> tuple[Any, ...]:
        kept, count = self._kept.of(v), self.slots()
        return kept if len(kept) == count else tuple(self._padded(kept, lambda: np.zeros(v.shape, v.dtype)))

    def _padded(self, slots: Iterable[Any], zeros: Callable[[], Any]) -> list[Any]:
        """As many slots as the rule has now: momentum may have been set since they were made."""
        found = list(slots)[: self.slots()]
        return [*found, *(zeros() for _ in range(self.slots() - len(found)))]

    def _apply_rows(self, g: IndexedSlices, v: Variable) -> None:
        """A step of the rows that were looked up, at their cost alone; the other rows and their slots stay."""
        rows, place = np.unique(g.indices, return_inverse=True)
        total = np.zeros((len(rows), *v.shape[1:]), v.dtype)
        change_rows(np.add, total, place, np.asarray(g.values, v.dtype))
        slots = self._kept.put(v, self._slots_of(v))
        (made,), kept = self._run([v.rows(rows)], [total], [self._counted(v)], [[slot[rows]] for slot in slots])
        v.scatter_update(IndexedSlices(made, rows))
        for slot, (column,) in zip(slots, kept, strict=True):
            slot[rows] = column

    def _run(self, params: list[Any], grads: list[Any], ts: list[Any], slots: list[list[Any]]) -> Any:
        rule: Any = type(self)
        floats, others = _options_of(rule)
        given = {name: getattr(self, name) for name in floats}
        numbers = {name: x if isinstance(x, Tensor) else float(x) for name, x in given.items()}
        fixed = tuple([(name, x) for name in others if isinstance(x := getattr(self, name), bool | int | str)])
        return self._compiled(params, grads, ts, slots, numbers, fixed)

    @functools.cached_property
    def _compiled(self) -> Any:
        def all_steps(
            params: list[Any],
            grads: list[Any],
            ts: list[Any],
            slots: list[list[Any]],
            numbers: dict[str, Any],
            fixed: Any,
        ) -> Any:
            rule = copy.copy(self)
            vars(rule).update(numbers)
            rows = [[column[k] for column in slots] for k in range(len(params))]
            made = [rule.step(p, g, t, *row) for p, g, t, row in zip(params, grads, ts, rows, strict=True)]
            return [p for p, _ in made], [[row[k] for _, row in made] for k in range(len(slots))]

        return compile(all_steps, name=type(self).__name__.lower(), static_argnames=("fixed",))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_compiled"}


@functools.lru_cache(maxsize=64)
def _options_of(rule: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of an optimiser's numbers, which may change from step to step, and of its other options."""
    floats = tuple([f.name for f in fields(rule) if f.type in (float, "float")])
    return floats, tuple([f.name for f in fields(rule) if f.init and f.name not in floats])


class _Kept:
    """The slots of each Variable, as long as it lives."""

    def __init__(self, items: Iterable[tuple[Variable, tuple[Any, ...]]] = ()) -> None:
        self._found: dict[int, tuple[weakref.ref[Variable], tuple[Any, ...]]] = {}
        for v, slots in items:
            self.put(v, slots)

    def of(self, v: Variable) -> tuple[Any, ...]:
        """The slots of a Variable; none before its first step."""
        found = self._found.get(id(v))
        return () if found is None else found[1]

    def put(self, v: Variable, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        """Keep the slots of a Variable, and give them back."""
        key, found = id(v), self._found
        ref = found[key][0] if key in found else weakref.ref(v, lambda _: found.pop(key, None))
        found[key] = (ref, slots)
        return slots

    def __reduce__(self) -> Any:
        alive = [(v, slots) for ref, slots in self._found.values() if (v := ref()) is not None]
        return _Kept, (alive,)


def _added(pairs: Iterable[tuple[Any, Variable]]) -> dict[Variable, Any]:
    """The gradient of each Variable as an array or slices of its dtype, the sum where there are several."""
    found: dict[Variable, Any] = {}
    for pair in pairs:
        given, v = _checked_pair(pair)
        if given is None:
            continue
        g, before = _fitting(given, v), found.get(v)
        if isinstance(g, IndexedSlices) and isinstance(before, IndexedSlices):
            found[v] = concatenated([before, g])
        else:
            found[v] = g if before is None else np.asarray(before) + np.asarray(g)
    return found


def _checked_pair(pair: Any) -> tuple[Any, Variable]:
    if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Variable):
        got = ", ".join(type(x).__name__ for x in pair) if isinstance(pair, tuple | list) else type(pair).__name__
        raise TypeError(f"apply_gradients takes pairs (gradient, Variable), got {got}")
    return pair[0], pair[1]


def _fitting(g: Any, v: Variable) -> Any:
    if isinstance(g, IndexedSlices):
        indices = np.asarray(plain(g.indices))
        values = _as_array(g.values, v, (*indices.shape, *v.shape[1:]))
        return IndexedSlices(values, _rows_of(indices, v), v.shape)
    return _as_array(settled(g), v, v.shape)


def _rows_of(indices: Any, v: Variable) -> Any:
    """Rows counted from the first: -1 is the same as the last. IndexingError for one that there is not."""
    extent = v.shape[0]
    beyond = indices[(indices < -extent) | (indices >= extent)]
    if beyond.size:
        raise IndexingError(
            layout(f"a gradient has row {beyond[0]} of variable {v.name!r}, which has {extent} rows", expected=v.spec,
                   needed=f"at {source_text(user_source())}")
        )  # fmt: skip
    return np.where(indices < 0, indices + extent, indices)


def _as_array(g: Any, v: Variable, shape: tuple[int, ...]) -> Any:
    array = np.asarray(plain(g))
    if array.shape != shape:
        raise ShapeError(f"a gradient of shape {array.shape}, not {shape}, for variable {v.name!r} of {v.spec}")
    if array.dtype == v.dtype:
        return array
    if not np.can_cast(array.dtype, v.dtype, "same_kind"):
        raise DTypeError(f"a gradient of dtype {array.dtype} for variable {v.name!r} of {v.spec}")
    return array.astype(v.dtype, copy=False)


@dataclass(eq=False)
class SGD(Optimizer):
    """Gradient descent, with momentum (Polyak 1964) or Nesterov's: v = momentum v + g, p -= learning_rate v."""

    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False

    def slots(self) -> int:
        """The velocity, if there is momentum."""
        return int(self.momentum != 0)

    def step(self, p: Any, g: Any, t: Any, *slots: Any) -> tuple[Any, tuple[Any, ...]]:
        """The rule above."""
        if not slots:
            return p - self.learning_rate * g, ()
        v = self.momentum * slots[0] + g
        return p - self.learning_rate * (g + self.momentum * v if self.nesterov else v), (v,)


@dataclass(eq=False)
class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1); with ``weight_decay``, decoupled from the gradient: AdamW
    (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2).
    """

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def slots(self) -> int:
        """Running means of the gradient and of its square."""
        return 2

    def step(self, p: Any, g: Any, t: Any, *slots: Any) -> tuple[Any, tuple[Any, ...]]:
        """The rule of the papers."""
        m = self.beta1 * slots[0] + (1 - self.beta1) * g
        v = self.beta2 * slots[1] + (1 - self.beta2) * g * g
        corrected = np.astype(m / (1 - self.beta1**t), p.dtype)
        spread = np.sqrt(np.astype(v / (1 - self.beta2**t), p.dtype)) + self.epsilon
        return p - self.learning_rate * (corrected / spread + self.weight_decay * p), (m, v)


@dataclass(eq=False)
class AdamW(Adam):
    """Adam with decoupled weight decay, 0.01 by default (arXiv:1711.05101)."""

    weight_decay: float = 0.01


@dataclass(eq=False)
class RMSProp(Optimizer):
    """RMSProp (Hinton's lecture 6e, 2012): the gradient over the root of a running mean of its square."""

    learning_rate: float = 1e-3
    decay: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-8

    def slots(self) -> int:
        """The mean square, and the velocity if there is momentum."""
        return 1 + int(self.momentum != 0)

    def step(self, p: Any, g: Any, t: Any, *slots: Any) -> tuple[Any, tuple[Any, ...]]:
        """The rule above."""
        s = self.decay * slots[0] + (1 - self.decay) * g * g
        move = self.learning_rate * g / (np.sqrt(s) + self.epsilon)
        if len(slots) == 1:
            return p - move, (s,)
        v = self.momentum * slots[1] + move
        return p - v, (s, v)


def __dir__() -> list[str]:
    return __all__
