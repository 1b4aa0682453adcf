"""Machine code of steps that are control ops, a module beside the driver's: loaded when the first loop or branch is
bound. What the code does is in loops.py and rows.py.

It is half of what the driver would be with it, and few programs have loops: a first call with an empty cache waited for
it.
"""

from __future__ import annotations

from collections.abc import Mapping

from jitgrad.compiler.driver.pool_layout import RUN_CHUNK
from jitgrad.compiler.driver.runtime import SHARED, runtime
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.cache import compile_cached
from jitgrad.compiler.products.product_code import Module
from jitgrad.once import Once

CONTROL_OPS = ("loop", "loop_gradient", "choose", "loop_rows")


@Once
def control_ops() -> Mapping[str, int]:
    """The addresses of the steps' functions, compiled or taken from the cache."""
    driver = runtime()
    for name in SHARED:
        native.add_symbol(f"jitgrad_{name}", driver.code[f"jitgrad_{name}"])
    code = compile_cached("control", _control_text, [f"jitgrad_{name}" for name in CONTROL_OPS])
    return {name: code[f"jitgrad_{name}"] for name in CONTROL_OPS}


def control_modules() -> dict[str, Module]:
    """The module of `control_ops`, where the process has not got it."""
    return {} if control_ops.made else {"control": (_control_text, False)}


def _control_text() -> str:
    from jitgrad.compiler.driver.loops import loops_ir
    from jitgrad.compiler.driver.rows import row_loops_ir
    from jitgrad.compiler.driver.system import clock_ir, host_platform

    parts = (_DRIVER, RUN_CHUNK, clock_ir(host_platform()), loops_ir(), row_loops_ir())
    return "\n".join(parts) + "\nattributes #0 = { nounwind }\n"


_DRIVER = """
declare void @jitgrad_run_parallel(ptr, ptr, ptr, i64, i64, i32) #0
declare void @jitgrad_run_tried(ptr, ptr, i32) #0
"""
