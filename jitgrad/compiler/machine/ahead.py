"""Modules that threads compile before they are asked for, while the stages are at work; what they hold, and where
their code goes, is decided elsewhere.

LLVM works without the GIL, so on two processors most of the code of a program is there when its last text is written.
Texts are made before a thread has them: each file that it would import, and each time that it would wait for the
GIL, costs it up to 5 ms beside a thread that is at work. Who asks for a module that nobody has begun compiles it
himself; while he waits for one, he compiles others. Whoever is free takes what lasts longest, so that all are done at
about the same time.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping

from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.firsts import first_calls
from jitgrad.config import get_num_threads

Text = Callable[[], str]

_MOST_WORKERS = 7
_LINGER = 0.02  # seconds that a thread waits for more
_GOOD_AGAINST_QUICK = 3  # times as long

_changed = threading.Condition(threading.Lock())  # of the tables and of who begins a task; held for moments
_busy = tuple(threading.Lock() for _ in range(_MOST_WORKERS))  # held while LLVM works: a fork waits for its end


class _Task:
    """A module, and its object code or error when it is done."""

    __slots__ = ("done", "is_begun", "quickly", "result", "text")

    def __init__(self, text: str, quickly: bool) -> None:
        self.text, self.quickly = text, quickly
        self.is_begun = False
        self.done = threading.Event()
        self.result: bytes | Exception = b""

    def do(self, compiled: Callable[[str, bool], bytes]) -> None:
        """Compile it; the error is raised where the code is taken."""
        try:
            self.result = compiled(self.text, self.quickly)
        except Exception as error:
            self.result = error
        self.done.set()


_tasks: dict[str, _Task] = {}
_workers: set[int] = set()  # the numbers of those that live


def begin(modules: Mapping[str, tuple[Text, bool]]) -> None:
    """Have modules compiled by other threads, as many as a call may use: by name what gives their text, and whether
    quickly. Those that are begun already stay so; with one thread, who takes them compiles them.
    """
    made = {name: _Task(text(), quickly) for name, (text, quickly) in modules.items() if name not in _tasks}
    with _changed:
        for name, task in made.items():
            _tasks.setdefault(name, task)
        _changed.notify_all()
        wanted = min(get_num_threads() - 1, _MOST_WORKERS, sum(not task.is_begun for task in _tasks.values()))
        new = [number for number in range(wanted) if number not in _workers]
        _workers.update(new)
    if new:
        importlib.import_module("jitgrad.compiler.machine.codegen")  # here: beside a busy thread it takes long
    for number in new:
        try:
            threading.Thread(target=_work, args=(number,), name="jitgrad-ahead").start()
        except RuntimeError:  # no more threads: who takes the code compiles it
            _workers.discard(number)


def take(name: str, text: Text, quickly: bool = False) -> bytes:
    """The object code of a module, once: what a thread has begun, else compiled now. RuntimeError for malformed IR."""
    result = _result(name, text, quickly)
    if isinstance(result, Exception):
        raise result
    return result


def compile_all(modules: Mapping[str, tuple[Text, bool]]) -> list[bytes]:
    """The object codes of modules, in order, made by as many threads as a call may use; the first error is raised."""
    texts = {name: (text(), quickly) for name, (text, quickly) in modules.items()}
    longest_first = sorted(texts, key=lambda name: -_weight(*texts[name]))
    begin({name: modules[name] for name in longest_first[1:]})
    done = {name: _result(name, *modules[name]) for name in longest_first}
    codes: list[bytes] = []
    for name in modules:
        result = done[name]
        if isinstance(result, Exception):
            raise result
        codes.append(result)
    return codes


def _result(name: str, text: Text, quickly: bool) -> bytes | Exception:
    with _changed:
        task = _tasks.pop(name, None)
    task = task or _Task(text(), quickly)
    if _is_mine(task):
        task.do(_compiled_here)
    while not task.done.is_set():
        other = _longest()
        if other is None:
            task.done.wait()
        else:
            other.do(_compiled_here)
    return task.result


def _weight(text: str, quickly: bool) -> int:
    """About how long a module takes."""
    return len(text) * (1 if quickly else _GOOD_AGAINST_QUICK)


def _is_mine(task: _Task) -> bool:
    """Whether the caller is the first to begin it."""
    with _changed:
        is_first, task.is_begun = not task.is_begun, True
    return is_first


def _longest() -> _Task | None:
    """The longest task that nobody has begun; the caller has begun it then."""
    with _changed:
        waiting = (task for task in _tasks.values() if not task.is_begun)
        task = max(waiting, key=lambda task: _weight(task.text, task.quickly), default=None)
        if task is not None:
            task.is_begun = True
    return task


def _work(number: int) -> None:
    while _goes_on(number):
        with _busy[number]:
            task = _longest()
            if task is not None:
                task.do(_compiled_beside)


def _goes_on(number: int) -> bool:
    """Whether there is something to do, now, in a moment or while a first call is under way; if not, the thread of that
    number ends. To begin another one takes a millisecond of a busy thread's time.
    """
    with _changed:
        is_wanted = False
        while not is_wanted:
            is_wanted = _changed.wait_for(lambda: any(not t.is_begun for t in _tasks.values()), _LINGER)
            if not first_calls.are_under_way:
                break
        if not is_wanted:
            _workers.discard(number)
    return is_wanted


def _compiled_beside(text: str, quickly: bool) -> bytes:
    return native.compile_beside(text, quickly)


def _compiled_here(text: str, quickly: bool) -> bytes:
    return native.compile_to_object(text, quickly=quickly)


def _before_fork() -> None:
    for lock in _busy:
        lock.acquire()
    _changed.acquire()


def _after_fork() -> None:
    _changed.release()
    for lock in _busy:
        lock.release()


def _after_fork_in_child() -> None:
    """Threads stayed with the parent: what they had begun, who takes it begins anew."""
    _workers.clear()
    for task in _tasks.values():
        task.is_begun = task.done.is_set()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
