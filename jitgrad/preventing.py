"""prevent_gradient: a value through which no gradient may go."""

from __future__ import annotations

from typing import Any

from jitgrad.errors import GradientError, layout
from jitgrad.graph import Tensor, apply
from jitgrad.opdef import Elementwise, define
from jitgrad.ops.common import as_tensor, same_spec
from jitgrad.sources import operation_text


def _prevented(g: Tensor, out: Tensor, x: Tensor, *, message: str) -> Any:
    raise prevention(message, op=operation_text(out.op))


def prevention(message: str, **fields: Any) -> GradientError:
    """The error of a gradient that reaches prevent_gradient."""
    return GradientError(
        layout(
            f"a gradient was asked for where prevent_gradient forbids it: {message}",
            **fields,
            hint="leave this value out of what is differentiated, or wrap it in stop_gradient(...)",
        )
    )


prevent_gradient_op = define(
    "prevent_gradient",
    infer=same_spec,
    impl=lambda x, message: x,
    vjp=_prevented,
    kind=Elementwise("identity"),
)


def prevent_gradient(x: Any, message: str = "", name: str | None = None) -> Tensor:
    """``x``; a gradient that reaches it raises GradientError with the message."""
    return apply(prevent_gradient_op, as_tensor(x), name=name, message=message)  # type: ignore[no-any-return]
