"""The settings of jitgrad: one object, read from the environment, changed by call or for a block; it acts on
nothing but threads.

    JITGRAD_NUM_THREADS=4     threads of a call, the caller included; else the processors this process may use
    JITGRAD_CACHE=0           no machine code on disk
    JITGRAD_CACHE_DIR=path    where it lies; otherwise the user's cache directory
    JITGRAD_LOG=recompile,... topics to write about, on standard error
    JITGRAD_QUICK_START=0     kernels are compiled once, not quickly first and well in the background
    JITGRAD_VERIFY=1          every stage of the compiler is checked before the next one
    JITGRAD_DEBUG_NANS=1      a NaN or an infinity in a result raises, naming the op that made it

`config(num_threads=2)` changes a setting for the process. `with config(num_threads=2):` changes it for the
block, in this thread or task only. Attributes give the values that hold here and now: `config.num_threads`.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, SupportsIndex

import numpy as np

from jitgrad import conditions, eagerness
from jitgrad.records import dataclass

MAX_THREADS = 64
TOPICS = ("recompile", "all")


@dataclass(frozen=True, slots=True)
class Settings:
    """A set of values: threads of a call, whether and where machine code is kept, its bound in bytes, topics
    of the log.
    """

    num_threads: int
    cache: bool
    cache_dir: str | None
    cache_bytes: int
    log: tuple[str, ...]
    verify: bool
    quick_start: bool = True
    debug_nans: bool = False


class _Restorable(Protocol):
    def restore_original_limits(self) -> None: ...


_here: ContextVar[Settings | None] = ContextVar("jitgrad_settings", default=None)


class Config:
    """The settings that hold; calling it changes them. Unknown names and impossible values raise, naming the
    setting.
    """

    def __init__(self) -> None:
        self._base: Settings | None = None

    @property
    def settings(self) -> Settings:
        """All values that hold in this context."""
        return _here.get() or self._of_process()

    def _of_process(self) -> Settings:
        if self._base is None:
            self._set_base(settings_of_environment(os.environ))
            assert self._base is not None
            if "JITGRAD_NUM_THREADS" in os.environ:
                _limit_blas(self._base.num_threads)
        return self._base

    def _set_base(self, settings: Settings) -> None:
        before, self._base = self._base, settings
        conditions.count(conditions.OBSERVERS, settings.debug_nans - (before is not None and before.debug_nans))
        conditions.words[conditions.THREADS] = settings.num_threads
        if before is None or before.debug_nans != settings.debug_nans:
            eagerness.check_values_everywhere(settings.debug_nans)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.settings, name)

    def __call__(self, **changes: Any) -> Change:
        """Change settings of the process; with `with`, of this context until the block ends instead."""
        return Change(self, changes)

    def __repr__(self) -> str:
        return f"config: {self.settings}"


class Change:
    """A change of settings, in force for the process at once; as a context manager in force for its block
    only.
    """

    def __init__(self, config: Config, changes: dict[str, Any]) -> None:
        self._config = config
        self._before = config._of_process()
        self._changes = {name: _checked(name, value) for name, value in changes.items()}
        self._token: Token[Settings | None] | None = None
        self._blas: _Restorable | None = None
        self._listener: Any = None
        settings = replace(self._before, **self._changes)
        config._set_base(settings)
        if "num_threads" in changes:
            self._blas = _limit_blas(settings.num_threads)

    def __enter__(self) -> Settings:
        self._config._set_base(self._before)
        settings = replace(self._config.settings, **self._changes)
        conditions.count(conditions.BLOCKS, 1)
        conditions.count(conditions.OBSERVERS, settings.debug_nans)
        self._token = _here.set(settings)
        self._listener = eagerness.check_values(settings.debug_nans)
        return settings

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        eagerness.set_collector(self._listener)
        conditions.count(conditions.OBSERVERS, -config.debug_nans)
        _here.reset(self._token)
        conditions.count(conditions.BLOCKS, -1)
        if self._blas is not None:
            self._blas.restore_original_limits()


def settings_of_environment(environment: os._Environ[str] | dict[str, str]) -> Settings:
    """The settings that JITGRAD_* variables give; ValueError naming the variable if one makes no sense."""
    text = environment.get("JITGRAD_NUM_THREADS", "")
    threads = _checked("num_threads", _integer("JITGRAD_NUM_THREADS", text)) if text else available_cpus()
    return Settings(
        num_threads=threads,
        cache=_is_on(environment, "JITGRAD_CACHE", "1"),
        cache_dir=environment.get("JITGRAD_CACHE_DIR") or None,
        cache_bytes=512 * 1024 * 1024,
        log=_known_topics(environment.get("JITGRAD_LOG", "")),
        verify=_is_on(environment, "JITGRAD_VERIFY", "0"),
        quick_start=_is_on(environment, "JITGRAD_QUICK_START", "1"),
        debug_nans=_is_on(environment, "JITGRAD_DEBUG_NANS", "0"),
    )


def _is_on(environment: os._Environ[str] | dict[str, str], variable: str, default: str) -> bool:
    return environment.get(variable, default).lower() not in ("0", "false", "no", "off", "")


def available_cpus() -> int:
    """How many processors this process may use, at most `MAX_THREADS`."""
    if hasattr(os, "sched_getaffinity"):
        return min(MAX_THREADS, len(os.sched_getaffinity(0)))
    return min(MAX_THREADS, os.cpu_count() or 1)


def _integer(variable: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} must be a whole number, got {text!r}") from None


def _threads(value: SupportsIndex) -> int:
    threads = operator.index(value)
    if not 1 <= threads <= MAX_THREADS:
        raise ValueError(f"num_threads must be from 1 to {MAX_THREADS}, got {threads}")
    return threads


def _bytes(value: SupportsIndex) -> int:
    nbytes = operator.index(value)
    if nbytes < 0:
        raise ValueError(f"cache_bytes must not be negative, got {nbytes}")
    return nbytes


def _topics(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    topics = _split(value)
    unknown = [topic for topic in topics if topic not in TOPICS]
    if unknown:
        raise ValueError(f"log has {_topics_text(unknown)}")
    return topics


def _topics_text(unknown: list[str]) -> str:
    return f"no topic {', '.join(map(repr, unknown))}; it has {', '.join(TOPICS)}"


def _split(value: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    topics = value.split(",") if isinstance(value, str) else value
    return tuple(topic.strip() for topic in topics if topic.strip())


def _known_topics(text: str) -> tuple[str, ...]:
    """The topics of the environment; unknown ones are warned of: they must not end a program that would run."""
    topics = _split(text)
    unknown = [topic for topic in topics if topic not in TOPICS]
    if unknown:
        warnings.warn(f"JITGRAD_LOG has {_topics_text(unknown)}", stacklevel=2)
    return topics


def _directory(value: str | os.PathLike[str] | None) -> str | None:
    return None if value is None else os.fspath(value)


def _flag(value: Any) -> bool:
    if np.ndim(value) or value not in (False, True):  # "0" would be true
        raise TypeError("it is on or off")
    return bool(value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "num_threads": _threads,
    "cache": _flag,
    "cache_dir": _directory,
    "cache_bytes": _bytes,
    "log": _topics,
    "verify": _flag,
    "quick_start": _flag,
    "debug_nans": _flag,
}


def _checked(name: str, value: Any) -> Any:
    if name not in _CHECKS:
        raise TypeError(f"config has no setting {name!r}; it has {', '.join(_CHECKS)}")
    try:
        return _CHECKS[name](value)
    except TypeError as error:
        raise TypeError(f"config does not take {name}={value!r}: {error}") from None


def _limit_blas(threads: int) -> _Restorable:
    """Tell the BLAS libraries of the process too: the interpreter's products run there."""
    from threadpoolctl import threadpool_limits

    limits: _Restorable = threadpool_limits(threads, user_api="blas")
    return limits


config = Config()
if "JITGRAD_DEBUG_NANS" in os.environ:
    config._of_process()  # eager operations do not ask for a setting


def set_num_threads(n: int) -> None:
    """Use at most `n` threads per call from now on, in the whole process, BLAS included; ValueError unless 1
    <= n <= 64.
    """
    config(num_threads=n)


def get_num_threads() -> int:
    """How many threads a call made here may use, the calling one included."""
    return config.settings.num_threads


def log(topic: str, sentence: str) -> None:
    """Write a sentence about `topic` to standard error if the user asked for that topic."""
    topics = config.settings.log
    if topic in topics or "all" in topics:
        print(f"jitgrad {topic}: {sentence}", file=sys.stderr)
