"""Locks in a forked child: a thread that held one in the parent is not there to release it. It makes no process."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_plain_lock = type(threading.Lock())
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


def _renew() -> None:
    for owner in list(_owners):
        owner._lock = threading.Lock() if isinstance(owner._lock, _plain_lock) else threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
