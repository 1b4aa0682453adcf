"""Short rows with numbers of their own: those of half a register, one or two have code without masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.short_rows import row_of_numbers
from jitgrad.compiler.llvmir import Module
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Accumulator,
    Bound,
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
from jitgrad.compiler.loopir.nests import Literal as Number

F32, I64 = np.dtype(np.float32), np.dtype(np.int64)
WIDTHS = (3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 33)
AT = Load("v0", I64, "in1", Index((Term("i0"),)))
ROW = Index((Term("v0", "n1"), Term("i1")))


def _columns(*body: Statement, extent: str = "n1") -> Loop:
    return Loop("i1", extent, VECTOR, body)


COPY = _columns(Load("v1", F32, "in0", ROW), Store("out0", Index((Term("i0", "n1"), Term("i1"))), "v1", F32))


def _text(loop: Loop, vector_bytes: int = 64) -> str:
    module = Module("rows", True, has_avx512=vector_bytes == 64)
    buffers = Buffer("in0", F32, "in"), Buffer("in1", I64, "in"), Buffer("out0", F32, "out")
    emit_kernel(module, Kernel(buffers, ("n0", "n1"), (), (loop,)), "kernel", vector_bytes)
    return str(module)


@pytest.mark.quick
@pytest.mark.parametrize("kind", [SERIAL, PARALLEL])
def test_rows_of_half_a_register_are_loaded_without_a_mask(kind: str) -> None:
    assert "load <8 x float>" in _text(Loop("i0", "n0", kind, (AT, COPY)))
    assert "load <4 x float>" in _text(Loop("i0", "n0", kind, (AT, COPY)), 32)
    own = _columns(Load("v1", F32, "in0", Index((Term("i0", "n1"), Term("i1")))), COPY.body[-1])
    assert "load <8 x float>" not in _text(Loop("i0", "n0", kind, (own,)))  # no number of its own


@pytest.mark.quick
def test_which_rows_are_emitted_so() -> None:
    assert row_of_numbers(Loop("i0", "n0", SERIAL, (AT, COPY))) is COPY
    strided = _columns(Load("v1", F32, "in0", Index((Term("i1", 2),))), COPY.body[-1])
    gathered = _columns(
        Load("v2", I64, "in1", Index((Term("i1"),))), Load("v1", F32, "in0", Index((Term("v2"),))), COPY.body[-1]
    )
    guarded = _columns(Load("v1", F32, "in0", ROW, (Bound("i1", "o0", "o1"),), Number(F32.type(0), F32)), COPY.body[-1])
    summed = _columns(Load("v1", F32, "in0", ROW), Update("acc0", F32, "add", "v1"))
    long = _columns(*[Let(f"v{k}", F32, "add", ("v1", "v1")) for k in range(2, 40)], *COPY.body)
    for columns in (strided, gathered, guarded, summed, long, _columns(*COPY.body, extent="v0")):
        assert row_of_numbers(Loop("i0", "n0", SERIAL, (AT, columns))) is None
    acc = Accumulator("acc0", F32, "add", Number(F32.type(0), F32))
    assert row_of_numbers(Loop("i0", "n0", SERIAL, (AT, acc, COPY))) is None
    assert row_of_numbers(Loop("i0", "n0", SERIAL, (COPY, AT))) is None


def looked_up(table: Any, at: Any, w: Any, s: Any) -> Any:
    return np.sum(table[at] * w * s[:, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("updates", [0, 1, 2, 301])
def test_rows_of_every_width(dtype: Any, updates: int) -> None:
    """Gathers and scatters, and rows with a factor each; positions from both ends, many of them equal."""
    rng = np.random.default_rng(5)
    gradients = jg.compile(jg.grad(looked_up, (0, 2)))
    rows = jg.compile(lambda table, at, s: table[at] * s[:, None] + 1)
    before = jg.get_num_threads()
    for width in WIDTHS:
        table = rng.standard_normal((40, width)).astype(dtype)
        table[3], table[4, ::2], table[5] = np.inf, np.nan, -0.0
        at = rng.integers(-40, 40, updates)
        at[::3] = at[:1]
        w, s = rng.integers(-9, 10, (updates, width)).astype(dtype), 2.0 ** rng.integers(-3, 4, updates)
        w[:1, :2], s = np.inf, s.astype(dtype)  # all sums are exact, in any order
        for threads in (1, 2):
            jg.set_num_threads(threads)
            for _ in range(3):  # quick code first, then good code
                with np.errstate(all="ignore"):
                    expected = np.zeros_like(table)
                    np.add.at(expected, at, w * s[:, None])
                    found, of_w = gradients(table, at, w, s)
                    assert found.tobytes() == expected.tobytes()
                    np.testing.assert_array_equal(of_w, table[at] * s[:, None])
                    np.testing.assert_array_equal(rows(table, at, s), table[at] * s[:, None] + 1)
    jg.set_num_threads(before)


@pytest.mark.parametrize("width", [8, 16])
def test_a_position_out_of_bounds_is_found(width: int) -> None:
    gradients = jg.compile(jg.grad(lambda table, at, w: np.sum(table[at] * w)))
    with pytest.raises(IndexError):
        gradients(np.ones((5, width)), np.array([0, 4, 5]), np.ones((3, width)))
