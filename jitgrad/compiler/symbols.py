"""Symbols: numbers that note what is computed of them and what is asked of them, so that the same can be computed of
others; a Formula does that, as a table that is gone through once. Neither knows what the numbers are.

What is asked of a symbol (is it less than another, which integer is it) is answered for the numbers at hand, and noted
as a condition. Where all conditions have the same answers for other numbers, a computation that is a function of them
takes the same way, and gives what the formula gives. Whatever needs the integer itself asks for it, so nothing gets
past.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Step = tuple[Callable[..., Any], int, int]
"""A function, and the places of what it is called with; the second is -1 for a function of one."""
Take = Callable[[Any], tuple[Any, ...]]
"""Gives the values at some places."""
Conditions = tuple[Callable[..., Any], Take, Take, list[Any]]
"""Questions of one kind: what gives their first operands, what gives the second ones, and the answers."""


def _bit_length(n: int, _: Any = None) -> int:
    return n.bit_length()


class Notes:
    """What is computed of some numbers, and asked of them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)
        self.count = len(self.values)
        self.steps: list[tuple[int, Step]] = []
        self.parts: list[tuple[int, list[int]]] = []
        self.asked: dict[tuple[Callable[..., Any], int, int], Any] = {}
        self._places: dict[Any, int] = {}

    def symbols(self) -> list[Symbol]:
        """The numbers given."""
        return [Symbol(self, place) for place in range(self.count)]

    def place(self, x: Any) -> int:
        """Where a symbol or a plain value lies."""
        if type(x) is Symbol:
            return x.place
        key = type(x), x
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.values)
            self.values.append(x)
        return found

    def computed(self, fn: Callable[..., Any], a: Any, b: Any = None) -> Symbol:
        """What a function gives."""
        first, second = self.place(a), -1 if b is None else self.place(b)
        key: Any = (fn, first, second)
        found = self._places.get(key)
        if found is None:
            values = self.values
            made = fn(values[first]) if b is None else fn(values[first], values[second])
            found = self._places[key] = len(values)
            values.append(made)
            self.steps.append((found, (fn, first, second)))
        return Symbol(self, found)

    def answer(self, fn: Callable[..., Any], a: Any, b: Any) -> Any:
        """What a question is answered, which is noted."""
        key = fn, self.place(a), self.place(b)
        if key not in self.asked:
            self.asked[key] = fn(self.values[key[1]], self.values[key[2]])
        return self.asked[key]

    def formula(self, result: Any) -> Formula:
        """How a result, of nested tuples with symbols in them, follows from the numbers given."""
        end = self._tuple(result)
        steps = self._needed(end)
        made = {*range(self.count), *[place for place, _ in self.steps], *[place for place, _ in self.parts]}
        fixed = [place for place in range(len(self.values)) if place not in made]
        order = [*range(self.count), *fixed, *[place for place, _ in (*steps, *self.parts)]]
        at = {place: number for number, place in enumerate(order)} | {-1: -1}
        conditions: dict[Callable[..., Any], list[tuple[int, int, Any]]] = {}
        for (fn, a, b), answer in self.asked.items():
            conditions.setdefault(fn, []).append((at[a], at[b], answer))
        return Formula(
            tuple([self.values[place] for place in fixed]),
            tuple([(fn, at[a], at[b]) for _, (fn, a, b) in steps]),
            tuple([_conditions_of(fn, rows) for fn, rows in conditions.items()]),
            tuple([_taken([at[place] for place in places]) for _, places in self.parts]),
            at[end],
        )

    def _needed(self, end: int) -> list[tuple[int, Step]]:
        """The steps that lead to the result or to what was asked."""
        wanted = {end, *[place for _, *places in self.asked for place in places]}
        wanted.update(*[places for _, places in self.parts])
        needed = []
        for place, step in reversed(self.steps):
            if place in wanted:
                wanted.update(step[1:])
                needed.append((place, step))
        return needed[::-1]

    def _tuple(self, value: Any) -> int:
        """The place of a nested tuple, which is put together anew where it holds symbols."""
        if type(value) is Symbol:
            return value.place
        if not _holds_symbols(value):
            return self._kept(value)
        if type(value) is not tuple:
            raise TypeError(f"a {type(value).__name__} with symbols in it")
        places = [self._tuple(item) for item in value]
        self.values.append(None)
        self.parts.append((len(self.values) - 1, places))
        return len(self.values) - 1

    def _kept(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1


def _taken(places: Sequence[int]) -> Take:
    """Gives the values at some places as a tuple."""
    if len(places) == 1:
        [place] = places
        return lambda values: (values[place],)
    return operator.itemgetter(*places) if places else lambda _: ()


def _conditions_of(fn: Callable[..., Any], rows: Sequence[tuple[int, int, Any]]) -> Conditions:
    firsts, seconds, answers = zip(*rows, strict=True)
    return fn, _taken(firsts), _taken(seconds), list(answers)


def _holds_symbols(value: Any) -> bool:
    return type(value) is Symbol or (isinstance(value, tuple | list) and any(map(_holds_symbols, value)))


class Formula(NamedTuple):
    """A computation of some numbers: values that are fixed, which lie behind them; steps, whose results come next;
    conditions; tuples that are put together of values; the place of the result.
    """

    fixed: tuple[Any, ...]
    steps: tuple[Step, ...]
    conditions: tuple[Conditions, ...]
    parts: tuple[Take, ...]
    end: int

    def value(self, numbers: Sequence[Any]) -> Any:
        """The result for numbers; None where a condition has another answer."""
        values = [*numbers, *self.fixed]
        add = values.append
        try:
            for fn, a, b in self.steps:
                add(fn(values[a]) if b < 0 else fn(values[a], values[b]))
        except (ArithmeticError, ValueError):  # a step that a condition keeps from being done
            return None
        for fn, firsts, seconds, answers in self.conditions:
            if list(map(fn, firsts(values), seconds(values))) != answers:
                return None
        for make in self.parts:
            add(make(values))
        return values[self.end]


def number(x: Any) -> Any:
    """The number at hand of a symbol, or a number itself. Nothing is noted: what is chosen by it must be asked for."""
    return x.notes.values[x.place] if type(x) is Symbol else x


def least(*numbers: Any) -> Any:
    """The least of numbers, which asks nothing of symbols."""
    return functools.reduce(functools.partial(_extreme, min), numbers)


def most(*numbers: Any) -> Any:
    """The largest of numbers, which asks nothing of symbols."""
    return functools.reduce(functools.partial(_extreme, max), numbers)


def _extreme(fn: Callable[..., Any], a: Any, b: Any) -> Any:
    symbol = a if type(a) is Symbol else b
    return symbol.notes.computed(fn, a, b) if type(symbol) is Symbol else fn(a, b)


def _binary(fn: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.notes.computed(fn, self, other)


def _reflected(fn: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: self.notes.computed(fn, other, self)


def _unary(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda self: self.notes.computed(fn, self)


def _question(fn: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def ask(self: Symbol, other: Any) -> Any:
        is_number = type(other) is Symbol or isinstance(other, int | float)
        return self.notes.answer(fn, self, other) if is_number else NotImplemented

    return ask


def _first(a: Any, _: Any) -> Any:
    return a


class Symbol:
    """A number of some notes."""

    __slots__ = ("notes", "place")

    def __init__(self, notes: Notes, place: int) -> None:
        self.notes = notes
        self.place = place

    __add__, __radd__ = _binary(operator.add), _reflected(operator.add)
    __sub__, __rsub__ = _binary(operator.sub), _reflected(operator.sub)
    __mul__, __rmul__ = _binary(operator.mul), _reflected(operator.mul)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __lshift__, __rlshift__ = _binary(operator.lshift), _reflected(operator.lshift)
    __neg__, __floor__, __ceil__ = _unary(operator.neg), _unary(math.floor), _unary(math.ceil)
    bit_length = _unary(_bit_length)
    __lt__, __le__ = _question(operator.lt), _question(operator.le)
    __gt__, __ge__ = _question(operator.gt), _question(operator.ge)
    __eq__, __ne__ = _question(operator.eq), _question(operator.ne)

    def computed(self, fn: Callable[[Any], Any]) -> Symbol:
        """What a function gives of the number."""
        return self.notes.computed(fn, self)

    def _itself(self) -> Any:
        return self.notes.answer(_first, self, 0)

    def __bool__(self) -> bool:
        return bool(self.notes.answer(operator.ne, self, 0))

    def __hash__(self) -> int:
        return hash(self._itself())

    def __index__(self) -> int:
        return operator.index(self._itself())

    def __int__(self) -> int:
        return int(self._itself())

    def __float__(self) -> float:
        return float(self._itself())

    def __repr__(self) -> str:
        return repr(self._itself())
