"""What the texts of steps that call NumPy's own loops have in common: the first address of each operand, and arrays of
what a loop is given (transform_steps.py, decomposition_steps.py).
"""

from __future__ import annotations


def address_ir(name: str, slot: str, nbytes: str, index: str) -> str:
    """The address of a row or matrix: its index times so many bytes behind what is in a slot of the table."""
    return f"""  %{name}_entry = getelementptr ptr, ptr %table, i64 %{slot}
  %{name}_base = load ptr, ptr %{name}_entry
  %{name}_far = mul i64 %{index}, %{nbytes}
  %{name} = getelementptr i8, ptr %{name}_base, i64 %{name}_far"""


def filled_ir(name: str, type_: str, *values: str) -> str:
    """An array of these values."""
    return "\n".join(
        f"  %{name}_{k} = getelementptr {type_}, ptr %{name}, i64 {k}\n  store {type_} {value}, ptr %{name}_{k}"
        for k, value in enumerate(values)
    )
