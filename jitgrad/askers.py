"""Who asks a traced tensor for its value: what the user's line does there, as code tells it, and what to do instead.

NumPy asks a tensor for an array without saying why. The instruction that runs then says it, and the text of the call.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import re
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


_ASSIGNING = frozenset(("__setitem__", "setitem"))  # a method, and a function of Python's operator

# Of SciPy's functions that jitgrad has not, what does the same.
_INSTEAD = {"integrate.solve_ivp": "integrate.odeint"}


def asked_by(frame: FrameType) -> tuple[str, str]:
    """What needs the array, ``np.full()`` or ``an index into an array of NumPy``, and what to do in its place."""
    if _module(frame).startswith("numpy"):
        frame = _entered(frame, "numpy")
        if frame.f_back is not None and _module(frame.f_back).startswith("scipy"):
            return asked_by_scipy(frame.f_back)
        return _in_numpy(frame.f_code.co_name)
    if _module(frame).startswith("jitgrad"):
        return "conversion to an array", hints.LISTED
    if is_assignment(frame):
        return "conversion to an array", hints.FILLED
    if _opcode(frame).startswith("BINARY") and isinstance(_expression(frame), ast.Subscript):
        return "an index into an array of NumPy", hints.TABLE
    name = called_name(frame)
    if name is None or not name.replace(".", "").isidentifier():
        return "conversion to an array", hints.ARRAY
    return f"{name}()", _hint(name, frame)


def asked_by_scipy(frame: FrameType) -> tuple[str, str]:
    """What needs the array, ``scipy.stats.gamma.logsf()``, and what jitgrad has in its place."""
    frame = _entered(frame, "scipy")
    user = frame.f_back
    path = None if user is None else _path_in_scipy(called_name(user), user)
    if path is None:
        return "conversion to an array", hints.SCIPY
    return f"scipy.{path}()", _own_of(path)


def _path_in_scipy(name: str | None, frame: FrameType) -> str | None:
    """``stats.norm.pdf`` for what a line calls ``st.norm.pdf``, or ``norm(0, 1).pdf``; None where it is no such."""
    first, *rest = re.sub(r"\([^()]*\)", "", name or "").split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    if isinstance(value, ModuleType):
        path = [*value.__name__.split("."), *rest]
    else:  # a function, a distribution of a private module, or its method
        module = getattr(value, "__module__", None) or ""
        owner = [name] if (name := getattr(getattr(value, "__self__", None), "name", "")) else []
        path = [*module.split(".")[:2], *owner, getattr(value, "__name__", getattr(value, "name", "")), *rest]
    return ".".join(path[1:]) if path[0] == "scipy" and len(path) > 2 and all(path) else None


def _own_of(path: str) -> str:
    """What to use for a function of SciPy's of that path."""
    import jitgrad.scipy as like_scipy

    module, first, *rest = path.split(".")
    own = getattr(like_scipy, module, None) if module in like_scipy.__all__ else None
    has_own = first in getattr(own, "__all__", ()) and (not rest or rest[0] in vars(getattr(own, first)))
    if has_own:
        return f"use jitgrad.scipy.{path}, which takes what SciPy's does, and traced values"
    instead = _INSTEAD.get(path)
    made = f"use jitgrad.scipy.{instead}" if instead else "write it with NumPy's functions"
    return (
        f"jitgrad.scipy has none for traced values: {made}, or wrap it in jg.py_func(fn, inputs, dtypes), which has "
        "no gradient"
    )


def is_assignment(frame: FrameType) -> bool:
    """Whether the frame is at ``x[i] = y`` of the user's: not in a call of native code, nor in Python's random."""
    return _opcode(frame).startswith("STORE") and frame.f_globals.get("__name__") != "random"


def may_assign(frame: FrameType) -> bool:
    """Whether the frame is at ``x[i] = y``, or in code that names what does the same: ``x.__setitem__(i, y)``."""
    return is_assignment(frame) or not _ASSIGNING.isdisjoint(frame.f_code.co_names)


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


def _entered(frame: FrameType, library: str) -> FrameType:
    """The outermost of a library's frames below the user's: the function that the user called."""
    while frame.f_back is not None and _module(frame.f_back).startswith(library):
        frame = frame.f_back
    return frame


def _opcode(frame: FrameType) -> str:
    """The instruction that the frame is at; in a call of Python code that is the last of the entries behind it."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]]


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
