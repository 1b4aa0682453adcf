"""Machine code of kernels: their keys, which say what they hold, and their compilation when it is not found."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from jitgrad import recording
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import native, tiers
from jitgrad.compiler.cache import KernelCache, kernel_cache
from jitgrad.compiler.emit import emit_kernel
from jitgrad.compiler.emit_rows import pairs_rows
from jitgrad.compiler.kernels import (
    enter_kernel,
    find_kernel,
    function_name,
    lock,
    replace_kernel,
    statistics,
    watchers,
)
from jitgrad.compiler.loopir import Kernel
from jitgrad.compiler.tiers import improver
from jitgrad.config import config, get_num_threads

# The modules that decide what machine code a kernel has: their text is part of every key, so that a cache written by
# another version of them is never read.
_SOURCES = ("emit*.py", "scalar_*.py", "_codegen.py", "llvmir/*.py", "vecmath/*.py")


watchers.append(improver.watch)


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


def load_kernels(kernels: Sequence[Kernel]) -> list[str]:
    """The keys of kernels, all of them loaded; those found neither in memory nor on disk are compiled."""
    keys = [kernel_key(kernel) for kernel in kernels]
    with lock:
        _compile({key: kernel for key, kernel in zip(keys, kernels, strict=True) if find_kernel(key) is None})
    return keys


def _compile(kernels: Mapping[str, Kernel]) -> None:
    """Compile and load kernels, several at a time; with threads, quickly now and well in the background."""
    is_quick = config.quick_start and get_num_threads() > 1
    with recording.span("emit", f"{len(kernels)} kernels"):
        texts = {key: _text(key, kernel, pairs=False) for key, kernel in kernels.items()}
    twice = [key for key, text in texts.items() if is_quick and tiers.may_be_compiled_twice(text)]
    once = [key for key in texts if key not in twice]
    goods = {key: _good_text(key, kernel, texts[key]) for key, kernel in kernels.items()}
    for key, code in zip(once, _compiled([goods[key]() for key in once], map(function_name, once)), strict=True):
        kernel_cache().put(key, code)
        enter_kernel(key, code[function_name(key)])
    names = [f"{function_name(key)}_quick" for key in twice]
    quick = [texts[key].replace(function_name(key), name) for key, name in zip(twice, names, strict=True)]
    for key, name, code in zip(twice, names, _compiled(quick, names, quickly=True), strict=True):
        enter_kernel(key, code[name])
    statistics.compiles += len(texts)
    improve([tiers.Task(goods[key], partial(_replace, key, kernel_cache())) for key in twice])


def _text(key: str, kernel: Kernel, pairs: bool) -> str:
    return str(kernel_module(kernel, function_name(key), pairs))


def _good_text(key: str, kernel: Kernel, quick: str) -> tiers.Text:
    """What is compiled well: rows in pairs, which are the same bits, and twice the code."""
    return partial(_text, key, kernel, pairs=True) if pairs_rows(kernel) else lambda: quick


def improve(tasks: list[tiers.Task]) -> None:
    """Have quick code replaced by good code in the background."""
    improver.add(tasks)


def _compiled(texts: Sequence[str], names: Iterable[str], quickly: bool = False) -> list[native.NativeCode]:
    with recording.span("codegen", f"{len(texts)} kernels{', quickly' * quickly}"):
        codes = native.compile_to_objects(texts, quickly)
    return [native.load_object(code, [name]) for code, name in zip(codes, names, strict=True)]


def _replace(key: str, cache: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [function_name(key)])
    cache.put(key, code)
    return replace_kernel(key, code[function_name(key)]), code[function_name(key)]


def kernel_module(kernel: Kernel, name: str = "kernel", pairs: bool = True) -> ir.Module:
    """The LLVM module of a kernel; without ``pairs`` one that works on each row alone, in half the code."""
    module = ir.Module(name, has_fma())
    emit_kernel(module, kernel, name, vector_bytes(), pairs)
    return module
