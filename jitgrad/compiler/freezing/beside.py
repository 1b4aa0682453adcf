"""Plans beside others: the plan of a program that is known to be like one that has a plan, before the program itself is
made. Whoever asks for it has followed the other trace (following.py); here nothing is compared.

What a plan takes of the simplified program are shapes and numbers, so nothing else of it is made here. The first plans
are frozen from that. Then one is frozen for extents that are symbols (symbols.py), and gives a formula for all of its
numbers: a further plan is computed by it, where what freezing asked of extents and sizes has the same answers. Extents
that have been the same so far are taken to stay so, which is asked, too.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.constants import Array, constant_value, splat, splat_number
from jitgrad.compiler.freezing.alike import Formulas, Likeness, Taken, Template, changed_numbers
from jitgrad.compiler.freezing.blueprints import Family, blueprint_of, is_bound_alike
from jitgrad.compiler.freezing.plankey import has_large_constants
from jitgrad.compiler.freezing.plans import bind_numbers, kernel_keys
from jitgrad.compiler.likeness import Extents, Shape, UnlikeError, shapes_in
from jitgrad.compiler.symbols import Notes, Symbol
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec

if TYPE_CHECKING:
    from jitgrad.compiler.freezing.foretelling import Foretold


def frozen_beside(
    before: Likeness, extents: Extents, numbers: Mapping[int, Array], foretold: Foretold | None = None
) -> Taken:  # fmt: skip
    """The plan of a program like another, ``before``; UnlikeError where that does not follow.

    The extents are related to those of that program, ``numbers`` are the constants that differ from its own, by
    instruction. Arrays of constants are the same objects in both. Where numbers follow from extents, ``foretold`` is
    told of the plan.
    """
    template, (extents, changed) = before.template, _renaming(before, extents, numbers)
    likeness = Likeness(template, extents, {**template.numbers, **changed} if changed else template.numbers)
    frozen = functools.partial(_frozen, template, extents, changed)
    holds = not (template.arrays_matter and has_large_constants(template.source))
    bound = foretold.find_beside(extents) if foretold is not None else None
    if bound is not None:
        return Taken(frozen, holds, likeness, bound)
    bound, learns = bound_by_formula(template, extents, changed), foretold is not None and foretold.may_learn
    if bound is None or learns:
        made = frozen()
        if not (foretold is not None and learns and foretold.learn(extents, made)) and bound is None:
            learn_formula(template, extents, changed, made)
        frozen = functools.partial(_same, made)
    return Taken(frozen, holds, likeness, bound)


def plan_beside(before: Likeness, extents: Extents, numbers: Mapping[int, Array]) -> Any:
    """The same plan, frozen step by step."""
    extents, changed = _renaming(before, extents, numbers)
    return _frozen(before.template, extents, changed)


def _renaming(
    before: Likeness, extents: Extents, numbers: Mapping[int, Array]
) -> tuple[Extents, Mapping[int, Array]]:  # fmt: skip
    """The extents of a program by those of the template, and the numbers that are others than there."""
    template = before.template
    extents = before.extents.then(extents)
    values = {fold.number: fold.value for fold in template.folds if fold.form == "constant"}

    def constant(number: int) -> Array:
        return numbers[number] if number in numbers else before.numbers[values[number]]

    if not numbers.keys() <= values.keys():
        raise UnlikeError
    counts = any(fold.form == "size" for fold in template.folds)
    source = _renamed(template.source.specs, extents) if counts else template.source.specs
    return extents, changed_numbers(template, source, constant)


def _same(frozen: Any) -> Any:
    return frozen


def _frozen(template: Template, extents: Extents, changed: Mapping[int, Array]) -> Any:
    """The plan for other extents and numbers, frozen step by step."""
    specs = [*_renamed(template.source.specs, extents), *_renamed_used(template, extents)]
    simplified = _reshaped(template, _simplified(template, specs, changed, extents), extents)
    return template.freeze(template.source, simplified)


# -- by formulas -------------------------------------------------------------------------------------------------------

MOST_FORMULAS = 32
Bound = tuple[Family, Any]
"""What binds a program, with its numbers."""


class _Symbolic:
    """Extents as symbols."""

    def __init__(self, symbols: Mapping[int, Any], exact: int) -> None:
        self._symbols = symbols
        self._exact = exact

    def shape(self, a: Shape) -> Any:
        """The shape that stands for one of the template."""
        return tuple([n if n is None or n <= self._exact else self._symbols[n] for n in a])


def bound_by_formula(
    template: Template, extents: Extents, changed: Mapping[int, Array]
) -> Bound | None:  # fmt: skip
    """What binds the program for other extents and numbers, with its numbers; None where no formula gives them."""
    formulas = template.formulas
    if formulas is None or not formulas.known:
        return None
    return found_among(formulas, _given(template, formulas, extents, changed))


def found_among(formulas: Formulas, given: Sequence[Any]) -> Bound | None:
    """What binds a program for what is given; None where no formula gives its numbers."""
    for family in formulas.known:
        numbers = family.formula.value(given) if family.serves else None
        if numbers is not None:
            if family is not formulas.known[0]:
                formulas.known = (family, *[other for other in formulas.known if other is not family])
            return family, numbers
    return None


def learn_formula(template: Template, extents: Extents, changed: Mapping[int, Array], frozen: Any) -> None:
    """Find how the program is bound for these extents and numbers, whose plan was frozen; not for the first: most
    functions see two shapes, and no third.
    """
    formulas = template.formulas
    if formulas is None or formulas.tries >= MOST_FORMULAS:
        return
    if formulas.wait:
        formulas.wait -= 1
        return
    formulas.tries += 1
    given = _given(template, formulas, extents, changed)
    notes = Notes(given)
    try:
        renamed = symbols_for(formulas, notes)
        variables = [number for number, _ in formulas.variables]
        family = family_of(template, notes, renamed, dict(zip(variables, notes.symbols()[len(renamed) :], strict=True)))
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, UnlikeError):
        return
    if is_bound_by(family, given, frozen):
        formulas.known = (family, *formulas.known)


def symbols_for(formulas: Formulas, notes: Notes) -> dict[int, Any]:
    """The first numbers of notes as symbols for extents; those that do not vary, as far as is known, as they are."""
    formulas.varying.update([n for n, here in zip(formulas.extents, notes.values, strict=False) if n != here])
    symbols = zip(formulas.extents, notes.symbols(), strict=False)
    return {n: symbol if n in formulas.varying or symbol != n else n for n, symbol in symbols}  # the question is noted


def is_bound_by(family: Family, given: Sequence[Any], frozen: Any) -> bool:
    """Whether what a family binds for what is given is the frozen plan."""
    numbers, addresses = family.formula.value(given), dict.fromkeys(family.kernels, 0)
    found = () if numbers is None else bind_numbers(family, numbers, addresses).steps
    return len(found) == len(frozen) - 2 and all(map(is_bound_alike, found, frozen[2:], itertools.repeat(addresses)))


def _given(template: Template, formulas: Formulas, extents: Extents, changed: Mapping[int, Array]) -> list[Any]:
    """What plans follow from: extents, and numbers of constants; UnlikeError where an extent is not known."""
    there, numbers = extents.large, template.numbers
    try:
        given: list[Any] = [there[n] for n in formulas.extents]
    except KeyError:
        raise UnlikeError from None
    return given + [changed[v] if v in changed else numbers[v] for _, v in formulas.variables]


def family_of(
    template: Template, notes: Notes, extents: Mapping[int, Any], variables: Mapping[int, Symbol]
) -> Family:  # fmt: skip
    """How bound programs follow from extents and the numbers of constants by instruction, symbols both, noted while one
    is frozen and bound.
    """
    renamed = _Symbolic(extents, template.exact)
    instructions = list(template.simplified.instructions)
    for number, symbol in variables.items():
        ins = instructions[number]
        instructions[number] = Instruction(ins.op, ins.inputs, ins.outputs, {"value": symbol}, ins.origin, ins.after)
    specs = [*_renamed(template.source.specs, renamed), *_renamed_used(template, renamed)]
    old = template.simplified
    cache = {"producers": old.producers()}
    simplified = replace(old, instructions=tuple(instructions), specs=tuple(specs), _cache=cache)
    simplified = _reshaped(template, simplified, renamed)
    nvalues, outputs, *steps = frozen = template.freeze(template.source, simplified)
    made = [blueprint_of(step) for step in steps]
    formula = notes.formula(tuple([tuple(numbers) for _, numbers in made]))
    return Family(formula, tuple([blueprint for blueprint, _ in made]), nvalues, outputs, tuple(kernel_keys(frozen)))


# -- step by step ------------------------------------------------------------------------------------------------------


def _renamed(specs: Any, extents: Extents | _Symbolic) -> list[TensorSpec]:
    """Specs with the other extents, one object for those that are equal objects here."""
    made: dict[int, TensorSpec] = {}
    found = []
    for spec in specs:
        other = made.get(id(spec))
        if other is None:
            other = made[id(spec)] = TensorSpec(extents.shape(spec.shape), spec.dtype)
        found.append(other)
    return found


def _renamed_used(template: Template, extents: Extents | _Symbolic) -> list[TensorSpec]:
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


def _params(ins: Instruction, number: Array | None, extents: Extents | _Symbolic) -> Mapping[str, Any]:
    """The params of an instruction for other extents, and another number."""
    array = constant_value(ins)
    if array is not None:
        number = splat_number(array) if number is None else number
        return {"value": splat(number, extents.shape(array.shape), array.dtype)}
    return {**ins.params, **{name: extents.shape(old) for name, old in shapes_in(ins.params)}}


def _reshaped(template: Template, simplified: Program, extents: Extents | _Symbolic) -> Program:
    """The program with the params that instructions have which compute with extents; UnlikeError where one gives other
    shapes than those that correspond.
    """
    specs, instructions = simplified.specs, list(simplified.instructions)
    for number in template.checked:
        ins = instructions[number]
        if constant_value(template.simplified.instructions[number]) is not None:
            continue
        params = _params(ins, None, extents)
        if ins.op.infer(tuple([specs[v] for v in ins.inputs]), params) != tuple([specs[v] for v in ins.outputs]):
            raise UnlikeError
        if number not in template.interpreted:  # whose params are those of the source
            instructions[number] = Instruction(ins.op, ins.inputs, ins.outputs, params, ins.origin, ins.after)
    return replace(simplified, instructions=tuple(instructions))
