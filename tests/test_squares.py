"""Transposed reads in squares: which loops have them, and that bits are those of rows alone, for any register."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.shuffles import transposed
from jitgrad.compiler.emission.squares import find_square, has_squares
from jitgrad.compiler.freezing import freeze
from jitgrad.compiler.freezing.in_place import find_in_place
from jitgrad.compiler.freezing.regions import Unit
from jitgrad.compiler.loopir.nests import (
    PARALLEL,
    SERIAL,
    VECTOR,
    Accumulator,
    Bound,
    Buffer,
    Index,
    Kernel,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.lowering.lower import CompiledCluster, kernels_of
from jitgrad.compiler.machine import compilation
from jitgrad.compiler.machine.tiers import improver
from jitgrad.config import config

F64 = np.dtype(np.float64)
ROW, TURNED = Index((Term("i0", "n0"), Term("i1"))), Index((Term("i0"), Term("i1", "n1")))
LOAD, STORE = Load("v0", F64, "in0", TURNED), Store("out0", ROW, "v0", F64)
COLUMNS = Loop("i1", "n0", VECTOR, (LOAD, STORE))
ROWS = Loop("i0", "n1", PARALLEL, (COLUMNS,))


def _kernel(rows: Loop, role: str = "in") -> Kernel:
    buffers = (Buffer("in0", F64, role, "n0" if role == "scratch" else None), Buffer("out0", F64, "out"))
    return Kernel(buffers, ("n0", "n1"), (), (Accumulator("acc0", F64, "add", Literal(F64.type(0), F64)), rows))


def _columns(*body: Statement) -> Loop:
    return replace(ROWS, body=(replace(COLUMNS, body=body),))


@pytest.mark.quick
def test_rows_are_found_around_columns() -> None:
    found = find_square(ROWS, _kernel(ROWS))
    assert found is not None
    assert (found.middle, found.columns, found.turned) == ((), COLUMNS, (LOAD,))
    middle = Loop("i2", "n0", SERIAL, (COLUMNS,))
    around = replace(ROWS, body=(middle,))
    found = find_square(around, _kernel(around))
    assert found is not None
    assert found.middle == (middle,)
    summing = _columns(LOAD, Update("acc0", F64, "add", "v0"), STORE)
    assert find_square(summing, _kernel(summing)) is not None
    batch = Loop("i3", "n0", PARALLEL, (replace(ROWS, kind=SERIAL),))
    assert find_square(batch, _kernel(batch)) is None
    assert has_squares(_kernel(batch))


@pytest.mark.quick
@pytest.mark.parametrize(
    "rows",
    [
        _columns(replace(LOAD, index=ROW), STORE),
        _columns(replace(LOAD, index=Index((Term("i0"), Term("i1", 3)))), STORE),
        _columns(replace(LOAD, index=Index((Term("i0", "n0"), Term("i1", "n1")))), STORE),
        _columns(replace(LOAD, index=Index((Term("i0"), Term("i1", "n1", divisor=2)))), STORE),
        _columns(replace(LOAD, bounds=(Bound("i1", "n0", None),)), STORE),
        _columns(LOAD, Update("acc0", F64, "argmax", "v0", "i1"), STORE),
        replace(ROWS, body=(Loop("i2", "n0", SERIAL, _columns(LOAD, Update("acc0", F64, "add", "v0")).body),)),
        replace(ROWS, body=(LOAD, COLUMNS)),
        replace(ROWS, body=(replace(COLUMNS, start="n1"),)),
    ],
    ids=["along", "near", "far", "divided", "bounds", "where", "sums of many", "beside", "start"],
)
def test_other_rows_stay_rows(rows: Loop) -> None:
    assert find_square(rows, _kernel(rows)) is None


@pytest.mark.quick
def test_only_arrays_are_read_in_squares() -> None:
    assert find_square(ROWS, _kernel(ROWS, "scratch")) is None


@pytest.mark.quick
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_a_square_is_transposed_by_log_lanes_shuffles_each(lanes: int) -> None:
    """The shuffles themselves, followed element by element."""
    type_ = ir.VectorType(ir.DoubleType(), lanes)
    function = ir.Function(ir.Module(""), ir.FunctionType(ir.VoidType(), [type_] * lanes), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    made = transposed(builder, function.args)
    held = {arg.text: [(row, k) for k in range(lanes)] for row, arg in enumerate(function.args)}
    for line in builder.block.lines:
        name, text = str(line).strip().split(" = shufflevector ")
        first, second = (text.split(f"{type_.text} ")[k].split(",")[0] for k in (1, 2))
        picks = [int(word.split()[1]) for word in text.split("<")[-1].rstrip(">").split(", ")]
        held[name] = [(held[first] + held[second])[pick] for pick in picks]
    assert len(builder.block.lines) == lanes * (lanes.bit_length() - 1)
    assert [held[value.text] for value in made] == [[(row, k) for row in range(lanes)] for k in range(lanes)]


def _turned(x: Any, y: Any) -> Any:
    return x.T * 2 + np.flip(x, 0).T


def _joined(z: Any) -> Any:
    """An array and its sum of squares, which one kernel makes."""
    return np.concatenate([z.ravel(), np.sum(z * z)[None]])


FUNCTIONS = {
    "copy": (lambda x, y: x.T * 1.5, 2),
    "sum": (lambda x, y: x[:, : x.shape[0]] + x[:, : x.shape[0]].T if x.shape[0] <= x.shape[1] else x.T * 3, 2),
    "two": (lambda x, y: np.exp(x.T * 0.1) - y.T, 2),
    "one turned": (lambda x, y: x.T * y.reshape(x.T.shape), 2),
    "slices": (lambda x, y: x.T[1:, 2:] - y[2:, 1:].T, 2),
    "broadcast": (lambda x, y: x.T + y[:, 0], 2),
    "flipped": (_turned, 2),
    "mixed": (lambda x, y: x.T * y.astype(np.float32).T, 2),
    "whole numbers": (lambda x, y: (x * 100).astype(np.int32).T + (y * 9).astype(np.int64).T, 2),
    "truth": (lambda x, y: np.where((x > 0).T, y.T, 1.5), 2),
    "loss": (lambda x, y: np.sum(np.tanh(x.T * 0.1) * y.reshape(x.T.shape)), 2),
    "largest": (lambda x, y: np.max(np.exp(x.T * 0.1) - y.reshape(x.T.shape)), 2),
    "loss beside": (lambda x, y: _joined(np.sin(x.T) * y.reshape(x.T.shape)), 2),
    "last first": (lambda x, y: np.transpose(x, (2, 0, 1)) * 2 + 1, 3),
    "reversed": (lambda x, y: np.transpose(x, (2, 1, 0)) * 2 + 1, 3),
    "matrices": (lambda x, y: np.transpose(x, (0, 2, 1)) * 2 + 1, 3),
    "middle": (lambda x, y: np.transpose(x, (1, 2, 0)) * 2 + np.transpose(y, (1, 2, 0)), 3),
}
SHAPES = {
    2: [(1, 40), (40, 1), (3, 5), (8, 8), (16, 16), (17, 33), (33, 17), (70, 130), (131, 65), (20, 3000), (3000, 20)],
    3: [(2, 3, 4), (9, 17, 8), (33, 5, 21), (1, 40, 30), (30, 1, 40), (12, 50, 70)],
}


def compare(nbytes: int, dtype: str) -> None:
    """In a new process with an empty cache: quick code works on rows alone, what takes its place on squares."""
    compilation.vector_bytes = lambda: nbytes  # type: ignore[assignment]
    rng = np.random.default_rng(0)
    squares = set()
    for name, (fn, rank) in FUNCTIONS.items():
        compiled = jg.compile(fn)
        sets = [[rng.standard_normal(shape).astype(dtype) for _ in range(2)] for shape in SHAPES[rank]]
        with improver._busy:
            alone = [compiled(*args) for args in sets]
        improver.wait()
        for args, first in zip(sets, alone, strict=True):
            found, expected = compiled(*args), compiled.interpret(*args)
            assert found.dtype == first.dtype == expected.dtype
            assert found.tobytes() == first.tobytes(), (name, args[0].shape)
            tolerance = 1e-6 if found.dtype == np.float32 else 1e-14
            terms = args[0].size if "loss" in name else 1
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * terms)
        steps = compiled.explain(*sets[-1]).compiled[0].steps
        kernels = [k for step in steps if not isinstance(step, int) for k in kernels_of(step)]
        squares |= {name} if any(map(has_squares, kernels)) else set()
    assert len(squares) >= 15, squares


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nbytes", [16, 32, 64])
def test_bits_are_those_of_rows_alone(dtype: str, nbytes: int, tmp_path: Path) -> None:
    if nbytes > compilation.vector_bytes():
        pytest.skip("this processor has shorter registers")
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    environment = {"PYTHONPATH": paths, "JITGRAD_CACHE_DIR": str(tmp_path), "JITGRAD_QUICK_START": "1"}
    code = f"import test_squares; test_squares.compare({nbytes}, {dtype!r})"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **environment}, check=True)


def test_bits_do_not_depend_on_threads_nor_on_what_lies_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows cut by two threads; and a result that lies over an operand, which the squares read row by row."""
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((700, 701)), rng.standard_normal((700, 700)) / 100
    found = []

    def note(compiled: CompiledCluster, units: Sequence[Unit]) -> dict[int, int]:
        found.append(find_in_place(compiled, units))
        return found[-1]

    def run(threads: int) -> Any:
        """Of one kernel, which is squares, between two products."""
        with config(num_threads=threads, cache=False):
            f = jg.compile(lambda x, w: (np.exp(x.T @ w) + x.T) @ w)
            y = f(x, w)
            np.testing.assert_allclose(y, f.interpret(x, w), rtol=1e-13, atol=1e-13)
            (step,) = f.explain(x, w).compiled[0].steps
            assert isinstance(step, CompiledCluster)
            (kernel,) = kernels_of(step)
            assert has_squares(kernel)
            return y

    monkeypatch.setattr(freeze, "find_in_place", note)
    made = [run(1), run(2)]
    assert found
    assert all(found)
    monkeypatch.setattr(freeze, "find_in_place", lambda *_: {})
    for y in (*made[1:], run(1), run(2)):
        np.testing.assert_array_equal(y, made[0])


def test_a_square_asks_for_the_next_ones_lines_and_each_row_for_its_own() -> None:
    """The part of a row that is left over asks for none, nor does what is the same for each row."""
    x, row = np.ones((64, 64)), np.ones(64)
    lanes = compilation.vector_bytes() // F64.itemsize

    def asked(fn: Any, *arrays: Any) -> int:
        return str(jg.compile(fn).explain(*arrays).llvm).count('@"llvm.prefetch.p0"(ptr %') - 1  # one asks to write

    assert asked(lambda x, z: np.exp(x + z.T), x, x) == lanes + 1
    assert asked(lambda z, row: np.exp(z.T + row), x, row) == lanes
