"""Who asks a traced tensor for its value: what the user's line does there, as code tells it, and what to do instead.

NumPy asks a tensor for an array without saying why. The instruction that runs then says it, and the text of the call.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
from types import FrameType, ModuleType

import numpy as np

from jitgrad import hints

# Of NumPy's functions that need a number, or that draw one, by the last part of their names.
_HINTS = {
    "arange": hints.COUNT,
    "take": hints.TABLE,
    "shuffle": hints.SHUFFLE,
    "permutation": hints.SHUFFLE,
    "choice": hints.SHUFFLE,
}


def asked_by(frame: FrameType) -> tuple[str, str]:
    """What needs the array, ``np.full()`` or ``an index into an array of NumPy``, and what to do in its place."""
    if _module(frame).startswith("numpy"):
        return _in_numpy(_entered(frame).f_code.co_name)
    if is_assignment(frame):
        return "conversion to an array", hints.FILLED
    if _opcode(frame).startswith("BINARY") and isinstance(_expression(frame), ast.Subscript):
        return "an index into an array of NumPy", hints.TABLE
    name = called_name(frame)
    if name is None or not name.replace(".", "").isidentifier():
        return "conversion to an array", hints.LISTED if _module(frame).startswith("jitgrad") else hints.ARRAY
    return f"{name}()", _hint(name, frame)


def is_assignment(frame: FrameType) -> bool:
    """Whether the frame is at ``x[i] = y`` of the user's: not in a call of native code, nor in Python's random."""
    return _opcode(frame).startswith("STORE") and frame.f_globals.get("__name__") != "random"


def called_name(frame: FrameType) -> str | None:
    """``np.arange`` where the frame is in a call that is written so; None elsewhere, and where no source is found."""
    if not _opcode(frame).startswith("CALL"):
        return None
    call = _expression(frame)
    return ast.unparse(call.func) if isinstance(call, ast.Call) else None


def _in_numpy(name: str) -> tuple[str, str]:
    """What is said of a function by whose own Python code a list, or a traced value, is made an array."""
    if name.startswith("__"):
        return "conversion to an array", hints.LISTED
    return (f"np.{name}()", _function_hint(name)) if hasattr(np, name) else (f"{name}()", hints.LISTED)


def _hint(name: str, frame: FrameType) -> str:
    """What to do in place of a call that is written so: a function of a module, or a method."""
    module, _, last = name.rpartition(".")
    if last in _HINTS:
        return _HINTS[last]
    if module.endswith("random"):
        return hints.DRAW
    is_function = isinstance(frame.f_globals.get(module), ModuleType) and hasattr(np, last)
    return _function_hint(last) if is_function else hints.ARRAY


def _function_hint(name: str) -> str:
    import jitgrad.numpy as like_numpy

    if name in _HINTS:
        return _HINTS[name]
    if getattr(like_numpy, name) is not getattr(np, name):
        return f"use jitgrad.numpy.{name}, which takes what np.{name} does, and traced values"
    return hints.LISTED


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _entered(frame: FrameType) -> FrameType:
    """The outermost of NumPy's frames below the user's: the function that the user called."""
    while frame.f_back is not None and _module(frame.f_back).startswith("numpy"):
        frame = frame.f_back
    return frame


def _opcode(frame: FrameType) -> str:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]]


def _expression(frame: FrameType) -> ast.expr | None:
    """The expression that the frame is at, as it is written; None where it cannot be read."""
    positions = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, last, start, end = next(positions, (None,) * 4)
    if line is None or last is None or start is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, k).encode() for k in range(line, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:
        return None
