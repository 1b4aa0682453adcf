"""The exception classes, and the one function that lays out a message; it knows nothing of graphs beyond their text."""

from __future__ import annotations

import numpy as np


class JitgradError(Exception):
    """Root of every error that jitgrad raises on purpose."""


class ShapeError(JitgradError, ValueError):
    """Shapes do not fit together."""


class AxisError(ShapeError, np.exceptions.AxisError):
    """An axis that an array does not have; for NumPy's users an AxisError, too."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # NumPy's keeps its first text, to which the line and a hint are added later


class MatrixShapeError(ShapeError, np.linalg.LinAlgError):
    """Arrays that are no matrices, or not square ones; for NumPy's users a LinAlgError, too."""


class OpenExtentError(ShapeError):
    """A number was given that is an extent known only when the graph runs."""


class DTypeError(JitgradError, TypeError):
    """A dtype is not accepted where it stands."""


class GradientError(JitgradError, LookupError):
    """A gradient was asked for that does not exist."""


class IndexingError(JitgradError, IndexError):
    """An index does not fit the array, or is of a kind that indexes nothing."""


class UnwrittenError(IndexingError):
    """An element of a TensorArray was read that has not been written."""


class TracedValueError(JitgradError, TypeError):
    """The value of a traced tensor was needed while only its shape and dtype are known."""


class LeakedTracerError(JitgradError, RuntimeError):
    """A traced tensor was used outside the call that made it, or a tensor met another graph."""


class OtherGraphError(LeakedTracerError, ValueError):
    """A tensor or an operation met a graph that it does not belong to."""


class UnsupportedOpError(JitgradError, NotImplementedError):
    """A NumPy function (or an option of one) that jitgrad cannot trace."""


class ReadOnlyError(JitgradError, ValueError):
    """A write to a view that NumPy gives as read-only."""


class CompileError(JitgradError, RuntimeError):
    """The compiler broke one of its own rules, or the code generator refused its output."""


class NonFiniteError(JitgradError, FloatingPointError):
    """A NaN or an infinity appeared while it was being looked for."""


def layout(what: str, **fields: object) -> str:
    """One sentence, then a line per field, aligned: ``layout("...", op=..., expected=..., got=..., hint=...)``.

    Fields whose value is None are left out.
    """
    shown = {name: str(value) for name, value in fields.items() if value is not None}
    width = max((len(name) for name in shown), default=0) + 1
    lines = [f"  {name + ':':<{width}} {value}" for name, value in shown.items()]
    return "\n".join([what, *lines])


def extended(text: str, **fields: object) -> str:
    """The text of a ``layout`` with further fields, all aligned."""
    what, *lines = text.split("\n")
    if not all(line.startswith("  ") and ":" in line for line in lines):
        return layout(text, **fields)
    given = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return layout(what, **{**given, **fields})


def hint_in(text: str) -> str | None:
    """What a ``layout`` gives as a hint, if it does."""
    _, found, hint = text.partition("\n  hint:")
    return hint.partition("\n")[0].strip() if found else None


def unwritten_error(number: int | None, place: str | None = None) -> UnwrittenError:
    """The error for reading element ``number`` of a TensorArray; None: it is not known which."""
    which = "an element" if number is None else f"element {number}"
    return UnwrittenError(
        layout(f"{which} of a TensorArray is read, and has not been written", needed=place,
               hint="write it first, or fill the whole array with unstack(...)")
    )  # fmt: skip
