"""find_clusters: the table of cases, random programs (acyclic, complete, one scope per cluster), time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting import assert_linear
from graphs import Builder, compiled, effect, opaque
from hypothesis import given, settings
from hypothesis import strategies as st

import jitgrad.ops  # noqa: F401
from jitgrad.compiler.clustering.clusters import Cluster, Clustering, find_clusters
from jitgrad.compiler.clustering.dependences import kernel_refusal
from jitgrad.opdef import Fill, Library, OpDef, Shaped
from jitgrad.program import Program
from jitgrad.sources import param_text
from jitgrad.spec import TensorSpec

pytestmark = pytest.mark.quick


def check(program: Program) -> Clustering:
    """The clustering, after its invariants have been checked."""
    clustering = find_clusters(program)
    made, done = set(program.inputs), set()
    needed = dict.fromkeys(program.outputs, 0)
    for ins in program.instructions:
        for v in ins.inputs:
            needed[v] = needed.get(v, 0) + 1
    for step in clustering.steps:
        numbers = step.instructions if isinstance(step, Cluster) else (step,)
        inside = set(step.inputs) if isinstance(step, Cluster) else made
        assert inside <= made
        here = set(inside)
        for number in numbers:
            ins = program.instructions[number]
            assert set(ins.inputs) <= here
            assert all(n in done or n in numbers for n in ins.after)
            here |= set(ins.outputs)
            if isinstance(step, Cluster):
                assert ins.origin.scope == step.scope or ins.op.kind == Fill("constant")
                assert kernel_refusal(ins, program) is None
        done |= set(numbers)
        made |= (
            set(step.outputs)
            if isinstance(step, Cluster)
            else {v for n in numbers for v in program.instructions[n].outputs}
        )
    assert set(program.outputs) <= made
    missing = set(range(len(program.instructions))) - done
    assert all(program.instructions[n].op.kind == Fill("constant") for n in missing)
    members = [n for c in clustering.clusters for n in c.instructions]
    assert all(
        program.instructions[n].op.kind == Fill("constant")
        for n in members
        if members.count(n) > 1 or n in _ints(clustering)
    )
    again = find_clusters(program)
    assert again.steps == clustering.steps and again.reasons == clustering.reasons
    return clustering


def _ints(clustering: Clustering) -> set[int]:
    return {step for step in clustering.steps if isinstance(step, int)}


def groups(program: Program) -> list[list[str]]:
    """The clusters, as lists of letters: instruction 0 is A."""
    return [[chr(ord("A") + n) for n in c.instructions] for c in check(program).clusters]


def chain(*ops: tuple[OpDef, str | None]) -> Program:
    b = Builder()
    x = b.input(3)
    for op, scope in ops:
        x = b.op(op, x, scope=scope)
    return b.program(x)


R, U = (compiled, "s"), (opaque, "s")


def two_paths(middle: OpDef) -> Program:
    b = Builder()
    a = b.op(compiled, b.input(3), scope="s")
    m = b.op(middle, a, scope="s")
    return b.program(b.op(compiled, m, a, scope="s"))


def two_scopes() -> Program:
    b = Builder()
    x, y = b.input(3), b.input(3)
    first = b.op(compiled, x, scope="1")
    second = b.op(compiled, y, scope="1")
    third = b.op(compiled, first, second, scope="2")
    return b.program(b.op(compiled, first, third, scope="2"))


def loop_between() -> Program:
    b = Builder()
    c = b.op(compiled, b.input(3), b.input(3), scope="s")
    return b.program(b.op(compiled, c, b.op(opaque, c, scope="s"), scope="s"))


def uncompilable_branch() -> Program:
    b = Builder()
    x, y, p = b.input(3), b.input(3), b.input(3)
    z = b.op(compiled, x, scope="s")
    w = b.op(opaque, p, z, y, scope="s")
    return b.program(b.op(compiled, z, w, scope="s"))


def unmarked_between() -> Program:
    b = Builder()
    y = b.op(compiled, b.input(3), scope="s")
    z = b.op(compiled, y, y)
    return b.program(b.op(compiled, y, z, scope="s"))


def siblings() -> Program:
    b = Builder()
    x, y = b.input(3), b.input(3)
    return b.program(b.op(compiled, x, scope="s"), b.op(compiled, y, scope="s"))


def late_parameter() -> Program:
    """The third instruction waits for an interpreted one that waits for nothing: one cluster all the same."""
    b = Builder()
    a = b.op(compiled, b.input(3), scope="s")
    u = b.op(opaque, b.input(3))
    return b.program(b.op(compiled, a, u, scope="s"))


def unlucky_scopes() -> Program:
    """Scope 1 is ready first, but can run in one piece only after scope 2."""
    b = Builder()
    a = b.op(compiled, b.input(3), scope="1")
    other = b.op(compiled, b.input(3), scope="2")
    return b.program(b.op(compiled, a, other, scope="1"))


def returned_twice() -> Program:
    b = Builder()
    y = b.op(compiled, b.input(3), scope="s")
    return b.program(y, y)


def outputs_of_every_kind() -> Program:
    """A constant, an empty array, an input passed through, and a computed value."""
    b = Builder()
    x, empty = b.input(3), b.input(7, 0)
    return b.program(b.constant(np.arange(3.0), scope="s"), empty, x, b.op(compiled, x, scope="s"))


def control_edge() -> Program:
    b = Builder()
    x = b.input(3)
    a = b.op(compiled, x, scope="s")
    b.op(effect, a)
    return b.program(b.op(compiled, a, scope="s", after=(b.last,)))


def shared_input_objects() -> Program:
    b = Builder()
    x = b.input(3, dtype=object)
    return b.program(b.op(compiled, b.op(compiled, x, scope="s"), scope="s"))


TABLE: list[tuple[str, Program | Callable[[], Program], list[list[str]]]] = [
    ("interpreted ops separate", chain((opaque, None), R, R, U, R, R), [["B", "C"], ["E", "F"]]),
    ("a path leaves and comes back", lambda: two_paths(opaque), [["A"], ["C"]]),
    ("all compilable", lambda: two_paths(compiled), [["A", "B", "C"]]),
    ("objects have no kernels", shared_input_objects, []),
    ("two scopes side by side", two_scopes, [["A", "B"], ["C", "D"]]),
    ("there and back again", chain((compiled, "1"), (compiled, "2"), (compiled, "1")), [["A"], ["B"], ["C"]]),
    ("a loop in between", loop_between, [["A"], ["C"]]),
    ("an uncompilable branch", uncompilable_branch, [["A"], ["C"]]),
    ("an unmarked op in between", unmarked_between, [["A"], ["C"]]),
    (
        "outside, then another scope",
        chain((compiled, "0"), (compiled, None), (compiled, "1")),
        [["A"], ["C"]],
    ),
    ("siblings", siblings, [["A", "B"]]),
    ("an input made late", late_parameter, [["A", "C"]]),
    ("the second scope goes first", unlucky_scopes, [["B"], ["A", "C"]]),
    ("one value returned twice", returned_twice, [["A"]]),
    ("outputs of every kind", outputs_of_every_kind, [["B"]]),
    ("control inputs are edges", control_edge, [["A"], ["C"]]),
    ("nothing marked", chain((compiled, None), (compiled, None)), []),
    ("marked alone", chain(R), [["A"]]),
]


@pytest.mark.parametrize(("program", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_table(program: Any, expected: list[list[str]]) -> None:
    assert groups(program if isinstance(program, Program) else program()) == expected


def test_reasons_name_the_path_and_the_refusal() -> None:
    clustering = check(two_paths(opaque))
    left_out, apart = (reason.text for reason in clustering.reasons)
    assert (
        left_out
        == "opaque_1 (model.py:2) is not compiled: opaque runs in the interpreter: it is arbitrary Python"
    )
    assert apart == (
        "compiled_0 (model.py:1) and compiled_2 (model.py:3) of scope 's' are not compiled together: "
        "a path between them goes through opaque_1 (model.py:2), of scope 's'"
    )
    assert [reason.instructions for reason in clustering.reasons] == [(1,), (0, 1, 2)]


def test_what_only_a_later_cluster_needs_is_computed_there() -> None:
    """The backward part computes 1 - h² itself from h, which is kept; the sum that needs more stays."""
    b = Builder()
    x, y = b.input(3), b.input(3)
    h = b.op(compiled, x, scope="s")
    other = b.op(compiled, y, scope="s")
    square = b.op(compiled, h, h, scope="s")
    derivative = b.op(compiled, square, scope="s")
    needs_more = b.op(compiled, h, other, b.op(compiled, other, scope="s"), scope="s")
    u = b.op(opaque, h)
    program = b.program(b.op(compiled, u, derivative, needs_more, scope="s"))
    first, second = check(program).clusters
    assert [program.instructions[n].outputs[0] for n in first.instructions] == [h]
    assert {square, derivative, needs_more} <= {
        program.instructions[n].outputs[0] for n in second.instructions
    }
    assert first.outputs == (h,)


def test_what_would_need_another_value_to_be_kept_stays() -> None:
    b = Builder()
    inner = b.op(compiled, b.input(3), scope="s")
    small, late = b.op(compiled, inner, scope="s"), b.op(compiled, inner, scope="s")
    u = b.op(opaque, small)
    program = b.program(b.op(compiled, u, late, scope="s"))
    first, second = check(program).clusters
    assert first.outputs == (small, late)
    assert second.instructions == (b.last,)


def test_a_search_that_is_too_long_is_given_up_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> Program:
        b = Builder()
        first, x = b.op(compiled, b.input(3), scope="a"), b.input(3)
        for _ in range(4):
            x = b.op(opaque, b.op(compiled, x, scope="b"))
        return b.program(b.op(compiled, first, x, scope="a"), first)

    assert len([c for c in check(program()).clusters if c.scope == "a"]) == 1
    monkeypatch.setattr("jitgrad.compiler.clustering.turns.SEARCH_LIMIT", 3)
    clustering = check(program())
    assert len([c for c in clustering.clusters if c.scope == "a"]) == 2
    assert any("too many steps lie between" in reason.text for reason in clustering.reasons)


def test_text() -> None:
    b = Builder()
    x = b.input(3)
    y = b.op(compiled, x, b.constant(np.broadcast_to(2.0, 3)), scope="s")
    program = b.program(b.op(opaque, y), y)
    lines = [" ".join(line.split()) for line in check(program).text.splitlines()]
    assert lines == [
        "cluster 0 @s(%0) -> (%2)",
        f"%1 = constant(value={param_text(program.instructions[0].params['value'])}) : f64[3] # model.py:1",
        "%2 = compiled(%0, %1) : f64[3] # model.py:2 @s",
        "interpreted %3 = opaque(%2) : f64[3] # model.py:3",
    ]


def test_a_literal_joins_every_cluster_that_reads_it() -> None:
    b = Builder()
    two = b.constant(np.broadcast_to(2.0, 3), scope="s")
    a = b.op(compiled, b.input(3), two, scope="s")
    u = b.op(opaque, a)
    program = b.program(b.op(compiled, u, two, scope="s"), two)
    clustering = check(program)
    assert [c.instructions for c in clustering.clusters] == [(0, 1), (0, 3)]
    assert [c.inputs for c in clustering.clusters] == [(1,), (3,)]
    assert clustering.steps[0] == 0  # the caller wants it too


def test_other_constants_are_inputs() -> None:
    b = Builder()
    table = b.constant(np.arange(3.0), scope="s")
    program = b.program(b.op(compiled, b.input(3), table, scope="s"))
    clustering = check(program)
    assert clustering.steps[0] == 0
    assert clustering.clusters[0].inputs == (1, 0)


def test_constants_and_metadata_start_no_cluster() -> None:
    b = Builder()
    metadata = OpDef(
        "size", lambda specs, params: (TensorSpec((), np.dtype(np.int64)),), np.size, None, Fill("constant")
    )
    x = b.input(3)
    program = b.program(b.op(metadata, x, scope="s"), b.constant(1.0, scope="s"))
    clustering = check(program)
    assert clustering.clusters == ()
    assert any("do not start a cluster" in reason.text for reason in clustering.reasons)


def test_outputs_are_those_needed_outside() -> None:
    b = Builder()
    a = b.op(compiled, b.input(3), scope="s")
    c = b.op(compiled, a, scope="s")
    d = b.op(compiled, c, scope="s")
    program = b.program(d, b.op(opaque, c), d)
    assert check(program).clusters[0].outputs == (c, d)


REFUSALS = [
    (effect, np.float64, "keeps state"),
    (
        OpDef("cholesky", effect.infer, effect.impl, None, Library("potrf")),
        np.float64,
        "library routine potrf",
    ),
    (OpDef("like", effect.infer, effect.impl, None, Shaped("broadcast")), np.float64, "simplify"),
    (compiled, np.complex128, "complex128"),
    (compiled, np.float16, "float16"),
    (compiled, object, "object"),
]


@pytest.mark.parametrize(("op", "dtype", "words"), REFUSALS)
def test_refusals_have_a_sentence(op: OpDef, dtype: Any, words: str) -> None:
    b = Builder()
    program = b.program(b.op(op, b.input(3, dtype=dtype), scope="s"))
    assert check(program).clusters == ()
    assert words in (kernel_refusal(program.instructions[0], program) or "")


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "float64"])
def test_dtypes_with_kernels(dtype: str) -> None:
    b = Builder()
    program = b.program(b.op(compiled, b.input(3, dtype=dtype), scope="s"))
    assert groups(program) == [["A"]]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    b = Builder()
    values = [b.input(2), b.input(2)]
    for number in range(draw(st.integers(1, 25))):
        op: Any = draw(st.sampled_from([compiled, compiled, compiled, opaque, effect, "constant"]))
        scope = draw(st.sampled_from([None, "1", "2", "3"]))
        if op == "constant":
            values.append(
                b.constant(draw(st.sampled_from([np.broadcast_to(3.0, 2), np.arange(2.0)])), scope=scope)
            )
            continue
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=3))
        after = tuple(draw(st.lists(st.integers(0, number - 1), max_size=1, unique=True))) if number else ()
        values.append(b.op(op, *inputs, scope=scope, after=after))
    return b.program(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=3)))


@settings(max_examples=300, deadline=None)
@given(programs())
def test_random_programs(program: Program) -> None:
    clustering = check(program)
    stateful = [n for n in clustering.steps if isinstance(n, int) and program.instructions[n].op.stateful]
    assert stateful == sorted(stateful)
    _check_every_pair(program, clustering)


def _check_every_pair(program: Program, clustering: Clustering) -> None:
    """Neighbouring clusters of one scope are apart only where a path between them leaves the scope."""
    last: dict[str, Cluster] = {}
    apart = 0
    for cluster in clustering.clusters:
        apart += cluster.scope in last
        last[cluster.scope] = cluster
    assert apart == sum(len(reason.instructions) == 3 for reason in clustering.reasons)


@pytest.mark.parametrize("pattern", ["RRRR", "RU", "R1R2", "RRU1R", "1R23R"])
def test_calls_grow_linearly(pattern: str) -> None:
    def prepare(size: int) -> Callable[[], Clustering]:
        b = Builder()
        x = b.input(3)
        previous = [x, x]
        for n in range(size):
            letter = pattern[n % len(pattern)]
            op: OpDef = opaque if letter == "U" else compiled
            scope = None if letter == "U" else letter
            previous.append(b.op(op, previous[-1], previous[-2], scope=scope))
        return functools.partial(find_clusters, b.program(previous[-1]))

    assert_linear(prepare, 2_000)
