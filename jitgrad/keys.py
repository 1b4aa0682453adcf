"""Hashable stand-ins for values: equal ones mean the same value of the same type; nothing is compared here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

_plain = frozenset((int, str, bytes, bool, type(None)))


def _by_identity(array: np.ndarray[Any, Any]) -> Any:
    return (np.ndarray, id(array))


def frozen(value: Any, of_array: Callable[[np.ndarray[Any, Any]], Any] = _by_identity) -> Any:
    """A hashable stand-in for a value, in which 1, 1.0 and True differ, and 0.0 and -0.0, and a NaN equals a NaN.

    ``of_array`` gives that of an array. What is not hashable goes by its identity: whoever keeps the stand-in keeps
    the value too.
    """
    kind = type(value)
    if kind in _plain:
        return (kind, value)
    if kind is tuple or kind is list:
        types = tuple(map(type, value))
        if _plain.issuperset(types):
            return (kind, types, *value)
        return (kind, *[frozen(item, of_array) for item in value])
    if kind is float:
        return (kind, value.hex())
    if kind is complex:
        return (kind, value.real.hex(), value.imag.hex())
    if isinstance(value, np.ndarray):
        return of_array(value)
    if isinstance(value, np.generic):
        return (kind, value.dtype, value.tobytes())
    return (kind, *_frozen_members(value, of_array))


def _frozen_members(value: Any, of_array: Callable[[np.ndarray[Any, Any]], Any]) -> tuple[Any, ...]:
    """What a container holds, by which values that Python calls equal are told apart; else the value itself."""

    def each(*items: Any) -> tuple[Any, ...]:
        return tuple([frozen(item, of_array) for item in items])

    if isinstance(value, dict):
        return tuple([each(key, item) for key, item in value.items()])
    if isinstance(value, slice):
        return each(value.start, value.stop, value.step)
    if isinstance(value, frozenset):
        return (frozenset(each(*value)),)
    if isinstance(value, tuple):
        return each(*value)
    stand_in = value if is_hashable(value) else id(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (stand_in, *each(*[getattr(value, f.name, None) for f in dataclasses.fields(value) if f.compare]))
    return (stand_in,)


def is_hashable(value: Any) -> bool:
    """Whether ``hash`` takes it."""
    try:
        hash(value)
    except TypeError:
        return False
    return True
