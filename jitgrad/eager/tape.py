"""GradientTape: records operations on watched tensors and Variables, and walks them backwards; it runs no op itself.

Numbers stand for tensors on a tape, so that it keeps alive only what gradient rules will read.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from jitgrad import pytree, recording
from jitgrad.eager import native
from jitgrad.eager.calls import ones_like
from jitgrad.eager.jacobians import (
    Source,
    batch_jacobian,
    batch_jacobian_in_graph,
    jacobian,
    jacobian_in_graph,
)
from jitgrad.eager.pending import PendingTensor
from jitgrad.eager.recorder import Entry, parts
from jitgrad.eager.tensor import EagerTensor, asarray, is_told, wrap
from jitgrad.eagerness import close_tape, finish, local, open_tape, settled, told
from jitgrad.errors import layout
from jitgrad.graph import Operation, Tensor, default_graph, in_graph
from jitgrad.ops.slices import IndexedSlices, concatenated
from jitgrad.ops.state import Variable
from jitgrad.sources import source_text, user_source
from jitgrad.sparse import gradients
from jitgrad.spec import is_inexact


class GradientTape:
    """``with jg.GradientTape() as tape:`` records what is done with watched tensors, for ``tape.gradient``.

    Variables that may be trained are watched by being read, unless ``watch_accessed_variables`` is False; tensors by
    ``tape.watch``. A tape that is not ``persistent`` gives gradients once. Tapes nest: an inner gradient is recorded by
    the outer tapes. A tape belongs to the thread that entered it. Tensors of graphs need no recording: their gradients
    are those of ``jg.gradients``, but for what was made in ``stop_recording``; in a graph, and in a function that is
    traced, a tape notes which Variables are read.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self.watched: set[int] = set()
        self.entries: list[Entry] = []
        self.watches_variables = watch_accessed_variables
        self._persistent = persistent
        self._variables: dict[Variable, dict[int, None]] = {}
        self._is_spent = False
        self._was_entered = False
        self._is_in_graph = False
        self._hidden: list[Operation] = []

    def __enter__(self) -> GradientTape:
        if self in local.tapes:
            raise RuntimeError("this tape records already")
        native.place()
        self._is_in_graph = in_graph()
        self._was_entered = True
        open_tape(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        close_tape(self)

    def watch(self, tensors: Any) -> None:
        """Record what is done with these tensors (any pytree of them; Variables too). TypeError for anything else, a
        warning for integers and bools, which have no gradients.
        """
        finish()
        leaves = (tensors,) if type(tensors) is EagerTensor else pytree.flatten(tensors)[0]
        for x in leaves:
            if isinstance(x, Variable) and in_graph():
                self._variables.setdefault(x, {})
            elif isinstance(x, Variable):
                self.watch_variable(x, x.eager_value())
            elif isinstance(x, EagerTensor | PendingTensor):
                _warn_of_constant(x)
                self.watched.add(settled(x).number)
            elif not isinstance(x, Tensor):
                raise TypeError(f"a tape watches tensors, got {type(x).__name__}: make one with jg.asarray(...)")

    def watch_variable(self, variable: Variable, value: EagerTensor) -> None:
        """Record what is done with a value that was read from a Variable."""
        self.watched.add(value.number)
        self._variables.setdefault(variable, {})[value.number] = None

    def read_variable(self, variable: Variable, value: EagerTensor) -> None:
        """A Variable was read: watched if it may be trained, or if it was given to ``watch``."""
        if variable in self._variables or (variable.trainable and self.watches_variables):
            self.watch_variable(variable, value)

    def read_in_graph(self, variable: Variable) -> None:
        """A Variable was read in a graph: watched if it may be trained and the tape was entered in a graph."""
        if self._is_in_graph and variable.trainable and self.watches_variables:
            self._variables.setdefault(variable, {})

    def watched_variables(self) -> tuple[Variable, ...]:
        """The Variables watched so far, in the order of their first reads."""
        return tuple(self._variables)

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Nothing is recorded inside by this tape."""
        was_recording = self in local.tapes
        graph = default_graph() if in_graph() else None
        first = 0 if graph is None else len(graph)
        self._stop()
        try:
            yield
        finally:
            if graph is not None:
                self._hidden += graph.operations[first:]
            if was_recording:
                open_tape(self)

    def reset(self) -> None:
        """Forget everything, as if the tape were entered anew."""
        told[0] = 0
        self.watched.clear()
        self.entries.clear()
        self._variables.clear()
        self._hidden.clear()
        self._is_spent = False

    # -- gradients -----------------------------------------------------------------------------------------------

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """The gradient of ``target`` (the sum of all targets) with respect to ``sources``, in their structure.

        ``target`` is a tensor or a pytree of them; ``output_gradients``, in its structure, are the cotangents (None:
        ones). None stands where the target does not depend on a source. RuntimeError when a tape that is not persistent
        is asked again, and for one that was never entered; TypeError for targets or sources that are no tensors.
        """
        target = pytree.tree_map(settled, target)
        targets, wanted = pytree.flatten(target)[0], pytree.flatten(sources)
        seeds = self._seeds(target, targets, output_gradients)
        if any(isinstance(y, Tensor) for y in targets):
            self._spend()
            return pytree.unflatten(wanted[1], self._in_graph(targets, wanted[0], seeds))
        numbers = [self._numbers_of(x) for x in wanted[0]]
        self._check_entered()
        self._spend()
        return pytree.unflatten(wanted[1], self._walk(targets, seeds, numbers))

    def jacobian(self, target: Any, sources: Any) -> Any:
        """The derivatives of every element of ``target``, a tensor, by ``sources``, in their structure.

        Each has shape target.shape + source.shape; None where the target does not depend on it. Errors as
        ``gradient``'s.
        """
        if isinstance(target, Tensor):
            leaves, structure = pytree.flatten(sources)
            self._spend()
            return pytree.unflatten(structure, jacobian_in_graph(target, leaves, self._constants()))
        return self._all_of(target, sources, jacobian)

    def batch_jacobian(self, target: Any, source: Any) -> Any:
        """The derivative of ``target[b]`` by ``source[b]`` for each b: shape target.shape + source.shape[1:].

        Rows must not depend on one another's sources. ValueError when the leading extents differ.
        """
        target = settled(target)
        _check_target(target)
        if not isinstance(source, EagerTensor | PendingTensor | Tensor | Variable):
            raise _no_source(source)
        if not target.shape or not source.shape or target.shape[0] != source.shape[0]:
            raise ValueError(f"batch_jacobian needs equal leading extents, got {target.shape} and {source.shape}")

        if isinstance(target, Tensor):
            self._spend()
            return batch_jacobian_in_graph(target, source, self._constants())

        def of_rows(entries: Sequence[Entry], y: EagerTensor, xs: Sequence[Source]) -> list[Any]:
            return [batch_jacobian(entries, y, xs[0])]

        return self._all_of(target, source, of_rows)

    def _all_of(self, target: Any, sources: Any, derive: Callable[..., list[Any]]) -> Any:
        leaves, structure = pytree.flatten(sources)
        target = settled(target)
        self._seeds(target, [target], None)
        wanted = [Source(tuple(self._numbers_of(x)), tuple(x.shape)) for x in leaves]
        self._check_entered()
        self._spend()
        found = derive(self.entries, target, wanted)
        if not self._persistent:
            self.entries.clear()
        return pytree.unflatten(structure, found)

    def _in_graph(self, targets: Sequence[Any], sources: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        for x in sources:
            if not isinstance(x, Tensor | Variable | IndexedSlices):
                raise TypeError(f"a source must be a tensor of the graph or a Variable, got {type(x).__name__}")
        pairs = [(y, g) for y, g in zip(targets, seeds, strict=True) if isinstance(y, Tensor)]
        return gradients([y for y, _ in pairs], sources, [g for _, g in pairs], stop_gradients=self._constants())

    def _constants(self) -> list[Tensor] | None:
        """What was made in graphs while the tape did not record."""
        return [t for op in self._hidden for t in op.outputs] or None

    def _check_entered(self) -> None:
        if not self._was_entered:
            raise RuntimeError(
                layout("this tape has recorded nothing: it was never entered", hint="compute inside: with tape: ...")
            )

    def _spend(self) -> None:
        if self._is_spent:
            raise RuntimeError(
                layout("this tape has given its gradient", hint="GradientTape(persistent=True) gives them many times")
            )
        if not self._persistent:
            self._is_spent = True
            self._stop()

    def _seeds(self, target: Any, targets: Sequence[Any], given: Any) -> list[Any]:
        for y in targets:
            _check_target(y)
        seeds = [None] * len(targets) if given is None else _like_target(target, given)
        for y, g in zip(targets, seeds, strict=True):
            if y.dtype.kind == "c" and g is None:
                raise TypeError(f"a target of dtype {y.dtype} needs output_gradients; or take its .real")
            if g is not None and np.asarray(g).dtype.kind not in "fiubc":
                raise TypeError(f"output_gradients must hold numbers, got {type(g).__name__}")
            if g is not None and np.asarray(g).dtype.kind == "c" and y.dtype.kind != "c":
                raise TypeError(f"output_gradients is {np.asarray(g).dtype} for a target of dtype {y.dtype}")
            if g is not None and np.shape(g) != y.shape:
                raise ValueError(f"output_gradients has shape {np.shape(g)} for a target of shape {y.shape}")
        return seeds

    def _numbers_of(self, source: Any) -> Sequence[int]:
        if isinstance(source, Variable):
            return tuple(self._variables.get(source, ()))
        if isinstance(source, EagerTensor | PendingTensor):
            return (settled(source).number,)
        raise _no_source(source)

    def _walk(self, targets: Sequence[Any], seeds: Sequence[Any], wanted: Sequence[Sequence[int]]) -> list[Any]:
        """The gradients of the wanted numbers, the sum of several where a Variable was read several times."""
        found: Cotangents = {}
        for y, g in zip(targets, seeds, strict=True):
            if is_inexact(y.dtype):
                _add(found, y.number, ones_like(y) if g is None else _as_cotangent(g, y))
        sources = {n for numbers in wanted for n in numbers}
        with np.errstate(all="ignore"):
            self._propagate(found, sources)
        if not self._persistent:
            self.entries.clear()
        return [_as_result(_total(found, numbers)) for numbers in wanted]

    def _propagate(self, found: Cotangents, sources: set[int]) -> None:
        """Take the entries from the last to the first; of cotangents that have been used, those of sources are kept."""
        if native.walks and not is_told() and not recording.sinks:
            native.walks[0](self.entries, found, sources, self.watched, _take, _sum)
            return
        for entry in self.entries[::-1]:
            _take(entry, found, sources, self.watched)


Cotangents = dict[int | None, Any]  # by the numbers of tensors


def _check_target(y: Any) -> None:
    if not isinstance(y, EagerTensor | Tensor):
        raise TypeError(
            layout(f"a target must be a tensor, got {type(y).__name__}", needed=f"at {source_text(user_source())}",
                   hint="float(x), x.numpy(), np.sum([a, b]) of a list and most of SciPy give plain values, of which "
                        "no tape knows: use np.stack([a, b]), jitgrad.numpy and jitgrad.scipy")
        )  # fmt: skip


def _no_source(x: Any) -> TypeError:
    """The error for a source of which no tape knows."""
    return TypeError(
        f"a source must be a tensor or a Variable, got {type(x).__name__}: make one with jg.asarray(...), watch it, "
        "and compute with it"
    )


def _like_target(target: Any, given: Any) -> list[Any]:
    """The output_gradients that stand for the leaves of the target."""
    try:
        return pytree.flatten_up_to(target, given)
    except ValueError as error:
        raise ValueError(f"output_gradients must have the structure of the target: {error}") from None


def _warn_of_constant(x: Any) -> None:
    if not is_inexact(x.dtype):
        warnings.warn(
            f"a tensor of dtype {x.dtype} has no gradient: watch x.astype(float), and compute with that",
            UserWarning,
            stacklevel=3,
        )


def _take(entry: Entry, found: Cotangents, sources: set[int], watched: set[int]) -> None:
    """One step of the walk back."""
    rule, inputs, outputs, kept = parts(entry)
    cotangents = [found.get(n) if n in sources else found.pop(n, None) for n in outputs]
    if cotangents[0] is None and all(g is None for g in cotangents):
        return
    for n, g in zip(inputs, rule.backward(kept, cotangents), strict=True):
        if g is not None and n in watched:
            _add(found, n, g)


def _add(found: Cotangents, number: int | None, g: Any) -> None:
    before = found.get(number)
    found[number] = g if before is None else _sum(before, g)


def _total(found: Cotangents, numbers: Sequence[int]) -> Any:
    """The sum of the cotangents of some numbers; None where there is none."""
    parts = [found[n] for n in numbers if n in found]
    return functools.reduce(_sum, parts) if parts else None


def _sum(a: Any, b: Any) -> Any:
    """The sum of two cotangents: slices as long as both are."""
    if isinstance(a, IndexedSlices) and isinstance(b, IndexedSlices):
        return concatenated([a, b])
    return a + b


def _as_cotangent(g: Any, y: EagerTensor) -> EagerTensor | IndexedSlices:
    if isinstance(g, EagerTensor):
        return g if g.dtype == y.dtype else asarray(g, y.dtype)
    return g if isinstance(g, IndexedSlices) else asarray(g, y.dtype)


def _as_result(g: Any) -> Any:
    """A cotangent as it is handed out: tensors, also of arrays that no other tape was to hear of."""
    if isinstance(g, IndexedSlices):
        return IndexedSlices(asarray(g.values), asarray(g.indices), g.dense_shape)
    return wrap(g) if isinstance(g, np.ndarray | np.generic) and not isinstance(g, EagerTensor) else g


