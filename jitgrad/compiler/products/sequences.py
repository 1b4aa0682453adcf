"""What runs the kernels of a region, one after another, for the same part of their extent; which are in a region is
decided elsewhere (freezing/regions.py).
"""

from __future__ import annotations

from jitgrad.compiler.products.product_code import Module, code_modules, product_address

_STUB = "jitgrad_sequence"


def sequence_address() -> int:
    """The address of the function, whose block is the number of kernels and the address of pairs, function and block of
    each.
    """
    return product_address(_STUB, _text)


def sequence_modules() -> dict[str, Module]:
    """The modules that `sequence_address` will need."""
    return code_modules(_STUB, _text)


def _text(stub: str) -> str:
    from jitgrad.compiler.products.registers import KERNEL, loop_ir

    body = """
  %function_at = getelementptr [2 x i64], ptr %pairs, i64 %k
  %function = load ptr, ptr %function_at
  %block_at = getelementptr i64, ptr %function_at, i64 1
  %own = load ptr, ptr %block_at
  call void %function(ptr %table, ptr %own, i64 %lo, i64 %hi, i64 %chunk, i64 %worker)"""
    return f"""
define void @{stub}({KERNEL}) #0 {{
  %count = load i64, ptr %block
  %pairs_at = getelementptr i64, ptr %block, i64 1
  %pairs = load ptr, ptr %pairs_at
{loop_ir("k", "%count", "1", body)}
  ret void
}}
attributes #0 = {{ nounwind }}
"""
