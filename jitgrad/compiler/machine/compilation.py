"""Machine code of kernels: their keys, which say what they hold, and their compilation when it is not found."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from jitgrad import recording
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.loopir.nests import Kernel
from jitgrad.compiler.machine import ahead, native, parts, tiers
from jitgrad.compiler.machine.cache import KernelCache, kernel_cache
from jitgrad.compiler.machine.kernels import (
    enter_kernel,
    find_kernel,
    function_name,
    lock,
    replace_kernel,
    statistics,
    watchers,
)
from jitgrad.compiler.machine.stamp import digest
from jitgrad.compiler.machine.tiers import improver
from jitgrad.config import config
from jitgrad.records import NamedTuple
from jitgrad.spec import DType

# The modules that decide what machine code a kernel has: their text is part of every key, so that a cache written by
# another version of them is never read.
_FOLDERS = ("emission", "llvmir", "vecmath")
_FILES = ("machine/codegen.py", "machine/llvm.py")


_TURN = 1e-3  # seconds

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
def has_avx512() -> bool:
    """Whether the processor has the basic instructions of AVX-512."""
    return "+avx512f" in native.target_description().replace(",", " ").split()


@functools.cache
def divides_slowly() -> bool:
    """Whether the divider takes longer than multiply-adds that divide: of processors with AVX-512 all but AMD's."""
    return has_avx512() and not _is_amds()


def _is_amds() -> bool:
    return " znver" in native.target_description()


@functools.cache
def has_few_buffers() -> bool:
    """Whether each core waits for a dozen lines of memory at a time, whoever asks for them: of processors with AVX-512
    Intel's. On Zen 4 emission/ahead.py found other ways to ask faster; others were not measured.
    """
    return has_avx512() and not _is_amds()


@functools.cache
def multiplies_halves() -> bool:
    """Whether a register of 64 bytes is multiplied as two of 32: one multiply-add begins in a cycle, beside four other
    instructions.
    """
    return has_avx512() and " znver4 " in native.target_description()


@functools.cache
def emitter_version() -> str:
    """A hash of the emitter's own source."""
    compiler = os.path.dirname(os.path.dirname(__file__))
    files = [os.path.join(compiler, file) for file in _FILES]
    for folder in _FOLDERS:
        with os.scandir(os.path.join(compiler, folder)) as entries:
            files += sorted(entry.path for entry in entries if entry.name.endswith(".py"))
    return digest(b"".join(map(_contents, files))).hex()


def _contents(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def kernel_key(kernel: Kernel) -> str:
    """What identifies the machine code of a kernel on this kind of machine."""
    content = "\n".join((emitter_version(), native.target_description(), str(vector_bytes()), kernel.text))
    return digest(content.encode()).hex()


def load_kernels(kernels: Sequence[Kernel]) -> None:
    """Load kernels; those found neither in memory nor on disk are compiled."""
    keys = [kernel_key(kernel) for kernel in kernels]
    with lock:
        _compile({key: kernel for key, kernel in zip(keys, kernels, strict=True) if find_kernel(key) is None})


def begin_kernel(kernel: Kernel) -> str:
    """The key of a kernel, which another thread compiles while the stages are at work, if `load_kernels` would compile
    it.
    """
    key = kernel_key(kernel)
    with lock:
        if key not in _begun and find_kernel(key) is None:
            with recording.span("emit", "1 kernel"):
                module = _begun[key] = _module_of(key, kernel, config.quick_start)
            ahead.begin({module.name: (module.text, module.quickly)})
    return key


def begin_functions(names: Iterable[str], dtype: DType) -> None:
    """Have functions of analysis compiled by other threads that quick code will call, if it is wanted."""
    if config.quick_start:
        with lock:
            parts.begin_functions(_new_module("", True), names, dtype)


def _compile(kernels: Mapping[str, Kernel]) -> None:
    """Compile and load kernels, several at a time; quickly now and well in the background."""
    modules: list[_Module] = []
    with recording.span("emit", f"{len(kernels)} kernels"):
        for key, kernel in kernels.items():
            ahead.begin({m.name: (m.text, m.quickly) for m in modules[-1:]})  # while the next is written
            modules.append(_begun.pop(key) if key in _begun else _module_of(key, kernel, config.quick_start))
    with recording.span("codegen", f"{len(modules)} kernels"):
        called = parts.modules_of([part for module in modules for part in module.calls])
        codes = ahead.compile_all(called | {m.name: (m.text, m.quickly) for m in modules})
    for name, code in zip(called, codes, strict=False):
        parts.load_part(name, code)
    improved: list[tiers.Task] = []
    for (key, kernel), (name, _, quickly, _), code in zip(kernels.items(), modules, codes[len(called) :], strict=True):
        loaded = native.load_object(code, [name])
        enter_kernel(key, loaded[name])
        if quickly:
            improved.append(tiers.Task(partial(_text_beside, key, kernel), partial(_replace, key, kernel_cache())))
        else:
            kernel_cache().put(key, loaded)
    statistics.compiles += len(kernels)
    improve(improved)


class _Module(NamedTuple):
    """A kernel's function, what gives the text of its module, whether that is compiled quickly, and what it calls."""

    name: str
    text: Callable[[], str]
    quickly: bool
    calls: tuple[str, ...]


_begun: dict[str, _Module] = {}  # by the keys of kernels


def _module_of(key: str, kernel: Kernel, is_quick: bool) -> _Module:
    """The module of a kernel; functions that it calls, and that are not there yet, are begun."""
    name = _quick_name(key) if is_quick else function_name(key)
    module = kernel_module(kernel, name, is_quick)
    text = str(module)
    if is_quick and not tiers.may_be_compiled_twice(text):
        return _module_of(key, kernel, False)
    return _Module(name, partial(str, text), is_quick, parts.begin_parts(module))


def _quick_name(key: str) -> str:
    return f"{function_name(key)}_quick"


def _text_beside(key: str, kernel: Kernel) -> str:
    """The text of good code. Whoever waits for the GIL gets it after a millisecond, not after 5."""
    return str(kernel_module(kernel, function_name(key), pause=_giving_way(_TURN)))


def _giving_way(turn: float) -> Callable[[], None]:
    """What gives up the GIL, called at any time, once in so many seconds. More often the writer would starve: beside a
    thread that is busy in Python it waits 5 ms for the GIL each time.
    """
    since = time.perf_counter()

    def pause() -> None:
        nonlocal since
        if time.perf_counter() - since > turn:
            time.sleep(0)
            since = time.perf_counter()

    return pause


def improve(tasks: list[tiers.Task]) -> None:
    """Have quick code replaced by good code in the background."""
    improver.add(tasks)


def _replace(key: str, cache: KernelCache, object_code: bytes) -> tuple[int, int]:
    """Load and keep good code in place of quick code; both addresses."""
    code = native.load_object(object_code, [function_name(key)])
    cache.put(key, code)
    return replace_kernel(key, code[function_name(key)]), code[function_name(key)]


def kernel_module(
    kernel: Kernel, name: str = "kernel", quickly: bool = False, pause: Callable[[], None] | None = None
) -> ir.Module:
    """The LLVM module of a kernel: fast code, or little of it, which is compiled ``quickly`` and calls the functions in
    ``parts``; both give the same bits. ``pause`` is called again and again meanwhile.
    """
    module = _new_module(name, quickly)
    emit_kernel(module, kernel, name, vector_bytes(), pause)
    return module


def _new_module(name: str, quickly: bool) -> ir.Module:
    return ir.Module(
        name, has_fma(), vector_bytes() if quickly else 0, has_avx512(), quickly, divides_slowly(), has_few_buffers()
    )
