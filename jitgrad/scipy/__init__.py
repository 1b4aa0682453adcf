"""SciPy's names for what its own functions cannot take: traced and eager tensors; SciPy's ufuncs work unchanged.

A function given arrays is SciPy's own. Importing this loads no SciPy, and a part of it when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["fft", "integrate", "linalg", "signal", "special", "stats"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: there are {', '.join(__all__)}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
