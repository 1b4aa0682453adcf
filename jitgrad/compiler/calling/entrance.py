"""The builtins that take calls by their descriptions (entries.py), and where their machine code comes from: from disk,
else compiled in the background (40 ms) while Python takes the calls; now where nobody has begun it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from jitgrad import conditions, journal
from jitgrad.compiler.calling.entries import Table
from jitgrad.compiler.machine import capi, native
from jitgrad.compiler.machine.cache import KernelCache, cache_key, compile_cached, kernel_cache
from jitgrad.config import config, get_num_threads

_DOC = "The call of a compiled function."
_NAME = "jitgrad_call"


def entrance(table: Table, python: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin that takes the calls that the table describes, and gives all others to ``python``."""
    return capi.builtin("call", _code.address(), _DOC, (python, table.memory))


def is_available() -> bool:
    """Whether the interpreter is one that the builtins are made for: CPython with its lock."""
    return capi.is_cpython() and capi.has_lock()


def is_coming() -> bool:
    """Whether machine code for calls is being made in the background; until then Python takes them."""
    return is_available() and _code.is_coming()


def begin_entrance() -> None:
    """Have machine code for calls before the first is described: where it is not on disk, a thread makes it."""
    if is_available():
        _code.begin()


class _Code:
    """The machine code of the builtins, once in a process."""

    def __init__(self) -> None:
        self._address = 0
        self._has_begun = False

    def address(self) -> int:
        """Where it lies; it is compiled now where nobody has."""
        if not self._address:
            _register_symbols()
            self._address = compile_cached("call", _call_text, [_NAME])[_NAME]
        return self._address

    def is_coming(self) -> bool:
        """Whether it is being made."""
        return self._has_begun and not self._address

    def begin(self) -> None:
        """Have it compiled in the background, unless it is on disk; without a quick start, nothing."""
        is_wanted = config.quick_start and not self._has_begun and not self._address
        if not is_wanted or kernel_cache().has(cache_key("call")):
            return
        self._has_begun = True
        from jitgrad.compiler.machine import tiers

        tiers.improver.add([tiers.Task(partial(str, _call_text()), partial(self._enter, kernel_cache()))])

    def _enter(self, cache: KernelCache, object_code: bytes) -> tuple[int, int]:
        _register_symbols()
        code = native.load_object(object_code, [_NAME])
        cache.put(cache_key("call"), code)
        self._address = code[_NAME]
        return 0, 0


_code = _Code()


def _register_symbols() -> None:
    capi.register_symbols()
    capi.register_arrays()
    native.add_symbol("jitgrad_conditions", conditions.address())
    native.add_symbol("jitgrad_threads_here", id(get_num_threads))
    native.add_symbol("jitgrad_admit", id(journal.admit))


def _call_text() -> str:
    from jitgrad.compiler.calling.call import call_ir
    from jitgrad.compiler.driver.system import host_platform

    return call_ir(host_platform())

