"""Locks in a forked child: a thread that held one in the parent is not there to release it. It makes no process.

So it is with Python's locks of modules that are being imported: who imports such a module in the child waits for ever.
Parts of the package are imported when they are first needed, by any thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from typing import Any

_plain_lock = type(threading.Lock())
_LONGEST_IMPORT = 2.0  # seconds
_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def renew_when_forked(owner: Any) -> None:
    """In a forked child, ``owner._lock`` is a new lock of the same kind.

    For locks that are held long (while something is traced or compiled), over tables that only grow by single
    entries: the child finds the entries that were there.
    """
    _owners.add(owner)


def wait_for_when_forking(lock: threading.RLock) -> None:
    """A fork waits until no other thread holds ``lock``. For locks that are held for a moment."""
    if hasattr(os, "register_at_fork"):
        acquire, release = lock.acquire, lock.release
        os.register_at_fork(before=acquire, after_in_parent=release, after_in_child=release)


def _wait_for_imports() -> None:
    """Wait until no other thread imports a module of the package; at most `_LONGEST_IMPORT`, for the module that is
    being imported may be the caller's own.
    """
    end = time.monotonic() + _LONGEST_IMPORT
    while threading.active_count() > 1 and _is_importing() and time.monotonic() < end:
        time.sleep(1e-3)


def _is_importing() -> bool:
    package = __package__ + "."
    found = [module for name, module in list(sys.modules.items()) if name.startswith(package)]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in found)


def _renew() -> None:
    for owner in list(_owners):
        owner._lock = threading.Lock() if isinstance(owner._lock, _plain_lock) else threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait_for_imports, after_in_child=_renew)
