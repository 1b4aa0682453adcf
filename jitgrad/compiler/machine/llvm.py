"""LLVM's functions in llvmlite's library, called without llvmlite's Python: which exist, and what they take.

Importing ``llvmlite.binding`` executes twenty modules of it and as many of the standard library, 20 ms of a first call
in a new process. What machine code needs of it are two dozen functions of its library, which is opened here without the
GIL, while others import. Their arguments are written down for the versions of llvmlite that are known; those of another
version are compared with what it says itself.

Calls that take long are made without the GIL, those that take microseconds with it: a thread that gives it up beside a
busy one waits until it has it back.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any

from jitgrad.once import Once

KNOWN_VERSIONS = ("0.50.",)

_POINTER, _TEXT, _INT, _OUT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)

_RELEASED: dict[str, tuple[Any, ...]] = {
    "ParseAssembly": (_POINTER, _POINTER, _TEXT, _OUT),
    "RunNewModulePassManager": (None, _POINTER, _POINTER, _POINTER),
    "TargetMachineEmitToMemory": (_POINTER, _POINTER, _POINTER, _INT, _OUT),
}
"""What a function gives, and what it takes."""

_HELD: dict[str, tuple[Any, ...]] = {
    "ContextCreate": (_POINTER,),
    "ContextDispose": (None, _POINTER),
    "DisposeModule": (None, _POINTER),
    "SetDataLayout": (None, _POINTER, _TEXT),
    "VerifyModule": (ctypes.c_bool, _POINTER, _OUT),
    "CreateNewModulePassManager": (_POINTER,),
    "module_AddSROAPass": (None, _POINTER),
    "module_AddSimplifyCFGPass": (None, _POINTER),
    "CreatePipelineTuningOptions": (_POINTER,),
    "CreatePassBuilder": (_POINTER, _POINTER, _POINTER),
    "DisposePassBuilder": (None, _POINTER),
    "GetBufferStart": (_POINTER, _POINTER),
    "GetBufferSize": (ctypes.c_size_t, _POINTER),
    "DisposeMemoryBuffer": (None, _POINTER),
    "DisposeString": (None, _TEXT),
    "GetVersionInfo": (ctypes.c_uint,),
    "GetProcessTriple": (None, _OUT),
    "GetHostCPUName": (None, _OUT),
    "GetHostCPUFeatures": (_INT, _OUT),
    "InitializeNativeTarget": (None,),
    "InitializeNativeAsmPrinter": (None,),
    "GetTargetFromTriple": (_POINTER, _TEXT, _OUT),
    "CreateTargetMachine": (_POINTER, _POINTER, _TEXT, _TEXT, _TEXT, _INT, _TEXT, _TEXT, _INT, _INT, _TEXT),
    "CreateTargetMachineData": (_POINTER, _POINTER),
    "CopyStringRepOfTargetData": (None, _POINTER, _OUT),
    "DisposeTargetData": (None, _POINTER),
}


class Message:
    """Room for words of LLVM's, which may be those of an error."""

    def __init__(self) -> None:
        self._pointer = ctypes.c_char_p(None)
        self.place = ctypes.byref(self._pointer)

    def __enter__(self) -> Message:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pointer:
            functions().DisposeString(self._pointer)

    @property
    def text(self) -> str:
        """The words; empty for none."""
        return (self._pointer.value or b"").decode(errors="replace")

    def check(self, title: str = "") -> None:
        """Raise what there is."""
        if self.text:
            raise RuntimeError(title + self.text)


class _Functions:
    """The functions, as attributes, by llvmlite's names without LLVMPY_."""

    def __init__(self, path: str) -> None:
        libraries = (ctypes.CDLL(path), _RELEASED), (ctypes.PyDLL(path), _HELD)
        for library, signatures in libraries:
            for name, (gives, *takes) in signatures.items():
                function = getattr(library, f"LLVMPY_{name}")
                function.restype, function.argtypes = gives, takes
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"{name} is not among the functions of LLVM that are used")


@Once
def functions() -> _Functions:
    """Those of this process; a thread that opens the library leaves the GIL to others. RuntimeError for a version of
    llvmlite whose functions take something else.
    """
    import llvmlite

    if not llvmlite.__version__.startswith(KNOWN_VERSIONS):
        wrong = differences()
        if wrong:
            raise RuntimeError(f"llvmlite {llvmlite.__version__} has other functions than known: {', '.join(wrong)}")
    path = _path(os.path.dirname(llvmlite.__file__))
    if sys.platform == "linux":
        opened = ctypes.CDLL(None).dlopen
        opened.argtypes, opened.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
        opened(os.fsencode(path), os.RTLD_NOW)
    return _Functions(path)


def _path(package: str) -> str:
    """Where the library is; llvmlite says it where it does not lie beside its modules."""
    name = {"win32": "llvmlite.dll", "darwin": "libllvmlite.dylib"}.get(sys.platform, "libllvmlite.so")
    path = os.path.join(package, "binding", name)
    if os.path.exists(path):
        return path
    from llvmlite.binding import ffi

    return str(ffi.lib._name)


def differences() -> list[str]:
    """The functions for which llvmlite itself says that they give or take something else, or which it has not."""
    from llvmlite.binding import ffi

    found = []
    for name, (gives, *takes) in {**_RELEASED, **_HELD}.items():
        theirs = getattr(ffi.lib, f"LLVMPY_{name}", None)
        if theirs is None:
            found.append(name)
            continue
        taken = takes if theirs.argtypes is None else theirs.argtypes  # of some it says nothing
        if [_form(gives), *map(_form, takes)] != [_form(theirs.restype), *map(_form, taken)]:
            found.append(name)
    return found


def _form(kind: Any) -> str:
    """What is put in a register: pointers to something, none that counts, or a number of some width."""
    if kind in (None, ctypes.c_int):  # what is not said counts as an int, of which nobody makes use
        return "int"
    if kind in (_OUT, _TEXT):
        return kind.__name__  # type: ignore[no-any-return]
    return "pointer" if kind is _POINTER or hasattr(kind, "contents") else str(kind.__name__)


def version() -> tuple[int, ...]:
    """LLVM's."""
    word: int = functions().GetVersionInfo()
    parts = []
    while word:
        parts.append(word & 0xFF)
        word >>= 8
    return tuple(reversed(parts))


def process_triple() -> str:
    """The machine that code of this process is for."""
    with Message() as said:
        functions().GetProcessTriple(said.place)
        return said.text


def host_name() -> str:
    """The processor's name."""
    with Message() as said:
        functions().GetHostCPUName(said.place)
        return said.text


def host_features() -> str:
    """The processor's instruction sets by name, each with + or -; empty where LLVM cannot tell."""
    with Message() as said:
        is_known = functions().GetHostCPUFeatures(said.place)
        names = said.text if is_known else ""
    return ",".join(sorted(filter(None, names.split(",")), key=lambda feature: feature[1:]))


def new_machine(level: int, features: str) -> int:
    """A target machine of this processor with all that it can, at a level of code generation."""
    llvm = functions()
    llvm.InitializeNativeTarget()
    llvm.InitializeNativeAsmPrinter()
    triple = process_triple()
    with Message() as message:
        target = llvm.GetTargetFromTriple(triple.encode(), message.place)
        if not target:
            raise RuntimeError(message.text)
    relocation = "static" if triple.startswith(("x86_64", "i386", "i686")) else "default"
    container = "-elf" if os.name == "nt" else ""
    texts = [text.encode() for text in (triple + container, host_name(), features)]
    machine: int = llvm.CreateTargetMachine(target, *texts, level, relocation.encode(), b"jitdefault", 0, 1, b"")
    if not machine:
        raise RuntimeError(f"LLVM has no code generator for {triple}")
    return machine


def data_layout(machine: int) -> str:
    """How the machine lays data out, as modules say it."""
    llvm = functions()
    data = llvm.CreateTargetMachineData(machine)
    try:
        with Message() as said:
            llvm.CopyStringRepOfTargetData(data, said.place)
            return said.text
    finally:
        llvm.DisposeTargetData(data)
