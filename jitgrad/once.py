"""What a process has one of, made when it is first asked for; not what is kept by a key (functools does that)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import update_wrapper
from typing import Generic, TypeVar

from jitgrad.forking import renew_when_forked

T = TypeVar("T")


class Once(Generic[T]):
    """A function without parameters that is called once. There is one result, also where several threads ask first at
    the same time, each of which `functools.cache` would give its own: two pools of workers, or two counts of who has
    put BLAS on one thread.

    ``made`` holds the result, if there is one. A child that is forked while another thread makes it makes its own.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        update_wrapper(self, make)
        self._make = make
        self._lock = threading.RLock()
        self.made: list[T] = []
        renew_when_forked(self)

    def __call__(self) -> T:
        if not self.made:
            with self._lock:
                if not self.made:
                    self.made.append(self._make())
        return self.made[0]
