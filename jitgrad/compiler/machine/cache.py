"""Machine code and plans kept on disk: files named by the hash of what was compiled. It decides neither what to compile
nor when.

A file is a header (magic, BLAKE2 of all that follows), the key, the names of the functions, and the object
code, or in place of both a plan (freezing/stored.py). It is
written under another name and renamed, so readers see all of it or nothing, and any number of
processes may share a directory. What does not fit its checksum is deleted and compiled again. Object code is
run, so the directory must belong to the user and be writable by nobody else, and so must each file; otherwise
one warning says why, and nothing is kept.

In front of the files lies a table of what this process has loaded. Kernels are small; the table is counted,
not bounded. Finding, checking and loading a kernel of 4 KB takes 0.2 ms, compiling it 6 to 12. This module is imported
when a process starts, so it imports little: neither hashlib nor pathlib, nor platformdirs where the rule is short.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache

from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.native import NativeCode
from jitgrad.compiler.machine.stamp import digest, stamp
from jitgrad.config import config
from jitgrad.records import NamedTuple

_MAGIC = b"jitgrad2"
_DIGEST_BYTES = 32
_SUFFIX = ".kernel"
_PLAN_SUFFIX = ".plan"
_SUFFIXES = (_SUFFIX, _PLAN_SUFFIX)
_LEFTOVER_SECONDS = 3600.0
_KEEP_FRACTION = 0.8
_TOUCH_SECONDS = 24 * 3600.0


class CacheEntry(NamedTuple):
    """One file: its key, size in bytes and time of last use (seconds since 1970, to the day), and what it holds."""

    key: str
    nbytes: int
    used: float
    is_plan: bool = False


class CacheStatistics:
    """Since the process began: found in memory, loaded from disk, not found, found damaged, and written."""

    __slots__ = ("damaged", "disk_hits", "memory_hits", "misses", "stored")

    def __init__(self) -> None:
        self.memory_hits = self.disk_hits = self.misses = self.damaged = self.stored = 0


class KernelCache:
    """Object code by key, in memory and, given a usable directory, on disk."""

    def __init__(self, directory: str | os.PathLike[str] | None, max_bytes: int) -> None:
        self.directory = _usable(os.fspath(directory)) if directory is not None else None
        self.statistics = CacheStatistics()
        self._max_bytes = max_bytes
        self._loaded: dict[str, NativeCode] = {}
        self._nbytes: int | None = None  # of the files, known after the first look at all of them
        self._lock = threading.Lock()
        if sys.platform != "win32":
            os.register_at_fork(after_in_child=self._renew_lock)

    def get(self, key: str, names: Sequence[str] | None = None) -> NativeCode | None:
        """The code stored under `key`, loaded, or None; `names` are functions it has to hold."""
        code = self._loaded.get(key)
        if code is not None:
            self.statistics.memory_hits += 1
            return code
        code = self._read(key, names)
        if code is None:
            self.statistics.misses += 1
            return None
        self.statistics.disk_hits += 1
        return self._loaded.setdefault(key, code)

    def has(self, key: str) -> bool:
        """Whether there is code under `key`, in memory or, sound or not, on disk."""
        return key in self._loaded or (self.directory is not None and os.path.exists(self._path(key, _SUFFIX)))

    def put(self, key: str, code: NativeCode) -> None:
        """Keep code that was just compiled. A disk that cannot be written to is not an error."""
        self._loaded[key] = code
        self._keep(key + _SUFFIX, pack(key, code))

    def get_plan(self, key: str) -> bytes | None:
        """The plan stored under `key` on disk, as it was given to `put_plan`; None when there is none that is sound."""
        if self.directory is None:
            return None
        contents = self._sound(self._path(key, _PLAN_SUFFIX))
        return contents[1] if contents is not None else None

    def put_plan(self, key: str, plan: bytes) -> None:
        """Keep a plan on disk."""
        self._keep(key + _PLAN_SUFFIX, pack_bytes(key, (), plan))

    def drop_plan(self, key: str) -> None:
        """Forget a plan that is of no use: kernels of it are gone."""
        if self.directory is not None:
            self.discard(self._path(key, _PLAN_SUFFIX))

    def _keep(self, name: str, data: bytes) -> None:
        if self.directory is None:
            return
        try:
            nbytes = _write(self.directory, name, data)
        except OSError as error:
            _warn(f"could not keep machine code in {self.directory}: {error}")
            return
        self.statistics.stored += 1
        self._make_room(nbytes)

    def entries(self) -> list[CacheEntry]:
        """The files, longest unused first."""
        found = [
            CacheEntry(_key_of(entry), info.st_size, info.st_mtime, entry.name.endswith(_PLAN_SUFFIX))
            for entry, info in self._files()
        ]
        return sorted(found, key=lambda entry: entry.used)

    def clear(self) -> int:
        """Delete all files; how many there were. Code that is loaded stays in memory, and in use."""
        removed = 0
        for entry, _ in self._files():
            with suppress(OSError):
                os.unlink(entry)
                removed += 1
        self._nbytes = None
        return removed

    def verify(self) -> list[str]:
        """The keys of files that are damaged; they are left alone."""
        return [_key_of(entry) for entry, _ in self._files() if _contents(entry.path) is None]

    def _files(self) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
        for entry in _listed(self.directory, _SUFFIXES) if self.directory is not None else ():
            with suppress(OSError):  # another process may have removed it
                yield entry, entry.stat()

    def _path(self, key: str, suffix: str) -> str:
        assert self.directory is not None
        return os.path.join(self.directory, key + suffix)

    def _read(self, key: str, names: Sequence[str] | None) -> NativeCode | None:
        if self.directory is None:
            return None
        path = self._path(key, _SUFFIX)
        contents = self._sound(path)
        if contents is None:
            return None
        stored, object_code = contents
        try:
            return native.load_object(object_code, names if names is not None else stored)
        except native.LoadError:
            self.discard(path)
            return None

    def _sound(self, path: str) -> tuple[tuple[str, ...], bytes] | None:
        """What a file holds; one that is damaged is deleted, of any other it is noted that it was used."""
        contents = _contents(path)
        if contents is not None:
            _touch(path)
        elif os.path.exists(path):
            self.discard(path)
        return contents

    def discard(self, path: str) -> None:
        """Delete a file that is damaged."""
        self.statistics.damaged += 1
        with suppress(OSError):
            os.unlink(path)

    def _make_room(self, added: int) -> None:
        """Delete the files used longest ago when there are too many bytes, and leftovers of writers."""
        with self._lock:
            if self._nbytes is None:
                self._sweep()
                self._nbytes = sum(entry.nbytes for entry in self.entries())
            else:
                self._nbytes += added
            if self._nbytes <= self._max_bytes or self.directory is None:
                return
            entries = self.entries()  # counted anew: other processes write too
            self._nbytes = sum(entry.nbytes for entry in entries)
            for entry in entries:
                if self._nbytes <= _KEEP_FRACTION * self._max_bytes:
                    break
                with suppress(OSError):
                    os.unlink(self._path(entry.key, _SUFFIXES[entry.is_plan]))
                self._nbytes -= entry.nbytes

    def _sweep(self) -> None:
        assert self.directory is not None
        for entry in _listed(self.directory, ".tmp"):
            with suppress(OSError):
                if time.time() - entry.stat().st_mtime > _LEFTOVER_SECONDS:
                    os.unlink(entry)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def cache_key(name: str) -> str:
    """The key of one of jitgrad's own modules of machine code: it depends on nothing but what made it."""
    return digest(f"{stamp()}\n{name}".encode()).hex()


def compile_cached(name: str, text: Callable[[], str], names: Sequence[str], quickly: bool = False) -> NativeCode:
    """The code of the module ``name``: from memory, from disk, or compiled from what ``text`` gives, perhaps
    ahead, and kept.
    """
    return compile_under(cache_key(name), name, text, names, quickly)


def compile_under(
    key: str, name: str, text: Callable[[], str], names: Sequence[str], quickly: bool = False
) -> NativeCode:
    """The same, kept under a key."""
    cache = kernel_cache()
    code = cache.get(key, names)
    if code is None:
        from jitgrad.compiler.machine import ahead

        code = native.load_object(ahead.take(name, text, quickly), names)
        cache.put(key, code)
    return code


def kernel_cache() -> KernelCache:
    """The cache that the settings of this context ask for."""
    settings = config.settings
    return _open(settings.cache, settings.cache_dir, settings.cache_bytes)


@cache
def _open(enabled: bool, directory: str | None, max_bytes: int) -> KernelCache:
    if not enabled:
        return KernelCache(None, max_bytes)
    return KernelCache(directory or default_directory(), max_bytes)


def default_directory() -> str:
    """The user's folder for caches; on Linux as platformdirs gives it, without the 5 ms that importing that takes."""
    if sys.platform == "linux":
        caches = os.environ.get("XDG_CACHE_HOME", "").strip()
        return os.path.join(caches or os.path.expanduser("~/.cache"), "jitgrad")
    from platformdirs import user_cache_dir

    return user_cache_dir("jitgrad", appauthor=False)


def pack(key: str, code: NativeCode) -> bytes:
    """The contents of a file of machine code."""
    return pack_bytes(key, tuple(code.addresses), code.object_code)


def pack_bytes(key: str, names: tuple[str, ...], data: bytes) -> bytes:
    """The contents of a file."""
    head = "\n".join((key, *names)).encode()
    body = len(head).to_bytes(8, "little") + head + data
    return _MAGIC + digest(body) + body


def unpack(key: str, data: bytes) -> tuple[tuple[str, ...], bytes] | None:
    """Names and data from the contents of a file; None unless everything is as `pack_bytes` left it."""
    start = len(_MAGIC) + _DIGEST_BYTES
    body = data[start:]
    if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : start] != digest(body):
        return None
    end = 8 + int.from_bytes(body[:8], "little")
    stored_key, *names = body[8:end].decode().split("\n")
    return (tuple(names), body[end:]) if stored_key == key else None


def _listed(directory: str, suffixes: str | tuple[str, ...]) -> list[os.DirEntry[str]]:
    """The files with one of these endings, by name; none where there is no such directory."""
    with suppress(OSError), os.scandir(directory) as entries:
        return sorted((e for e in entries if e.name.endswith(suffixes)), key=lambda entry: entry.name)
    return []


def _key_of(path: str | os.DirEntry[str]) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def _contents(path: str) -> tuple[tuple[str, ...], bytes] | None:
    """What a file holds, if it is sound and nobody else may have written it."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:  # a pipe must not stop us
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or not _is_private(info):
                return None
            return unpack(_key_of(path), file.read())
    except OSError:
        return None


def _write(directory: str, name: str, data: bytes) -> int:
    temporary = os.path.join(directory, f"{name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
        os.replace(temporary, os.path.join(directory, name))
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return len(data)


def _touch(path: str) -> None:
    """Note that a file was used, at most once a day."""
    with suppress(OSError):
        if time.time() - os.stat(path).st_mtime > _TOUCH_SECONDS:
            os.utime(path)


def _is_private(info: os.stat_result) -> bool:
    """Whether it belongs to the user and only the user can write to it."""
    if sys.platform == "win32":
        return True
    return info.st_uid == os.geteuid() and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _usable(directory: str) -> str | None:
    """The directory, made if need be; None, with a warning, if code in it could not be trusted or kept."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        info = os.stat(directory)
    except OSError as error:
        _warn(f"the cache directory {directory} cannot be used: {error}")
        return None
    if not _is_private(info):
        _warn(f"the cache directory {directory} is not used: it must be yours, and writable by you alone")
        return None
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        _warn(f"the cache directory {directory} is not used: it cannot be read and written")
        return None
    return directory


_warned = False


def _warn(sentence: str) -> None:
    """Say once per process why machine code is not kept."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(f"{sentence}; compiling works, but anew in every process", RuntimeWarning, stacklevel=2)
