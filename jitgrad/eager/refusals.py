"""What NumPy refuses, in jitgrad's form: the call, the user's line, what would fit and what was given. It computes
nothing, and is asked only after an error.

Shapes and positions that do not fit are errors of jitgrad's classes, which are ValueErrors and IndexErrors too. Any
other error of NumPy's (LinAlgError, AxisError, what is said of options) stays itself, with a note.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad.advice import advise, advised, call_text, hint_for, named
from jitgrad.dispatch import full_name
from jitgrad.errors import IndexingError, JitgradError, ShapeError, layout
from jitgrad.sources import raised_at
from jitgrad.spec import shape_text

REFUSALS = (ValueError, IndexError, TypeError)
"""What is looked at."""

_OF_SHAPES = ("shape", "dimension", "broadcast", "aligned", "array of size")
_DISPATCHED = type(np.sum)
_MOST = 12  # arguments are shown

Fields = dict[str, str]


class Bound:
    """A function of one array: another with all arguments but the first."""

    __slots__ = ("args", "fn", "kwargs")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.fn, self.args, self.kwargs = fn, args, kwargs

    def __call__(self, x: Any) -> Any:
        return self.fn(x, *self.args, **self.kwargs)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn


def refuse(error: BaseException, fn: Any, *args: Any, **kwargs: Any) -> None:
    """Raise what is to stand in place of an error of a call, if that is another; else give it a note."""
    if isinstance(fn, Bound):
        return refuse(error, fn.fn, *args, *fn.args, **fn.kwargs)
    if isinstance(error, JitgradError):
        return advise(error, str(named.get(fn) or getattr(fn, "__name__", "a function")), args, kwargs)
    if not isinstance(error, REFUSALS) or not _is_of_numpy(fn) or raised_at(error) is not None:
        return None
    call = call_text(_name(fn), args, kwargs)
    if fn is np.insert and type(error) is IndexError:
        raise IndexingError(advised(layout(_beyond(*args, **kwargs), op=call))) from None
    if type(error) is IndexError and "out of bounds" in str(error):
        raise IndexingError(advised(layout(str(error), op=call, **_range(str(error))))) from None
    if type(error) is ValueError and any(word in str(error) for word in _OF_SHAPES):
        headline, fields = _fitting(fn, args)
        raise ShapeError(advised(layout(headline or str(error).strip(), op=call, **fields))) from None
    if not getattr(error, "__notes__", None):
        error.add_note(f"  op: {call}")
        if (hint := hint_for(str(error))) is not None:
            error.add_note(f"  hint: {hint}")
    return None


def _is_of_numpy(fn: Any) -> bool:
    """Whether an error of the function is NumPy's, rather than one of a function of the user's."""
    owner = getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or ""
    return (
        isinstance(fn, np.ufunc | _DISPATCHED) or isinstance(owner, np.ufunc) or fn in named
        or module.startswith(("scipy.", "jitgrad.scipy."))
    )  # fmt: skip


def _name(fn: Any) -> str:
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, np.ufunc):
        return f"{owner.__name__}.{fn.__name__}"
    return named[fn] if fn in named else full_name(fn).removeprefix("numpy.")


def _beyond(arr: Any, obj: Any, values: Any, axis: int | None = None) -> str:
    """Of np.insert, whose own error counts what it has inserted by then."""
    from jitgrad.ops.inserting import beyond

    return beyond(np.size(arr) if axis is None else np.shape(arr)[axis], obj)


# -- what would fit ------------------------------------------------------------------------------------------


def _range(text: str) -> Fields:
    """Of `index 5 is out of bounds for axis 0 with size 2`."""
    found = re.search(r"index (-?\d+) is out of bounds for axis (\d+) with size (\d+)", text)
    if found is None:
        return {}
    given, axis, n = map(int, found.groups())
    return {"expected": f"from {-n} to {n - 1} along axis {axis}" if n else f"nothing: axis {axis} is empty",
            "got": str(given)}  # fmt: skip


def _fitting(fn: Any, args: tuple[Any, ...]) -> tuple[str | None, Fields]:
    """The first sentence and the fields of an error of shapes, where the function is one of which it is known."""
    name = _name(fn)
    if name in ("matmul", "dot") and len(args) == 2:
        return _product(name, *map(np.shape, args))
    if name == "reshape" and len(args) > 1:
        return _reshape(np.shape(args[0]), args[1:])
    if (isinstance(fn, np.ufunc) and fn.signature is None) or name == "power":
        return _broadcast([np.shape(x) for x in args])
    return None, {}


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[str | None, Fields]:
    for k in range(1, max(map(len, shapes)) + 1):
        extents = [shape[-k] for shape in shapes if len(shape) >= k]
        if len(set(extents) - {1}) > 1:
            texts = " and ".join(map(shape_text, shapes))
            return f"operands could not be broadcast together with shapes {texts}", {
                "expected": "extents that are equal, or 1, counted from the last axis",
                "got": f"{' and '.join(map(str, extents))} in axis {-k}",
                "hint": "an axis of extent 1 is made by x[:, None]",
            }
    return None, {}


def _product(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[str | None, Fields]:
    if not a or not b:
        return f"{name} takes no numbers", {
            "expected": "operands of one axis or more", "got": f"{shape_text(a)} and {shape_text(b)}",
            "hint": "x * y multiplies by a number",
        }  # fmt: skip
    rows = b[-2] if len(b) > 1 else b[0]
    if a[-1] == rows:
        return _broadcast([a[:-2], b[:-2]])
    turned = len(b) == 2 and b[-1] == a[-1]
    return f"cannot multiply matrices of shapes {shape_text(a)} and {shape_text(b)}", {
        "expected": f"{a[-1]} rows in the second operand, as the first has columns",
        "got": str(rows),
        "hint": "x @ y.T fits" if turned else "swap or transpose an operand, or reshape it",
    }


def _reshape(old: tuple[int, ...], args: tuple[Any, ...]) -> tuple[str | None, Fields]:
    new = args[0] if isinstance(args[0], tuple | list) else tuple(n for n in args if isinstance(n, int))
    size, fixed = math.prod(old), math.prod(n for n in new[:_MOST] if n != -1)
    is_open = -1 in new
    if len(new) > _MOST or (size % fixed == 0 if is_open and fixed else size == fixed):
        return None, {}
    return f"cannot reshape {shape_text(old)} of {size} elements into {shape_text(tuple(new))}", {
        "expected": f"extents whose product divides {size}" if is_open else f"{size} elements",
        "got": str(fixed),
    }
