"""What gradient rules of eager calls depend on: dtypes and shapes of arrays, as objects that compare by identity."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.keys import frozen
from jitgrad.trace import Static


class ArrayKey(tuple):  # type: ignore[type-arg]
    """(dtype, shape) of a tensor, one object for each: found by its identity, which takes no hashing of a dtype."""

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


_keys: dict[Any, ArrayKey] = {}


def leaf_key(x: Any) -> Any:
    """Dtype and shape of a tensor (an ArrayKey) or an array, the type of a Python float, the value of anything else."""
    if hasattr(x, "key"):
        if x.key is None:
            x.key = _interned((x.dtype, x.shape))
        return x.key
    kind = type(x)
    if kind is float or kind is complex:
        return kind
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype, x.shape
    return Static(x, frozen(x))


def _interned(key: tuple[Any, ...]) -> ArrayKey:
    found = _keys.get(key)
    if found is None:
        found = _keys[key] = ArrayKey(key)
    return found
