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
from jitgrad.eager.graph_record import GraphRecord
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
from jitgrad.graph import Graph, Tensor, default_graph, in_graph
from jitgrad.ops.slices import IndexedSlices, concatenated
from jitgrad.ops.state import Variable
from jitgrad.sources import source_text, user_source
from jitgrad.sparse import gradients
from jitgrad.spec import is_inexact


class GradientTape:
    """``with jg.GradientTape() as tape:`` records what is done with watched tensors, for ``tape.gradient``.

    Variables that may be trained are watched by being read, unless ``watch_accessed_variables`` is False; tensors by
    ``tape.watch``. A tape that is not ``persistent`` gives gradients once. Tapes nest: an inner gradient is recorded by
    the outer tapes. A tape belongs to the thread that entered it. In a graph, and in a function that is traced, it
    means the same: gradients go through the operations that were made while it was open, of what it watched by then.
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self.watched: set[int] = set()
        self.entries: list[Entry] = []
        self.watches_variables = watch_accessed_variables
        self._persistent = persistent
        self._variables: dict[Variable, dict[int, None]] = {}
        self._is_spent = False
        self._was_entered = False
        self._is_inside = False
        self._record: GraphRecord | None = None

    def __enter__(self) -> GradientTape:
        if self in local.tapes:
            raise RuntimeError("this tape records already")
        native.place()
        self._was_entered = self._is_inside = True
        if in_graph() and self._record_of(default_graph()) is None:
            self._record = GraphRecord(default_graph())
        self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_inside = False
        self._stop()

    def _listen(self) -> None:
        open_tape(self)
        if self._record is not None:
            self._record.open()

    def _stop(self) -> None:
        close_tape(self)
        if self._record is not None:
            self._record.close()

    def _record_of(self, graph: Graph) -> GraphRecord | None:
        return self._record if self._record is not None and self._record.graph is graph else None

    def watch(self, tensors: Any) -> None:
        """Record what is done with these tensors (any pytree of them; Variables too). TypeError for anything else, a
        warning for integers and bools, which have no gradients.
        """
        finish()
        is_leaf = tensors is None or type(tensors) is EagerTensor
        leaves = (tensors,) if is_leaf else pytree.flatten(tensors)[0]
        for x in leaves:
            if isinstance(x, Variable) and in_graph():
                self._watch_in_graph(x, default_graph())
            elif isinstance(x, Variable):
                self.watch_variable(x, x.eager_value())
            elif isinstance(x, EagerTensor | PendingTensor):
                _warn_of_constant(x)
                self.watched.add(settled(x).number)
            elif isinstance(x, Tensor):
                self._watch_in_graph(x, x.graph)
            else:
                raise TypeError(f"a tape watches tensors, got {type(x).__name__}: make one with jg.asarray(...)")

    def _watch_in_graph(self, x: Tensor | Variable, graph: Graph) -> None:
        if isinstance(x, Variable):
            self._variables.setdefault(x, {})
        if self._record is None:
            self._record = GraphRecord(graph)
            if self in local.tapes:
                self._record.open()
        self._record.watch(x)

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
        if self._record is not None and variable.trainable and self.watches_variables:
            self._watch_in_graph(variable, self._record.graph)

    def watches(self, variable: Variable) -> bool:
        """Whether a Variable is watched: by being read, or because it was given to ``watch``."""
        return variable in self._variables

    def watched_variables(self) -> tuple[Variable, ...]:
        """The Variables watched so far, in the order of their first reads."""
        return tuple(self._variables)

    @contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Nothing is recorded inside by this tape."""
        was_recording, was_inside = self in local.tapes, self._is_inside
        self._is_inside = False
        self._stop()
        try:
            yield
        finally:
            self._is_inside = was_inside
            if was_recording:
                self._listen()

    def reset(self) -> None:
        """Forget everything, as if the tape were entered anew."""
        told[0] = 0
        self.watched.clear()
        self.entries.clear()
        self._variables.clear()
        if self._record is not None:
            self._record.forget()
        self._is_spent = False
        if self._is_inside and self not in local.tapes:
            self._listen()

    # -- gradients -----------------------------------------------------------------------------------------------

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None) -> Any:
        """The gradient of ``target`` (the sum of all targets) with respect to ``sources``, in their structure.

        ``target`` is a tensor or a pytree of them; ``output_gradients``, in its structure, are the cotangents (None:
        ones). None stands where the target does not depend on a source. RuntimeError when a tape that is not persistent
        is asked again, and for one that was never entered; TypeError for targets or sources that are no tensors.
        """
        if target is None:
            _check_target(target)
        target = pytree.tree_map(settled, target)
        targets, wanted = pytree.flatten(target)[0], pytree.flatten(sources)
        seeds = self._seeds(target, targets, output_gradients)
        if any(isinstance(y, Tensor) for y in targets):
            with self._spending():
                return pytree.unflatten(wanted[1], self._in_graph(targets, wanted[0], seeds))
        numbers = [self._numbers_of(x) for x in wanted[0]]
        self._check_entered()
        with self._spending():
            return pytree.unflatten(wanted[1], self._walk(targets, seeds, numbers))

    def jacobian(self, target: Any, sources: Any) -> Any:
        """The derivatives of every element of ``target``, a tensor, by ``sources``, in their structure.

        Each has shape target.shape + source.shape; None where the target does not depend on it. Errors as
        ``gradient``'s.
        """
        if isinstance(target, Tensor):
            leaves, structure = pytree.flatten(sources)
            with self._spending():
                found = self._recorded([target], leaves, functools.partial(jacobian_in_graph, target))
            return pytree.unflatten(structure, found)
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

        def of_one(xs: Sequence[Any], constants: Sequence[Tensor] | None) -> list[Any]:
            return [batch_jacobian_in_graph(target, x, constants) for x in xs]

        if isinstance(target, Tensor):
            with self._spending():
                return self._recorded([target], [source], of_one)[0]

        def of_rows(entries: Sequence[Entry], y: EagerTensor, xs: Sequence[Source]) -> list[Any]:
            return [batch_jacobian(entries, y, xs[0])]

        return self._all_of(target, source, of_rows)

    def _all_of(self, target: Any, sources: Any, derive: Callable[..., list[Any]]) -> Any:
        leaves, structure = pytree.flatten(sources)
        target = settled(target)
        self._seeds(target, [target], None)
        known = {*self.watched, target.number}
        wanted = [Source(tuple([n for n in self._numbers_of(x) if n in known]), tuple(x.shape)) for x in leaves]
        self._check_entered()
        with self._spending():
            return pytree.unflatten(structure, derive(self.entries, target, wanted))

    def _in_graph(self, targets: Sequence[Any], sources: Sequence[Any], seeds: Sequence[Any]) -> list[Any]:
        for x in sources:
            if not isinstance(x, Tensor | Variable | IndexedSlices):
                raise TypeError(f"a source must be a tensor of the graph or a Variable, got {type(x).__name__}")
        pairs = [(y, g) for y, g in zip(targets, seeds, strict=True) if isinstance(y, Tensor)]
        ys, grad_ys = [y for y, _ in pairs], [g for _, g in pairs]

        def derive(xs: Sequence[Any], constants: Sequence[Tensor] | None) -> list[Any]:
            return gradients(ys, xs, grad_ys, stop_gradients=constants) if xs else []

        return self._recorded(ys, sources, derive)

    def _recorded(self, targets: Sequence[Tensor], sources: Sequence[Any], derive: Derive) -> list[Any]:
        """What ``derive`` gives for the sources that are watched, and the tensors that are constants; None for others.

        In a graph in which the tape was not entered it has recorded nothing: there all is differentiated.
        """
        record = self._record_of(targets[0].graph)
        if record is None:
            return derive(sources, None)
        recorded = record.recorded()
        is_wanted = [recorded.has(x) or any(x is y for y in targets) for x in sources]
        wanted = [x for x, is_one in zip(sources, is_wanted, strict=True) if is_one]
        made = iter(derive(wanted, recorded.constants(targets)))
        return [next(made) if is_one else None for is_one in is_wanted]

    def _check_entered(self) -> None:
        if not self._was_entered:
            raise RuntimeError(
                layout("this tape has recorded nothing: it was never entered", hint="compute inside: with tape: ...")
            )

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """A gradient is derived inside; unless the tape is persistent it does not record that, and has none to give
        once it is done. One that fails leaves the tape as it was.
        """
        if self._is_spent:
            raise RuntimeError(
                layout("this tape has given its gradient", hint="GradientTape(persistent=True) gives them many times")
            )
        if self._persistent:
            yield
            return
        was_recording = self in local.tapes
        self._stop()
        try:
            yield
        except BaseException:
            if was_recording:
                self._listen()
            raise
        self._is_spent = True
        self.entries.clear()

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
        return [_as_result(_total(found, numbers)) for numbers in wanted]

    def _propagate(self, found: Cotangents, sources: set[int]) -> None:
        """Take the entries from the last to the first; of cotangents that have been used, those of sources are kept."""
        if native.walks and not is_told() and not recording.sinks:
            native.walks[0](self.entries, found, sources, self.watched, _take, _sum)
            return
        for entry in self.entries[::-1]:
            _take(entry, found, sources, self.watched)


Cotangents = dict[int | None, Any]  # by the numbers of tensors
Derive = Callable[[Sequence[Any], Sequence[Tensor] | None], list[Any]]


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


