"""Jacobians from tapes: the walk back as a function of what the tape kept, batched over all seeds at once."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.batching import batch
from jitgrad.compiled import run_once
from jitgrad.constant_values import standing_in
from jitgrad.eager.custom_calls import CustomRule
from jitgrad.eager.recorder import Entry, OwnRules, leading_to, parts
from jitgrad.eager.tensor import EagerTensor, run, wrap
from jitgrad.eagerness import local, settled
from jitgrad.errors import TracedValueError
from jitgrad.gradients import Options, gradients
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.slices import IndexedSlices
from jitgrad.records import NamedTuple


class _Pull(OwnRules):
    """The cotangents of ``sources`` for a stack of cotangents of a target, as a function of what the entries keep."""

    def __init__(self, entries: Sequence[Entry], target: int, seeds: Any, sources: Sequence[int]) -> None:
        super().__init__()
        self._entries, self._target, self._seeds, self._sources = entries, target, seeds, sources

    def __call__(self, *kept: Any) -> list[Any]:
        if not any(isinstance(x, Tensor) for x in kept):
            found: list[Any] = run_once(self, *kept) if kept else run_once(lambda _: self._traced(()), 0.0)
            return found
        return self._traced(kept)

    def _traced(self, kept: Sequence[Any]) -> list[Any]:
        seeds = call("constant", self._seeds)
        seed = standing_in(seeds[0])
        found = _walked_back(self._entries, self._target, seed, kept)
        cotangents = [found.get(n) for n in self._sources]
        made = iter(batch([as_tensor(g) for g in cotangents if g is not None], {seed: seeds}, len(self._seeds)))
        return [None if g is None else next(made) for g in cotangents]


def _walked_back(entries: Sequence[Entry], target: int, seed: Any, kept: Sequence[Any]) -> dict[int, Any]:
    """The cotangents of all that the target depends on, for one of the target; ``kept`` are the arrays in the entries,
    or what stands for them.
    """
    found: dict[int, Any] = {target: seed}
    pending = iter(kept)
    for rule, inputs, outputs, keeps in map(parts, entries):
        mine = [next(pending) if isinstance(x, np.ndarray) else x for x in keeps]
        cotangents = [found.get(n) if n is not None else None for n in outputs]
        if all(g is None for g in cotangents):
            continue
        for n, g in zip(inputs, rule.backward(mine, cotangents), strict=True):
            if g is not None and n is not None:
                g = _dense(g) if isinstance(g, IndexedSlices) else g
                found[n] = found[n] + g if n in found else g
    return found


def _dense(g: IndexedSlices) -> Any:
    return g.as_graph_element() if isinstance(g.values, Tensor) else g.eager_value()


def _row_by_row(
    entries: Sequence[Entry], target: int, seeds: Any, sources: Sequence[int], kept: Sequence[Any]
) -> list[Any]:
    """What ``_Pull`` gives, one walk per seed: for rules that look at values, which no trace has, and for users' rules
    where tapes are open, which hear so of the tensors that a rule has of its function.
    """
    with np.errstate(all="ignore"):
        rows = [_walked_back(entries, target, wrap(seed), kept) for seed in seeds]
    return [_stacked([row.get(n) for row in rows]) for n in sources]


def _stacked(rows: Sequence[Any]) -> Any:
    """Cotangents one above the other, zeros for those that did not arrive; None where none did."""
    arrived = next((g for g in rows if g is not None), None)
    if arrived is None:
        return None
    zeros = np.zeros(arrived.shape, arrived.dtype)
    return run(np.stack, ([zeros if g is None else settled(g) for g in rows],), {})


class Source(NamedTuple):
    """What is differentiated by: the numbers of a tensor, or of a Variable's values, and the shape."""

    numbers: tuple[int, ...]
    shape: tuple[int, ...]


def pull_stack(entries: Sequence[Entry], target: EagerTensor, seeds: Any, sources: Sequence[Source]) -> list[Any]:
    """Per source the stack of its cotangents for a stack of the target's, shape (len(seeds), *source.shape).

    None for a source that the target does not depend on. The result is recorded on the tapes that are open.
    """
    if not len(seeds):
        one = pull_stack(entries, target, _one_like(seeds), sources)
        return [None if stack is None else stack[:0] for stack in one]
    used, reached = leading_to(entries, [target.number])
    wanted = [n for source in sources for n in source.numbers if n in reached]
    if not wanted:
        return [None] * len(sources)
    kept = tuple(x for entry in used for x in parts(entry).kept if isinstance(x, np.ndarray))
    cotangents = None
    if not (local.tapes and any(isinstance(parts(entry).rule, CustomRule) for entry in used)):
        with contextlib.suppress(TracedValueError):
            cotangents = run(_Pull(used, target.number, seeds, wanted), kept, {})
    if cotangents is None:
        cotangents = _row_by_row(used, target.number, seeds, wanted, kept)
    made = dict(zip(wanted, cotangents, strict=True))
    stacks = [[made[n] for n in source.numbers if made.get(n) is not None] for source in sources]
    return [functools.reduce(operator.add, found) if found else None for found in stacks]


def _one_like(seeds: Any) -> Any:
    """One seed in place of none, which shows what the target depends on."""
    return np.zeros((1, *seeds.shape[1:]), seeds.dtype)


def jacobian(entries: Sequence[Entry], target: EagerTensor, sources: Sequence[Source]) -> list[Any]:
    """Per source the derivative of every element of ``target``, shape target.shape + source.shape."""
    seeds = np.eye(target.size, dtype=target.dtype).reshape(target.size, *target.shape)
    stacks = pull_stack(entries, target, seeds, sources)
    return [
        None if stack is None else run(np.reshape, (stack, (*target.shape, *x.shape)), {})
        for stack, x in zip(stacks, sources, strict=True)
    ]


def batch_jacobian(entries: Sequence[Entry], target: EagerTensor, source: Source) -> Any:
    """The derivative of ``target[b]`` by ``source[b]`` for each b, shape target.shape + source.shape[1:]."""
    (stack,) = pull_stack(entries, target, _seeds_of_rows(target), [source])
    if stack is None:
        return None
    return run(np.reshape, (run(np.moveaxis, (stack, 0, 1), {}), (*target.shape, *source.shape[1:])), {})


def _seeds_of_rows(target: Any) -> Any:
    """Per element of a row of the target the cotangent that is 1 there, in all rows."""
    batch_size, shape = target.shape[0], target.shape[1:]
    count = math.prod(shape)
    eye = np.eye(count, dtype=target.dtype).reshape(count, 1, *shape)
    return np.ascontiguousarray(np.broadcast_to(eye, (count, batch_size, *shape)))


# -- in graphs -----------------------------------------------------------------------------------------------


def jacobian_in_graph(target: Tensor, sources: Sequence[Any], constants: Sequence[Tensor] | None) -> list[Any]:
    """As ``jacobian``, of tensors of a graph, or Variables, whose shapes are known."""
    seeds = np.eye(target.size, dtype=target.dtype).reshape(target.size, *target.spec.known_shape)
    stacks = _stacks_in_graph(target, seeds, sources, constants)
    return [
        None if stack is None else call("reshape", stack, (*target.shape, *stack.shape[1:]))
        for stack in stacks
    ]


def batch_jacobian_in_graph(target: Tensor, source: Any, constants: Sequence[Tensor] | None) -> Any:
    """As ``batch_jacobian``, of tensors of a graph."""
    (stack,) = _stacks_in_graph(target, _seeds_of_rows(target), [source], constants)
    if stack is None:
        return None
    return call("reshape", call("moveaxis", stack, 0, 1), (*target.shape, *stack.shape[2:]))


def _stacks_in_graph(
    target: Tensor, seeds: Any, sources: Sequence[Any], constants: Sequence[Tensor] | None
) -> list[Tensor | None]:
    if not len(seeds):
        one = _stacks_in_graph(target, _one_like(seeds), sources, constants)
        return [None if stack is None else stack[:0] for stack in one]
    with target.graph.as_default():
        stack = as_tensor(seeds)
        seed = standing_in(stack[0])
        found = gradients([target], list(sources), [seed], Options(stopped=constants))
        wanted = [g for g in found if g is not None]
        made = iter(batch(wanted, {seed: stack}, len(seeds)))
        return [None if g is None else next(made) for g in found]
