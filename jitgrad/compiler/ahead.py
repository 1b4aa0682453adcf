"""Modules that a thread compiles before they are asked for, while the stages are at work; what they hold, and where
their code goes, is decided elsewhere.

LLVM works without the GIL, so on two processors most of the code of our own products is there when the stages are
done. Texts are made before the thread begins: each file that it would import, and each time that it would wait for the
GIL, costs it up to 5 ms beside a thread that is at work. Who asks for a module that nobody has begun compiles it
himself; while he waits for one, he compiles others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from jitgrad.compiler import native

Text = Callable[[], str]

_lock = threading.Lock()  # of the table and of who begins a task; held for moments
_busy = threading.Lock()  # held while LLVM works in a thread of ours: a fork waits for its end


class _Task:
    """A module, and its object code or error when it is done."""

    __slots__ = ("done", "is_begun", "quickly", "result", "text")

    def __init__(self, text: str, quickly: bool) -> None:
        self.text, self.quickly = text, quickly
        self.is_begun = False
        self.done = threading.Event()
        self.result: bytes | Exception = b""

    def is_mine(self) -> bool:
        """Whether the caller is the first to begin it."""
        with _lock:
            is_first, self.is_begun = not self.is_begun, True
        return is_first

    def do(self, compiled: Callable[[str, bool], bytes]) -> None:
        """Compile it; the error is raised where the code is taken."""
        try:
            self.result = compiled(self.text, self.quickly)
        except Exception as error:
            self.result = error
        self.done.set()


_tasks: dict[str, _Task] = {}


def begin(modules: Mapping[str, tuple[Text, bool]]) -> None:
    """Have modules compiled by a thread, in order: by name what gives their text, and whether quickly. Those that are
    begun already stay so.
    """
    made = {name: _Task(text(), quickly) for name, (text, quickly) in modules.items() if name not in _tasks}
    with _lock:
        new = {name: task for name, task in made.items() if name not in _tasks}
        _tasks.update(new)
    if new:
        with suppress(RuntimeError):  # no more threads: who takes the code compiles it
            threading.Thread(target=_work, args=(tuple(new.values()),), name="jitgrad-ahead").start()


def take(name: str, text: Text, quickly: bool = False) -> bytes:
    """The object code of a module, once: what a thread has begun, else compiled now. RuntimeError for malformed IR."""
    with _lock:
        task = _tasks.pop(name, None)
    task = task or _Task(text(), quickly)
    if task.is_mine():
        task.do(_compiled_here)
    while not task.done.is_set():
        other = next((other for other in tuple(_tasks.values()) if not other.is_begun), None)
        if other is None:
            task.done.wait()
        elif other.is_mine():
            other.do(_compiled_here)
    if isinstance(task.result, Exception):
        raise task.result
    return task.result


def _work(tasks: tuple[_Task, ...]) -> None:
    for task in tasks:
        with _busy:
            if task.is_mine():
                task.do(native.compile_ahead)


def _compiled_here(text: str, quickly: bool) -> bytes:
    return native.compile_to_object(text, quickly=quickly)


def _before_fork() -> None:
    _busy.acquire()
    _lock.acquire()


def _after_fork() -> None:
    _lock.release()
    _busy.release()


def _after_fork_in_child() -> None:
    """Threads stayed with the parent: what they had begun, who takes it begins anew."""
    for task in _tasks.values():
        task.is_begun = task.done.is_set()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
