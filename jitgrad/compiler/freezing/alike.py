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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat, splat_number
from jitgrad.compiler.freezing.blueprints import Family
from jitgrad.compiler.freezing.plankey import has_large_constants
from jitgrad.compiler.likeness import (
    MOVES,
    Extents,
    Params,
    Shape,
    UnlikeError,
    exact_in,
    holds_large,
    is_named,
    is_uniform,
    large,
    params_of,
    shapes_in,
)
from jitgrad.forking import wait_for_when_forking
from jitgrad.opdef import Control, Elementwise, Shaped, View
from jitgrad.program import Instruction, Program
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec

_MOST_KNOWN = 128
_MOST_ALIKE = 8
_MOST_INSTRUCTIONS = 20_000  # a template takes as much memory as two programs

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


class _Fold(NamedTuple):
    """An instruction that makes a number of numbers: ``form`` is "constant", "size", "moved" or "computed"."""

    number: int
    form: str
    value: int
    inputs: tuple[int, ...]


def _fold_of(number: int, ins: Instruction, known: Mapping[int, Array]) -> _Fold | None:
    """How an instruction makes a number; None when it does not."""
    if len(ins.outputs) != 1:
        return None
    value = constant_value(ins)
    if value is not None:
        is_number = value.dtype.kind in "biuf" and is_splat(value)
        return _Fold(number, "constant", ins.outputs[0], ()) if is_number else None
    kind = ins.op.kind
    if isinstance(kind, Shaped) and kind.form == "size":
        return _Fold(number, "size", ins.outputs[0], ins.inputs)
    if isinstance(kind, Shaped) and kind.form in ("broadcast", "reshape") and ins.inputs[0] in known:
        return _Fold(number, "moved", ins.outputs[0], ins.inputs[:1])
    if not ins.inputs or not known.keys() >= set(ins.inputs):
        return None
    if isinstance(kind, View) or ins.op.name in MOVES:
        return _Fold(number, "moved", ins.outputs[0], ins.inputs[:1])
    return _Fold(number, "computed", ins.outputs[0], ins.inputs) if isinstance(kind, Elementwise) else None


def _folded(fold: _Fold, program: Program, specs: Sequence[TensorSpec], known: Mapping[int, Array]) -> Array | None:
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


def _all_folds(source: Program) -> tuple[tuple[_Fold, ...], Numbers]:
    """The instructions of a program that make numbers of numbers, and these."""
    folds: list[_Fold] = []
    numbers: Numbers = {}
    for number, ins in enumerate(source.instructions):
        fold = _fold_of(number, ins, numbers)
        found = _folded(fold, source, source.specs, numbers) if fold is not None else None
        if fold is not None and found is not None:
            folds.append(fold)
            numbers[fold.value] = found
    return tuple(folds), numbers


# -- templates ---------------------------------------------------------------------------------------------------------


class _Change(NamedTuple):
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
    folds: tuple[_Fold, ...]
    numbers: Numbers
    number_keys: Mapping[int, Any]
    divisors: frozenset[int]
    changes: tuple[_Change, ...]
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


def make_template(
    source: Program, simplified: Program, looked: bool, counted: bool, interpreted: Collection[int], freeze: Freeze
) -> Template | None:
    """The template that serves for programs like ``source``; None when there is none.

    ``looked``: elements of arrays of constants were read; ``counted``: a number may be a count of elements times
    another, so that it follows from no number of the source. ``interpreted`` are the instructions of the simplified
    program that run in NumPy, with the params of the source. ``freeze`` gives the plan of a program, from it and its
    simplified form.
    """
    if len(source.instructions) > _MOST_INSTRUCTIONS or any(map(_is_left_out, source.instructions)):
        return None
    folds, numbers = _all_folds(source)
    exact = max(exact_in(source), exact_in(simplified))
    known = _extents_of(source, exact)
    changes = _changes(source, simplified, numbers, exact, counted, interpreted)
    if changes is None:
        return None
    checked = tuple([number for number, ins in enumerate(simplified.instructions) if not is_uniform(ins.op)])
    used = {v for ins in simplified.instructions for v in (*ins.inputs, *ins.outputs)}
    new = [(v, simplified.specs[v]) for v in range(len(source.specs), len(simplified.specs))]
    if any(not large(spec.known_shape, exact) <= known for v, spec in new if v in used):
        return None
    divisors = frozenset(ins.inputs[1] for ins in source.instructions if ins.op.name == "divide")
    params = tuple([params_of(ins.params) for ins in source.instructions])

    def settled(change: _Change) -> bool:
        return _is_settled(change, simplified.instructions[change.number], exact)

    return Template(
        source, simplified, exact, freeze, params, folds, numbers, {v: bytes_of(a) for v, a in numbers.items()},
        divisors, tuple(c for c in changes if c.number in interpreted or not settled(c)),
        tuple(spec if v in used else None for v, spec in new), checked, looked,
        frozenset(interpreted), None if interpreted else _formulas(source, simplified, changes, numbers, known),
    )  # fmt: skip


def _changes(
    source: Program, simplified: Program, numbers: Numbers, exact: int, counted: bool, interpreted: Collection[int]
) -> list[_Change] | None:
    """What other programs have in the place of the simplified program's params; None where one does not follow."""
    places: dict[Any, int] = {}
    for number, ins in enumerate(source.instructions):
        places.setdefault((id(ins.params), ins.op), number)
    by_bytes = {bytes_of(number): v for v, number in reversed(numbers.items())}
    changes: list[_Change] = []
    for number, ins in enumerate(simplified.instructions):
        place = places.get((id(ins.params), ins.op)) if ins.params or number in interpreted else None
        if place is not None:
            changes.append(_Change(number, source=place))
            continue
        change = _change_of(number, ins, numbers, by_bytes, exact)
        if change is None or (counted and constant_value(ins) is not None and not _is_own(ins, numbers)):
            return None
        changes += [change] if ins.params else []
    return changes


def _formulas(
    source: Program, simplified: Program, changes: Sequence[_Change], numbers: Numbers, extents: Collection[int]
) -> Formulas | None:
    """What plans may follow from by a formula; None where a number follows from nothing that is known."""
    variables = []
    for change in changes:
        if constant_value(simplified.instructions[change.number]) is None:
            continue
        value = change.value if change.source is None else source.instructions[change.source].outputs[0]
        if value in numbers:
            variables.append((change.number, value))
        elif change.source is None and not change.is_fixed:
            return None
    return Formulas(tuple(sorted(extents)), tuple(variables))


def likeness_of(template: Template) -> Likeness:
    """That of the program which the template was made of."""
    extents = Extents(template.exact)
    for spec in template.source.specs:
        extents.enter(spec.known_shape, spec.shape)
    return Likeness(template, extents, template.numbers)


def _is_left_out(ins: Instruction) -> bool:
    return isinstance(ins.op.kind, Control)


def _extents_of(source: Program, exact: int) -> set[int]:
    """The extents of a program that are no part of the pattern, in shapes of values and of params."""
    found = set[int]().union(*(large(spec.known_shape, exact) for spec in source.specs))
    return found.union(*(large(shape, exact) for ins in source.instructions for _, shape in shapes_in(ins.params)))


def _change_of(
    number: int, ins: Instruction, numbers: Numbers, by_bytes: Mapping[Any, int], exact: int
) -> _Change | None:
    """Where the params of an instruction that simplification made come from; None when that is not known."""
    array = constant_value(ins)
    if array is not None:
        if not is_splat(array):
            return None
        key, v = bytes_of(splat_number(array)), ins.outputs[0]
        if v in numbers and bytes_of(numbers[v]) == key:
            return _Change(number, value=v)
        return _Change(number, value=by_bytes.get(key), is_fixed=is_named(splat_number(array).item()))
    others = [value for name, value in ins.params.items() if name not in dict(shapes_in(ins.params))]
    return None if any(holds_large(value, exact) for value in others) else _Change(number)


def _is_own(ins: Instruction, numbers: Numbers) -> bool:
    """Whether a constant of the simplified program is the number that the source has there, or zero."""
    number, v = splat_number(ins.params["value"]), ins.outputs[0]
    return number.item() == 0 or (v in numbers and bytes_of(numbers[v]) == bytes_of(number))


def _is_settled(change: _Change, ins: Instruction, exact: int) -> bool:
    """Whether a compiled instruction is the same for all programs like this one."""
    if constant_value(ins) is not None:
        return change.is_fixed and not large(ins.params["value"].shape, exact)
    return not any(large(shape, exact) for _, shape in shapes_in(ins.params))


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
    arrays: dict[int, int] = {}
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


def _compare_arrays(a: Array, b: Array, they_matter: bool, met: dict[int, int]) -> None:
    """Arrays of constants: their elements, if a rule may have read them; else which are the same array."""
    if met.setdefault(id(a), id(b)) != id(b):
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
        found = constant(fold.number) if fold.form == "constant" else _folded(fold, template.source, specs, known)
        if found is None:
            raise UnlikeError
        before = old[fold.value]
        if found is not before and found.tobytes() != before.tobytes():
            changed[fold.value] = known[fold.value] = found
    if changed:
        _check_numbers(template, changed)
    return changed


def _changed(
    change: _Change, template: Template, source: Program, changed: Numbers, shape: Callable[[Shape], Shape]
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
