"""Sums of products: a product that only a sum reads is added without being rounded; no other arithmetic is joined.

Sums are made in an order of their own, and so equal the interpreter's to rounding only. A product that is rounded once
less brings them nearer to the exact sum, as in a BLAS's dot product, and takes one instruction in place of two. Where a
product and something else than a running sum are added, both roundings are part of what the program says, and stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jitgrad.compiler.loopir.nests import (
    Argument,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Update,
    arguments,
    statements,
)
from jitgrad.spec import DType

_PRODUCTS = ("multiply", "square")


def add_products(kernel: Kernel) -> Kernel:
    """Accumulators, and elements of rows of sums, that products are added to in one step."""
    reads = Counter(a for s in statements(kernel.body) for a in arguments(s) if isinstance(a, str))
    partial = {b.name for b in kernel.buffers if b.role == "partial"}
    body = _joined(kernel.body, reads, partial)
    return kernel if body == kernel.body else replace(kernel, body=body)


def _joined(body: Sequence[Statement], reads: Mapping[str, int], partial: set[str]) -> tuple[Statement, ...]:
    made = {s.name: s for s in body if isinstance(s, Let) and reads[s.name] == 1}
    rows = _rows_of_sums(body, partial)
    changed: dict[str, Let | None] = {}
    result: list[Statement] = []
    for s in body:
        match s:
            case Loop(body=inner):
                s = s.with_body(_joined(inner, reads, partial))
            case Update(_, dtype, "add", str(value), None):
                if factors := _factors(value, dtype, made, changed):
                    s = replace(s, value=factors[0], factor=factors[1])
            case Let(name, dtype, "add", (str(total), str(value))) if rows.get(name) == total:
                if factors := _factors(value, dtype, made, changed):
                    s = Let(name, dtype, "add_product", (total, *factors))
        result.append(s)
    return tuple(t for s in result if (t := changed.get(s.name, s) if isinstance(s, Let) else s) is not None)


def _factors(
    value: str, dtype: DType, made: Mapping[str, Let], changed: dict[str, Let | None]
) -> tuple[Argument, Argument] | None:
    """The factors of a value that only a sum reads; ``changed`` is told what then is not made, or of what."""
    let = made.get(value)
    product = made.get(str(let.args[0])) if let is not None and let.op == "negative" else let
    if let is None or product is None or product.op not in _PRODUCTS or dtype.kind != "f" or product.dtype != dtype:
        return None
    changed[product.name] = None
    first, second = product.args[0], product.args[-1]
    if let is product:
        return first, second
    changed[value] = replace(let, args=(first,))
    return value, second


def _rows_of_sums(body: Sequence[Statement], partial: set[str]) -> dict[str, str]:
    """What is stored in a row of sums by a body, and the name of what stood there before."""
    before: dict[tuple[str, Index], str] = {
        (s.buffer, s.index): s.name for s in body if isinstance(s, Load) and s.buffer in partial and not s.bounds
    }
    stores = [s for s in body if isinstance(s, Store) and (s.buffer, s.index) in before]
    return {str(s.value): before[s.buffer, s.index] for s in stores}
