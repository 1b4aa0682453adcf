"""What the verification of kernels refuses; that it accepts those that are made, every other test shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import stages
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.memory import CACHE_LINE
from jitgrad.compiler.llvmir import Module
from jitgrad.compiler.loopir.nests import (
    LANES,
    PARALLEL,
    PARALLEL_VECTOR,
    VECTOR,
    Accumulator,
    Bound,
    Buffer,
    Constant,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.machine.compilation import begin_kernel
from jitgrad.compiler.verifying import verify_kernel
from jitgrad.errors import CompileError

pytestmark = pytest.mark.quick

F64 = np.dtype(np.float64)
ZERO = Literal(0.0, F64)
PLACE = Index((Term("i0"),))
LOAD = Load("v0", F64, "in0", PLACE)
STORE = Store("out0", PLACE, "v0", F64)


def kernel(*body: Statement, ints: tuple[str, ...] = ("n0",)) -> Kernel:
    constants = tuple(Constant(f"c{k}", F64) for k in range(3))
    return Kernel((Buffer("in0", F64, "in"), Buffer("out0", F64, "out")), ints, constants, body)


def repeat(*members: tuple[str, ...], turns: int = 2, value: str = "each0") -> Loop:
    """Turns that read constants, and make a value of them."""
    made = Let("v1", F64, "add", (value, value))
    names = tuple(f"each{k}" for k in range(len(members)))
    return loop(Repeat(turns, names, members, (), (), (made,)), Store("out0", PLACE, "v1", F64))


def loop(*body: Statement, kind: str = VECTOR) -> Loop:
    return Loop("i0", "n0", kind, body)


def test_a_kernel_that_holds() -> None:
    total = Accumulator("acc0", F64, "add", ZERO)
    body = (total, loop(LOAD, Update("acc0", F64, "add", "v0")), loop(Store("out0", PLACE, "acc0", F64)))
    made = kernel(*body)
    assert verify_kernel(made) is made


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (kernel(loop(STORE)), "nothing has made v0"),
        (kernel(loop(LOAD), loop(STORE)), "nothing has made v0"),
        (kernel(loop(LOAD, STORE), ints=()), "nothing has made n0"),
        (kernel(LOAD), "nothing has made i0"),
        (kernel(loop(Load("v0", F64, "in1", PLACE))), "nothing has made in1"),
        (kernel(loop(Load("v0", F64, "in0", PLACE, (Bound("i0", None, "n1"),), ZERO))), "nothing has made n1"),
        (kernel(loop(Load("v0", F64, "in0", Index((Term("i0", "s0"),), "at")))), "nothing has made s0, at"),
        (kernel(loop(LOAD, Update("acc0", F64, "add", "v0"))), "nothing has made acc0"),
        (kernel(loop(Let("v0", F64, "add", ("v0", ZERO)))), "nothing has made v0"),
        (kernel(loop(LOAD, Store("in0", PLACE, "v0", F64))), "it writes its input in0"),
        (kernel(ints=("n0", "n0")), "two parameters have one name"),
        (kernel(repeat(("c0", "c1"), value="each1")), "nothing has made each1"),
        (kernel(repeat(("c0", "c4"))), "nothing has made c4"),
        (kernel(repeat(("c0", "c1", "c2"))), "turns of a repeat are not alike"),
        (kernel(repeat(("c0", "c1", "c1"), turns=3)), "turns of a repeat are not alike"),
        (kernel(repeat(("c0", "n0"))), "turns of a repeat are not alike"),
        (kernel(repeat(("c0",), turns=1)), "turns of a repeat are not alike"),
        (kernel(loop(Repeat(2, (), (), (("last0", ZERO, "v9"),), (), ()), STORE)), "turns of a repeat are not alike"),
        (kernel(loop(LOAD, Repeat(2, ("each0",), (("in0", "in1"),), (), (), (Store("each0", PLACE, "v0", F64),)))),
         "nothing has made in1"),
        (kernel(loop(LOAD, Repeat(2, ("each0",), (("out0", "in0"),), (), (), (Store("each0", PLACE, "v0", F64),)))),
         "turns of a repeat are not alike"),
        (kernel(loop(loop())), "i0 is made again"),
        (kernel(loop(kind=LANES), loop(kind=PARALLEL_VECTOR)), "elements in one loop, vectors in another"),
    ],
)
def test_a_kernel_that_does_not(broken: Kernel, message: str) -> None:
    with pytest.raises(CompileError, match=message) as found:
        verify_kernel(broken)
    assert "def kernel(" in str(found.value)


def test_no_kernel_is_begun_before_it_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even those that another thread compiles while the next is lowered."""
    verified: list[Kernel] = []
    begun: list[Kernel] = []

    def begin(kernel: Kernel) -> str:
        assert kernel in verified
        begun.append(kernel)
        return begin_kernel(kernel)

    def verify(kernel: Kernel) -> Kernel:
        verified.append(kernel)
        return kernel

    monkeypatch.setattr(stages, "begin_kernel", begin)
    monkeypatch.setattr(stages, "verify_kernel", verify)
    x = np.linspace(0, 1, 11)
    with jg.config(verify=True, cache=False):
        jg.compile(lambda x: np.exp(x - np.max(x)) / np.sum(np.exp(x - np.max(x))))(x)
    assert len(begun) > 1


def test_a_diagonal_is_one_loop() -> None:
    """Both dimensions of what is computed run along it; two loops, one in the other, would run over one axis."""

    @jg.compile
    def f(x: Any) -> Any:
        d = np.diagonal(x * 0.5)
        return np.sum(d), d * 2.0

    x = np.random.default_rng(0).standard_normal((200, 200))
    assert f.explain(x).kernels.count(" in parallel_vector(") == 1 and "scratch" not in f.explain(x).kernels
    for got, expected in zip(f(x), f.interpret(x), strict=True):
        np.testing.assert_allclose(got, expected)


def test_loops_over_rows_and_of_vectors_are_cut_alike() -> None:
    """A chunk of a loop of vectors begins where a line does; not where a loop over rows reads what it has made."""
    made = Loop("i0", "n0", PARALLEL_VECTOR, (LOAD, Store("scratch0", PLACE, "v0", F64)))
    row = Loop("i1", "n1", VECTOR, (Store("out0", Index((Term("i0", "n1"), Term("i1"))), "v1", F64),))
    rows = Loop("i0", "n0", PARALLEL, (Load("v1", F64, "scratch0", PLACE), row))
    buffers = (Buffer("in0", F64, "in"), Buffer("scratch0", F64, "scratch", "n0"), Buffer("out0", F64, "out"))

    def is_cut_at_lines(*body: Statement) -> bool:
        module = Module("kernel", True, has_avx512=True)
        emit_kernel(module, verify_kernel(Kernel(buffers, ("n0", "n1"), (), body)), "kernel", 64)
        return f"i64 -{CACHE_LINE}" in str(module)

    assert is_cut_at_lines(made) and not is_cut_at_lines(made, rows)
