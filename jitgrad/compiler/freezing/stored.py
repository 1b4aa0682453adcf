"""Params, keys and plans as plain tuples and bytes: what may be kept, and how it is written; the cache keeps it.

Everything becomes nested tuples of None, bools, ints, floats, strings and bytes, and these become bytes by `marshal`,
in its version 2, whose bytes depend on nothing but the values. Reading that back runs nothing, and is as fast as
reading gets: 20 us for a plan of ten kernels. The format is Python's own and changes with it, so its version is in
every key. A folder in which others may write is never read (machine/cache.py).
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

import numpy as np

from jitgrad.compiler.constants import is_splat, splat, splat_number
from jitgrad.opdef import OpDef, find

_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_VERSION = 2
MOST_BYTES = 1 << 16
"""Arrays of more bytes are not written: only programs whose compilation does not look into them are kept."""


class UnkeptError(Exception):
    """A value that cannot be written."""


ArrayText = Callable[[np.ndarray[Any, Any]], Any]
OtherText = Callable[[Any], Any]


def dump(value: Any) -> bytes:
    """Nested tuples as bytes: equal values have equal bytes, 1, 1.0 and True different ones."""
    return marshal.dumps(value, _VERSION)


def load(data: bytes) -> Any:
    """What `dump` was given."""
    return marshal.loads(data)


# -- params ------------------------------------------------------------------------------------------------------------


def encode(value: Any, of_array: ArrayText | None = None, of_other: OtherText | None = None) -> Any:
    """A param as plain tuples; UnkeptError when that cannot be. ``of_array`` writes arrays that are not one number,
    ``of_other`` what there is no way to read back.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return ("tuple", *[encode(item, of_array, of_other) for item in value])
    if kind is list:
        return ("list", *[encode(item, of_array, of_other) for item in value])
    if kind is dict:
        return ("dict", *[(encode(k, of_array), encode(v, of_array)) for k, v in value.items()])
    if kind is slice:
        return ("slice", *[encode(item, of_array) for item in (value.start, value.stop, value.step)])
    if isinstance(value, np.dtype):
        return ("dtype", _dtype_text(value))
    if isinstance(value, np.generic):
        return ("number", _dtype_text(value.dtype), value.tobytes())
    if kind is np.ndarray:
        if is_splat(value):
            return ("splat", _dtype_text(value.dtype), splat_number(value).tobytes(), value.shape)
        return (of_array or _contents)(value)
    if isinstance(value, type) and issubclass(value, np.generic):
        return ("type", _dtype_text(np.dtype(value)))
    if of_other is not None:
        return of_other(value)
    raise UnkeptError(f"a {kind.__name__}")


def decode(code: Any) -> Any:
    """The param that `encode` was given."""
    if type(code) is not tuple:
        return code
    kind, *rest = code
    match kind:
        case "tuple":
            return tuple(map(decode, rest))
        case "list":
            return list(map(decode, rest))
        case "dict":
            return {decode(k): decode(v) for k, v in rest}
        case "slice":
            return slice(*map(decode, rest))
        case "dtype":
            return np.dtype(rest[0])
        case "type":
            return np.dtype(rest[0]).type
        case "number":
            return np.frombuffer(rest[1], rest[0])[0]
        case "splat":
            return splat(np.frombuffer(rest[1], rest[0])[0], rest[2], np.dtype(rest[0]))
        case "runs":
            repeated = np.repeat(np.frombuffer(rest[1], rest[0]), np.frombuffer(rest[2], np.int64)).reshape(rest[3])
            repeated.flags.writeable = False
            return repeated
    return np.frombuffer(rest[1], rest[0]).reshape(rest[2])  # read-only, as constants are


def encode_params(
    params: Mapping[str, Any], of_array: ArrayText | None = None, of_other: OtherText | None = None
) -> Any:
    """All params of an instruction."""
    return tuple([(name, encode(value, of_array, of_other)) for name, value in params.items()])


def decode_params(code: Any) -> dict[str, Any]:
    """The params that `encode_params` was given."""
    return {name: decode(value) for name, value in code}


def _dtype_text(dtype: np.dtype[Any]) -> str:
    if dtype.kind not in "?biufc" or not dtype.isnative:
        raise UnkeptError(f"the dtype {dtype}")
    return dtype.str


def _contents(array: np.ndarray[Any, Any]) -> Any:
    if array.nbytes > MOST_BYTES:
        raise UnkeptError(f"an array of {array.nbytes} bytes")
    return ("array", _dtype_text(array.dtype), array.tobytes(), array.shape)


def runs_of(array: np.ndarray[Any, Any]) -> Any:
    """An array as plain tuples, a long one by its runs of equal bits: identities, masks and bands are few; UnkeptError
    where they are many.
    """
    if array.nbytes <= MOST_BYTES:
        return _contents(array)
    if array.itemsize not in (1, 2, 4, 8):
        raise UnkeptError(f"an array of {array.nbytes} bytes, of the dtype {array.dtype}")
    flat = np.ravel(array)
    bits = flat.view(f"u{array.itemsize}")
    starts = np.concatenate([[0], np.flatnonzero(bits[1:] != bits[:-1]) + 1])
    if starts.nbytes > MOST_BYTES:
        raise UnkeptError(f"an array of {starts.size} runs")
    counts = np.diff(starts, append=flat.size).astype(np.int64)
    return ("runs", _dtype_text(array.dtype), flat[starts].tobytes(), counts.tobytes(), array.shape)


# -- ops ---------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def op_name(op: OpDef) -> str | None:
    """The name that stands for an op in every process; None for an op that is not jitgrad's own."""
    try:
        is_known = find(op.name) is op
    except KeyError:
        return None
    return op.name if is_known and all(_is_own(part) for part in (op.infer, op.impl)) else None


def _is_own(function: Any) -> bool:
    if isinstance(function, partial):
        return _is_own(function.func)
    module = getattr(function, "__module__", None) or ""
    return module.split(".")[0] in ("jitgrad", "numpy") or isinstance(function, np.ufunc)
