"""LLVM's code generator behind a light pass pipeline, for several modules at a time; it loads nothing and keeps
nothing.

llvmlite serialises all calls into LLVM by one lock. LLVM itself asks only that threads do not share a context or a
target machine, so calls are made here through two other handles of the same library, without that lock: those that
take the time (parsing, passes, code generation) without the GIL, and two modules on two processors take 0.53 of the
time that they take one after the other; those that take microseconds with it, for a thread that gives it up beside a
busy one waits 5 ms until it has it back. What a module becomes depends on its text alone, not on the thread or the
order.

The target machine has the settings of Numba's CPU code generator: this processor, its instruction sets, static
relocation, the large code model; but level 1 for good code, which runs as fast as level 3 and takes 0.93 of the time,
and level 0 for code that is wanted quickly (tiers.py). Going through Numba's own classes costs 10 % more per module,
and 170 ms to import them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite.binding import ffi

from jitgrad.compiler.machine.native import host_features

# What is written once and in order needs little: the cells of sums become registers, and blocks are joined. Value
# numbering and the combination of instructions find next to nothing more, and took 11 % of the time. Quick code without
# cells needs nothing, which saves another 8 %.
PIPELINE = ("sroa", "simplify_cfg")

QUICK, GOOD = 0, 1
_CELL = " = alloca "

_released, _held = ctypes.CDLL(ffi.lib._name), ctypes.PyDLL(ffi.lib._name)


def _function(library: ctypes.CDLL, name: str) -> Callable[..., Any]:
    """The function of the library that llvmlite calls under its lock."""
    locked = getattr(ffi.lib, name)
    function: Callable[..., Any] = getattr(library, name)
    function.argtypes, function.restype = locked.argtypes, locked.restype  # type: ignore[attr-defined]
    return function


_parse = _function(_released, "LLVMPY_ParseAssembly")
_run_passes = _function(_released, "LLVMPY_RunNewModulePassManager")
_emit = _function(_released, "LLVMPY_TargetMachineEmitToMemory")
_new_context = _function(_held, "LLVMPY_ContextCreate")
_end_context = _function(_held, "LLVMPY_ContextDispose")
_end_module = _function(_held, "LLVMPY_DisposeModule")
_set_layout = _function(_held, "LLVMPY_SetDataLayout")
_verify = _function(_held, "LLVMPY_VerifyModule")
_new_pass_builder = _function(_held, "LLVMPY_CreatePassBuilder")
_end_pass_builder = _function(_held, "LLVMPY_DisposePassBuilder")
_buffer_start = _function(_held, "LLVMPY_GetBufferStart")
_buffer_size = _function(_held, "LLVMPY_GetBufferSize")
_end_buffer = _function(_held, "LLVMPY_DisposeMemoryBuffer")
_end_string = _function(_held, "LLVMPY_DisposeString")


class Generator:
    """A target machine and a pass pipeline, for one thread at a time."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._machine = _new_machine(level)
        self._layout = str(self._machine.target_data).encode()
        self._options = llvm.create_pipeline_tuning_options(speed_level=2)
        self._passes = llvm.create_new_module_pass_manager()
        for name in PIPELINE:
            getattr(self._passes, f"add_{name}_pass")()

    def object_code(self, text: str) -> bytes:
        """Object code of a module. RuntimeError for malformed IR."""
        context = _new_context()
        try:
            with _Message() as message:
                module = _parse(context, text.encode(), message.place)
                try:
                    message.check("LLVM IR parsing error\n")
                    return self._generated(module, self._level != QUICK or _CELL in text)
                finally:
                    if module:
                        _end_module(module)
        finally:
            _end_context(context)

    def linked_code(self, text: str, link: Sequence[Any]) -> bytes:
        """Object code of a module and of the Numba libraries that it calls."""
        module = llvm.parse_assembly(text)
        for library in link:
            module.link_in(library._get_module_for_linking(), preserve=True)
        return self._generated(module, True)

    def _generated(self, module: Any, is_improved: bool) -> bytes:
        _set_layout(module, self._layout)
        with _Message() as message:
            _verify(module, message.place)
            message.check()
        if is_improved:
            self._improve(module)
        return self._emitted(module)

    def _improve(self, module: Any) -> None:
        # A pass builder is good for one run: the run leaves callbacks in it that refer to the run's own objects.
        builder = _new_pass_builder(self._machine, self._options)
        try:
            _run_passes(self._passes, module, builder)
        finally:
            _end_pass_builder(builder)

    def _emitted(self, module: Any) -> bytes:
        with _Message() as message:
            buffer = _emit(self._machine, module, 1, message.place)
            if not buffer:
                raise RuntimeError(message.text)
        try:
            return ctypes.string_at(_buffer_start(buffer), _buffer_size(buffer))
        finally:
            _end_buffer(buffer)


class _Message:
    """Room for LLVM's words on an error."""

    def __init__(self) -> None:
        self._pointer = ctypes.c_char_p(None)
        self.place = ctypes.byref(self._pointer)

    def __enter__(self) -> _Message:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pointer:
            _end_string(self._pointer)

    @property
    def text(self) -> str:
        """The words; empty for none."""
        return (self._pointer.value or b"").decode(errors="replace")

    def check(self, title: str = "") -> None:
        """Raise what there is."""
        if self.text:
            raise RuntimeError(title + self.text)


def object_code(text: str, level: int) -> bytes:
    """The object code of a text at a level of LLVM's; several threads may ask at once."""
    with _generator(level) as generator:
        return generator.object_code(text)


def linked_code(text: str, link: Sequence[Any]) -> bytes:
    """Good object code of a text and of the Numba libraries that it calls; one caller at a time."""
    with _generator(GOOD) as generator:
        return generator.linked_code(text, link)


_idle: dict[int, list[Generator]] = {QUICK: [], GOOD: []}


@contextmanager
def _generator(level: int) -> Iterator[Generator]:
    """One that no other thread has; they are kept, for making one takes a millisecond."""
    try:
        generator = _idle[level].pop()
    except IndexError:
        generator = Generator(level)
    try:
        yield generator
    finally:
        _idle[level].append(generator)


def _new_machine(level: int) -> llvm.TargetMachine:
    """This processor with all that it can."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    relocation = "static" if target.name.startswith("x86") else "default"
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=host_features(),
        opt=level,
        reloc=relocation,
        codemodel="jitdefault",
        jit=True,
    )
