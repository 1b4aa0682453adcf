"""Gradient rules of eager calls: a call is traced once per dtypes and shapes, and its gradient kept as a program.

What an op's gradient needs is not declared by hand: the program of the gradient is made from the arguments, the results
and the cotangents as inputs, and what it does not read is not kept. A sum needs nothing, a product both arguments,
``tanh`` its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eager.keys import ArrayKey, leaf_key
from jitgrad.eager.tensor import EagerTensor, plain, run, settled, wrap
from jitgrad.errors import JitgradError
from jitgrad.graph import Tensor, apply
from jitgrad.interpreter import interpret
from jitgrad.ops.slices import IndexedSlices
from jitgrad.program import Program, slice_graph
from jitgrad.sparse import gradients
from jitgrad.spec import is_inexact
from jitgrad.trace import Static, trace

MOST_RULES = 4096
_rules: dict[Any, Any] = {}


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All leaves of a call's arguments."""
    return tuple(pytree.flatten((args, kwargs))[0])


def rule_of(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any], outs: Sequence[Any]
) -> CallRule:
    """The rule of a call, made at the first call with such arguments."""
    keys = tuple([leaf_key(x) for x in leaves])
    structure = None if leaves is args else pytree.flatten((args, kwargs))[1]
    key = (fn, structure, keys)
    rule = _rules.get(key)
    if rule is None:
        if len(_rules) >= MOST_RULES:
            _rules.clear()
        rule = _rules[key] = _make_rule(fn, pytree.flatten((args, kwargs))[1], keys, outs)
    return rule


Given = int | tuple[int, int, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class CallRule:
    """The gradient of a call as a program.

    ``reads`` says what the program's inputs are: ("leaf", k), ("out", k) or ("seed", k). ``gives`` is, per leaf, the
    number of the program's output, those of values and indices with the shape of the leaf where the cotangent is
    slices, or None. ``failure`` is raised when a gradient is asked for that there is none of.
    """

    program: Program | None
    reads: tuple[tuple[str, int], ...]
    gives: tuple[Given, ...]
    failure: JitgradError | None = None

    def places(self, leaves: int) -> Sequence[int]:
        """Where the arguments and results that the program reads are in (*leaves, *results)."""
        return [k if what == "leaf" else leaves + k for what, k in self.reads if what != "seed"]

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Cotangents of the leaves; the tapes that are open see the computation."""
        if self.failure is not None:
            raise self.failure
        if self.program is None:
            return (None,) * len(self.gives)
        pending = iter(kept)
        values = tuple([self._seed(cotangents[k], v) if what == "seed" else next(pending)
                        for (what, k), v in zip(self.reads, self.program.inputs, strict=True)])  # fmt: skip
        made = run(ProgramCall.of(self.program), values, {})
        return [_given(place, made) for place in self.gives]


    def _seed(self, cotangent: Any, v: int) -> Any:
        """The cotangent of a result; zeros where none arrived."""
        assert self.program is not None
        spec = self.program.specs[v]
        return np.zeros(spec.known_shape, spec.dtype) if cotangent is None else settled(cotangent)


def _given(place: Given, made: Sequence[Any]) -> Any:
    if isinstance(place, tuple):
        values, indices, shape = place
        return IndexedSlices(made[values], made[indices], shape)
    return None if place is None else made[place]


def _make_rule(fn: Callable[..., Any], structure: Any, keys: Sequence[Any], outs: Sequence[Any]) -> CallRule:
    dynamic = [k for k, key in enumerate(keys) if not isinstance(key, Static)]
    try:
        return _traced_rule(fn, structure, keys, dynamic, outs)
    except JitgradError as error:
        return CallRule(None, (), (None,) * len(keys), error.with_traceback(None))


def _traced_rule(
    fn: Callable[..., Any], structure: Any, keys: Sequence[Any], dynamic: Sequence[int], outs: Sequence[Any]
) -> CallRule:
    carrying = [k for k, out in enumerate(outs) if type(out) is EagerTensor and is_inexact(out.dtype)]
    seed_keys = [(outs[k].dtype, outs[k].shape) for k in carrying]
    carriers = [place for place, k in enumerate(dynamic) if isinstance(keys[k], ArrayKey)]
    found: dict[str, Any] = {}

    def differentiated(call: Any, seeds: list[Tensor]) -> Any:
        args, kwargs = call
        result = fn(*args, **kwargs)
        results = list(result) if isinstance(result, tuple | list) else [result]
        leaves = [x for x in pytree.flatten(call)[0] if isinstance(x, Tensor)]
        xs = [leaves[place] for place in carriers]
        traced = [(results[k], g) for k, g in zip(carrying, seeds, strict=True) if isinstance(results[k], Tensor)]
        found["leaves"], found["ys"], found["seeds"] = leaves, [results[k] for k in carrying], seeds
        found["grads"] = gradients([y for y, _ in traced], xs, grad_ys=[g for _, g in traced])
        return []

    call = pytree.unflatten(structure, list(range(len(keys))))
    both = pytree.flatten(((call, list(range(len(seed_keys)))), {}))[1]
    names = [f"x{k}" for k in range(len(keys))] + [f"g{k}" for k in range(len(seed_keys))]
    trace(differentiated, both, [*keys, *seed_keys], names)
    sources: dict[Tensor, tuple[str, int]] = {}
    for x, k in zip(found["leaves"], dynamic, strict=True):
        sources.setdefault(x, ("leaf", k))
    for y, k in zip(found["ys"], carrying, strict=True):
        if isinstance(y, Tensor):
            sources.setdefault(y, ("out", k))
    for g, k in zip(found["seeds"], carrying, strict=True):
        sources.setdefault(g, ("seed", k))
    return _sliced(found["grads"], sources, [dynamic[place] for place in carriers], keys)


def _sliced(
    grads: Sequence[Tensor | IndexedSlices | None],
    sources: dict[Tensor, tuple[str, int]],
    dynamic: Sequence[int],
    keys: Sequence[Any],
) -> CallRule:
    place: dict[Tensor, int] = {}
    gives: list[Given] = [None] * len(keys)
    for g, k in zip(grads, dynamic, strict=True):
        if isinstance(g, IndexedSlices):
            values, indices = (place.setdefault(t, len(place)) for t in (g.values, g.indices))
            gives[k] = (values, indices, keys[k][1])
        elif g is not None:
            gives[k] = place.setdefault(g, len(place))
    fetches = list(place)
    if not fetches:
        return CallRule(None, (), tuple(gives))
    program = slice_graph(fetches, {t: t.spec for t in sources}, name="gradient")
    read = {v for ins in program.instructions for v in ins.inputs} | set(program.outputs)
    wanted = [v for v in program.inputs if v in read]
    reads = tuple(what for v, what in zip(program.inputs, sources.values(), strict=True) if v in read)
    reduced = Program(tuple(wanted), program.outputs, program.instructions, program.specs, program.name)
    return CallRule(reduced, reads, tuple(gives))


class ProgramCall:
    """A program as a function: of arrays interpreted, of traced values made into ops again."""

    __slots__ = ("program",)

    def __init__(self, program: Program) -> None:
        self.program = program

    @classmethod
    def of(cls, program: Program) -> ProgramCall:
        """The one call of a program, so that its own gradient is derived once."""
        found: Any = program._cache.get("call")
        if found is None:
            found = program._cache["call"] = cls(program)
        return found  # type: ignore[no-any-return]

    def __call__(self, *values: Any) -> list[Any]:
        if any(isinstance(x, Tensor) for x in values):
            return replay(self.program, values)
        return interpret(self.program, [np.asarray(plain(x)) for x in values])


def replay(program: Program, tensors: Sequence[Any]) -> list[Any]:
    """Make the ops of a program again, on other tensors of one graph."""
    values: dict[int, Any] = dict(zip(program.inputs, tensors, strict=True))
    for ins in program.instructions:
        made = apply(ins.op, *[values[v] for v in ins.inputs], **ins.params)
        values |= zip(ins.outputs, made if isinstance(made, tuple) else (made,), strict=True)
    return [values[v] for v in program.outputs]


def ones_like(x: EagerTensor) -> EagerTensor:
    """The default cotangent."""
    return wrap(np.ones(x.shape, x.dtype))
