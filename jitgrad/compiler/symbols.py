"""Symbols: numbers that note what is computed of them and what is asked of them, so that the same can be computed of
others; a Formula does that, as a function that is written once. Neither knows what the numbers are.

What is asked of a symbol (is it less than another, which integer is it) is answered for the numbers at hand, and noted
as a condition. Where all conditions have the same answers for other numbers, a computation that is a function of them
takes the same way, and gives what the formula gives. Whatever needs the integer itself asks for it, so nothing gets
past.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jitgrad.records import NamedTuple

Step = tuple[Callable[..., Any], tuple[int, ...]]
"""A function, and the places of what it is called with."""


_NEUTRAL: dict[Callable[..., Any], int] = {operator.add: 0, operator.sub: 0, operator.mul: 1}
_COMMUTATIVE = frozenset((operator.add, operator.mul))


def _bit_length(n: int, _: Any = None) -> int:
    return n.bit_length()


class Notes:
    """What is computed of some numbers, and asked of them."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values: list[Any] = list(values)
        self.count = len(self.values)
        self.steps: list[tuple[int, Step]] = []
        self.asked: dict[tuple[Callable[..., Any], int, int], Any] = {}
        self._places: dict[Any, int] = {}
        self._varying = set(range(self.count))

    def symbols(self) -> list[Symbol]:
        """The numbers given."""
        return [Symbol(self, place) for place in range(self.count)]

    def place(self, x: Any) -> int:
        """Where a symbol or a plain value lies; equal ones in one place, but 0.0 and -0.0 in two."""
        if type(x) is Symbol:
            return x.place
        key = type(x), x if x else repr(x)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.values)
            self.values.append(x)
        return found

    def constant(self, value: Any) -> Symbol:
        """A value that is always the same, as a symbol."""
        self.values.append(value)
        return Symbol(self, len(self.values) - 1)

    def computed(self, fn: Callable[..., Any], *operands: Any) -> Symbol:
        """What a function gives."""
        places = tuple(map(self.place, operands))
        if fn in _NEUTRAL and self._are_integers(places):
            values, neutral = self.values, _NEUTRAL[fn]
            if values[places[1]] == neutral and places[1] not in self._varying:
                return Symbol(self, places[0])
            if fn in _COMMUTATIVE:
                if values[places[0]] == neutral and places[0] not in self._varying:
                    return Symbol(self, places[1])
                places = tuple(sorted(places))
        key: Any = (fn, places)
        found = self._places.get(key)
        if found is None:
            values = self.values
            made = fn(*[values[place] for place in places])
            found = self._places[key] = len(values)
            values.append(made)
            if not self._varying.isdisjoint(places):
                self._varying.add(found)
                self.steps.append((found, key))
        return Symbol(self, found)

    def answer(self, fn: Callable[..., Any], a: Any, b: Any) -> Any:
        """What a question is answered, which is noted."""
        key = fn, self.place(a), self.place(b)
        if key in self.asked:
            return self.asked[key]
        found = fn(self.values[key[1]], self.values[key[2]])
        is_plain = key[1] == key[2] and self._are_integers(key[1:2])  # the same for all integers
        if not is_plain and not self._varying.isdisjoint(key[1:]):
            self.asked[key] = found
        return found

    def _are_integers(self, places: Sequence[int]) -> bool:
        return all(type(self.values[place]) is int for place in places)

    def formula(self, result: Any) -> Formula:
        """How a result, of nested tuples with symbols in them, follows from the numbers given."""
        return _Writer(self, result).formula()


class Formula(NamedTuple):
    """A computation of some numbers as a function of them, which gives None where a condition has another answer."""

    compute: Callable[..., Any]

    def value(self, numbers: Sequence[Any]) -> Any:
        """The result for numbers; None where a condition has another answer."""
        try:
            return self.compute(*numbers)
        except (ArithmeticError, ValueError):  # a step that a condition keeps from being done
            return None


_OPERATORS: dict[Callable[..., Any], str] = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.truediv: "/",
    operator.mod: "%", operator.lshift: "<<",
}  # fmt: skip
_COMPARISONS: dict[Callable[..., Any], str] = {
    operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=", operator.eq: "==", operator.ne: "!=",
}  # fmt: skip
_EXTREMES = (max, min)
_DEEPEST = 40  # Python reads no more than 200 parentheses in one another


class _Writer:
    """Writes a formula as the text of a function: what is read once stands where it is read, and nothing is computed
    before the questions that came before it are answered.
    """

    def __init__(self, notes: Notes, result: Any) -> None:
        self._notes = notes
        self._result = result
        self._steps = dict(notes.steps)
        self._uses = self._counted()
        self._names: dict[int, str] = {}
        self._values: dict[str, Any] = {}
        self._texts = {k: (f"n{k}", 0) for k in range(notes.count)}
        self._lines: list[str] = []
        self._conditions: list[str] = []

    def formula(self) -> Formula:
        """The function."""
        for (fn, a, b), answer in self._notes.asked.items():
            self._write((a, b))
            self._conditions.append(self._condition(fn, a, b, answer))
        self._write(_symbols_in(self._result))
        self._ask()
        given = ", ".join([f"n{k}" for k in range(self._notes.count)])
        lines = (*self._lines, f"return {self._tuple(self._result)}")
        exec("\n ".join([f"def compute({given}):", *lines]), self._values)
        return Formula(self._values["compute"])

    def _ask(self) -> None:
        """Ask what has not been asked yet."""
        if self._conditions:
            self._lines.append(f"if not ({' and '.join(self._conditions)}): return None")
            self._conditions = []

    def _write(self, places: Iterable[int]) -> None:
        """Write the steps up to some places that are not written yet."""
        needed, wanted = set[int](), list(places)
        while wanted:
            place = wanted.pop()
            if place in self._steps and place not in needed and place not in self._texts:
                needed.add(place)
                wanted += self._steps[place][1]
        for place in sorted(needed):  # each comes behind what it is computed of
            self._texts[place] = self._step(place, self._steps[place])

    def _counted(self) -> Counter[int]:
        """How often each value is read on the way to the result and to what was asked."""
        steps, uses = self._steps, Counter[int]()
        wanted = [*_symbols_in(self._result), *[place for _, *places in self._notes.asked for place in places]]
        while wanted:
            place = wanted.pop()
            uses[place] += 1
            if uses[place] == 1 and place in steps:
                wanted += steps[place][1]
        return uses

    def _step(self, place: int, step: Step) -> tuple[str, int]:
        """What stands for the result of a step, and how deep its parentheses are."""
        fn, places = step
        texts, depths = zip(*map(self._text, places), strict=True)
        if fn in _OPERATORS:
            text = f"({f' {_OPERATORS[fn]} '.join(texts)})"
        elif fn is operator.neg:
            text = f"(-{texts[0]})"
        else:
            begin, first = f"{self._fixed(fn)}(", texts[0]
            if fn in _EXTREMES and first.startswith(begin):  # max(max(a, b), c) is max(a, b, c)
                first = first[len(begin) : -1]
            text = f"{begin}{', '.join((first, *texts[1:]))})"
        depth = 1 + max(depths)
        if self._uses[place] == 1 and depth < _DEEPEST:
            return text, depth
        self._ask()
        self._lines.append(f"v{place} = {text}")
        return f"v{place}", 0

    def _condition(self, fn: Callable[..., Any], a: int, b: int, answer: Any) -> str:
        first, second = self._text(a)[0], self._text(b)[0]
        if fn in _COMPARISONS:
            return f"{'' if answer else 'not '}{first} {_COMPARISONS[fn]} {second}"
        return f"{self._fixed(fn)}({first}, {second}) == {self._fixed(answer)}"

    def _text(self, place: int) -> tuple[str, int]:
        return self._texts.get(place) or (self._fixed(self._notes.values[place]), 0)

    def _tuple(self, value: Any) -> str:
        """A nested tuple, which is put together anew where it holds symbols."""
        if type(value) is Symbol:
            return self._text(value.place)[0]
        if not _holds_symbols(value):
            return self._fixed(value)
        if type(value) is not tuple:
            raise TypeError(f"a {type(value).__name__} with symbols in it")
        return f"({''.join([self._tuple(item) + ',' for item in value])})"

    def _fixed(self, value: Any) -> str:
        """A value that is always the same."""
        if type(value) is int:
            return f"({value})"
        name = self._names.setdefault(id(value), f"c{len(self._names)}")
        self._values[name] = value
        return name


def _symbols_in(value: Any) -> list[int]:
    """The places of the symbols in nested tuples."""
    if type(value) is Symbol:
        return [value.place]
    return [place for item in value for place in _symbols_in(item)] if isinstance(value, tuple) else []


def _holds_symbols(value: Any) -> bool:
    return type(value) is Symbol or (isinstance(value, tuple | list) and any(map(_holds_symbols, value)))


def number(x: Any) -> Any:
    """The number at hand of a symbol, or a number itself. Nothing is noted: what is chosen by it must be asked for."""
    return x.notes.values[x.place] if type(x) is Symbol else x


def least(*numbers: Any) -> Any:
    """The least of numbers, which asks nothing of symbols."""
    return functools.reduce(functools.partial(_extreme, min), numbers)


def most(*numbers: Any) -> Any:
    """The largest of numbers, which asks nothing of symbols."""
    return functools.reduce(functools.partial(_extreme, max), numbers)


def at_once(fn: Callable[..., Any], *numbers: Any) -> Any:
    """What a function gives of numbers, in one step: what it asks of them is not noted. Of symbols its integers, and
    those in its tuples, are symbols; all else that it gives is asked for.
    """
    symbol = next((x for x in numbers if type(x) is Symbol), None)
    if symbol is None:
        return fn(*numbers)
    made = symbol.notes.computed(fn, *numbers)
    symbol.notes.answer(_form_of, made, 0)
    return _taken_apart(made)


def _form_of(value: Any, _: Any = None) -> Any:
    """What is given, but for its integers."""
    if type(value) is int:
        return int
    if not isinstance(value, tuple):
        return value
    return (type(value), *[int if type(item) is int else _form_of(item) for item in value])


def _taken_apart(symbol: Symbol) -> Any:
    """What is given, with symbols for its integers."""
    value = number(symbol)
    if type(value) is int:
        return symbol
    if not isinstance(value, tuple):
        return value
    items = [_taken_apart(symbol.computed(_item(k))) for k in range(len(value))]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


@functools.lru_cache
def _item(place: int) -> Callable[[Any], Any]:
    return operator.itemgetter(place)


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
    __abs__ = _unary(operator.abs)
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
