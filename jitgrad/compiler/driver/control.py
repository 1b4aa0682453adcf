"""Machine code of steps that are control ops, a module for each beside the driver's: compiled like a product's, quickly
and then well, when the first such step is bound. What the code does is in loops.py and rows.py.

Few programs have such steps, and most loops are kernels. As one module, compiled well for every program with a loop,
their code took LLVM 65 ms of a first call with an empty cache (Ice Lake); quickly each takes 4 to 7.
"""

from __future__ import annotations

from collections.abc import Iterable

from jitgrad.compiler.driver.runtime import SHARED, runtime
from jitgrad.compiler.machine import native
from jitgrad.compiler.products.product_code import Module, code_modules, product_address
from jitgrad.once import Once

_PREFIX = "jitgrad_"


def control_address(op: str) -> int:
    """The address of a step's function."""
    _share_driver()
    return product_address(_PREFIX + op, _text)


def control_modules(ops: Iterable[str]) -> dict[str, Module]:
    """The modules that `control_address` will need for these ops."""
    modules: dict[str, Module] = {}
    for op in ops:
        modules |= code_modules(_PREFIX + op, _text)
    return modules


@Once
def _share_driver() -> None:
    """Have the modules find the driver's functions."""
    driver = runtime()
    for name in SHARED:
        native.add_symbol(f"jitgrad_{name}", driver.code[f"jitgrad_{name}"])


def _text(stub: str) -> str:
    from jitgrad.compiler.driver.loops import choose_ir, gradient_ir, loop_ir
    from jitgrad.compiler.driver.rows import row_loop_ir

    texts = {"loop": loop_ir, "loop_gradient": gradient_ir, "choose": choose_ir, "loop_rows": row_loop_ir}
    return f"{texts[stub.removeprefix(_PREFIX)]()}\nattributes #0 = {{ nounwind }}\n"
