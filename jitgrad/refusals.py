"""What needs a tensor's value while a function is traced: answered where constants decide it, else refused, and why.
What tensors do is in operators.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import hints
from jitgrad.askers import asked_by, asked_by_scipy, called_name
from jitgrad.constant_values import constant_value
from jitgrad.errors import JitgradError, LeakedTracerError, TracedValueError, UnsupportedOpError, layout
from jitgrad.sources import closed_message, operation_text, source_text, user_source


def traced_value_error(x: Any, what: str, hint: str) -> JitgradError:
    """The error for code that needs the value of a traced tensor; LeakedTracerError once its trace has ended."""
    x = x.as_graph_element() if hasattr(x, "as_graph_element") else x
    if x.graph.closed_by is not None:
        return LeakedTracerError(closed_message(x.graph, (x,)))
    return TracedValueError(
        layout(
            f"{what} needs the value of {x.name!r}, which is not known while the function is traced",
            op=operation_text(x.op),
            needed=f"at {source_text(user_source())}",
            hint=hint,
        )
    )


def needs_value(name: str, what: str, hint: str) -> Callable[..., Any]:
    """A method that needs a tensor's value: that of NumPy where constants decide it, else an error."""

    def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        value = _known(self)
        if value is None:
            raise traced_value_error(self, what, hint)
        return getattr(value, name)(*args, **kwargs)

    return ask


def _known(x: Any) -> Any:
    """The value that constants decide; None of what is no tensor, but stands for one."""
    return constant_value(x) if hasattr(x, "op") and hasattr(x, "_view") else None


def unsupported_method(name: str, detail: str = "") -> UnsupportedOpError:
    """The error for a method of arrays, or an option of one, that tensors do not have."""
    from jitgrad.dispatch import unsupported

    return unsupported(f"the method {name} of an array{detail}")


def refused_method(name: str) -> Callable[..., Any]:
    """A method of arrays that tensors do not have."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise unsupported_method(name)

    return refuse


_MEMORY = "an array of NumPy has it: return the value from the function and look there"
_ATTRIBUTES = {
    **dict.fromkeys(("strides", "data", "flags", "base", "ctypes", "device", "setflags"), _MEMORY),
    "at": "x[i] = value and x[i] += value assign in place, np.add.at(x, i, value) adds up; on x.copy() x stays",
    "set": "x[i] = value assigns in place",
    "getfield": "x.real and x.imag are the parts of complex numbers",
}


def missing_attribute(x: Any, name: str) -> AttributeError:
    """The error for an attribute that a tensor has not."""
    text = f"{type(x).__name__!r} object has no attribute {name!r}"
    if name in _ATTRIBUTES:
        where = f"at {source_text(user_source())}"
        text = layout(f"a traced array has no .{name}", op=operation_text(x.op), needed=where, hint=_ATTRIBUTES[name])
    return AttributeError(text, name=name, obj=x)


def asked_array(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The value that constants decide: a copy for who wants one, else an array that nobody may write to, since what is
    written to it would not be in the tensor. What is there in its place depends on who asks: SciPy, or NumPy, for
    ``x[i] = y`` or to read.
    """
    value = _known(self)
    if value is not None:
        found = np.array(value, *args, **{**kwargs, "copy": True})
        found.flags.writeable = bool(kwargs.get("copy"))
        return found
    caller = sys._getframe(1)
    if caller.f_globals.get("__name__", "").partition(".")[0] == "scipy":
        what, hint = asked_by_scipy(caller)
    else:
        what, hint = asked_by(caller)
        hint = hints.MASK if hint == hints.TABLE and self.spec.dtype.kind == "b" else hint
    raise traced_value_error(self, what, hint)


def asked_condition(self: Any) -> bool:
    """A condition is the user's, or that of ``max``, ``min`` and ``sorted``, which compare what they are given; where
    constants decide it, it is known.
    """
    value = _known(self)
    if value is not None:
        return bool(value)
    name = called_name(sys._getframe(1))
    if name in ("max", "min", "sorted"):
        raise traced_value_error(self, f"{name}()", hints.EXTREME)
    raise traced_value_error(self, "a condition (if, while, and, or, not)", hints.BRANCH)
