"""Templates are made: what of a simplified program others like its source have otherwise, and where that follows from.
What is made of a template is elsewhere (alike.py); this is loaded with the stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat_number
from jitgrad.compiler.freezing.alike import Change, Fold, Formulas, Freeze, Numbers, Template, bytes_of, folded
from jitgrad.compiler.likeness import (
    MOVES,
    exact_in,
    holds_large,
    is_named,
    is_uniform,
    large,
    params_of,
    shapes_in,
)
from jitgrad.opdef import Control, Elementwise, Shaped, View
from jitgrad.program import Instruction, Program

_MOST_INSTRUCTIONS = 20_000  # a template takes as much memory as two programs


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

    def settled(change: Change) -> bool:
        return _is_settled(change, simplified.instructions[change.number], exact)

    return Template(
        source, simplified, exact, freeze, params, folds, numbers, {v: bytes_of(a) for v, a in numbers.items()},
        divisors, tuple(c for c in changes if c.number in interpreted or not settled(c)),
        tuple(spec if v in used else None for v, spec in new), checked, looked,
        frozenset(interpreted), None if interpreted else _formulas(source, simplified, changes, numbers, known),
    )  # fmt: skip


def _changes(
    source: Program, simplified: Program, numbers: Numbers, exact: int, counted: bool, interpreted: Collection[int]
) -> list[Change] | None:
    """What other programs have in the place of the simplified program's params; None where one does not follow."""
    places: dict[Any, int] = {}
    for number, ins in enumerate(source.instructions):
        places.setdefault((id(ins.params), ins.op), number)
    by_bytes = {bytes_of(number): v for v, number in reversed(numbers.items())}
    changes: list[Change] = []
    for number, ins in enumerate(simplified.instructions):
        place = places.get((id(ins.params), ins.op)) if ins.params or number in interpreted else None
        if place is not None:
            changes.append(Change(number, source=place))
            continue
        change = _change_of(number, ins, numbers, by_bytes, exact)
        if change is None or (counted and constant_value(ins) is not None and not _is_own(ins, numbers)):
            return None
        changes += [change] if ins.params else []
    return changes


def _formulas(
    source: Program, simplified: Program, changes: Sequence[Change], numbers: Numbers, extents: Collection[int]
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


def _is_left_out(ins: Instruction) -> bool:
    return isinstance(ins.op.kind, Control)


def _extents_of(source: Program, exact: int) -> set[int]:
    """The extents of a program that are no part of the pattern, in shapes of values and of params."""
    found = set[int]().union(*(large(spec.known_shape, exact) for spec in source.specs))
    return found.union(*(large(shape, exact) for ins in source.instructions for _, shape in shapes_in(ins.params)))


def _change_of(
    number: int, ins: Instruction, numbers: Numbers, by_bytes: Mapping[Any, int], exact: int
) -> Change | None:
    """Where the params of an instruction that simplification made come from; None when that is not known."""
    array = constant_value(ins)
    if array is not None:
        if not is_splat(array):
            return None
        key, v = bytes_of(splat_number(array)), ins.outputs[0]
        if v in numbers and bytes_of(numbers[v]) == key:
            return Change(number, value=v)
        return Change(number, value=by_bytes.get(key), is_fixed=is_named(splat_number(array).item()))
    others = [value for name, value in ins.params.items() if name not in dict(shapes_in(ins.params))]
    return None if any(holds_large(value, exact) for value in others) else Change(number)


def _is_own(ins: Instruction, numbers: Numbers) -> bool:
    """Whether a constant of the simplified program is the number that the source has there, or zero."""
    number, v = splat_number(ins.params["value"]), ins.outputs[0]
    return number.item() == 0 or (v in numbers and bytes_of(numbers[v]) == bytes_of(number))


def _is_settled(change: Change, ins: Instruction, exact: int) -> bool:
    """Whether a compiled instruction is the same for all programs like this one."""
    if constant_value(ins) is not None:
        return change.is_fixed and not large(ins.params["value"].shape, exact)
    return not any(large(shape, exact) for _, shape in shapes_in(ins.params))


# -- numbers that follow from others -----------------------------------------------------------------------------------


def _all_folds(source: Program) -> tuple[tuple[Fold, ...], Numbers]:
    """The instructions of a program that make numbers of numbers, and these."""
    folds: list[Fold] = []
    numbers: Numbers = {}
    for number, ins in enumerate(source.instructions):
        fold = _fold_of(number, ins, numbers)
        found = folded(fold, source, source.specs, numbers) if fold is not None else None
        if fold is not None and found is not None:
            folds.append(fold)
            numbers[fold.value] = found
    return tuple(folds), numbers


def _fold_of(number: int, ins: Instruction, known: Mapping[int, Array]) -> Fold | None:
    """How an instruction makes a number; None when it does not."""
    if len(ins.outputs) != 1:
        return None
    value = constant_value(ins)
    if value is not None:
        is_number = value.dtype.kind in "biuf" and is_splat(value)
        return Fold(number, "constant", ins.outputs[0], ()) if is_number else None
    kind = ins.op.kind
    if isinstance(kind, Shaped) and kind.form == "size":
        return Fold(number, "size", ins.outputs[0], ins.inputs)
    if isinstance(kind, Shaped) and kind.form in ("broadcast", "reshape") and ins.inputs[0] in known:
        return Fold(number, "moved", ins.outputs[0], ins.inputs[:1])
    if not ins.inputs or not known.keys() >= set(ins.inputs):
        return None
    if isinstance(kind, View) or ins.op.name in MOVES:
        return Fold(number, "moved", ins.outputs[0], ins.inputs[:1])
    return Fold(number, "computed", ins.outputs[0], ins.inputs) if isinstance(kind, Elementwise) else None
