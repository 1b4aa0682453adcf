"""Formulas of extents: how numbers and further extents are made of those of arguments, as trials have shown; and which
extents to try. What is tried is decided elsewhere (foreseeing.py).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.likeness import PLAIN_EXACT, UnlikeError
from jitgrad.compiler.symbols import Symbol
from jitgrad.records import NamedTuple

# Multiples of all numbers to 12.
_MULTIPLES = tuple([27720 * p * 4**k for k, p in enumerate((67, 71, 73, 79, 83, 89, 97, 101, 103, 107))])
_MOST_ADDED = 8  # to a product of extents, or taken off it

Order = tuple[int, ...]
"""Extents of the model in the order of those that stand for them in a call."""


class Derived(NamedTuple):
    """An extent that is made of others: a product of them, or a sum of some of them, each so many times, and a number
    added to either.
    """

    is_product: bool
    times: tuple[tuple[int, int], ...]
    factor: int
    added: int

    def value(self, extents: Mapping[int, int]) -> int:
        """The extent, for those that stand for those named here."""
        if self.is_product:
            counts = [extents[n] for n, power in self.times for _ in range(power)]
            return math.prod(counts, start=self.factor) + self.added
        return sum([extents[n] * times for n, times in self.times], self.added)


class Count(NamedTuple):
    """A number that is made of extents: their powers times a factor, less a few, or one over that."""

    powers: tuple[tuple[int, int], ...]
    factor: int
    less: int
    is_inverse: bool

    def value(self, extents: Mapping[int, int], dtype: np.dtype[Any]) -> Any:
        """The number for the extents that stand for those named here; UnlikeError where there is none."""
        count: Any = self.factor
        for extent, power in self.powers:
            for _ in range(power):
                count *= extents[extent]
        count -= self.less
        if count <= PLAIN_EXACT:
            raise UnlikeError
        make = _inverse_in(dtype) if self.is_inverse else _number_in(dtype)
        return count.computed(make) if type(count) is Symbol else make(count)


@functools.lru_cache
def _number_in(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    return lambda count: np.asarray(count, dtype)


@functools.lru_cache
def _inverse_in(dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    return lambda count: np.asarray(1 / count, dtype)


# -- the extents of trials ---------------------------------------------------------------------------------------------


def least_extents(order: Order, fixed: frozenset[int], least: int) -> dict[int, int]:
    """Primes for extents that are not fixed, as little above the least as their order allows."""
    found = dict[int, int]()
    least += 1
    for n in order:
        if n in fixed:
            least = n
        else:
            least = found[n] = next(filter(_is_prime, itertools.count(least + 1)))
    return found


def _is_prime(n: int) -> bool:
    return all(n % k for k in range(2, math.isqrt(n) + 1))


def most_extents(order: Order, fixed: frozenset[int]) -> dict[int, int]:
    """Multiples of many numbers for extents that are not fixed, as large as their order allows."""
    last = max([place for place, n in enumerate(order, 1) if n in fixed], default=0)
    if len(order) - last > len(_MULTIPLES):
        raise UnlikeError
    found, most = dict(zip(order[last:], _MULTIPLES, strict=False)), 0
    for n in reversed(order[:last]):
        most = n if n in fixed else (most - 1) // 12 * 12
        found |= {} if n in fixed else {n: most}
    return found


# -- found by trials ---------------------------------------------------------------------------------------------------


def find_count(values: Sequence[Any], extents: Sequence[Mapping[int, int]]) -> Count:
    """How a number follows from extents, by its values for some, the first of which are primes; UnlikeError where that
    is not seen.
    """
    number, dtype = values[0].item(), values[0].dtype
    if isinstance(number, complex) or not number > 0:
        raise UnlikeError
    for is_inverse in (False, True):
        whole = round(1 / number if is_inverse else number)
        for less in range(_MOST_ADDED + 1):
            count = _factored(whole + less, extents[0])._replace(less=less, is_inverse=is_inverse)
            if count.powers and all(
                count.value(there, dtype).tobytes() == value.tobytes()
                for value, there in zip(values, extents, strict=True)
            ):
                return count
    raise UnlikeError


def find_derived(values: Sequence[int], extents: Sequence[Mapping[int, int]]) -> Derived:
    """How an extent follows from others, by its values for some; UnlikeError where that is not seen."""
    for derived in _candidates(values, extents):
        if all(derived.value(there) == n for n, there in zip(values, extents, strict=True)):
            return derived
    raise UnlikeError


def _candidates(values: Sequence[int], extents: Sequence[Mapping[int, int]]) -> Iterator[Derived]:
    """Sums that fit the first two values; and products that fit the first."""
    (first, second), (few, many) = values[:2], extents[:2]
    yield Derived(False, (), 1, first)  # where it is the same for the least and for the most, it is so between them
    for n in few:
        for others in ((), *[((m, 1),) for m in few if m != n]):
            rest = [sum([there[m] for m, _ in others]) for there in (few, many)]
            times = (second - first - rest[1] + rest[0]) // (many[n] - few[n])
            added = first - rest[0] - times * few[n]
            if times > 0:
                yield Derived(False, ((n, times), *others), 1, added)
    for added in range(-_MOST_ADDED, _MOST_ADDED + 1):
        count = _factored(first - added, few)
        yield Derived(True, count.powers, count.factor, added)


def _factored(count: int, primes: Mapping[int, int]) -> Count:
    powers = []
    for extent, prime in primes.items():
        power = 0
        while count and count % prime == 0:
            count, power = count // prime, power + 1
        powers += [(extent, power)] * (power > 0)
    return Count(tuple(powers), count, 0, False)
