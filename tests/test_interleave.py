"""How many registers of lanes a turn of a loop works on."""

from __future__ import annotations

import numpy as np
import pytest

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.interleave import keeps_order, most_alive, registers_at_once
from jitgrad.compiler.emission.kernel import ALIGNED_FRAME, emit_kernel
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    VECTOR,
    Buffer,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.machine.compilation import has_fma
from jitgrad.compiler.machine.native import compile_to_object

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


def _chains(count: int, ops: int) -> tuple[Statement, ...]:
    """So many chains side by side, whose values are all read again behind them."""
    body: list[Statement] = [LOAD]
    for k in range(ops):
        body += [Let(f"v{k}_{c}", F32, "exp", (f"v{k - 1}_{c}" if k else "x",)) for c in range(count)]
    made = [s.name for s in body if isinstance(s, Let)]
    body += [Let(f"s{k}", F32, "add", (f"s{k - 1}" if k else "x", name)) for k, name in enumerate(made)]
    return (*body, Store("out0", INDEX, f"s{len(made) - 1}", F32))


def _kept_chain(ops: int) -> tuple[Statement, ...]:
    """A chain whose values are all read again behind it, as by its gradient."""
    *chain, _ = _chain(ops)
    last = f"v{ops - 1}"
    again = [Let(f"g{k}", F32, "multiply", (f"g{k + 1}" if k < ops - 2 else last, f"v{k}")) for k in range(ops - 1)]
    return (*chain, *reversed(again), Store("out0", INDEX, "g0", F32))


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
        (PARALLEL_VECTOR, _kept_chain(12), 4),  # more than registers hold, but it waits for itself
        (PARALLEL_VECTOR, _kept_chain(24), 4),
        (PARALLEL_VECTOR, _chains(3, 8), 2),  # more than registers hold, but the processor has little else to do
        (PARALLEL_VECTOR, _chain(20, "multiply"), 2),
        (VECTOR, _chain(3), 2),  # rows may be short
        (VECTOR, (LOAD, Update("acc0", F32, "add", "x")), 4),
    ],
)
def test_more_registers_where_a_body_waits(kind: str, body: tuple[Statement, ...], count: int) -> None:
    assert registers_at_once(Loop("i0", "n0", kind, body)) == count


@pytest.mark.parametrize(
    ("kind", "body", "count", "in_order"),
    [
        (PARALLEL_VECTOR, _chain(20), 4, False),
        (VECTOR, _chain(20), 4, False),  # leaves over as much as two of 64 bytes
        (PARALLEL_VECTOR, _wide(12), 4, True),  # more than registers hold
        (PARALLEL_VECTOR, _wide(20), 1, True),
        (PARALLEL_VECTOR, _chain(20, "multiply"), 2, False),
    ],
)
def test_more_registers_where_they_are_short(
    kind: str, body: tuple[Statement, ...], count: int, in_order: bool
) -> None:
    loop = Loop("i0", "n0", kind, body)
    assert registers_at_once(loop, is_short=True) == count
    assert keeps_order(loop, is_short=True) == in_order
    assert keeps_order(loop, is_short=False) == (in_order and count == 4)


def test_a_body_that_waits_for_itself_is_left_to_llvm() -> None:
    assert most_alive(_kept_chain(12)) == 12
    assert not keeps_order(Loop("i0", "n0", PARALLEL_VECTOR, _kept_chain(12)), is_short=False)


@pytest.mark.parametrize(("values", "register_bytes", "in_order"), [(6, 64, False), (12, 64, True), (12, 32, True)])
def test_the_order_of_a_body_is_kept_where_registers_do_not_hold_it(
    values: int, register_bytes: int, in_order: bool
) -> None:
    text = _text(_wide(values), register_bytes)  # at 64 bytes in another one
    assert ("codeview.annotation(metadata !" in text) == in_order
    assert compile_to_object(text)


def test_registers_that_are_kept_in_memory_lie_within_lines() -> None:
    assert ALIGNED_FRAME in _text(_chain(2), 64)


def test_an_element_wise_body_asks_once_where_its_stores_go() -> None:
    body = (*_chain(2), Let("w", F32, "add", ("v0", "v1")), Store("out1", INDEX, "w", F32))
    text = _text(body, 64)
    assert text.count("!nontemporal") == 2
    past = text[: text.index("!nontemporal")].rindex("then.")
    assert text.count("!nontemporal", past, text.index("br label", past)) == 2  # side by side, behind one question


def test_a_body_that_reads_what_it_stores_does_so_in_its_order() -> None:
    reads = Load("y", F32, "out0", INDEX)
    body = (*_chain(1), reads, Let("w", F32, "add", ("v0", "y")), Store("out1", INDEX, "w", F32))
    text = _text(body, 64)
    assert text.index("!nontemporal") < text.rindex("= load <")


def _text(body: tuple[Statement, ...], register_bytes: int) -> str:
    buffers = (Buffer("in0", F32, "in"), Buffer("out0", F32, "out"), Buffer("out1", F32, "out"))
    kernel = Kernel(buffers, ("n0",), (), (Loop("i0", "n0", PARALLEL_VECTOR, body),))
    module = ir.Module("kernel", has_fma())
    emit_kernel(module, kernel, "kernel", register_bytes)
    return str(module)
