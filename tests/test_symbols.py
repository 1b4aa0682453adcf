"""Symbols note what is computed of numbers, and formulas compute it of others, or say that they do not know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jitgrad.compiler.symbols import Notes, Symbol, at_once, least, most
from jitgrad.ops.slicing import selected

pytestmark = pytest.mark.quick


def _arithmetic(a: Any, b: Any) -> Any:
    return a + b, 2 * a - b, -a // 3, 100 % b, (1 << b, math.floor(a / b), math.ceil(a / 7)), math.prod([a, b]), (a,)


def _extremes(a: Any, b: Any) -> Any:
    return least(a, b, 8), most(3, a) + most(b, 2), least(4, 5), (b.bit_length(), (1, (2, a)))


def _nested_extremes(a: Any, b: Any) -> Any:
    both = most(a, b)
    mixed = least(most(a, 2, b - 1), -least(-a, b, -4), most(3, most(b, a)))
    return mixed, most(both, 4), most(both, a - 9, -(-a // 2)), both, most(a + 1, b, 2, most(b, 5), least(a, b, 1))


def _branching(a: Any, b: Any) -> Any:
    return (a, "more") if a > b else ("less", b)


def _asking(a: Any, b: Any) -> Any:
    return tuple(k * a for k in range(b)), {a: 1, b: 2}[a], [4, 5, 6, 7, 8, 9, 10][b], bool(a - b), sorted([b, a])[0]


FUNCTIONS = [_arithmetic, _extremes, _nested_extremes, _branching, _asking]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_formulas_give_what_functions_give_or_nothing(fn: Callable[..., Any]) -> None:
    known = 0
    for given in ((5, 3), (7, 2), (2, 6), (4, 4)):
        notes = Notes(given)
        formula = notes.formula(fn(*notes.symbols()))
        assert repr(formula.value(given)) == repr(fn(*given))
        for numbers in ((a, b) for a in range(1, 12) for b in range(1, 7)):
            found = formula.value(numbers)
            assert found is None or repr(found) == repr(fn(*numbers))
            known += found is not None
    assert known >= (4 if fn is _asking else 60)


def test_conditions_are_those_that_were_asked() -> None:
    notes = Notes((5, 3))
    formula = notes.formula(_branching(*notes.symbols()))
    assert formula.value((9, 8)) == (9, "more") and formula.value((8, 9)) is None and formula.value((8, 8)) is None


@pytest.mark.parametrize("ask", [int, float, hash, str, range, bool, np.ones, lambda n: {n: 0}])
def test_no_number_gets_past(ask: Callable[[Any], Any]) -> None:
    """Whatever takes the integer out of a symbol makes it a condition."""
    notes = Notes((5,))
    [symbol] = notes.symbols()
    ask(symbol)
    formula = notes.formula((symbol,))
    assert formula.value((5,)) == (5,) and formula.value((0,)) is None


def test_what_follows_from_constants_is_no_step() -> None:
    """Neither is it asked again; and what is read often is computed once."""
    notes, calls = Notes((5,)), list[int]()

    def noted(n: int) -> int:
        calls.append(n)
        return n + 1

    [symbol] = notes.symbols()
    seven = notes.constant(7)
    made: Any = (seven.computed(noted), symbol.computed(noted)) if seven > 6 else ()
    formula = notes.formula((*made, made[1] * made[1], made[1] + seven))
    calls.clear()
    assert formula.value((2,)) == (8, 3, 9, 10) and calls == [2]


def test_steps_of_integers_that_change_nothing_are_none() -> None:
    notes = Notes((5, 2.5))
    a, b = notes.symbols()
    number = b
    made: tuple[Any, ...] = (1 * a * 1, 0 + a + 0, a - 0, a * 3 + 3 * a)
    assert [type(x) for x in made] == [Symbol] * 4 and len(notes.steps) == 2
    assert a == 1 * a and not (1 * a) < a and not notes.asked
    formula = notes.formula((*made, b * 1, -(b * 0), 0 + b, b == number))
    assert repr(formula.value((7, -0.0))) == "(7, 7, 7, 42, -0.0, 0.0, 0.0, True)"
    assert formula.value((7, float("nan"))) is None


def test_zeros_of_both_signs_are_two_numbers() -> None:
    [b] = (notes := Notes((2.5,))).symbols()
    assert repr(notes.formula((b * 0.0, b * -0.0)).value((1.5,))) == "(0.0, -0.0)"


def test_slices_of_symbols_are_those_of_extents() -> None:
    places = (None, -8, -3, -1, 0, 1, 2, 5, 6, 9)
    for start, stop, step in itertools.product(places, places, (None, -3, -2, -1, 1, 2, 3)):
        notes = Notes((6,))
        formula = notes.formula(tuple(selected(notes.symbols()[0], start, stop, step)))
        for n in (6, 7, 5, 1, 0):
            chosen = range(n)[start:stop:step]
            assert formula.value((n,)) in ((None,) if n != 6 else ()) + ((chosen.start, chosen.step, len(chosen)),)


def _cut(n: int, pieces: int) -> tuple[tuple[int, int], bool, str] | None:
    """Pieces of a length, if it has enough, found by many comparisons."""
    if n < 4 * pieces:
        return None
    while n // pieces > 10:
        pieces *= 2
    return (pieces, -(-n // pieces)), n % pieces == 0, "pieces"


def test_what_is_computed_at_once_is_asked_for_its_form() -> None:
    """Its integers vary, which comparisons it makes does not matter."""
    assert at_once(_cut, 21, 3) == ((3, 7), True, "pieces")
    notes = Notes((21,))
    formula = notes.formula(at_once(_cut, *notes.symbols(), 3))
    assert len(notes.asked) == 1
    for n in range(60):
        found = _cut(n, 3)
        assert formula.value((n,)) == (found if found is not None and found[1] else None)


def test_nothing_is_computed_before_what_came_first_was_asked() -> None:
    """So a formula that does not serve is left early."""
    calls = list[int]()

    def noted(n: int) -> int:
        calls.append(n)
        return n

    notes = Notes((5, 3))
    a, b = notes.symbols()
    made: Any = a.computed(noted) + b.computed(noted) if a > b and a.computed(noted) else 0
    formula = notes.formula((made, made))
    calls.clear()
    assert formula.value((3, 4)) is None and calls == []
    assert formula.value((0, -1)) is None and calls == [0]
    assert formula.value((7, 6)) == (13, 13) and calls == [0, 7, 6]


def test_long_computations() -> None:
    notes = Notes((5,))
    [symbol] = notes.symbols()
    total: Any = 0
    for k in range(1000):
        total = (total + k) * (symbol - 4)
    assert notes.formula(total).value((5,)) == sum(range(1000))


def test_what_is_not_put_together_is_refused() -> None:
    notes = Notes((5,))
    [symbol] = notes.symbols()
    assert type(symbol) is Symbol
    with pytest.raises(TypeError, match="a list with symbols"):
        notes.formula((1, [symbol]))


def test_steps_that_a_condition_keeps_from_being_done() -> None:
    notes = Notes((5, 3))
    a, b = notes.symbols()
    formula = notes.formula((a // b if b else 0,))
    assert formula.value((7, 2)) == (3,) and formula.value((7, 0)) is None
