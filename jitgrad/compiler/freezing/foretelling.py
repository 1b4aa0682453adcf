"""Foretelling: how programs of one kind, without arrays of constants, are bound, as formulas of their extents alone.
Numbers follow from these as the caller says, and what simplification makes of them is noted like everything else. It
looks at no trace.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array
from jitgrad.compiler.freezing.alike import Formulas, Likeness, Template, bytes_of, is_part
from jitgrad.compiler.freezing.beside import MOST_FORMULAS, Bound, family_of, found_among, is_bound_by, symbols_for
from jitgrad.compiler.likeness import Extents, UnlikeError, is_named
from jitgrad.compiler.symbols import Notes, Symbol
from jitgrad.opdef import OpDef

CountedNumbers = Callable[[Mapping[int, Any]], Mapping[int, Any]]
"""Gives the numbers of constants that follow from extents, by instruction, for those that stand for the known ones."""


class Foretold:
    """Programs like one, whose numbers follow from their extents as ``numbers`` says; UnlikeError, or KeyError for an
    extent that is not known, where no formula can be found.
    """

    def __init__(self, before: Likeness, numbers: CountedNumbers) -> None:
        there, formulas = before.extents.large, before.template.formulas
        if formulas is None:
            raise UnlikeError
        self._extents = tuple([there[n] for n in formulas.extents])
        self._before = before
        self._numbers = numbers
        self._formulas = Formulas(formulas.extents, formulas.variables)

    def find(self, extents: Mapping[int, int]) -> Bound | None:
        """What binds the program for extents that stand for those of the known one, with its numbers; None where no
        formula gives them, and for an extent that is not told.
        """
        return self._found(self._extents, extents)

    def find_beside(self, extents: Extents) -> Bound | None:
        """The same for extents that are related to those of the template."""
        return self._found(self._formulas.extents, extents.large)

    def _found(self, order: Sequence[int], extents: Mapping[int, int]) -> Bound | None:
        if not self._formulas.known:
            return None
        try:
            given = [extents[n] for n in order]
        except KeyError:  # no array has those of reshaped ones
            return None
        return found_among(self._formulas, given)

    @property
    def may_learn(self) -> bool:
        """Whether there is a point in looking for a further formula."""
        return self._formulas.tries < MOST_FORMULAS

    def learn(self, extents: Extents, frozen: Any) -> bool:
        """Find how the program is bound for these extents, whose plan was frozen; whether that was found."""
        formulas, template = self._formulas, self._before.template
        formulas.tries += 1
        try:
            notes = Notes([extents.large[n] for n in formulas.extents])
            renamed = symbols_for(formulas, notes)
            numbers = self._numbers(dict(zip(self._extents, renamed.values(), strict=True)))
            changed = _changed(template, notes, functools.partial(self._constant, numbers))
            variables = {number: changed[v] if v in changed else notes.constant(template.numbers[v])
                         for number, v in formulas.variables}  # fmt: skip
            family = family_of(template, notes, renamed, variables)
            is_found = is_bound_by(family, notes.values[: notes.count], frozen)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, UnlikeError):
            formulas.tries = MOST_FORMULAS
            return False
        if is_found:
            formulas.known = (family, *formulas.known)
        return is_found

    def _constant(self, numbers: Mapping[int, Any], number: int) -> Any:
        """The number of a constant, by instruction."""
        return numbers[number] if number in numbers else self._before.numbers[self._values[number]]

    @functools.cached_property
    def _values(self) -> dict[int, int]:
        return {fold.number: fold.value for fold in self._before.template.folds if fold.form == "constant"}


def _changed(template: Template, notes: Notes, constant: Callable[[int], Any]) -> dict[int, Symbol]:
    """As `changed_numbers`, of numbers that may be symbols: those that are others than the template's."""
    old, changed = template.numbers, dict[int, Symbol]()
    for fold in template.folds:
        if fold.form == "size":
            raise UnlikeError
        if fold.form == "constant":
            found = constant(fold.number)
            if type(found) is Symbol:
                changed[fold.value] = found
            elif found.tobytes() != old[fold.value].tobytes():
                changed[fold.value] = notes.constant(found)
        elif not changed.keys().isdisjoint(fold.inputs):
            inputs = [changed[v] if v in changed else notes.constant(old[v]) for v in fold.inputs]
            ins = template.source.instructions[fold.number]
            made = _Folding(ins.op, ins.params, template.source.specs[fold.value].dtype)
            changed[fold.value] = inputs[0] if fold.form == "moved" else notes.computed(made, *inputs)
    if changed:
        _ask_of_numbers(template, notes, changed)
    return changed


class _Folding:
    """The number that an element-wise instruction makes of numbers; ValueError where there is none."""

    def __init__(self, op: OpDef, params: Mapping[str, Any], dtype: np.dtype[Any]) -> None:
        self._impl = op.impl
        self._params = params
        self._dtype = dtype

    def __call__(self, *numbers: Any) -> Array:
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(self._impl(*numbers, **self._params))
        except TypeError:
            raise ValueError from None
        if found.shape != () or found.dtype != self._dtype:
            raise ValueError
        return found


def _ask_of_numbers(template: Template, notes: Notes, changed: Mapping[int, Symbol]) -> None:
    """Ask what `changed_numbers` asks: UnlikeError unless equal numbers are equal in both programs, and those that
    differ are plain ones of one sign.
    """
    groups: dict[Any, list[int]] = {}
    for v in changed:
        groups.setdefault(template.number_keys[v], []).append(v)
    kept = frozenset(key for v, key in template.number_keys.items() if v not in changed)
    if not kept.isdisjoint(groups):
        raise UnlikeError
    kinds = []
    for members in groups.values():
        olds = [template.numbers[v] for v in members]
        parts = [is_part(a) for v, a in zip(members, olds, strict=True) if v in template.divisors]
        kinds.append((olds[0].item() < 0, parts[0] if parts else None))
        if is_named(olds[0].item()):
            raise UnlikeError
        for a, b in itertools.pairwise(dict.fromkeys([changed[v].place for v in members])):
            bits = [notes.computed(bytes_of, Symbol(notes, place)) for place in (a, b)]
            if not notes.answer(_are_equal, *bits):
                raise UnlikeError
    first = [changed[members[0]] for members in groups.values()]
    if not notes.computed(_Check(kept, kinds), *first):
        raise UnlikeError


def _are_equal(a: Any, b: Any) -> bool:
    return bool(a == b)


class _Check:
    """Whether numbers, each of its kind (is it negative, and, as a divisor, a half or a quarter ...), differ from one
    another and from those that are ``kept``, and no rule knows them.
    """

    def __init__(self, kept: frozenset[Any], kinds: Sequence[tuple[bool, bool | None]]) -> None:
        self._kept = kept
        self._kinds = kinds

    def __call__(self, *numbers: Array) -> bool:
        keys = set(map(bytes_of, numbers))
        return len(keys) == len(numbers) and keys.isdisjoint(self._kept) and all(map(self._fits, numbers, self._kinds))

    def _fits(self, number: Array, kind: tuple[bool, bool | None]) -> bool:
        is_negative, part = kind
        value = number.item()
        return not is_named(value) and (value < 0) == is_negative and (part is None or is_part(number) == part)
