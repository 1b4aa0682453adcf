"""Machine code of kernels, found by content: in this process, else in the cache on disk, else compiled."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import native, tiers
from jitgrad.compiler.cache import KernelCache, kernel_cache
from jitgrad.compiler.emit import emit_kernel
from jitgrad.compiler.loopir import Kernel
from jitgrad.compiler.tiers import improver
from jitgrad.config import config, get_num_threads

# The modules that decide what machine code a kernel has: their text is part of every key, so that a cache written by
# another version of them is never read.
_SOURCES = ("emit*.py", "scalar_*.py", "_codegen.py", "llvmir/*.py", "vecmath/*.py")

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_addresses: dict[str, int] = {}


@dataclass(slots=True)
class MachineStatistics:
    """Since the process began: kernels in use, how many were compiled here, how many came from disk."""

    kernels: int = 0
    compiles: int = 0
    disk_hits: int = 0


statistics = MachineStatistics()


@functools.cache
def vector_bytes() -> int:
    """Width of the machine's vector registers in bytes."""
    features = set(native.target_description().replace(",", " ").split())
    if "+avx512f" in features:
        return 64
    return 32 if "+avx" in features else 16


@functools.cache
def has_fma() -> bool:
    """Whether the processor adds a product with one rounding."""
    features = native.target_description().replace(",", " ").split()
    return "+fma" in features or any(feature.startswith(("aarch64", "arm64")) for feature in features)


@functools.cache
def emitter_version() -> str:
    """A hash of the emitter's own source."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for pattern in _SOURCES:
        for file in sorted(folder.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def kernel_key(kernel: Kernel) -> str:
    """What identifies the machine code of a kernel on this kind of machine."""
    content = "\n".join((emitter_version(), native.target_description(), str(vector_bytes()), kernel.text))
    return hashlib.sha256(content.encode()).hexdigest()


def load_kernels(kernels: Sequence[Kernel]) -> list[int]:
    """Addresses of the functions of kernels; those met for the first time are loaded or compiled."""
    keys = [kernel_key(kernel) for kernel in kernels]
    with _lock:
        missing = {key: kernel for key, kernel in zip(keys, kernels, strict=True) if not _is_found(key)}
        _compile(missing)
    return [_addresses[key] for key in keys]


def function_name(key: str) -> str:
    """The symbol of a kernel: from its content, so that it is the same in every process."""
    return f"jitgrad_{key[:32]}"


def _is_found(key: str) -> bool:
    """Whether a kernel is in memory, perhaps since just now, or has to be compiled."""
    if key in _addresses:
        return True
    name = function_name(key)
    stored = kernel_cache().get(key, [name])
    if stored is None:
        return False
    statistics.kernels += 1
    statistics.disk_hits += 1
    _addresses[key] = stored[name]
    return True


def _compile(kernels: Mapping[str, Kernel]) -> None:
    """Compile and load kernels, several at a time; with threads, quickly now and well in the background."""
    texts = {key: str(kernel_module(kernel, function_name(key))) for key, kernel in kernels.items()}
    is_quick = config.quick_start and get_num_threads() > 1
    twice = [key for key, text in texts.items() if is_quick and tiers.may_be_compiled_twice(text)]
    once = [key for key in texts if key not in twice]
    for key, code in zip(once, _compiled([texts[key] for key in once], map(function_name, once)), strict=True):
        kernel_cache().put(key, code)
        _addresses[key] = code[function_name(key)]
    names = [f"{function_name(key)}_quick" for key in twice]
    quick = [texts[key].replace(function_name(key), name) for key, name in zip(twice, names, strict=True)]
    for key, name, code in zip(twice, names, _compiled(quick, names, quickly=True), strict=True):
        _addresses[key] = code[name]
    statistics.kernels += len(texts)
    statistics.compiles += len(texts)
    improver.add([tiers.Task(texts[key], partial(_replace, key, kernel_cache())) for key in twice])


def _compiled(texts: Sequence[str], names: Iterable[str], quickly: bool = False) -> list[native.NativeCode]:
    codes = native.compile_to_objects(texts, quickly)
    return [native.load_object(code, [name]) for code, name in zip(codes, names, strict=True)]


def _replace(key: str, cache: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [function_name(key)])
    cache.put(key, code)
    with _lock:
        old, _addresses[key] = _addresses[key], code[function_name(key)]
    return old, _addresses[key]


def kernel_module(kernel: Kernel, name: str = "kernel") -> ir.Module:
    """The LLVM module of a kernel."""
    module = ir.Module(name, has_fma())
    emit_kernel(module, kernel, name, vector_bytes())
    return module
