"""The loader of object code: it gives the same functions as LLVM's, and refuses what it does not understand."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import pytest
from step_kernels import unique

from jitgrad.compiler.machine import elf, native

pytestmark = pytest.mark.skipif(not elf.is_supported(), reason="the loader is for Linux on x86-64")

_STATE = """
@NAME_count = internal global i64 40
@NAME_table = internal constant [3 x i64] [i64 2, i64 3, i64 5]
define i64 @NAME(i64 %k) {
  %count = load i64, ptr @NAME_count
  %at = getelementptr [3 x i64], ptr @NAME_table, i64 0, i64 %k
  %step = load i64, ptr %at
  %next = add i64 %count, %step
  store i64 %next, ptr @NAME_count
  ret i64 %next
}
"""
_REMAINDER = """
declare double @fmod(double, double)
define double @NAME(double %x, double %y) {
  %r = call double @fmod(double %x, double %y)
  ret double %r
}
"""


def load(text: str, name: str, kind: Any) -> Any:
    code = native.compile_to_object(text)
    return kind(elf.load_elf(code, elf.find_symbol)[name])


def test_constants_and_state() -> None:
    text, name = unique(_STATE)
    function = load(text, name, ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64))
    assert [function(0), function(1), function(2)] == [42, 45, 50]


def test_each_load_has_its_own_state() -> None:
    text, name = unique(_STATE)
    code = native.compile_to_object(text)
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
    first, second = (kind(elf.load_elf(code, elf.find_symbol)[name]) for _ in range(2))
    assert first(0) == 42
    assert second(1) == 43


def test_functions_of_the_c_library() -> None:
    text, name = unique(_REMAINDER)
    function = load(text, name, ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double))
    assert function(7.5, 2.0) == 1.5


@pytest.mark.parametrize(("reloc", "codemodel"), [("static", "large"), ("pic", "small")])
def test_code_models(reloc: str, codemodel: str) -> None:
    """Absolute addresses; distances, tables of addresses and calls of what is out of reach."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc=reloc, codemodel=codemodel)
    text, name = unique(_REMAINDER + _STATE.replace("@NAME(", "@NAME_state("))
    found = elf.load_elf(machine.emit_object(llvm.parse_assembly(text)), elf.find_symbol)
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(found[name])(9.0, 4.0) == 1.0
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(found[f"{name}_state"])(2) == 45


@pytest.mark.parametrize(
    "damage", [b"", b"\x7fELF", b"\xcf\xfa\xed\xfe" + bytes(100), b"\x7fELF\x02\x01\x01" + bytes(57)]
)
def test_other_formats_are_refused(damage: bytes) -> None:
    with pytest.raises(elf.RefusedError):
        elf.load_elf(damage, elf.find_symbol)


def test_unknown_names_are_refused() -> None:
    text, _ = unique(_REMAINDER.replace("@fmod", "@jitgrad_no_such_function"))
    with pytest.raises(elf.RefusedError, match="jitgrad_no_such_function"):
        elf.load_elf(native.compile_to_object(text), elf.find_symbol)


def test_truncated_code_is_refused() -> None:
    code = native.compile_to_object(unique(_STATE)[0])
    for end in range(0, len(code), 37):
        with pytest.raises(elf.RefusedError):
            elf.load_elf(code[:end], elf.find_symbol)


def test_llvm_takes_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elf, "is_supported", lambda: False)
    text, name = unique(_STATE)
    address = native.compile_module(text, [name])[name]
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(0) == 42


def test_the_driver_is_loaded_by_llvm_where_elf_is_refused() -> None:
    """Its own functions are symbols, too, which are found by loading it."""
    code = """
import numpy as np
import jitgrad as jg
from jitgrad.compiler.machine import elf
elf.is_supported = lambda: False
print(jg.compile(lambda x: np.sum(np.sin(x)))(np.zeros(3)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "0.0\n"
