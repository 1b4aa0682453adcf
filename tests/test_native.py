"""Machine code from IR: what it computes, how it is stored and loaded, what it must not do to numbers."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.ir as ir
import numpy as np
import pytest
from llvmlite import binding
from step_kernels import unique

from jitgrad.compiler.machine import llvm, native

_MULTIPLY_ADD = """
define void @NAME(ptr %x, ptr %y, ptr %z, ptr %out) nounwind {
  %a = load <8 x double>, ptr %x, align 8
  %b = load <8 x double>, ptr %y, align 8
  %c = load <8 x double>, ptr %z, align 8
  %p = fmul <8 x double> %a, %b
  %s = fadd <8 x double> %p, %c
  store <8 x double> %s, ptr %out, align 8
  ret void
}
"""


def multiply_add(*inputs: np.ndarray) -> np.ndarray:
    text, name = unique(_MULTIPLY_ADD)
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(native.compile_module(text, [name])[name])
    out = np.empty(8)
    function(*(array.ctypes.data for array in (*inputs, out)))
    return out


def test_products_and_sums_are_rounded_apart() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 8))
    z = -x * y
    assert not multiply_add(x, y, z).any()  # a fused multiply-add would leave the rounding errors


def test_denormals_are_kept() -> None:
    x = np.full(8, 5e-324)
    out = multiply_add(x, np.full(8, 3.0), np.full(8, 5e-324))
    assert (out == 4 * 5e-324).all()
    assert (out > 0).all()


def test_takes_llvmlite_modules() -> None:
    module = ir.Module("m")
    integer = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(integer, [integer]), unique("NAME")[0])
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(builder.add(function.args[0], ir.Constant(integer, 1)))
    address = native.compile_module(module, [function.name])[function.name]
    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(41) == 42


def test_calls_functions_of_numba() -> None:
    from numba import cfunc

    half = cfunc("float64(float64)")(lambda x: x / 2)
    text, name = unique(f"""
declare double @"{half.native_name}"(double)
define double @NAME(double %x) {{
  %y = call double @"{half.native_name}"(double %x)
  ret double %y
}}
""")
    address = native.compile_module(text, [name], link=[half._library])[name]
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(address)(5.0) == 2.5


def test_object_code_needs_no_numba(tmp_path: Path) -> None:
    text, name = unique("define i64 @NAME(i64 %x) { ret i64 %x }")
    file = tmp_path / "code"
    file.write_bytes(native.compile_to_object(text))
    script = f"""
import ctypes, pathlib, sys
from jitgrad.compiler.machine import native
code = native.load_object(pathlib.Path({str(file)!r}).read_bytes(), [{name!r}])
assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code[{name!r}])(7) == 7
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_loading_twice_keeps_both() -> None:
    text, name = unique("define i64 @NAME() { ret i64 3 }")
    first = native.compile_module(text, [name])
    second = native.load_object(first.object_code, [name])
    for code in (first, second):
        assert ctypes.CFUNCTYPE(ctypes.c_int64)(code[name])() == 3


def test_missing_function_is_named() -> None:
    text, _ = unique("define void @NAME() { ret void }")
    with pytest.raises(native.LoadError, match="no function elsewhere"):
        native.compile_module(text, ["elsewhere"])


def test_malformed_ir_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        native.compile_module("define nonsense", ["nonsense"])


def test_description_names_what_code_depends_on() -> None:
    description = native.target_description()
    assert description.startswith("llvm ")
    assert "llvmlite" in description


def test_a_symbol_is_looked_for_when_code_wants_it_and_once() -> None:
    text, name = unique("declare i32 @there_NAME()\ndefine i32 @NAME() { %x = call i32 @there_NAME()\n ret i32 %x }")
    there = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda: 7)
    asked: list[str] = []

    def address() -> int:
        asked.append(name)
        return ctypes.cast(there, ctypes.c_void_p).value or 0

    native.add_symbol(f"there_{name}", address)
    assert not asked
    object_code = native.compile_to_object(text)
    for _ in range(2):
        loaded = native.load_object(object_code, [name])
        assert ctypes.CFUNCTYPE(ctypes.c_int32)(loaded[name])() == 7
    assert asked == [name]


def test_the_functions_of_llvm_take_what_llvmlite_says() -> None:
    assert llvm.differences() == []
    assert llvm.version() == binding.llvm_version_info
    assert llvm.process_triple() == binding.get_process_triple()
    assert llvm.host_name() == binding.get_host_cpu_name()
    assert llvm.host_features() == binding.get_host_cpu_features().flatten()


def test_functions_of_a_version_that_is_not_known_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm.functions, "made", [])
    monkeypatch.setattr("llvmlite.__version__", "99.0")
    assert llvm.functions().GetVersionInfo()
    monkeypatch.setattr(llvm.functions, "made", [])
    monkeypatch.setitem(llvm._HELD, "SetDataLayout", (None, ctypes.c_void_p))
    with pytest.raises(RuntimeError, match=r"llvmlite 99\.0 has other functions than known: SetDataLayout"):
        llvm.functions()
    monkeypatch.setitem(llvm._HELD, "SetNoLayout", (None, ctypes.c_void_p))
    with pytest.raises(RuntimeError, match=r"other functions than known: SetDataLayout, SetNoLayout"):
        llvm.functions()


def test_a_first_call_imports_no_more_of_llvmlite_than_its_version(tmp_path: Path) -> None:
    """Its Python is twenty modules, and as many of the standard library: 20 ms. Nor is what belongs to bodies of loops
    imported; what the next process begins with is compiled in the background. What runs loops is not compiled for a
    loop that is a kernel.
    """
    script = """
import sys
import numpy as np
import jitgrad
before = set(sys.modules)
jitgrad.compile(lambda x: np.sum(np.tanh(x)))(np.ones(100))
assert "jitgrad.compiler.bodies.forms" not in sys.modules
from jitgrad.compiler.machine import early, tiers
from jitgrad.compiler.machine.cache import cache_key, kernel_cache
assert "jitgrad.compiler.stages" in sys.modules
assert {name for name in sys.modules if name.startswith("llvmlite")} == {"llvmlite", "llvmlite._version"}
assert not {"hashlib", "importlib.resources", "zipfile", "numba"} & (set(sys.modules) - before)
assert kernel_cache().has(cache_key("driver"))
tiers.improver.wait()
assert early.early() is not None
jitgrad.compile(lambda x: jitgrad.scan(lambda c, t: (0.5 * c + t, c), 0.0, x)[0])(np.ones(100))
tiers.improver.wait()
assert "jitgrad.compiler.bodies.forms" in sys.modules
ops = "loop", "loop_gradient", "choose", "loop_rows"
assert not {op for op in ops if kernel_cache().has(cache_key(f"jitgrad_{op}"))}
jitgrad.compile(lambda x: jitgrad.cond(x[0] > 0, np.sin, np.cos, x))(np.ones(100))
tiers.improver.wait()
assert {op for op in ops if kernel_cache().has(cache_key(f"jitgrad_{op}"))} == {"choose"}
"""
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(tmp_path), "JITGRAD_VERIFY": ""}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env=environment)
