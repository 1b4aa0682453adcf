"""How many registers of lanes a turn of a loop works on."""

from __future__ import annotations

import numpy as np
import pytest

from jitgrad.compiler.emission.interleave import most_alive, registers_at_once
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    VECTOR,
    Index,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)

pytestmark = pytest.mark.quick

F32 = np.dtype(np.float32)
INDEX = Index((Term("i0"),))
LOAD = Load("x", F32, "in0", INDEX)


def _chain(ops: int, name: str = "exp") -> tuple[Statement, ...]:
    body: list[Statement] = [LOAD]
    for k in range(ops):
        body.append(Let(f"v{k}", F32, name, (f"v{k - 1}" if k else "x",)))
    return (*body, Store("out0", INDEX, f"v{ops - 1}", F32))


def _wide(values: int) -> tuple[Statement, ...]:
    """So many values made, and then all of them added up."""
    body: list[Statement] = [LOAD, *(Let(f"v{k}", F32, "exp", ("x",)) for k in range(values))]
    body += [Let(f"s{k}", F32, "add", (f"s{k - 1}" if k > 1 else "v0", f"v{k}")) for k in range(1, values)]
    return (*body, Store("out0", INDEX, f"s{values - 1}", F32))


def test_what_is_alive_is_counted() -> None:
    assert most_alive(_chain(5)) == 1
    assert most_alive(_wide(7)) == 7
    assert most_alive((LOAD, Store("out0", INDEX, "x", F32))) == 0


@pytest.mark.parametrize(
    ("kind", "body", "count"),
    [
        (PARALLEL_VECTOR, _chain(20), 4),  # waits for itself
        (PARALLEL_VECTOR, _wide(12), 2),
        (PARALLEL_VECTOR, _wide(20), 1),  # no room in the registers
        (PARALLEL_VECTOR, _chain(20, "multiply"), 2),
        (VECTOR, _chain(3), 2),  # rows may be short
        (VECTOR, (LOAD, Update("acc0", F32, "add", "x")), 4),
    ],
)
def test_more_registers_where_a_body_waits(kind: str, body: tuple[Statement, ...], count: int) -> None:
    assert registers_at_once(Loop("i0", "n0", kind, body)) == count
