"""LLVM's code generator behind a light pass pipeline, for several modules at a time; it loads nothing and keeps
nothing.

llvmlite serialises all calls into LLVM by one lock. LLVM itself asks only that threads do not share a context or a
target machine, so its functions are called here without that lock (llvm.py): two modules on two processors take 0.53
of the time that they take one after the other. What a module becomes depends on its text alone, not on the thread or
the order.

The target machine has the settings of Numba's CPU code generator: this processor, its instruction sets, static
relocation, the large code model; but level 1 for good code, which runs as fast as level 3 and takes 0.93 of the time,
and level 0 for code that is wanted quickly (tiers.py). Going through Numba's own classes costs 10 % more per module,
and 170 ms to import them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitgrad.compiler.machine import llvm
from jitgrad.compiler.machine.native import host_features
from jitgrad.config import config

# What is written once and in order needs little: the cells of sums become registers, and blocks are joined. Value
# numbering and the combination of instructions find next to nothing more, and took 11 % of the time. Quick code without
# cells needs nothing, which saves another 8 %.
PIPELINE = ("SROA", "SimplifyCFG")

QUICK, GOOD = 0, 1
_CELL = " = alloca "


class Generator:
    """A target machine and a pass pipeline, for one thread at a time."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._llvm = llvm.functions()
        self._machine = llvm.new_machine(level, host_features())
        self._layout = llvm.data_layout(self._machine).encode()
        self._options = self._llvm.CreatePipelineTuningOptions()
        self._passes = self._llvm.CreateNewModulePassManager()
        for name in PIPELINE:
            getattr(self._llvm, f"module_Add{name}Pass")(self._passes)

    def object_code(self, text: str) -> bytes:
        """Object code of a module. RuntimeError for malformed IR."""
        context = self._llvm.ContextCreate()
        try:
            with llvm.Message() as message:
                module = self._llvm.ParseAssembly(context, text.encode(), message.place)
                try:
                    message.check("LLVM IR parsing error\n")
                    return self._generated(module, self._level != QUICK or _CELL in text)
                finally:
                    if module:
                        self._llvm.DisposeModule(module)
        finally:
            self._llvm.ContextDispose(context)

    def linked_code(self, text: str, link: Sequence[Any]) -> bytes:
        """Object code of a module and of the Numba libraries that it calls."""
        from llvmlite.binding import parse_assembly

        module = parse_assembly(text)
        for library in link:
            module.link_in(library._get_module_for_linking(), preserve=True)
        return self._generated(module, True)

    def _generated(self, module: Any, is_improved: bool) -> bytes:
        self._llvm.SetDataLayout(module, self._layout)
        if config.verify:
            with llvm.Message() as message:
                self._llvm.VerifyModule(module, message.place)
                message.check()
        if is_improved:
            self._improve(module)
        return self._emitted(module)

    def _improve(self, module: Any) -> None:
        # A pass builder is good for one run: the run leaves callbacks in it that refer to the run's own objects.
        builder = self._llvm.CreatePassBuilder(self._machine, self._options)
        try:
            self._llvm.RunNewModulePassManager(self._passes, module, builder)
        finally:
            self._llvm.DisposePassBuilder(builder)

    def _emitted(self, module: Any) -> bytes:
        with llvm.Message() as message:
            buffer = self._llvm.TargetMachineEmitToMemory(self._machine, module, 1, message.place)
            if not buffer:
                raise RuntimeError(message.text)
        try:
            return ctypes.string_at(self._llvm.GetBufferStart(buffer), self._llvm.GetBufferSize(buffer))
        finally:
            self._llvm.DisposeMemoryBuffer(buffer)


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
