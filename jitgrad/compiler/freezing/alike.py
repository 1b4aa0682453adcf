"""Templates: a program that differs from one that went through the stages in nothing but extents and numbers, and what
the other's simplified program is for it. It makes no plan, and is loaded without the stages.

Two programs are alike when they have the same instructions on the same values, equal extents up to those of a pattern
(likeness.py), a one-to-one relation between the larger ones, and one between the numbers of their constants, where no
number that a rule of simplification knows (0, 1, 2 ..., a half as a divisor) stands for another. Then simplification
does the same to both: its rules compare shapes and ask for such numbers only. So the simplified program of one has, for
the other, the other's own params where it has taken them over; shapes and numbers go through the relations. Where
something follows from the source in neither way there is no template, and with `verify` all is compared with what the
stages make.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat, splat_number
from jitgrad.compiler.freezing.blueprints import Family
from jitgrad.compiler.freezing.plankey import has_large_constants
from jitgrad.compiler.likeness import (
    Extents,
    Params,
    Shape,
    UnlikeError,
    is_named,
    shapes_in,
)
from jitgrad.forking import wait_for_when_forking
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec

_MOST_KNOWN = 128
_MOST_ALIKE = 8

Freeze = Callable[[Program, Program], Any]
Numbers = dict[int, Array]
"""Numbers of constants, by values of a program."""


# -- numbers -----------------------------------------------------------------------------------------------------------


def bytes_of(number: Array) -> tuple[np.dtype[Any], bytes]:
    """What tells a number from all others: its dtype and its bits."""
    return number.dtype, number.tobytes()


def is_part(number: Array) -> bool:
    """Whether dividing by a number becomes a multiplication: a half, a quarter ..."""
    value = abs(number.item())
    return 0 < value < 1 and math.frexp(value)[0] == 0.5


def _check_numbers(template: Template, new: Numbers) -> None:
    """UnlikeError unless equal numbers are equal in both programs, and those that differ are plain ones of one sign;
    ``new`` has only those that differ.
    """
    old, keys = template.numbers, template.number_keys
    read = {id(b): bytes_of(b) for b in new.values()}
    pairs = {(keys[v], read[id(b)]): v for v, b in new.items()}
    there = dict(pairs.keys())
    kept = {key for v, key in keys.items() if v not in new}
    if not len(pairs) == len(there) == len(set(there.values())) or not kept.isdisjoint((*there, *there.values())):
        raise UnlikeError
    for v in pairs.values():
        a, b = old[v].item(), new[v].item()
        if is_named(a) or is_named(b) or (a < 0) != (b < 0):
            raise UnlikeError
    for v in template.divisors & new.keys():
        if is_part(old[v]) != is_part(new[v]):
            raise UnlikeError


# -- numbers that follow from others -----------------------------------------------------------------------------------


class Fold(NamedTuple):
    """An instruction that makes a number of numbers: ``form`` is "constant", "size", "moved" or "computed"."""

    number: int
    form: str
    value: int
    inputs: tuple[int, ...]


def folded(fold: Fold, program: Program, specs: Sequence[TensorSpec], known: Mapping[int, Array]) -> Array | None:
    """The number that an instruction makes, as simplification finds it, of values of these specs."""
    ins = program.instructions[fold.number]
    dtype = specs[fold.value].dtype
    if fold.form == "constant":
        return splat_number(ins.params["value"])
    if fold.form == "moved":
        return known[fold.inputs[0]]
    if fold.form == "size":
        read = [specs[v] for v in fold.inputs]
        return np.asarray(ins.op.impl(*[splat(0, s.known_shape, s.dtype) for s in read], **ins.params), dtype)
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(ins.op.impl(*[known[v] for v in fold.inputs], **ins.params))
    except (ArithmeticError, ValueError, TypeError):
        return None
    return found if found.shape == () and found.dtype == dtype else None


# -- templates ---------------------------------------------------------------------------------------------------------


class Change(NamedTuple):
    """An instruction of the simplified program that is another one for another program, and where that comes from:
    the params of an instruction of the source, a number of it, or shapes.
    """

    number: int
    source: int | None = None
    value: int | None = None
    is_fixed: bool = False


class Formulas:
    """How bound programs follow from ``extents`` and from the numbers of ``variables`` (an instruction, and the value
    whose number it is), for several answers to what was asked of them, those that held last first; which extents are
    known to vary; and how many plans are frozen before there is one.
    """

    def __init__(self, extents: tuple[int, ...], variables: tuple[tuple[int, int], ...]) -> None:
        self.extents = extents
        self.variables = variables
        self.known: tuple[Family, ...] = ()
        self.varying: set[int] = set()
        self.wait = 1
        self.tries = 0


class Template(NamedTuple):
    """A program, what simplification made of it, and what both have that others may have otherwise."""

    source: Program
    simplified: Program
    exact: int
    freeze: Freeze
    params: tuple[Params | None, ...]
    folds: tuple[Fold, ...]
    numbers: Numbers
    number_keys: Mapping[int, Any]
    divisors: frozenset[int]
    changes: tuple[Change, ...]
    new_specs: tuple[TensorSpec | None, ...]
    checked: tuple[int, ...]
    arrays_matter: bool
    interpreted: frozenset[int]
    formulas: Formulas | None


class Likeness(NamedTuple):
    """How a program follows from a template: its extents by those of the template's source, and its numbers."""

    template: Template
    extents: Extents
    numbers: Numbers


class Taken(NamedTuple):
    """A plan that was taken over, frozen when somebody asks; whether it holds for every program with the same key; what
    it follows from; and what binds it with which numbers, where that is known.
    """

    frozen: Callable[[], Any]
    holds: bool
    likeness: Likeness
    bound: tuple[Family, Any] | None = None


def likeness_of(template: Template) -> Likeness:
    """That of the program which the template was made of."""
    extents = Extents(template.exact)
    for spec in template.source.specs:
        extents.enter(spec.known_shape, spec.shape)
    return Likeness(template, extents, template.numbers)


# -- another program ---------------------------------------------------------------------------------------------------


def simplified_like(template: Template, source: Program) -> tuple[Program, Likeness]:
    """What simplification would make of a program, from a template; UnlikeError where the template does not serve."""
    extents = Extents(template.exact)
    _compare(template, source, extents)
    changed = changed_numbers(template, source.specs, lambda n: splat_number(source.instructions[n].params["value"]))
    old, instructions = template.simplified, list(template.simplified.instructions)
    shape = extents.shape
    for change in template.changes:
        instructions[change.number] = _changed(change, template, source, changed, shape)
    new = [spec and TensorSpec(shape(spec.known_shape), spec.dtype) for spec in template.new_specs]
    specs = (*source.specs, *[spec or old.specs[0] for spec in new])
    for number in template.checked:
        ins = instructions[number]
        if ins.op.infer(tuple([specs[v] for v in ins.inputs]), ins.params) != tuple([specs[v] for v in ins.outputs]):
            raise UnlikeError
    made = replace(old, instructions=tuple(instructions), specs=specs, name=source.name, _cache={})
    return made, Likeness(template, extents, {**template.numbers, **changed})


def _compare(template: Template, b: Program, extents: Extents) -> None:
    """UnlikeError unless the programs have the same instructions; their extents are entered."""
    a = template.source
    if a.inputs != b.inputs or a.outputs != b.outputs or len(a.specs) != len(b.specs):
        raise UnlikeError
    enter = extents.enter
    for x, y in zip(a.specs, b.specs, strict=True):
        if x.dtype is not y.dtype and x.dtype != y.dtype:
            raise UnlikeError
        enter(x.known_shape, y.shape)
    arrays: tuple[dict[int, int], dict[int, int]] = {}, {}
    for p, q, params in zip(a.instructions, b.instructions, template.params, strict=True):
        if p is q:
            continue
        if (
            p.op is not q.op or p.inputs != q.inputs or p.outputs != q.outputs or p.after != q.after
            or p.origin.scope != q.origin.scope
        ):  # fmt: skip
            raise UnlikeError
        if params is not None:
            params.compare(q.params, extents)
            if params.array is not None and not is_splat(params.array):
                _compare_arrays(params.array, q.params["value"], template.arrays_matter, arrays)
        elif q.params:
            raise UnlikeError


def _compare_arrays(a: Array, b: Array, they_matter: bool, met: tuple[dict[int, int], dict[int, int]]) -> None:
    """Arrays of constants: which are the same array, as these are merged; and their elements, if a rule may have read
    them.
    """
    if met[0].setdefault(id(a), id(b)) != id(b) or met[1].setdefault(id(b), id(a)) != id(a):
        raise UnlikeError
    if they_matter and a is not b and (a.shape != b.shape or a.tobytes() != b.tobytes()):
        raise UnlikeError


def changed_numbers(template: Template, specs: Sequence[TensorSpec], constant: Callable[[int], Array]) -> Numbers:
    """The numbers that are others in a program with these specs, by the values that have them; ``constant`` gives those
    of its constants, by instruction.
    """
    old, known = template.numbers, dict(template.numbers)
    changed: Numbers = {}
    for fold in template.folds:
        if fold.form in ("computed", "moved") and changed.keys().isdisjoint(fold.inputs):
            continue
        found = constant(fold.number) if fold.form == "constant" else folded(fold, template.source, specs, known)
        if found is None:
            raise UnlikeError
        before = old[fold.value]
        if found is not before and found.tobytes() != before.tobytes():
            changed[fold.value] = known[fold.value] = found
    if changed:
        _check_numbers(template, changed)
    return changed


def _changed(
    change: Change, template: Template, source: Program, changed: Numbers, shape: Callable[[Shape], Shape]
) -> Instruction:
    """An instruction of the simplified program as it is for this one."""
    ins = template.simplified.instructions[change.number]
    if change.source is not None:
        params = source.instructions[change.source].params
    elif (array := constant_value(ins)) is not None:
        number = splat_number(array) if change.value is None else changed.get(change.value, splat_number(array))
        if change.value is None and changed and not change.is_fixed:
            raise UnlikeError
        params = {"value": splat(number, shape(array.shape), array.dtype)}
    else:
        params = {**ins.params, **{name: shape(old) for name, old in shapes_in(ins.params)}}
    return Instruction(ins.op, ins.inputs, ins.outputs, params, ins.origin, ins.after)


# -- what is known -----------------------------------------------------------------------------------------------------

_lock = threading.RLock()
wait_for_when_forking(_lock)
_known: OrderedDict[Any, tuple[Template, ...]] = OrderedDict()


def _key(source: Program) -> Any:
    return source.outputs, tuple([ins.op for ins in source.instructions]), len(source.specs)


def enter_template(template: Template) -> None:
    """Keep a template; the oldest are forgotten."""
    with _lock:
        key = _key(template.source)
        _known[key] = (template, *_known.get(key, ()))[:_MOST_ALIKE]
        _known.move_to_end(key)
        while sum(map(len, _known.values())) > _MOST_KNOWN:
            _known.popitem(last=False)


def forget_templates() -> None:
    """Forget all."""
    with _lock:
        _known.clear()


def frozen_like(source: Program) -> Taken | None:
    """The plan of a program, from that of one like it; None when there is none."""
    if not _known:
        return None
    with _lock:
        alike = _known.get(_key(source), ())
    for template in alike:
        try:
            simplified, likeness = simplified_like(template, source)
            frozen = template.freeze(source, simplified)
        except UnlikeError:
            continue
        holds = not (template.arrays_matter and has_large_constants(source))
        return Taken(lambda: frozen, holds, likeness)  # noqa: B023
    return None
