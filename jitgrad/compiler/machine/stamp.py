"""What made a compiled program: this package, LLVM, the processor, as one short text, found without importing any.

Part of the key of everything on disk that is looked up before the compiler is loaded. Sources and libraries are known
by name, size and time of change, as Python knows whether a .pyc file is up to date: 330 files take 1.8 ms
(Zen 3), reading them ten times as long. Kernels have keys of their own (compilation.py), made of what the emitter and
LLVM themselves say.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np

from jitgrad.compiler.machine import native

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PARTS = (
    "llvmir", "vecmath", "loopir", "emission", "machine", "fusing", "products", "driver", "calling", "eager_code",
    "bodies", "rules", "clustering", "lowering", "freezing",
)  # fmt: skip
_FOLDERS = ("", "ops", "control", "eager", "scipy", "compiler", *(f"compiler/{part}" for part in _PARTS))
_LIBRARIES = (("llvmlite", "_version.py"), ("llvmlite", "binding"), ("numba", "_version.py"))
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
    facts += [fact for folder in _FOLDERS for fact in _files(os.path.join(_PACKAGE, folder))]
    facts += [fact for library in _LIBRARIES for fact in _library(*library)]
    return digest("\n".join(facts).encode()).hex()


def _library(package: str, part: str) -> Iterator[str]:
    """The version of a library, as a file that every release has anew; or all files of a part of it."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = os.path.join(folder, part)
        with suppress(OSError):
            info = os.stat(path)
            yield from _files(path) if stat.S_ISDIR(info.st_mode) else (_fact(part, info),)


def _files(folder: str) -> list[str]:
    """Sources and libraries in a folder, with size and time of change."""
    entries = [entry for entry in os.scandir(folder) if entry.name.endswith((".py", ".so", ".dll", ".dylib"))]
    return sorted([_fact(entry.name, entry.stat()) for entry in entries])


def _fact(name: str, info: os.stat_result) -> str:
    return f"{name} {info.st_size} {info.st_mtime_ns}"


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
