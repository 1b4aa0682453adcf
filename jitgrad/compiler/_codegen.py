"""Numba's CPU code generator with a light pass pipeline; imported by native.py when something must be
compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import AOTCodeLibrary, JITCPUCodegen

PIPELINE = (
    "sroa",
    "simplify_cfg",
    "instruction_combine",
    "new_gvn",
    "simplify_cfg",
    "dead_code_elimination",
)


class KernelLibrary(AOTCodeLibrary):  # type: ignore[misc]
    """A code library that runs `PIPELINE` instead of Numba's passes, and hands out object code."""

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        passes = llvm.create_new_module_pass_manager()
        for name in PIPELINE:
            getattr(passes, f"add_{name}_pass")()
        passes.run(self._final_module, llvm.create_pass_builder(self._codegen._tm, options))


class KernelCodegen(JITCPUCodegen):  # type: ignore[misc]
    """Numba's JIT settings (host CPU, its instruction sets, code model), with nothing put in Numba's own
    engine.
    """

    _library_class = KernelLibrary

    def _add_module(self, module: Any) -> None:
        """Object code is loaded by native.py's engine."""


@lru_cache(maxsize=1)
def _codegen() -> KernelCodegen:
    return KernelCodegen("jitgrad")


def emit_object(text: str, link: Sequence[Any]) -> bytes:
    """Object code for the IR in `text` and the libraries it calls. The caller holds Numba's compiler lock."""
    library = _codegen().create_library("jitgrad")
    module = llvm.parse_assembly(text)
    module.verify()
    library.add_llvm_module(module)
    for other in link:
        library.add_linking_library(other)
    return bytes(library.emit_native_object())
