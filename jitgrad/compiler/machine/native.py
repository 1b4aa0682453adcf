"""From LLVM IR to callable machine code, and from stored object code back to it; not the writer of the IR,
nor the cache.

Two roads lead to a function address, and they share their second half:

* `compile_module`: IR → LLVM's code generator, with a light pass pipeline → object code → `load_object`;
* `load_object`: object code (fresh, or from the disk cache) → the loader in elf.py → addresses; or, where that loader
refuses, an MCJIT engine. So a process that finds all its kernels in the cache does not open LLVM's library (39 ms),
and only code that calls functions of Numba's imports that (170 ms).

Why not Numba's own pipeline: the IR that arrives here is vectorised already, so function passes, a cheap and
a full module pipeline with the loop vectoriser find nothing to do. Loops over <16 x float> with a masked
tail, AVX-512, milliseconds after the IR was parsed and run time of a loop over 4096 elements:

    functions x operations              1 x 20     1 x 100     4 x 100     4 x 300
    Numba's pipeline, opt + emit        13.1       26.8        90          243       3.9   9.6   9.4   32.3 us
    LLVM's O1 (no vectorise, no unroll)  8.6       19.7        65          179       4.0   9.5   9.5   32.9 us
    the passes below                     5.2       12.0        35           92       4.0   9.7   9.7   33.1 us
    load_object alone                    0.15       0.22        0.45         1.0

On value-and-gradient of a GELU, a layer norm and a softmax loss (busy machine): 77, 32, 48 ms instead of 311,
161, 275, and the same run times. The rest is instruction selection and register allocation. What the light
pipeline does not do is move loop-invariant memory reads out of loops: the writer of the IR puts them in
front.

IR is best handed over as text. Written with f-strings, vector constants as `splat (float 1.0)`, it takes
(build + parse) 0.37, 1.2, 4.6 and 12.9 ms in the four cases; as llvmlite.ir objects (build + str + parse)
3.4, 14, 53 and 145 ms.

Floating point: no pass may contract, reassociate or assume the absence of NaN unless an instruction's own
flags say so (LLVM fuses only what is marked `contract`), and nothing here touches the processor's denormal
flags.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jitgrad.compiler.machine import elf

if TYPE_CHECKING:
    import llvmlite.ir as ir

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class LoadError(RuntimeError):
    """Object code that is not for this machine, or that lacks a function it should hold."""


class NativeCode:
    """Machine code in memory: the object code it was loaded from, and the address of each exported function.

    The memory is never given back, so addresses stay valid.
    """

    __slots__ = ("addresses", "object_code")

    def __init__(self, object_code: bytes, addresses: Mapping[str, int]) -> None:
        self.object_code = object_code
        self.addresses = addresses

    def __getitem__(self, name: str) -> int:
        return self.addresses[name]


def compile_module(
    module: ir.Module | str, names: Iterable[str], link: Sequence[Any] = (), quickly: bool = False
) -> NativeCode:
    """Compile a module, given as text or as llvmlite.ir objects, and load it.

    `names` are the functions whose addresses are wanted; each must be unique in the process for its content
    (names made from a hash of the kernel are). `link` holds Numba code libraries whose functions the module
    calls. Code that is compiled ``quickly`` takes longer to run. Raises RuntimeError with LLVM's message for
    malformed IR.
    """
    return load_object(compile_to_object(module, link, quickly), names)


def compile_to_object(module: ir.Module | str, link: Sequence[Any] = (), quickly: bool = False) -> bytes:
    """Compile a module to relocatable object code for this machine, without loading it."""
    if not link:
        with _lock:
            return compile_beside(str(module), quickly)
    from numba.core.compiler_lock import global_compiler_lock

    from jitgrad.compiler.machine import codegen as _codegen

    with _lock, global_compiler_lock:
        return _codegen.linked_code(str(module), link)


def compile_beside(text: str, quickly: bool = False) -> bytes:
    """Compile a module while others may be compiled in other threads. The caller sees to it that no fork comes
    between.
    """
    from jitgrad.compiler.machine import codegen as _codegen

    return _codegen.object_code(text, _codegen.QUICK if quickly else _codegen.GOOD)


def load_object(object_code: bytes, names: Iterable[str]) -> NativeCode:
    """Load object code made by `compile_to_object` on such a machine; LoadError if a name is not in it."""
    wanted = tuple(names)
    with _lock:
        addresses = _load_without_llvm(object_code)
        if addresses is None:
            addresses = _load_with_llvm(object_code, wanted)
    missing = [name for name in wanted if not addresses.get(name)]
    if missing:
        raise LoadError(f"object code of {len(object_code)} bytes holds no function {', '.join(missing)}")
    return NativeCode(object_code, MappingProxyType({name: addresses[name] for name in wanted}))


def _load_without_llvm(object_code: bytes) -> dict[str, int] | None:
    if not elf.is_supported():
        return None
    try:
        return elf.load_elf(object_code, lambda name: _symbol(name) or elf.find_symbol(name))
    except elf.RefusedError:
        return None


def _load_with_llvm(object_code: bytes, names: Sequence[str]) -> dict[str, int]:
    import llvmlite.binding as llvm

    engine = _engine()
    for name in set(_symbols).difference(names):
        if name.encode() in object_code:  # to find what it does not need might load it again
            llvm.add_symbol(name, _symbol(name))
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return {name: int(engine.get_function_address(name)) for name in names}


_symbols: dict[str, int | Callable[[], int]] = {}


def add_symbol(name: str, address: int | Callable[[], int]) -> None:
    """Make an address of this process known under a name that IR may declare and call, or what finds it when code
    does.
    """
    _symbols[name] = address


def _symbol(name: str) -> int:
    """The address that a name was given; 0 when it was given none."""
    known = _symbols.get(name, 0)
    if not isinstance(known, int):
        known = _symbols[name] = known()
    return known


@lru_cache(maxsize=1)
def target_description() -> str:
    """What machine code depends on, in one line: LLVM, triple, CPU and its instruction sets. Part of every
    cache key.
    """
    import llvmlite

    from jitgrad.compiler.machine import llvm

    versions = f"llvm {'.'.join(map(str, llvm.version()))} llvmlite {llvmlite.__version__}"
    return " ".join((versions, llvm.process_triple(), llvm.host_name(), host_features()))


@lru_cache(maxsize=1)
def host_features() -> str:
    """The instruction sets of this processor; LLVM takes 0.4 ms to find them."""
    from jitgrad.compiler.machine import llvm

    return llvm.host_features()


@lru_cache(maxsize=1)
def _engine() -> Any:
    """The engine that holds all code of this process; its target machine relocates, and never compiles."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    relocation = "static" if target.name.startswith("x86") else "default"
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=host_features(), reloc=relocation, codemodel="jitdefault", jit=True
    )
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
