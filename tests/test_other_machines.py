"""Code for processors that the tests do not run on: it is legal for them, and of their width. What it computes is
tested on those that there are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.calling.call import call_ir
from jitgrad.compiler.driver.steps import driver_ir
from jitgrad.compiler.driver.system import Platform
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.llvmir import Module
from jitgrad.compiler.lowering.lower import kernels_of

_TRIPLE = "aarch64-unknown-linux-gnu"
_AARCH64 = 183  # in the head of an ELF file
_NEON_BYTES = 16
_LINUX_ON_ARM = Platform("llvm.aarch64.hint", 98, 1, True)


def is_target() -> bool:
    """Whether LLVM here generates code for ARM."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        llvm.Target.from_triple(_TRIPLE)
    except RuntimeError:
        return False
    return True


pytestmark = pytest.mark.skipif(not is_target(), reason="this LLVM knows no aarch64")


def compiled(text: str) -> bytes:
    """Object code for ARM; RuntimeError for what is no legal IR there."""
    module = llvm.parse_assembly(f'target triple = "{_TRIPLE}"\n{text}')
    module.verify()
    target = llvm.Target.from_triple(_TRIPLE)
    machine = target.create_target_machine(cpu="generic", opt=1, codemodel="jitdefault", jit=True)
    return bytes(machine.emit_object(module))


def is_for_arm(code: bytes) -> bool:
    return code.startswith(b"\x7fELF") and struct.unpack_from("<H", code, 18)[0] == _AARCH64


def modules_of(fn: Callable[..., Any], *arrays: Any) -> Iterator[str]:
    """The texts of all kernels of a function, for registers of 16 bytes and fused multiply-adds."""
    for program in jg.compile(fn).explain(*arrays).compiled:
        for cluster in program.steps:
            for kernel in () if isinstance(cluster, int) else kernels_of(cluster):  # an int: an interpreted operation
                module = Module("kernel", True)
                emit_kernel(module, kernel, "kernel", _NEON_BYTES)
                yield str(module)


X = np.linspace(0.1, 2.0, 37 * 5).reshape(37, 5)
AT = np.arange(50) % 37


def repeated(x: Any) -> Any:
    for _ in range(8):
        x = np.sin(x) * 1.25 + 0.1
    return np.sum(x)


FUNCTIONS = {
    "analysis": lambda x: np.sum(np.tanh(x) * np.exp(-x) + np.log(x) * np.sin(x) + np.sqrt(x) ** x),
    "rows": lambda x: np.sum(np.sin(x - np.max(x, axis=1, keepdims=True))) + np.sum(np.cumsum(x, axis=1) ** 2),
    "places": lambda x: np.sum(x[AT] ** 2) + np.sum(x[:, ::-2]) + np.sum(np.where(x > 1, x, x.T[:5].T)),
    "repeats": repeated,
    "small matrices": lambda x: np.sum(np.linalg.inv(x[:35].reshape(7, 5, 5) + 9 * np.eye(5))) + np.sum(x.T @ x),
}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_with_gradients_are_legal_for_arm(name: str, dtype: str) -> None:
    texts = list(modules_of(jg.value_and_grad(FUNCTIONS[name]), X.astype(dtype)))
    lanes = _NEON_BYTES // np.dtype(dtype).itemsize
    kind = "float" if dtype == "f4" else "double"
    assert any(f"<{lanes} x {kind}>" in text for text in texts)
    assert not any("x86" in text for text in texts)
    assert all(is_for_arm(compiled(text)) for text in texts)


@pytest.mark.parametrize("text", [driver_ir(_LINUX_ON_ARM, 50), call_ir(_LINUX_ON_ARM)], ids=["driver", "calls"])
def test_the_driver_is_legal_for_arm(text: str) -> None:
    assert "x86" not in text
    assert is_for_arm(compiled(text))
