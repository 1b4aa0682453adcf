"""Plans beside others: the plan of a program that is known to be like one that has a plan, before the program itself is
made. Whoever asks for it has followed the other trace (following.py); here nothing is compared.

What a plan takes of the simplified program are shapes and numbers, so nothing else of it is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jitgrad.compiler.alike import Likeness, Taken, Template, changed_numbers
from jitgrad.compiler.constants import Array, constant_value, splat, splat_number
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
    extents = before.extents.then(extents)
    source = _renamed(template.source.specs, extents)
    values = {fold.number: fold.value for fold in template.folds if fold.form == "constant"}

    def constant(number: int) -> Array:
        return numbers[number] if number in numbers else before.numbers[values[number]]

    if not numbers.keys() <= values.keys():
        raise UnlikeError
    changed = changed_numbers(template, source, constant)
    simplified = _simplified(template, [*source, *_renamed_used(template, extents)], changed, extents)
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


def _simplified(
    template: Template, specs: list[TensorSpec], changed: Mapping[int, Array], extents: Extents
) -> Program:
    """The simplified program as freezing sees it: specs, numbers of constants, and what is interpreted with params that
    simplification has made.
    """
    old, taken = template.simplified, template.interpreted
    instructions = list(old.instructions)
    for change in template.changes if changed or taken else ():
        ins = instructions[change.number]
        array = constant_value(ins)
        value, number = change.value, None
        if array is not None:
            if change.source is not None:
                value = template.source.instructions[change.source].outputs[0]
            elif value is None and changed and not change.is_fixed:
                raise UnlikeError
            number = changed.get(value) if value is not None else None
        is_made = change.number in taken and change.source is None
        if number is not None and change.number in taken and not is_made:
            raise UnlikeError  # it stays an instruction of the source, which has the number
        if number is not None or is_made:
            params = _params(ins, number, extents)
            instructions[change.number] = Instruction(ins.op, ins.inputs, ins.outputs, params, ins.origin, ins.after)
    return replace(old, instructions=tuple(instructions), specs=tuple(specs), _cache={"producers": old.producers()})


def _params(ins: Instruction, number: Array | None, extents: Extents) -> Mapping[str, Any]:
    """The params of an instruction for other extents, and another number."""
    array = constant_value(ins)
    if array is not None:
        number = splat_number(array) if number is None else number
        return {"value": splat(number, extents.shape(array.shape), array.dtype)}
    return {**ins.params, **{name: extents.shape(old) for name, old in shapes_in(ins.params)}}


def _check(template: Template, simplified: Program, extents: Extents) -> None:
    """UnlikeError where an instruction that computes with extents gives other shapes than those that correspond."""
    specs = simplified.specs
    for number in template.checked:
        ins = simplified.instructions[number]
        if constant_value(ins) is not None:
            continue
        params = _params(template.simplified.instructions[number], None, extents)
        if ins.op.infer(tuple([specs[v] for v in ins.inputs]), params) != tuple([specs[v] for v in ins.outputs]):
            raise UnlikeError
