"""Which loop over a row asks for the next row, and of which arrays."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from jitgrad.compiler.emission.ahead import (
    PARTS,
    Request,
    Stream,
    find_asking,
    find_asking_past,
    find_second_halves,
    rows_to_write,
    without_halves,
)
from jitgrad.compiler.emission.asking import LEAST_AHEAD
from jitgrad.compiler.emission.kernel import emit_kernel
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
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.machine import compilation, native

pytestmark = pytest.mark.quick

F32 = np.dtype(np.float32)
ROW = Index((Term("i0", "n0"), Term("i1")))
NEXT = Index((Term("i9", "n0"), Term("i1")))
LANE = Index((Term("i1"),))
INPUTS = ("in0", "in1", "in2")
SUM = Loop("i1", "n0", VECTOR, (Load("v0", F32, "in0", ROW), Update("acc0", F32, "add", "v0")))
LAST = Loop(
    "i1",
    "n0",
    VECTOR,
    (
        Load("v1", F32, "in0", ROW),
        Load("v2", F32, "in1", ROW),
        Load("v3", F32, "in2", LANE),
        Let("v4", F32, "multiply", ("v1", "v2")),
        Let("v5", F32, "multiply", ("v4", "v3")),
        Store("out0", ROW, "v5", F32),
    ),
)
IN0, IN1 = (Stream(name, ROW, "n0", (None,)) for name in ("in0", "in1"))


def _rows(*body: Statement) -> Loop:
    return Loop("i0", "n1", PARALLEL, (Accumulator("acc0", F32, "add", Literal(F32.type(0), F32)), *body))


def test_the_loop_with_the_most_work_asks_for_all_arrays_with_rows() -> None:
    assert find_asking(_rows(SUM, LAST), INPUTS) == {LAST: (Request(IN0), Request(IN1))}


@pytest.mark.parametrize(("others", "shorter"), [(("i9",), ["in1"]), ((), [])], ids=["two rows", "one"])
def test_long_loops_share_what_is_asked_for_where_a_turn_has_several_rows(
    others: tuple[str, ...], shorter: list[str]
) -> None:
    longer = replace(LAST, body=(*LAST.body, Let("v8", F32, "add", ("v5", "v4"))))
    asking = find_asking(_rows(SUM, LAST, longer), INPUTS, others)
    asked = {loop: [r.stream.buffer for r in requests] for loop, requests in asking.items()}
    assert asked.get(LAST, []) == shorter
    assert asked[longer] == [name for name in ("in0", "in1") if name not in shorter]


@pytest.mark.parametrize("others", [(), ("i9",)], ids=["one row", "two rows"])
@pytest.mark.parametrize("lines", [*itertools.product((1, 2, 4), (0, 1, 2, 4, 8), (0, 2, 4))], ids=str)
def test_all_loops_ask_for_parts_of_all_rows_where_lines_are_few(
    lines: tuple[int, ...], others: tuple[str, ...]
) -> None:
    """Every line of each array, of each row that a turn works on, and in no turn twice as many as in another."""
    second = Loop("i1", "n0", VECTOR, tuple(Load(f"w{k}", F32, f"in{k}", NEXT) for k in range(2)))
    loops = (SUM, LAST, second) if others else (SUM, LAST, replace(SUM, extent="n3"))
    of_loop = dict(zip(loops, lines, strict=True))
    asking = find_asking(_rows(*loops), INPUTS, others, of_loop.__getitem__)
    along = [loop for loop in loops if loop.extent == "n0" and of_loop[loop]]
    assert asking.keys() <= set(along)
    covered: dict[Stream, set[int]] = {}
    for loop, requests in asking.items():
        for stream, parts, start in requests:
            assert of_loop[loop] % parts == 0  # whole lines in each turn
            covered.setdefault(stream, set()).update(range(start, start + PARTS // parts))
    assert {(s.buffer, s.place) for s in covered} == {
        (name, row) for name in ("in0", "in1") for row in ((ROW, NEXT) if others else (ROW,))
    }
    assert all(places >= set(range(PARTS)) for places in covered.values())
    counts = [sum(of_loop[loop] // r.parts for r in requests) for loop, requests in asking.items()]
    turns = sum(1 / of_loop[loop] for loop in along)
    assert max(counts) <= 2 * max(1, len(covered) / turns)


def test_where_lines_are_few_parts_of_a_row_are_asked_for_and_of_one_row_into_the_first_cache() -> None:
    module = Module("rows", True, has_few_buffers=True)
    buffers = tuple(Buffer(name, F32, "out" if name == "out0" else "in") for name in (*INPUTS, "out0"))
    emit_kernel(module, Kernel(buffers, ("n0", "n1"), (), (_rows(SUM, LAST),)), "kernel", 64)
    in_second, in_first = (str(module).count(f"i32 0, i32 {cache}, i32 1)") for cache in (1, 3))
    assert in_second == (4 + 2) + (1 + 2 + 2) + 2 + 3  # of two rows of two arrays; and of what is left of each
    assert in_first == 4 + 2 + 1 + 1


@pytest.mark.parametrize(
    ("told", "expected"),
    [("znver4 +avx512f,+fma", False), ("icelake-server +avx512f,+fma", True), ("haswell +avx2,+fma", False)],
    ids=["Zen 4", "Ice Lake", "no AVX-512"],
)
def test_on_which_processors_lines_are_few(told: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "target_description", lambda: f" {told} ")
    monkeypatch.setattr(compilation, "has_avx512", compilation.has_avx512.__wrapped__)
    found = compilation.has_few_buffers.__wrapped__()
    assert found == expected
    monkeypatch.setattr(compilation, "has_few_buffers", lambda: found)
    assert compilation._new_module("kernel", False).has_few_buffers == expected


def test_a_single_loop_over_a_row_does_not_ask() -> None:
    assert find_asking(_rows(LAST), INPUTS) == {}


def test_scratch_and_what_is_read_within_bounds_is_not_asked_for() -> None:
    scratch = Loop("i1", "n0", VECTOR, (Load("v6", F32, "scratch0", ROW),))
    bounded = Loop("i1", "n0", VECTOR, (Load("v7", F32, "in2", ROW, (Bound("i1", "o0", None),), None),))
    asking = find_asking(_rows(SUM, scratch, bounded), INPUTS)
    assert asking == {SUM: (Request(IN0),)}


def test_short_rows_are_asked_for_as_many_turns_ahead_as_have_7_kb() -> None:
    module = Module("rows")
    buffers = tuple(Buffer(name, F32, "out" if name == "out0" else "in") for name in (*INPUTS, "out0"))
    emit_kernel(module, Kernel(buffers, ("n0", "n1"), (), (_rows(SUM, LAST),)), "kernel", 64)
    for rows in (1, 2):
        turn = re.search(rf"(%\w+) = mul i64 (%\w+), {rows}\n", str(module))
        assert turn is not None
        pattern = rf"(%\w+) = or i64 {turn[1]}, 1\n +(%\w+) = sdiv i64 {LEAST_AHEAD // 4 - 1}, \1\n"
        division = re.search(pattern, str(module))
        assert division is not None
        turns = re.search(rf"(%\w+) = add i64 {division[2]}, 1\n", str(module))
        assert turns is not None
        assert f"mul i64 {turn[1]}, {turns[1]}\n" in str(module)


def test_lines_are_asked_for_once_per_turn_of_whole_registers() -> None:
    roles = {"in0": "in", "in1": "in", "in2": "in", "out0": "out"}
    buffers = tuple(Buffer(name, F32, role) for name, role in roles.items())
    module = Module("rows", True)
    emit_kernel(module, Kernel(buffers, ("n0", "n1"), (), (_rows(SUM, LAST),)), "kernel", 64)
    to_read = str(module).count("i32 0, i32 1, i32 1)")
    assert to_read == (2 + 1) * 2 * (2 + 1)  # for a pair and a row: arrays, whole registers and one of what is left


@pytest.mark.quick
def test_a_row_that_is_read_at_several_places_is_asked_for_at_the_last() -> None:
    shifted = Load("v9", F32, "in0", replace(ROW, offset="k0"))
    asking = find_asking(_rows(SUM, replace(LAST, body=(shifted, *LAST.body))), INPUTS)
    (requests,) = asking.values()
    assert {r.stream.buffer: r.stream.offsets for r in requests} == {"in0": (None, "k0"), "in1": (None,)}


def test_the_loop_before_a_store_asks_for_the_lines_to_write() -> None:
    rows = _rows(SUM, SUM, LAST)
    assert rows_to_write(rows, {"out0"}) == {SUM: (LAST.body[-1],)}
    assert rows_to_write(rows, {"out1"}) == {}
    module = Module("kernel")
    buffers = tuple(Buffer(name, F32, "out" if name == "out0" else "in") for name in (*INPUTS, "out0"))
    emit_kernel(module, Kernel(buffers, ("n0", "n1"), (), (_rows(SUM, LAST),)), "kernel", 64)
    to_write = [line for line in str(module).splitlines() if "i32 1, i32 3, i32 1)" in line]
    ends = 2 + 1  # of two rows at once and of one
    assert len(to_write) == (4 + 1) * (2 + 1) + ends  # of four registers and of what is left, likewise


RING = Index((Term("w0", "n0"), Term("i1")))
MADE = Loop(
    "i1",
    "n0",
    VECTOR,
    (
        Load("v0", F32, "in0", RING),
        Load("v1", F32, "in0", replace(RING, offset="k0")),
        Load("v2", F32, "in1", RING),
        Let("v3", F32, "subtract", ("v0", "v1")),
        Let("v4", F32, "subtract", ("v3", "v2")),
        Store("ring0", RING, "v4", F32),
    ),
)
MAKER = Loop("w0", "n3", SERIAL, (MADE,), "n2")
READER = Loop("i1", "n0", VECTOR, (Load("v5", F32, "ring0", ROW), Store("out0", ROW, "v5", F32)))


def test_who_reads_a_ring_asks_for_the_first_array_of_its_rows_where_stores_go_past_the_caches() -> None:
    rows = _rows(MAKER, READER)
    assert find_asking_past(rows, INPUTS) == {READER: (Request(Stream("in0", RING, "n0", (None, "k0"))),)}
    assert find_asking(rows, INPUTS) == {}
    assert [r.stream.buffer for r in find_asking(MAKER, INPUTS)[MADE]] == ["in0", "in1"]


def test_where_lines_are_few_both_loops_of_a_ring_ask_for_half_of_all_rows() -> None:
    rows = _rows(MAKER, READER)
    second = find_second_halves(rows, INPUTS)
    [first] = without_halves(find_asking(MAKER, INPUTS, lines=lambda _: 2), second).values()
    assert [(s.buffer, parts, start) for s, parts, start in first] == [("in0", 2, 0), ("in1", 2, 0)]
    assert [(s.buffer, parts, start) for s, parts, start in second[READER]] == [("in0", 2, 4), ("in1", 2, 4)]
    assert without_halves(second, {}) == second
    buffers = (Buffer("ring0", F32, "ring", "n3"), *(Buffer(name, F32, "in") for name in ("in0", "in1")))
    kernel = Kernel((*buffers, Buffer("out0", F32, "out")), ("n0", "n1", "n2", "n3", "k0"), (), (rows,))
    asked = []
    for has_few_buffers in (False, True):
        module = Module("rows", True, has_few_buffers=has_few_buffers)
        emit_kernel(module, kernel, "kernel", 64)
        asked.append(str(module).count("i32 0, i32 1, i32 1)"))
        assert "i32 0, i32 3, i32 1)" not in str(module)
    assert asked == [2 * (2 + 1) + (2 + 1), 2 * (1 + 1) + 2 * (1 + 1)]  # lines of whole turns, and of what is left


def test_where_arithmetic_takes_longer_than_memory_who_reads_a_ring_does_not_ask() -> None:
    work = tuple(Let(f"v{k}", F32, "add", ("v5", "v5")) for k in range(10, 50))
    longer = replace(READER, body=(READER.body[0], *work, READER.body[1]))
    assert find_asking_past(_rows(MAKER, longer), INPUTS) == {}
    assert find_asking_past(_rows(SUM, LAST), INPUTS) == {}


def test_the_code_of_who_reads_a_ring_asks_as_well() -> None:
    """Beside what the loop asks for that makes the rows: an array, in each turn of whole registers and of what is left.
    """
    roles = {"in0": "in", "in1": "in", "out0": "out"}
    ring = Buffer("ring0", F32, "ring", "n3")
    buffers = (ring, *(Buffer(name, F32, role) for name, role in roles.items()))
    ints = ("n0", "n1", "n2", "n3", "k0")
    asked = []
    other = Load("v5", F32, "ring0", Index((Term("i0", "n0"), Term("i2"))))
    for reader in (READER, replace(READER, var="i2", body=(other,))):  # along another axis than the rows are made
        module = Module("rows")
        emit_kernel(module, Kernel(buffers, ints, (), (_rows(MAKER, reader),)), "kernel", 64)
        asked.append(str(module).count("i32 0, i32 1, i32 1)"))
    assert asked[0] - asked[1] == 2 + 1
