"""The kernels of this process by key: found in memory or on disk; they are compiled elsewhere (compilation.py)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jitgrad import recording
from jitgrad.compiler.machine.cache import kernel_cache

if TYPE_CHECKING:
    from numpy.typing import NDArray

lock = threading.RLock()
"""Held while kernels are entered."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
_addresses: dict[str, int] = {}


class _ThreadStatistics(threading.local):
    """Kernels that the thread that asks has had compiled, and that it has read from disk: what others do meanwhile is
    theirs.
    """

    compiles = disk_hits = 0


statistics = _ThreadStatistics()
watchers: list[Callable[[NDArray[np.int64]], None]] = []
"""What is told of records of steps, whose first words are addresses, when they are bound: code may be replaced."""


def function_name(key: str) -> str:
    """The symbol of a kernel: from its content, so that it is the same in every process."""
    return f"jitgrad_{key[:32]}"


def find_kernel(key: str) -> int | None:
    """The address of a kernel that is in memory or on disk; None when it has to be compiled."""
    address = _addresses.get(key)
    if address is not None:
        return address
    with lock:
        name = function_name(key)
        facts: dict[str, bool] = {}
        with recording.span("cache", name, facts):
            stored = kernel_cache().get(key, [name])
            facts["hit"] = stored is not None
        if stored is None:
            return None
        statistics.disk_hits += 1
        return enter_kernel(key, stored[name])


def find_kernels(keys: Sequence[str]) -> list[int] | None:
    """The addresses of kernels; None when one of them has to be compiled."""
    found: list[int] = []
    for key in keys:
        address = find_kernel(key)
        if address is None:
            return None
        found.append(address)
    return found


def enter_kernel(key: str, address: int) -> int:
    """Note a kernel that was loaded or compiled; its address."""
    with lock:
        if key not in _addresses:
            _addresses[key] = address
        return _addresses[key]


def replace_kernel(key: str, address: int) -> int:
    """Note that a kernel has better code; the address that it had."""
    with lock:
        old, _addresses[key] = _addresses[key], address
    return old
