"""What gradient rules of eager calls depend on: dtypes and shapes of arrays, as objects that compare by identity."""

from __future__ import annotations

import functools
from array import array
from typing import Any

import numpy as np

from jitgrad.compiler.eager_code.layout import KEY_RANK, KEY_WORDS, KEYS, PLAIN_TYPES, key_place
from jitgrad.eagerness import Valued
from jitgrad.keys import frozen
from jitgrad.trace import Static


class ArrayKey(tuple):  # type: ignore[type-arg]
    """(dtype, shape) of a tensor, one object for each: found by its identity, which takes no hashing of a dtype."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


_keys: dict[Any, ArrayKey] = {}
_MOST_KEYS = 65536

seen = array("q", bytes(8 * KEYS * KEY_WORDS))
"""Keys that were asked for, for machine code (compiler/eager_code/layout.py says where). They are in ``_keys``, and
alive by that.
"""


def array_key(x: Any) -> ArrayKey:
    """The one key of a tensor's dtype and shape."""
    both = (x.dtype, x.shape)
    found = _keys.get(both)
    if found is None:
        if len(_keys) >= _MOST_KEYS:
            _forget()
        found = _keys[both] = ArrayKey(both)
    if x.ndim <= KEY_RANK:
        _show(found)
    return found


def _forget() -> None:
    """Keys live on until machine code knows none of them any more."""
    kept = dict(_keys)
    _keys.clear()
    seen[:] = array("q", bytes(8 * KEYS * KEY_WORDS))
    kept.clear()


def _show(key: ArrayKey) -> None:
    """By the dtype that the key holds, which lives as long as the key: one that is equal may be another object, and its
    place in memory another dtype's tomorrow.
    """
    dtype, shape = key
    extents = (*shape, *(0,) * (KEY_RANK - len(shape)))
    first = KEY_WORDS * key_place(id(dtype), len(shape), extents)
    seen[first : first + KEY_WORDS] = array("q", (id(dtype), len(shape), *extents, id(key)))
    if _keys.get(tuple(key)) is not key:  # another thread has forgotten it meanwhile
        seen[first] = 0


def leaf_key(x: Any) -> Any:
    """Dtype and shape of a tensor (an ArrayKey) or an array, the type of a Python float, the value of anything else."""
    kind = type(x)
    if kind is float or kind is complex:
        return kind
    if isinstance(x, Valued):
        return x.key
    if kind is int:
        return _integer(x)
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype, x.shape
    return Static(x, frozen(x))


def value_key(x: Any) -> Any:
    """``leaf_key``, but a Python float too stands for its value."""
    return Static(x, frozen(x)) if type(x) in (float, complex) else leaf_key(x)


ARITHMETIC = frozenset((
    np.add, np.subtract, np.multiply, np.divide, np.floor_divide, np.remainder, np.fmod, np.maximum, np.minimum,
    np.fmax, np.fmin, np.hypot, np.arctan2, np.copysign, np.logaddexp, np.logaddexp2,
))  # fmt: skip
"""Ufuncs whose rules are the same for every integer among the operands; those of a power are not."""

BY_TYPE = ARITHMETIC | {np.where}
"""All functions of which that is so."""

_INT64 = np.iinfo(np.int64)


def type_key(x: Any) -> Any:
    """``leaf_key``, but an integer, if int64 holds it, stands for its type."""
    return int if type(x) is int and _INT64.min <= x <= _INT64.max else leaf_key(x)


@functools.lru_cache(maxsize=1024, typed=True)
def _integer(x: int) -> Static:
    return Static(x, frozen(x))


TRUE, FALSE = object(), object()
"""What stands for True and False in keys: they are equal to 1 and 0, and NumPy does not do the same with them."""

_OPTIONS = frozenset(PLAIN_TYPES)
_INTEGERS = frozenset((int,))


def options_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """All arguments but the first, with the names of the last of them, where these are integers, words, types or tuples
    of integers; else None. Machine code makes the same keys.
    """
    rest = (*args[1:], *kwargs.values()) if kwargs else args[1:]
    for x in rest:
        kind = type(x)
        if kind not in _OPTIONS and (kind is not tuple or not _INTEGERS.issuperset(map(type, x))):
            return None
    rest = tuple([x if type(x) is not bool else TRUE if x else FALSE for x in rest])
    return (*rest, tuple(kwargs)) if kwargs else rest


_BY_VALUE = frozenset((int, bool, str, type(None)))


def quick_key(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the rule of a call depends on; None where an argument is no leaf, nor a tuple of integers."""
    key: list[Any] = [fn, len(args)]
    for x in args:
        kind = type(x)
        if kind in _BY_VALUE:
            key += kind, x
        else:
            part = _quick_part(kind, x)
            if part is None:
                return None
            key.append(part)
    for name, x in kwargs.items():
        part = (type(x), x) if type(x) in _BY_VALUE else _quick_part(type(x), x)
        if part is None:
            return None
        key += name, part
    return tuple(key)


def _quick_part(kind: type, x: Any) -> Any:
    if isinstance(x, Valued):
        return x.key
    if kind is float or kind is complex:
        return kind
    if kind is tuple:
        return (kind, x) if set(map(type, x)) <= {int} else None
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype, x.shape
    return x if isinstance(x, type | np.dtype) else None
