"""What NumPy does about errors of arithmetic, set and put back in a tenth of the time of ``np.errstate``, which makes
that state anew each time and takes as long as NumPy does for ten numbers (0.9 microseconds, Zen 4).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any

import numpy as np

State = tuple[ContextVar[Any], Any]
"""The context variable in which NumPy keeps it, and its value."""


def error_state(**errors: Any) -> State | None:
    """The state that ``np.errstate`` with these arguments sets; None where NumPy keeps it elsewhere."""
    with np.errstate(**errors):
        found = copy_context().items()
    return next(((variable, value) for variable, value in found if variable.name == "numpy.ufunc.extobj"), None)


IGNORED = error_state(all="ignore")


def quiet(run: Callable[..., Any]) -> Callable[..., Any]:
    """The function with NumPy's warnings off."""
    if IGNORED is None:
        return np.errstate(all="ignore")(run)
    variable, off = IGNORED

    def quiet_run(*arrays: Any) -> Any:
        token = variable.set(off)
        try:
            return run(*arrays)
        finally:
            variable.reset(token)

    return quiet_run
