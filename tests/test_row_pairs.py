"""Two rows of a nest at once: what a turn over both is, when there is none, and that bits are those of rows alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.kernel import emit_kernel
from jitgrad.compiler.emission.rows import longest_row, pair_rows, pairs_rows
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    VECTOR,
    Accumulator,
    Buffer,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.lowering.lower import kernels_of
from jitgrad.compiler.machine.tiers import improver

F32 = np.dtype(np.float32)
ROW, LANE = Index((Term("i0", "n0"), Term("i1"))), Index((Term("i1"),))
ZERO = Literal(F32.type(0), F32)
SUM = Loop("i1", "n0", VECTOR, (Load("v0", F32, "in0", ROW), Update("acc1", F32, "add", "v0")))
USE = Loop(
    "i1",
    "n0",
    VECTOR,
    (
        Load("v1", F32, "in0", ROW),
        Load("v2", F32, "in1", LANE),
        Let("v3", F32, "multiply", ("v1", "acc1")),
        Let("v4", F32, "add", ("v3", "v2")),
        Update("acc0", F32, "add", "v4"),
        Load("v5", F32, "partial0", LANE),
        Let("v6", F32, "add", ("v5", "v4")),
        Store("partial0", LANE, "v6", F32),
        Store("scratch0", LANE, "v4", F32),
    ),
)
LAST = Loop("i1", "n0", VECTOR, (Load("v7", F32, "scratch0", LANE), Store("out0", ROW, "v7", F32)))


def _kernel(*body: Statement) -> Kernel:
    roles = {"in0": "in", "in1": "in", "partial0": "partial", "scratch0": "scratch", "out0": "out"}
    extents = {"partial0": "n0", "scratch0": "n0"}
    buffers = tuple(Buffer(name, F32, role, extents.get(name)) for name, role in roles.items())
    rows = Loop("i0", "n1", PARALLEL, (Accumulator("acc1", F32, "add", ZERO), *body))
    return Kernel(buffers, ("n0", "n1"), (), (Accumulator("acc0", F32, "add", ZERO), rows))


def _rows(kernel: Kernel) -> Loop:
    return next(s for s in kernel.body if isinstance(s, Loop))


@pytest.mark.quick
def test_a_turn_loads_what_both_rows_read_once_and_hands_rows_of_sums_on() -> None:
    kernel = _kernel(SUM, USE, LAST)
    turn = replace(_rows(kernel), body=pair_rows(_rows(kernel), kernel).body)
    assert "\n".join(replace(kernel, body=(turn,)).text.splitlines()[9:]) == """\
    for i0 in parallel(n1):
        acc1 = f32(0.0)
        acc1_second = f32(0.0)
        for i1 in vector(n0):
            v0 = in0[i0*n0 + i1]
            acc1 = add(acc1, v0)
            v0_second = in0[i0_second*n0 + i1]
            acc1_second = add(acc1_second, v0_second)
        acc0_second = f32(0.0)
        for i1 in vector(n0):
            v1 = in0[i0*n0 + i1]
            v2 = in1[i1]
            v3 = f32(multiply(v1, acc1))
            v4 = f32(add(v3, v2))
            acc0 = add(acc0, v4)
            v5 = partial0[i1]
            v6 = f32(add(v5, v4))
            scratch0[i1] = v4
            v1_second = in0[i0_second*n0 + i1]
            v3_second = f32(multiply(v1_second, acc1_second))
            v4_second = f32(add(v3_second, v2))
            acc0_second = add(acc0_second, v4_second)
            v6_second = f32(add(v6, v4_second))
            partial0[i1] = v6_second
            scratch0_second[i1] = v4_second
        acc0 = add(acc0, acc0_second)
        for i1 in vector(n0):
            v7 = scratch0[i1]
            out0[i0*n0 + i1] = v7
            v7_second = scratch0_second[i1]
            out0[i0_second*n0 + i1] = v7_second"""


@pytest.mark.quick
def test_longer_rows_are_paired_where_they_have_rows_in_common() -> None:
    shared = {"in1": (SUM, USE), "partial0": (SUM, replace(USE, body=(*USE.body[:1], *USE.body[2:]))), "": (SUM, LAST)}
    kernels = {name: _kernel(*body) for name, body in shared.items()}
    longest = {name: longest_row(_rows(kernel), kernel, False) for name, kernel in kernels.items()}
    assert longest == {"in1": 32 << 10, "partial0": 32 << 10, "": 16 << 10}
    assert {longest_row(_rows(kernel), kernel, True) for kernel in kernels.values()} == {16 << 10}


@pytest.mark.quick
def test_loops_that_go_by_segments_stay_apart() -> None:
    place = Let("v8", np.dtype(bool), "equal", ("i1", "n0"))
    kernel = _kernel(SUM, replace(USE, body=(place, *USE.body)), LAST)
    pair = pair_rows(_rows(kernel), kernel)
    assert sum(isinstance(s, Loop) for s in pair.body) == 4


@pytest.mark.quick
def test_what_goes_on_from_row_to_row_in_two_places_keeps_rows_alone() -> None:
    assert pairs_rows(_kernel(SUM, USE, LAST))
    assert not pairs_rows(_kernel(SUM, USE, replace(LAST, body=(*USE.body[5:8], *LAST.body))))
    assert not pairs_rows(_kernel(SUM, USE, replace(LAST, body=(*LAST.body, Update("acc0", F32, "add", "v7")))))
    assert not pairs_rows(_kernel(SUM, USE, replace(LAST, body=(Let("v9", F32, "negative", ("acc0",)), *LAST.body))))
    assert not pairs_rows(_kernel(USE))


@pytest.mark.quick
def test_rows_with_functions_of_analysis_stay_alone() -> None:
    exponential = replace(SUM, body=(*SUM.body, Let("v9", F32, "exp", ("v0",)), Update("acc1", F32, "add", "v9")))
    assert not pairs_rows(_kernel(exponential, USE, LAST))


def _layer_norm(x: Any, gain: Any, bias: Any, cotangent: Any) -> Any:
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred**2, axis=-1, keepdims=True)
    return np.sum((centred / np.sqrt(variance + 1e-5) * gain + bias) * cotangent)


def _scaled(x: Any, limits: Any) -> Any:
    """The gradient of the largest magnitude goes to one place of a row, which a loop by segments finds."""
    largest = np.take_along_axis(x, limits[:, None], axis=1)
    y = x / np.max(np.abs(x), axis=1, keepdims=True) - np.mean(x * largest, axis=1, keepdims=True)
    return np.sum(y * y)


def _arguments(fn: Callable[..., Any], rows: int, columns: int, dtype: str) -> tuple[Any, ...]:
    rng = np.random.default_rng(rows * columns)
    x, other = rng.standard_normal((2, rows, columns)).astype(dtype)
    info = np.finfo(dtype)
    x[5::7] *= 2 * info.tiny  # divisors whose reciprocals are not normal numbers
    x[6::7] *= info.max / 8
    odd = rng.integers(0, x.size, 4 if rows > 3 else 0)
    x.flat[odd] = [np.inf, np.nan, -0.0, 1e30][: odd.size]
    if fn is _scaled:
        return x, rng.integers(0, columns, rows)
    return x, *rng.standard_normal((2, columns)).astype(dtype), other


def _bits(results: Any) -> list[bytes]:
    """All bits but those of NaN, whose sign is that of either operand of a sum."""
    return [np.where(np.isnan(a), np.float32(np.nan), a).tobytes() for a in results]


def compare(dtype: str) -> None:
    """In a new process with an empty cache: code compiled quickly works on rows alone and scales all that it divides,
    what takes its place does neither.
    """
    shapes = [(rows, columns) for rows in (1, 2, 3, 64, 129) for columns in (1, 7, 16, 33, 100, 768, 5000)]
    for loss in (_layer_norm, _scaled):
        fn = jg.compile(jg.value_and_grad(loss, 0))
        sets = [_arguments(loss, *shape, dtype) for shape in shapes]
        with improver._busy:
            alone = [fn(*args) for args in sets]
            assert improver._tasks
        improver.wait()
        for args, first in zip(sets, alone, strict=True):
            assert _bits(fn(*args)) == _bits(first)
        compiled = fn.explain(*sets[-1]).compiled
        kernels = [k for c in compiled for step in c.steps if not isinstance(step, int) for k in kernels_of(step)]
        assert any(map(pairs_rows, kernels))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bits_are_those_of_rows_alone(dtype: str, tmp_path: Path) -> None:
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    environment = {"PYTHONPATH": paths, "JITGRAD_CACHE_DIR": str(tmp_path)}
    environment |= {"JITGRAD_NUM_THREADS": "2", "JITGRAD_QUICK_START": "1"}
    code = f"import test_row_pairs; test_row_pairs.compare({dtype!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **environment}, check=True)


def _text(kernel: Kernel, register_bytes: int) -> str:
    module = ir.Module("kernel", True)
    emit_kernel(module, kernel, "kernel", register_bytes)
    return str(module)


@pytest.mark.quick
def test_with_16_registers_one_register_of_lanes_goes_after_the_other() -> None:
    text = _text(_kernel(SUM, USE, LAST), 32)
    assert text.count("fmul <16 x float>") == 1  # of the last row, if it is alone
    assert _text(_kernel(SUM, USE, LAST), 64).count("fmul <32 x float>") == 3


@pytest.mark.quick
@pytest.mark.parametrize("register_bytes", [32, 64])
def test_a_row_has_two_loops_one_without_the_scale_of_its_divisor(register_bytes: int) -> None:
    factors = [Let(f"v8_{name}", F32, f"{name}_of", ("acc1",)) for name in ("scale", "reciprocal")]
    first, second = (Let(f"v{9 + k}", F32, "multiply", (f"v{8 + k}", f.name)) for k, f in enumerate(factors))
    body = (Load("v8", F32, "in0", ROW), first, second, Store("out0", ROW, "v10", F32))
    text = _text(_kernel(SUM, *factors, Loop("i1", "n0", VECTOR, body)), register_bytes)
    wide = f"fmul <{register_bytes // 2} x float>"  # of two registers; two rows each
    assert text.count(wide) == 6 + 3
    assert "fcmp oeq float" in text


@pytest.mark.quick
def test_scratch_of_all_rows_stays_one() -> None:
    last = replace(LAST, body=(Load("v7", F32, "in0", ROW), Store("scratch0", ROW, "v7", F32)))
    kernel = _kernel(SUM, last)
    body = pair_rows(_rows(kernel), kernel).body
    stores = [s for loop in body if isinstance(loop, Loop) for s in loop.body if isinstance(s, Store)]
    assert [s.buffer for s in stores] == ["scratch0", "scratch0"]
    assert [s.index.terms[0].var for s in stores] == ["i0", "i0_second"]
