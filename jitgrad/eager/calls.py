"""Gradient rules of eager calls: a call is traced once per dtypes and shapes, and its gradient kept as a program.

What an op's gradient needs is not declared by hand: the program of the gradient is made from the arguments, the results
and the cotangents as inputs, and what it does not read is not kept. A sum needs nothing, a product both arguments,
``tanh`` its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from jitgrad import pytree, recording
from jitgrad.again import make_again
from jitgrad.compiler.eager_code.layout import MOST_RULES
from jitgrad.dispatch import full_name
from jitgrad.eager.keys import BY_TYPE, ArrayKey, leaf_key, type_key, value_key
from jitgrad.eager.recorder import OwnRules, by_value
from jitgrad.eager.straight import Walk, straight, walk_of
from jitgrad.eager.tensor import EagerTensor, is_told, plain, run, wrap
from jitgrad.eagerness import local, settled
from jitgrad.errors import GradientError, JitgradError, layout
from jitgrad.graph import Tensor
from jitgrad.interpreter import interpret
from jitgrad.opdef import Reduce, Scan
from jitgrad.ops.common import as_tensor
from jitgrad.ops.slices import IndexedSlices
from jitgrad.program import Program, slice_graph
from jitgrad.records import dataclass
from jitgrad.sources import source_text, user_source
from jitgrad.sparse import gradients
from jitgrad.spec import TensorSpec, is_inexact
from jitgrad.trace import Static, trace

_rules: dict[Any, Any] = {}


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """All leaves of a call's arguments."""
    return tuple(pytree.flatten((args, kwargs))[0])


def numbered_leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[int, int]]:
    """All leaves, and where each of them stands in (*args, *kwargs.values()) if it is an argument itself."""
    leaves, structure = pytree.flatten((args, kwargs))
    numbered, named = pytree.unflatten(structure, range(len(leaves)))
    at = (*numbered, *[named[name] for name in kwargs])
    return tuple(leaves), {leaf: place for place, leaf in enumerate(at) if isinstance(leaf, int)}


def rule_of(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: Sequence[Any],
    outs: Sequence[Any],
    may_fix: bool = True,
) -> CallRule:
    """The rule of a call, made at the first call with such arguments. If there is none for Python floats of any value,
    there may be one for these values, unless the caller keeps rules by their types.
    """
    keys = tuple(map(_key_of(fn, may_fix), leaves))
    structure = pytree.flatten((args, kwargs))[1]
    shape = structure, tuple(pytree.key_orders((args, kwargs))), keys
    known, key = (fn.rules, shape) if isinstance(fn, OwnRules) else (_rules, (fn, *shape))
    rule = known.get(key)
    if rule is None:
        rule = _make_rule(fn, structure, keys, outs)
        fixed = tuple(map(value_key, leaves))
        if may_fix and rule.failure is not None and fixed != keys:
            other = _make_rule(fn, structure, fixed, outs)
            if other.failure is None:
                _note_by_value(fn)
                return rule_of(fn, args, kwargs, leaves, outs)
        if len(known) >= MOST_RULES:
            known.clear()
        if not any(isinstance(k, Static) and isinstance(k.value, FunctionType | MethodType) for k in keys):
            known[key] = rule  # a function that the user gave is not to be kept
    return rule


def _key_of(fn: Any, may_fix: bool) -> Callable[[Any], Any]:
    """What the rules of a function depend on in a leaf; those of a gradient, on what those of its function do."""
    if may_fix and fn in by_value:
        return value_key
    return type_key if fn in BY_TYPE or isinstance(fn, ProgramCall) else leaf_key


def _note_by_value(fn: Any) -> None:
    if len(by_value) >= MOST_RULES:
        by_value.clear()
    by_value.add(fn)


Given = int | tuple[int, int, tuple[int, ...]] | None


@dataclass(frozen=True, slots=True)
class CallRule:
    """The gradient of a call as a program.

    ``reads`` says what the inputs of the program are that are kept, ("leaf", k) or ("out", k), and ``seeds`` which
    cotangents follow them. ``gives`` is, per leaf, the
    number of the program's output, those of values and indices with the shape of the leaf where the cotangent is
    slices, or None. ``failure`` is the type and the text of the error when a gradient is asked for that there is
    none of; not the error itself, whose traceback would keep what was alive when it was raised. ``walk`` is what
    machine code needs to apply the rule, if it can.
    """

    call: ProgramCall | None
    reads: tuple[tuple[str, int], ...]
    seeds: tuple[int, ...]
    gives: tuple[Given, ...]
    failure: tuple[type[GradientError], str] | None = None
    walk: Walk | None = None

    def places(self, leaves: int) -> Sequence[int]:
        """Where the arguments and results that the program reads are in (*leaves, *results)."""
        return [k if what == "leaf" else leaves + k for what, k in self.reads]

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """Cotangents of the leaves; the tapes that are open see the computation."""
        call = self.call
        if call is None:
            return self._nothing()
        values = [*kept, *[cotangents[k] for k in self.seeds]]
        if local.tapes or local.collector is not None or recording.sinks or not _EAGER.issuperset(map(type, values)):
            made = self._told(call, values)
        else:
            made = call.straight([x._plain if type(x) is EagerTensor else np.asarray(x) for x in values])
        return [made[place] if type(place) is int else given(place, made) for place in self.gives]

    def _nothing(self) -> Sequence[Any]:
        if self.failure is not None:
            kind, text = self.failure
            raise kind(asked_for(text))
        return (None,) * len(self.gives)

    def _told(self, call: ProgramCall, values: list[Any]) -> Sequence[Any]:
        """As a call of which tapes hear, with zeros for cotangents that did not arrive."""
        for place in range(len(values) - len(self.seeds), len(values)):
            spec = call.program.specs[call.program.inputs[place]]
            g = values[place]
            values[place] = np.zeros(spec.known_shape, spec.dtype) if g is None else settled(g)
        found: Sequence[Any] = run(call, tuple(values), {}) if is_told() else call(*values)
        return found


def given(place: Given, made: Sequence[Any]) -> Any:
    """The cotangent that an output stands for, of the outputs that were made."""
    if isinstance(place, tuple):
        values, indices, shape = place
        return IndexedSlices(made[values], made[indices], shape)
    return None if place is None else made[place]


def _make_rule(fn: Callable[..., Any], structure: Any, keys: Sequence[Any], outs: Sequence[Any]) -> CallRule:
    dynamic = [k for k, key in enumerate(keys) if not isinstance(key, Static)]
    try:
        return _traced_rule(fn, structure, keys, dynamic, outs)
    except GradientError as error:
        return CallRule(None, (), (), (None,) * len(keys), (type(error), str(error)))
    except (JitgradError, TypeError, ValueError, LookupError, AttributeError) as error:  # NumPy took the call
        return CallRule(None, (), (), (None,) * len(keys), (GradientError, _underivable(fn, keys, error)))


def asked_for(text: str) -> str:
    """The text of an error with the user's line that asks for the gradient, before the hint."""
    rows = text.split("\n")
    at = next((k for k, row in enumerate(rows) if row.startswith("  hint:")), len(rows))
    width = len(rows[at]) - len(rows[at][7:].lstrip()) - 3 if at < len(rows) else 0
    return "\n".join([*rows[:at], f"  {'asked:':<{width}} at {source_text(user_source())}", *rows[at:]])


def _underivable(fn: Callable[..., Any], keys: Sequence[Any], error: Exception) -> str:
    """The text for a call that cannot be traced, whose gradient is therefore not known. Its line is that of the first
    such call: there is one rule for all.
    """
    arrays = ", ".join(str(TensorSpec(key[1], key[0])) for key in keys if isinstance(key, tuple))
    return layout(
        f"the gradient of {_name(fn)}, which a tape recorded, cannot be derived",
        op=f"{_name(fn)} of {arrays}    first recorded at {source_text(user_source())}",
        because=str(error).split("\n")[0],
        hint="use other functions, give it a rule with jg.custom_gradient, or wrap it in jg.stop_gradient(...)",
    )


def _name(fn: Any) -> str:
    fn = getattr(fn, "__wrapped__", fn) if not hasattr(fn, "__name__") else fn
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"{full_name(owner)}.{fn.__name__}"
    return full_name(fn) if hasattr(fn, "__name__") else repr(fn)


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
        if isinstance(y, Tensor) and not _is_sought(y, sources):
            sources.setdefault(y, ("out", k))
    for g, k in zip(found["seeds"], carrying, strict=True):
        sources.setdefault(g, ("seed", k))
    return _sliced(found["grads"], sources, [dynamic[place] for place in carriers], keys)


def _is_sought(y: Tensor, known: Mapping[Tensor, Any]) -> bool:
    """Whether a rule looks for ``y`` among elements that the gradient makes itself: an extreme of what is no leaf. What
    NumPy made of them in the call may differ from all of them in its last bits (singular values with vectors and
    without), and then nothing is found: such a result is made again, too.
    """
    kind = y.op.opdef.kind
    is_extreme = isinstance(kind, Reduce | Scan) and kind.combine in ("maximum", "minimum")
    return is_extreme and y.op.inputs[0] not in known


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
        return CallRule(None, (), (), tuple(gives))
    program = slice_graph(fetches, {t: t.spec for t in sources}, name="gradient")
    read = {v for ins in program.instructions for v in ins.inputs} | set(program.outputs)
    wanted = [v for v in program.inputs if v in read]
    reads = tuple(what for v, what in zip(program.inputs, sources.values(), strict=True) if v in read)
    reduced = Program(tuple(wanted), program.outputs, program.instructions, program.specs, program.name)
    kept, seeds = [what for what in reads if what[0] != "seed"], [k for what, k in reads if what == "seed"]
    walk = walk_of(reduced, gives) if seeds == [0] else None
    return CallRule(ProgramCall(reduced), tuple(kept), tuple(seeds), tuple(gives), walk=walk)


_EAGER = frozenset((EagerTensor, np.ndarray, float, int, complex, np.float64, np.float32))


class ProgramCall(OwnRules):
    """A program as a function: of arrays interpreted, of traced values made into ops again."""

    __slots__ = ("program", "straight")

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.straight = straight(program)

    def __call__(self, *values: Any) -> list[Any]:
        if any(isinstance(x, Tensor) for x in values):
            tensors = [x if isinstance(x, Tensor) else as_tensor(np.asarray(plain(x))) for x in values]
            made: dict[int, Any] = dict(zip(self.program.inputs, tensors, strict=True))
            make_again(self.program.instructions, made)
            return [made[v] for v in self.program.outputs]
        return interpret(self.program, [np.asarray(plain(x)) for x in values])


def ones_like(x: EagerTensor) -> EagerTensor:
    """The default cotangent."""
    return wrap(np.ones(x.shape, x.dtype))
