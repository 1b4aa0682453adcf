"""What tensors refuse, as they have no value while a function is traced, and why; what they do is in operators.py."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from jitgrad import hints
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


def needs_value(what: str, hint: str) -> Callable[..., Any]:
    """A method that would need a tensor's value."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise traced_value_error(self, what, hint)

    return refuse


def unsupported_method(name: str, detail: str = "") -> UnsupportedOpError:
    """The error for a method of arrays, or an option of one, that tensors do not have."""
    from jitgrad.dispatch import unsupported

    return unsupported(f"the method {name} of an array{detail}")


def refused_method(name: str) -> Callable[..., Any]:
    """A method of arrays that tensors do not have."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise unsupported_method(name)

    return refuse


def is_assignment(frame: FrameType) -> bool:
    """Whether the frame is at ``x[i] = y`` of the user's: not in a call of native code, nor in Python's random."""
    opcode = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return opcode.startswith("STORE") and frame.f_globals.get("__name__") != "random"


def refused_array(self: Any, *args: Any, **kwargs: Any) -> Any:
    """What is there in the place of a value depends on who asks: SciPy, or NumPy, for ``x[i] = y`` or to read."""
    caller = sys._getframe(1)
    is_scipy = caller.f_globals.get("__name__", "").partition(".")[0] == "scipy"
    read = hints.MASK if self.spec.dtype.kind == "b" else hints.ARRAY
    hint = hints.SCIPY if is_scipy else hints.FILLED if is_assignment(caller) else read
    raise traced_value_error(self, "conversion to an array", hint)
