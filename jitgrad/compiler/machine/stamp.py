"""What made a compiled program: this package, LLVM, the processor, as one short text, found without importing any.

Part of the key of everything on disk that is looked up before the compiler is loaded. Sources and libraries are known
by name, size and time of change, as Python knows whether a .pyc file is up to date: 490 files take 0.9 to 1.2 ms of
the system's time (Zen 4), reading them ten times as long. A thread takes that time in a first call, by machine code;
with the interpreter's `stat` it was 2.4 ms. Kernels have keys of their own (compilation.py), made of what the emitter
and LLVM themselves say.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import struct
import sys
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.machine import native
from jitgrad.config import config, get_num_threads

if TYPE_CHECKING:
    from jitgrad.compiler.machine.early import Early

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PARTS = (
    "llvmir", "vecmath", "loopir", "emission", "machine", "fusing", "products", "driver", "calling", "eager_code",
    "bodies", "rules", "clustering", "lowering", "freezing",
)  # fmt: skip
_FOLDERS = ("", "ops", "control", "eager", "scipy", "compiler", *(f"compiler/{part}" for part in _PARTS))
_LIBRARIES = (("llvmlite", "binding"), ("numba",))
_SUFFIXES = (".py", ".so") if sys.platform == "linux" else (".py", ".so", ".dll", ".dylib")
_ROOM = 1 << 17
RECORD_BYTES, NAME_BYTES = 96, 64
"""Of what machine code tells of a file, and of its name in that, with a 0."""
_PROCESSOR_LINES = (b"vendor_id", b"cpu family", b"model", b"stepping", b"cache size", b"flags", b"CPU", b"Features")
_PROCESSOR_BYTES = 8192


def _hash_function() -> Any:
    """BLAKE2b, from the interpreter itself where that has it: importing hashlib loads OpenSSL, 3 ms."""
    try:
        return importlib.import_module("_blake2").blake2b
    except ImportError:
        return importlib.import_module("hashlib").blake2b


def digest(data: bytes) -> bytes:
    """32 bytes that tell data apart, whoever made them."""
    made: bytes = _hash_function()(data, digest_size=32).digest()
    return made


@lru_cache(maxsize=1)
def stamp() -> str:
    """The same in every process that would compile a program to the same code."""
    facts = [sys.version, np.__version__, *_settings(), processor()]
    return digest("\n".join(facts).encode() + (_look_begun() or _looks(_folders()))).hex()


def begin_stamp() -> None:
    """Have a thread look at the files, if that is machine code, for a stamp that is asked for in a moment."""
    if stamp.cache_info().currsize or _begun or not config.cache or get_num_threads() == 1:
        return
    code = _early()
    if code is None or code.look is None:
        return
    look = _Look()
    with suppress(RuntimeError):  # no more threads: who asks looks himself
        start_new_thread(look.do, (_folders(),))
        _begun.append(look)


class _Look:
    """What a thread looks at, and found; and what it does afterwards, as long as it takes more."""

    def __init__(self) -> None:
        self.found = b""
        self.is_going_on = allocate_lock()
        self.is_going_on.acquire()
        self._afterwards: list[Callable[[], object]] | None = []
        self._lock = allocate_lock()

    def do(self, folders: Sequence[str]) -> None:
        """The life of the thread."""
        try:
            with suppress(OSError):  # it comes again where the stamp is asked for
                self.found = _looks(folders)
        finally:
            self.is_going_on.release()
            for work in self._rest():
                work()

    def _rest(self) -> Sequence[Callable[[], object]]:
        """What it does afterwards; from now on it takes nothing more."""
        with self._lock:
            taken, self._afterwards = self._afterwards, None
            return taken or ()

    def takes(self, work: Callable[[], object]) -> bool:
        """Whether the thread does this, too, after its look."""
        with self._lock:
            if self._afterwards is not None:
                self._afterwards.append(work)
            return self._afterwards is not None


_begun: list[_Look] = []


def do_after_look(work: Callable[[], object]) -> bool:
    """Have the thread that looks at files do something afterwards; False where there is none that would.

    A thread of its own, which waited for the look, was woken where the caller had waited for it, too: with a processor
    idle, one of them stood in line until the system's next tick, up to 5 ms of a first call of 20.
    """
    return any(look.takes(work) for look in [*_begun])


def wait_for_look() -> None:
    """Return when no thread is looking at files."""
    for look in [*_begun]:
        with look.is_going_on:
            pass


def forget_look() -> None:
    """Have the next stamp look for itself: the call that had a thread look is over, and files may change."""
    _begun.clear()


def _look_begun() -> bytes:
    """What a thread has found; nothing where there was none."""
    wait_for_look()
    with suppress(IndexError):  # nobody has begun, or another thread has it
        return _begun.pop().found
    return b""


def _folders() -> list[str]:
    """All whose files decide about code."""
    ours = [os.path.join(_PACKAGE, folder) for folder in _FOLDERS]
    return [*ours, *[folder for library in _LIBRARIES for folder in _folders_of(*library)]]


def _folders_of(package: str, *parts: str) -> list[str]:
    """The folder of a library, with the version in a file that every release has anew, and others in it."""
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    folders = [folder for root in roots for folder in (root, *[os.path.join(root, part) for part in parts])]
    return list(filter(os.path.isdir, folders))


def _looks(folders: Sequence[str]) -> bytes:
    """Size, time of change, folder and name of each source and library in folders, whatever order a system lists them
    in: by machine code where that is at hand and can look at all of them, else by the interpreter.
    """
    records = _by_machine_code(folders)
    if records is None:
        records = [record for number, folder in enumerate(folders) for record in _records(number, folder)]
    return b"".join(sorted(records))


def _by_machine_code(folders: Sequence[str]) -> list[bytes] | None:
    code = _early()
    if code is None or code.look is None:
        return None
    found = ctypes.create_string_buffer(_ROOM)
    nbytes = code.look(b"".join([os.fsencode(folder) + b"\0" for folder in folders]), len(folders), found, _ROOM)
    if nbytes < 0:
        return None
    told = ctypes.string_at(found, nbytes)
    return [told[at : at + RECORD_BYTES] for at in range(0, nbytes, RECORD_BYTES)]


def _records(number: int, folder: str) -> list[bytes]:
    """A file that cannot be looked at counts as none: an editor's lock is a link to nothing."""
    records = []
    for entry in os.scandir(folder):
        if entry.name.endswith(_SUFFIXES):
            with suppress(OSError):
                records.append(_record(number, entry))
    return records


def _early() -> Early | None:
    """Machine code that needs no stamp; its module takes the cache, which takes this one."""
    from jitgrad.compiler.machine.early import early

    return early()


def _record(number: int, entry: os.DirEntry[str]) -> bytes:
    info = entry.stat()
    numbers = struct.pack("=qqqq", info.st_size, *divmod(info.st_mtime_ns, 10**9), number)
    return numbers + (os.fsencode(entry.name) + b"\0").ljust(NAME_BYTES, b"\0")


def _settings() -> list[str]:
    """Settings of Numba's that may change its code."""
    return sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("NUMBA_"))


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor with its instruction sets: as Linux describes the first one; else as LLVM does."""
    try:
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(_PROCESSOR_BYTES)
    except OSError:
        return native.target_description()
    lines = text.partition(b"\n\n")[0].split(b"\n")
    told = [line for line in lines if line.startswith(_PROCESSOR_LINES)]
    return b"\n".join(told).decode(errors="replace") if told else native.target_description()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begun.clear)
