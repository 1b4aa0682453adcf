"""Source lines and the texts that tell of them: where in the user's code something was made, and how operations and
their params read in messages; it builds nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.errors import layout

if TYPE_CHECKING:
    from jitgrad.graph import Graph, Operation, Tensor

# Frames in these places are not the user's: this package, the Python parts of NumPy and SciPy that call it, and what
# enters its scopes.
_libraries = os.path.dirname(os.path.dirname(os.path.abspath(np.__file__)))
_not_the_users = (
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    *(os.path.join(_libraries, name) + os.sep for name in ("numpy", "scipy")),
    contextlib.__file__,
)
Source = tuple[str, int]


class _LibraryFiles(dict[str, bool]):
    """File name → whether it is of this package, NumPy or SciPy; each is looked at once."""

    def __missing__(self, name: str) -> bool:
        self[name] = found = name.startswith(_not_the_users)
        return found


_is_library = _LibraryFiles()
_sources: dict[Source, Source] = {}  # each place once: many operations come from the same


def user_source() -> Source:
    """File and line of the innermost frame outside this package, NumPy and SciPy."""
    frame = sys._getframe(1)
    while _is_library[frame.f_code.co_filename] and frame.f_back is not None:
        frame = frame.f_back
    source = (frame.f_code.co_filename, frame.f_lineno)
    return _sources.setdefault(source, source)


def place() -> str:
    """``at model.py:12``: the user's line that is running."""
    return f"at {source_text(user_source())}"


_SIGNS = str.maketrans("", "", "_.-/")


def checked_name(name: str) -> str:
    """``name``; ValueError unless it is made of letters, digits and ``_ . - /``, TypeError unless it is a string."""
    if not isinstance(name, str):
        raise TypeError(layout(f"a name is a string or None, got {name!r}", needed=place()))
    rest = name.translate(_SIGNS)
    if not name or (rest and not rest.isalnum()):
        raise ValueError(
            layout(f"{name!r} cannot be the name of an operation", needed=place(),
                   hint="use letters, digits and _ . - /")
        )  # fmt: skip
    return name


def raised_at(error: BaseException) -> Source | None:
    """File and line of the innermost frame outside this package, NumPy and SciPy that the error came through."""
    found, place = None, error.__traceback__
    while place is not None:
        name = place.tb_frame.f_code.co_filename
        is_library = _is_library[name] or name.endswith(".pyx")
        found = found if is_library else (name, place.tb_lineno)
        place = place.tb_next
    return found


def source_text(source: Source | None) -> str:
    """``classify.py:41``."""
    return "an unknown place" if source is None else f"{os.path.basename(source[0])}:{source[1]}"


def foreign_message(element: Tensor | Operation) -> str:
    """The text for an element that is of another graph than what it met."""
    op: Any = getattr(element, "op", element)
    if op.graph.closed_by is not None:
        return closed_message(op.graph, (op.outputs[0],) if op.outputs else ())
    return layout(
        f"{'operation' if op is element else 'tensor'} {element.name!r} belongs to another graph",
        op=operation_text(op),
        hint="build the whole computation in one graph, or pass the value in as an argument or a feed",
    )


def closed_message(graph: Graph, inputs: Sequence[Tensor]) -> str:
    """The text for a traced tensor that outlived its trace."""
    name = inputs[0].name if inputs else "a tensor"
    return layout(
        f"traced tensor {name!r} was used after the call that traced it had ended",
        op=operation_text(inputs[0].op) if inputs else None,
        traced=graph.closed_by,
        hint="return the value from the function instead of keeping it in a global, an attribute or a closure",
    )


def operation_text(op: Operation) -> str:
    """``argmax_1 = argmax(logits, axis=1) : i64[32]    made at classify.py:41``."""
    args = [x.op.name for x in op.inputs] + [f"{key}={param_text(value)}" for key, value in op.params.items()]
    specs = ", ".join(str(t.spec) for t in op.outputs)
    return f"{op.name} = {op.type}({', '.join(args)}) : {specs}    made at {source_text(op.source)}"


def param_text(value: Any) -> str:
    """A param in one short word: scalars and tuples as they are, arrays by their spec."""
    if isinstance(value, np.ndarray):
        return repr(value.flat[0].item()) if value.size and not any(value.strides) else f"<array {list(value.shape)}>"
    if isinstance(value, np.dtype):
        return value.name
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return repr(value)


def function_name(fn: Any) -> str:
    """The name of a function, of its type where it has none."""
    return getattr(fn, "__name__", type(fn).__name__)
