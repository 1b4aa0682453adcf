"""Checks of what public functions are given that several of them share, in the same words; they know no tensors."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

from jitgrad.errors import layout
from jitgrad.sources import place


def check_function(who: str, fn: object, role: str = "a function", hint: str | None = None) -> None:
    """TypeError unless ``fn`` can be called: most often it is what a function gave, in place of the function."""
    if not callable(fn):
        raise TypeError(
            layout(f"{who} takes {role}, got {reprlib.repr(fn)}", needed=place(),
                   hint=hint or "hand over the function itself, f, not what it gives, f(x)")
        )  # fmt: skip


def one_or_several(what: str, given: Any, kind: Any, words: str) -> Any:
    """``given`` where it is of that kind, else a tuple of such; TypeError, in these words, for anything else."""
    if isinstance(given, kind):
        return given
    entries = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    if not all(isinstance(entry, kind) for entry in entries):
        raise TypeError(f"{what} must be {words}, got {given!r}")
    return entries
