"""What control flow asks of the user's functions, and what is said when they do not give it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.control import states
from jitgrad.control.arrays import has_empty
from jitgrad.control.tracing import TracedBody
from jitgrad.errors import DTypeError, JitgradError, ShapeError, layout
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.ops.common import PYTHON_SCALARS
from jitgrad.sources import operation_text, place
from jitgrad.spec import TensorSpec, is_compatible, spec_of
from jitgrad.trace import describe

Fn = Callable[..., Any]


class StructureError(JitgradError, TypeError):
    """A body gives another structure than it was given, or branches give different ones."""


def check_items(xs: Any, length: int | None) -> int | None:
    """The number of steps of a scan; None where it is not known yet."""
    leaves, paths = states.flatten(xs)[0], states.paths(xs)
    found: dict[int, str] = {}
    for leaf, path in zip(leaves, paths, strict=True):
        shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
        if shape is not None and not shape:
            raise ShapeError(layout(f"scan takes xs{path} apart along its first axis, and it has none", needed=place(),
                                    hint="what is the same at each step is read from outside"))  # fmt: skip
        if shape is not None and shape[0] is not None:
            found.setdefault(shape[0], f"xs{path}")
    if length is not None:
        found.setdefault(length, "length")
    if len(found) > 1:
        texts = ", ".join(f"{name} has {n}" for n, name in found.items())
        raise ShapeError(layout(f"scan: the numbers of steps differ: {texts}", needed=place(),
                                hint="slice xs to one number of steps: xs[:length]"))  # fmt: skip
    if not found and not leaves:
        raise ValueError(layout("scan needs xs or a length", needed=place(), hint="give length=, the number of steps"))
    return next(iter(found), None)


def check_takes(name: str, fn: Fn, given: Sequence[str], hint: str) -> None:
    """TypeError unless a function of the user's takes what it will be given, by position."""
    if not isinstance(fn, FunctionType):  # what else can be called says itself what it takes
        return
    code = fn.__code__
    least = code.co_argcount - len(fn.__defaults__ or ())
    if least <= len(given) and (len(given) <= code.co_argcount or code.co_flags & inspect.CO_VARARGS):
        return
    taken = ", ".join(code.co_varnames[: code.co_argcount]) or "nothing"
    raise TypeError(layout(f"{name} gives a function {' and '.join(given) or 'nothing'}, and {describe(fn)} takes "
                           f"{taken}", needed=place(), hint=hint))  # fmt: skip


def check_count(name: str, given: Any) -> int | None:
    """A number of steps that is given: TypeError unless it is an integer known now, ValueError below 0."""
    if given is None:
        return None
    try:
        count = operator.index(given)
    except TypeError:
        raise TypeError(layout(f"{name} is a Python integer, got {given!r}", needed=place())) from None
    if count < 0:
        raise ValueError(layout(f"{name}={count} is negative", needed=place()))
    return count


def check_choice(name: str, number: Tensor) -> Tensor:
    """What decides a cond or a switch: one bool or integer."""
    if number.shape not in ((), None) or number.dtype.kind not in "biu":
        raise _no_choice(name, number.spec, number.shape == (), operation_text(number.op))
    return number


def value_of_choice(name: str, value: Any) -> int:
    """A bool or an integer that decides a cond or a switch."""
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "biu":
        raise _no_choice(name, _value_text(value, array), not array.shape)
    return int(array)


def _no_choice(name: str, got: Any, is_one: bool, op: str | None = None) -> JitgradError:
    wanted = "one bool" if name == "cond" else "one integer"
    another = "compare it: x != 0" if name == "cond" else "convert it with astype(int)"
    kind, hint = (DTypeError, another) if is_one else (ShapeError, "use np.where to choose element by element")
    return kind(layout(f"{name} needs {wanted}, got {got}", op=op, needed=place(), hint=hint))


def _value_text(value: Any, array: Any) -> str:
    """What a message says of a value: its spec, or the value itself where it is no number."""
    return str(spec_of(array)) if array.dtype.kind in "biufc" else repr(value)


def refuse_empty(name: str, fn: Fn, init: Any) -> None:
    """StructureError for a state without an array: nothing of it could end a loop."""
    if not states.flatten(init)[0] and not has_empty(init):
        raise StructureError(
            layout(f"{name}: the state is empty", function=describe(fn), needed=place(),
                   hint="give what the condition depends on as init; jg.scan and jg.fori_loop count steps")
        )  # fmt: skip


def settle_state(
    name: str, fn: Fn, init: Any, state: list[Tensor], trace: Callable[[Sequence[Any]], TracedBody],
    shapes: Any = None, is_pair: bool = False,
) -> tuple[list[Tensor], TracedBody]:  # fmt: skip
    """The state in the dtypes that the body keeps, and the body for these: a Python number as init gives way."""
    likes: list[Any] = list(state)
    if shapes is not None:
        likes = [TensorSpec(tuple(s), x.dtype) for s, x in zip(shapes, state, strict=True)]
    for _ in range(3 * len(state) + 1):  # a round moves at least one leaf to a wider kind
        body = trace(likes)
        result = _state_of(name, fn, body) if is_pair else body
        changed = False
        for k, (x, y) in enumerate(zip(state, result.outputs, strict=False)):
            if x.dtype != y.dtype and x.is_weak and _gives_way(x, y):
                state[k] = call("astype", x, y.dtype)
                state[k].is_weak = y.is_weak
                likes[k] = TensorSpec(likes[k].shape, y.dtype) if shapes is not None else state[k]
                changed = True
        if not changed:
            break
    _compare(name, fn, init, state if shapes is None else likes, result)
    return state, _in_dtypes(body, state)


_KINDS = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}


def _gives_way(x: Tensor, y: Any) -> bool:
    """Whether a Python number takes a dtype without losing anything: one of its kind, or of a wider one."""
    return _KINDS[y.dtype.kind] >= _KINDS[x.dtype.kind]


def _in_dtypes(body: TracedBody, state: Sequence[Tensor]) -> TracedBody:
    """The body with weak results (Python numbers) in the dtype of the state."""
    outputs = list(body.outputs)
    with body.graph.reopened():
        for k, x in enumerate(state):
            if outputs[k].dtype != x.dtype and outputs[k].is_weak and _gives_way(outputs[k], x):
                outputs[k] = call("astype", outputs[k], x.dtype)
    return replace(body, outputs=tuple(outputs))


def _state_of(name: str, fn: Fn, body: TracedBody) -> TracedBody:
    """The body with that part of its result that is its state: the first of the pair that a scan's gives."""
    result = pytree.unflatten(body.structure, list(body.outputs))
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise _no_pair(name, fn, result)
    leaves, structure = states.flatten(result[0])
    return replace(body, outputs=tuple(leaves), structure=structure, paths=tuple(states.paths(result[0])))


def _no_pair(name: str, fn: Fn, got: Any) -> StructureError:
    return StructureError(
        layout(f"{name}: the function gives a pair (carry, y), got {type(got).__name__}", function=describe(fn),
               needed=place(), hint="return (carry, None) where nothing is to be stacked")
    )  # fmt: skip


def check_state(name: str, fn: Fn, before: Any, after: Any, is_pair: bool = False) -> None:
    """That a step on values has kept the structure, the shapes and the dtypes of its state. Python numbers, which have
    no dtype of their own, are let be.
    """
    if is_pair and (not isinstance(after, tuple | list) or len(after) != 2):
        raise _no_pair(name, fn, after)
    after = after[0] if is_pair else after
    if has_empty(before):
        return
    leaves, structure = states.flatten(before)
    results, other = states.flatten(after)
    if structure != other:
        raise _structures(name, fn, states.paths(before), states.paths(after), structure, other)
    for k, (x, y) in enumerate(zip(leaves, results, strict=True)):
        is_number = type(x) in PYTHON_SCALARS or type(y) in PYTHON_SCALARS
        one_dtype = is_number or getattr(x, "dtype", None) == getattr(y, "dtype", None)
        if not one_dtype or np.shape(x) != np.shape(y):
            path = states.paths(before)[k]
            raise _specs(name, fn, path, spec_of(np.asarray(x)), spec_of(np.asarray(y)), None)


def _compare(name: str, fn: Fn, init: Any, state: Sequence[Any], result: TracedBody) -> None:
    structure = states.flatten(init)[1]
    paths = states.paths(init)
    if structure != result.structure:
        raise _structures(name, fn, paths, result.paths, structure, result.structure)
    for path, x, y in zip(paths, state, result.outputs, strict=True):
        spec = x.spec if isinstance(x, Tensor) else x
        is_same = spec.dtype == y.dtype or (y.is_weak and _gives_way(y, spec))
        if not is_same or not is_compatible(spec.shape, y.spec.shape):
            raise _specs(name, fn, path, spec, y.spec, y)


def _text(paths: Sequence[str]) -> str:
    return ", ".join(path or "one array" for path in paths) or "nothing"


def _structures(
    name: str, fn: Fn, before: Sequence[str], after: Sequence[str], structure: Any, other: Any
) -> StructureError:
    expected, got = _text(before), _text(after)
    if expected == got:  # a list for a tuple
        expected, got = (str(found).removeprefix("PyTreeSpec") for found in (structure, other))
    return StructureError(
        layout(f"{name}: the body gives a state of another structure than it was given", function=describe(fn),
               expected=expected, got=got, needed=place(), hint="return the state in the structure of init")
    )  # fmt: skip


def _specs(name: str, fn: Fn, path: str, x: TensorSpec, y: TensorSpec, made: Tensor | None) -> JitgradError:
    kind = DTypeError if x.dtype != y.dtype else ShapeError
    hint = (
        "convert one of the two with astype" if kind is DTypeError
        else "keep the shape; a while_loop may change it where shape_invariants says so"
    )  # fmt: skip
    return kind(
        layout(f"{name}: the body changes state{path} from {x} to {y}", function=describe(fn), expected=x, got=y,
               op=operation_text(made.op) if made is not None else None, needed=place(), hint=hint)
    )  # fmt: skip


def value_of_condition(fn: Fn, value: Any) -> bool:
    """The condition of a while loop on values: one bool, or one number for one."""
    array = np.asarray(value)
    if array.shape or array.dtype.kind not in "biu":
        raise _no_condition(fn, _value_text(value, array), not array.shape)
    return bool(array)


def _no_condition(fn: Fn, got: str, is_one: bool) -> JitgradError:
    kind, hint = (DTypeError, "compare it: x != 0") if is_one else (ShapeError, "reduce it with np.any or np.all")
    return kind(
        layout("while_loop: the condition gives one bool", function=describe(fn), got=got, needed=place(), hint=hint)
    )


def check_condition(fn: Fn, body: TracedBody) -> TracedBody:
    """The condition of a while loop, which gives one bool, or one number for one."""
    if len(body.outputs) != 1 or body.outputs[0].shape not in ((), None) or body.outputs[0].dtype.kind not in "biu":
        got = ", ".join(str(t.spec) for t in body.outputs) or "nothing"
        raise _no_condition(fn, got, len(body.outputs) == 1 and body.outputs[0].shape == ())
    if body.outputs[0].dtype.kind == "b":
        return body
    with body.graph.reopened():
        return replace(body, outputs=(call("astype", body.outputs[0], np.dtype(bool)),))


def check_branches(name: str, fns: Sequence[Fn], bodies: list[TracedBody]) -> list[TracedBody]:
    """The branches, all with the same structure, dtypes and shapes; Python numbers take the dtype of the others."""
    first = bodies[0]
    for fn, body in zip(fns[1:], bodies[1:], strict=True):
        if body.structure != first.structure:
            raise StructureError(
                layout(f"{name}: the branches give different structures",
                       expected=f"{_text(first.paths)}    from {describe(fns[0])}",
                       got=f"{_text(body.paths)}    from {describe(fn)}", needed=place(),
                       hint="return the same in each branch, zeros (np.zeros_like) where one has nothing to give")
            )  # fmt: skip
    columns = list(zip(*(body.outputs for body in bodies), strict=True))
    chosen = [max(column, key=lambda t: (not t.is_weak, _KINDS[t.dtype.kind] * t.is_weak)) for column in columns]
    made = [_in_dtypes(body, chosen) for body in bodies]
    for fn, body in zip(fns, made, strict=True):
        for path, x, y in zip(first.paths, chosen, body.outputs, strict=True):
            if x.dtype != y.dtype or not is_compatible(x.spec.shape, y.spec.shape):
                kind = DTypeError if x.dtype != y.dtype else ShapeError
                raise kind(
                    layout(f"{name}: the branches give different arrays{path and ' for result' + path}",
                           expected=f"{x.spec}    {operation_text(x.op)}", got=f"{y.spec}    {operation_text(y.op)}",
                           function=describe(fn), needed=place(), hint=_hint_of_branches(kind))
                )  # fmt: skip
    return made


def _hint_of_branches(kind: type[JitgradError]) -> str:
    if kind is DTypeError:
        return "convert one of the two with astype"
    return "make them of one shape (np.pad, np.broadcast_to), or do what differs in shape behind the branches"
