"""Optimisers: compiled steps of gradient descent on pytrees and Variables, and SciPy's minimisers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eager.tensor import plain
from jitgrad.errors import ShapeError
from jitgrad.ops.slices import IndexedSlices
from jitgrad.ops.state import Variable
from jitgrad.transforms import compile, value_and_grad

Step = Callable[..., tuple[Any, tuple[Any, ...]]]


@dataclass(eq=False)
class Optimizer:
    """A rule that turns parameters, gradients and its own state into new ones.

    Functions of pytrees: ``state = init(params)``, then ``params, state = update(grads, state, params)`` each step;
    nothing is changed in place, and each step is one compiled call. With Variables: ``apply_gradients([(gradient,
    variable), ...])``, as ``jg.implicit_grad`` gives them, where gradients that are None are
    passed over; the state is kept here. Of a Variable whose gradient is IndexedSlices only those rows are changed, and
    their state.
    """

    _kept: dict[Variable, tuple[Any, ...]] = field(default_factory=dict, init=False, repr=False)
    _count: int = field(default=0, init=False, repr=False)

    def slots(self) -> int:
        """How many arrays of a parameter's shape the state holds for it."""
        raise NotImplementedError

    def step(self, p: Any, g: Any, t: Any, *slots: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its slots after step ``t`` = 1, 2, ...; arrays of one shape, plain NumPy."""
        raise NotImplementedError

    def init(self, params: Any) -> Any:
        """The state before the first step: the number of steps, and zeros of the parameters' shapes."""
        zeros = [pytree.tree_map(np.zeros_like, params) for _ in range(self.slots())]
        return 0, tuple(zeros)

    def update(self, grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Parameters and state after a step. ValueError when the structures differ, ShapeError when the shapes do."""
        leaves, structure = pytree.flatten(params)
        flat = pytree.flatten_up_to(params, grads)
        for p, g in zip(leaves, flat, strict=True):
            if np.shape(p) != np.shape(g):
                raise ShapeError(f"a gradient of shape {np.shape(g)} for a parameter of shape {np.shape(p)}")
        count, slots = state
        table = [pytree.flatten_up_to(params, tree) for tree in slots]
        made, kept = self._compiled(leaves, flat, float(count + 1), table)
        trees = tuple(pytree.unflatten(structure, column) for column in kept)
        return pytree.unflatten(structure, made), (count + 1, trees)

    def apply_gradients(self, pairs: Iterable[tuple[Any, Variable]]) -> None:
        """Assign to each Variable its value after a step."""
        given = [(g, v) for g, v in pairs if g is not None]
        self._count += 1
        for g, v in given:
            if isinstance(g, IndexedSlices):
                self._apply_rows(g, v)
        found = [(g, v) for g, v in given if not isinstance(g, IndexedSlices)]
        if not found:
            return
        values = [v.numpy() for _, v in found]
        slots = [self._slots_of(v) for _, v in found]
        columns = [[row[k] for row in slots] for k in range(self.slots())]
        made, kept = self._compiled(values, [plain(g) for g, _ in found], float(self._count), columns)
        for k, (_, v) in enumerate(found):
            v.assign(made[k])
            self._kept[v] = tuple(column[k] for column in kept)

    def _slots_of(self, v: Variable) -> tuple[Any, ...]:
        return self._kept.get(v) or tuple(np.zeros(v.shape, v.dtype) for _ in range(self.slots()))

    def _apply_rows(self, g: IndexedSlices, v: Variable) -> None:
        """A step of the rows that were looked up, at their cost alone; the other rows and their slots stay."""
        rows, place = np.unique(np.asarray(g.indices), return_inverse=True)
        total = np.zeros((len(rows), *v.shape[1:]), v.dtype)
        np.add.at(total, place, np.asarray(g.values))
        slots = self._kept[v] = self._slots_of(v)
        (made,), kept = self._compiled([v.rows(rows)], [total], float(self._count), [[slot[rows]] for slot in slots])
        v.scatter_update(IndexedSlices(made, rows))
        for slot, (column,) in zip(slots, kept, strict=True):
            slot[rows] = column

    @functools.cached_property
    def _compiled(self) -> Any:
        def all_steps(params: list[Any], grads: list[Any], t: Any, slots: list[list[Any]]) -> Any:
            rows = [[column[k] for column in slots] for k in range(len(params))]
            made = [self.step(p, g, t, *row) for p, g, row in zip(params, grads, rows, strict=True)]
            return [p for p, _ in made], [[row[k] for _, row in made] for k in range(self.slots())]

        return compile(all_steps, name=type(self).__name__.lower())


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


def minimize(
    fn: Callable[..., Any], x0: Any, args: tuple[Any, ...] = (), method: str = "L-BFGS-B", **options: Any
) -> Any:
    """``scipy.optimize.minimize`` of ``fn(x, *args)``, a scalar, with its gradient compiled.

    ``x0`` is an array or a pytree of float arrays; the result is SciPy's, its ``x`` in the structure of ``x0`` and its
    ``jac`` a vector. ``options`` are those of SciPy's function (``tol=``, ``bounds=``, ``options=``, ``callback=``).
    """
    import scipy.optimize

    leaves, structure = pytree.flatten(x0)
    arrays = [np.asarray(leaf) for leaf in leaves]
    both = compile(value_and_grad(fn), name=getattr(fn, "__name__", "minimize"))

    def unpacked(vector: Any) -> Any:
        ends = np.cumsum([a.size for a in arrays])[:-1]
        parts = zip(np.split(vector, ends), arrays, strict=True)
        return pytree.unflatten(structure, [part.reshape(a.shape).astype(a.dtype) for part, a in parts])

    def value_and_vector(vector: Any) -> tuple[float, Any]:
        value, gradient = both(unpacked(vector), *args)
        return float(value), _packed(pytree.flatten(gradient)[0])

    minimizer: Any = scipy.optimize.minimize
    result = minimizer(value_and_vector, _packed(arrays), method=method, jac=True, **options)
    result.x = unpacked(result.x)
    return result


def _packed(arrays: list[Any]) -> Any:
    """All elements in one float64 vector."""
    return np.concatenate([np.ravel(a).astype(np.float64) for a in arrays])
