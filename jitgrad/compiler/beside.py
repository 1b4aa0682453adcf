"""Plans beside others: the plan of a program that is known to be like one that has a plan, before the program itself is
made. Whoever asks for it has followed the other trace (following.py); here nothing is compared.

What a plan takes of the simplified program are shapes and numbers, so nothing else of it is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jitgrad.compiler.alike import Likeness, Taken, Template, changed_numbers
from jitgrad.compiler.constants import Array, constant_value, splat
from jitgrad.compiler.likeness import Extents, UnlikeError, shapes_in
from jitgrad.compiler.plankey import has_large_constants
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec


def frozen_beside(before: Likeness, extents: Extents, numbers: Mapping[int, Array]) -> Taken:
    """The plan of a program like another, ``before``; UnlikeError where that does not follow.

    The extents are related to those of that program, ``numbers`` are the constants that differ from its own, by
    instruction. Arrays of constants are the same objects in both.
    """
    template = before.template
    if template.has_interpreted:
        raise UnlikeError
    extents = before.extents.then(extents)
    source = _renamed(template.source.specs, extents)
    values = {fold.number: fold.value for fold in template.folds if fold.form == "constant"}

    def constant(number: int) -> Array:
        return numbers[number] if number in numbers else before.numbers[values[number]]

    if not numbers.keys() <= values.keys():
        raise UnlikeError
    changed = changed_numbers(template, source, constant)
    simplified = _simplified(template, [*source, *_renamed_used(template, extents)], changed)
    _check(template, simplified, extents)
    holds = not (template.arrays_matter and has_large_constants(template.source))
    likeness = Likeness(template, extents, {**template.numbers, **changed} if changed else template.numbers)
    return Taken(template.freeze(template.source, simplified), holds, likeness)


def _renamed(specs: Any, extents: Extents) -> list[TensorSpec]:
    """Specs with the other extents, one object for those that are equal objects here."""
    made: dict[int, TensorSpec] = {}
    found = []
    for spec in specs:
        other = made.get(id(spec))
        if other is None:
            other = made[id(spec)] = TensorSpec(extents.shape(spec.shape), spec.dtype)
        found.append(other)
    return found


def _renamed_used(template: Template, extents: Extents) -> list[TensorSpec]:
    """Specs of the values that simplification has added; any for those that nothing uses."""
    some = template.simplified.specs[0]
    return [some if spec is None else TensorSpec(extents.shape(spec.known_shape), spec.dtype)
            for spec in template.new_specs]  # fmt: skip


def _simplified(template: Template, specs: list[TensorSpec], changed: Mapping[int, Array]) -> Program:
    """The simplified program as freezing sees it: specs, and numbers of constants."""
    old = template.simplified
    instructions = list(old.instructions)
    known = {"producers": old.producers()}
    for change in template.changes if changed else ():
        ins = instructions[change.number]
        array = constant_value(ins)
        if array is None:
            continue
        value = change.value
        if change.source is not None:
            value = template.source.instructions[change.source].outputs[0]
        elif value is None and not change.is_fixed:
            raise UnlikeError
        if value is not None and value in changed:
            params = {"value": splat(changed[value], array.shape, array.dtype)}
            instructions[change.number] = Instruction(ins.op, ins.inputs, ins.outputs, params, ins.origin, ins.after)
    return replace(old, instructions=tuple(instructions), specs=tuple(specs), _cache=known)


def _check(template: Template, simplified: Program, extents: Extents) -> None:
    """UnlikeError where an instruction that computes with extents gives other shapes than those that correspond."""
    specs, shape = simplified.specs, extents.shape
    for number in template.checked:
        ins = simplified.instructions[number]
        if constant_value(ins) is not None:
            continue
        params = {**ins.params, **{name: shape(old) for name, old in shapes_in(ins.params)}}
        if ins.op.infer(tuple([specs[v] for v in ins.inputs]), params) != tuple([specs[v] for v in ins.outputs]):
            raise UnlikeError
