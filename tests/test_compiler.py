"""The compiler end to end: random programs against the interpreter, golden texts, kernels that outlive a change
of extents.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.machine.kernels import statistics
from jitgrad.executable import make_executable
from jitgrad.gradients import gradients
from jitgrad.graph import Graph
from jitgrad.interpreter import interpret
from jitgrad.operators import functions
from jitgrad.program import Program, slice_graph, verify
from jitgrad.scopes import jit_scope
from tests.oracles import python_results
from tests.random_programs import LARGE, random_program
from tests.tolerances import assert_same_up_to_rounding


def _assert_close(ours: list[Any], expected: list[Any], program: Program) -> None:
    is_single = any(spec.dtype == np.float32 for spec in program.specs)
    rtol = 2e-3 if is_single else 1e-9
    for a, b in zip(ours, map(np.asarray, expected), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)


def _assert_compiled_equals_interpreted(program: Program, arrays: list[Any], what: str) -> None:
    before = [a.tobytes() for a in arrays]
    executable = make_executable(program)
    first = executable(arrays)
    again = executable(arrays)
    assert_same_up_to_rounding(first, program, arrays, what)
    assert [np.asarray(a).tobytes() for a in first] == [np.asarray(a).tobytes() for a in again], what
    assert [a.tobytes() for a in arrays] == before, f"{what} wrote to its inputs"


@pytest.mark.parametrize("block", range(40))
def test_random_programs_equal_the_interpreter(block: int) -> None:
    for seed in range(25 * block, 25 * (block + 1)):
        program, arrays = random_program(seed, ops=9)
        verify(program)
        _assert_compiled_equals_interpreted(program, arrays, f"seed {seed}")


@pytest.mark.parametrize("block", range(10))
def test_random_programs_of_second_order_equal_the_interpreter(block: int) -> None:
    for seed in range(10_000 + 20 * block, 10_000 + 20 * (block + 1)):
        program, arrays = random_program(seed, ops=8, orders=2)
        _assert_compiled_equals_interpreted(program, arrays, f"seed {seed}")


@pytest.mark.parametrize("block", range(10))
def test_random_programs_of_many_vectors_and_chunks_equal_the_interpreter(block: int) -> None:
    for seed in range(30_000 + 20 * block, 30_000 + 20 * (block + 1)):
        program, arrays = random_program(seed, ops=8, extents=LARGE)
        _assert_compiled_equals_interpreted(program, arrays, f"seed {seed}")


@pytest.mark.quick
@pytest.mark.parametrize("block", range(6))
def test_kernels_run_in_plain_python_equal_the_interpreter(block: int) -> None:
    for seed in range(20_000 + 20 * block, 20_000 + 20 * (block + 1)):
        program, arrays = random_program(seed, ops=8)
        assert_same_up_to_rounding(python_results(program, arrays), program, arrays, f"seed {seed}")


def _program(f: Any, *shapes: tuple[int, ...], dtype: Any = np.float32) -> Program:
    with Graph().as_default(), jit_scope():
        xs = [functions["placeholder"](dtype, shape) for shape in shapes]
        y = f(*xs)
        return slice_graph([y, *(g for g in gradients(y, xs) if g is not None)], {x: x.spec for x in xs})


def _layer_norm(x: Any, gain: Any, bias: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return np.sum((centred / np.sqrt(variance + 1e-5) * gain + bias) ** 2)


def _softmax_cross_entropy(x: Any) -> Any:
    shifted = x - x.max(axis=1, keepdims=True)
    e = np.exp(shifted)
    return -np.sum(np.log(e / e.sum(axis=1, keepdims=True)) * 0.01)


def _classifier(x: Any, w: Any, b: Any) -> Any:
    return _softmax_cross_entropy(np.tanh(x @ w + b))


_fusions = {
    "layer norm": (_layer_norm, [(64, 48), (48,), (48,)], "2 kernels, 0 matrix products"),
    "softmax cross-entropy": (_softmax_cross_entropy, [(64, 48)], "2 kernels, 0 matrix products"),
    "classifier": (_classifier, [(64, 48), (48, 10), (10,)], "2 kernels, 3 matrix products"),
    "column means": (lambda x: np.sum(np.mean(x, axis=0) ** 2), [(64, 48)], "3 kernels, 0 matrix products"),
}  # fmt: skip


@pytest.mark.parametrize("name", _fusions)
def test_forward_and_gradient_fuse_in_few_kernels(name: str) -> None:
    f, shapes, expected = _fusions[name]
    assert expected in make_executable(_program(f, *shapes)).explanation.fusion


def _rosenbrock(x: Any) -> Any:
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_a_cheap_value_that_readers_cannot_make_joins_a_kernel() -> None:
    """The gradient of (1 - x)^2, which is read at another place, is made where the loss is."""
    program = _program(_rosenbrock, (1000,))
    executable = make_executable(program)
    assert "3 kernels" in executable.explanation.fusion
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    _assert_close(executable([x]), interpret(program, [x]), program)


@pytest.mark.quick
def test_a_kernel_prints_as_a_python_loop_nest() -> None:
    from jitgrad.compiler.clustering.clusters import find_clusters
    from jitgrad.compiler.fusing.extents import ExtentClasses
    from jitgrad.compiler.fusing.fusion import plan_fusion
    from jitgrad.compiler.fusing.groups import Group
    from jitgrad.compiler.fusing.node_building import build_nodes
    from jitgrad.compiler.lowering.lower import lower_group
    from jitgrad.compiler.simplify import simplify

    program = simplify(_program(lambda x, b: np.sum(np.tanh(x + b) ** 2), (6, 4), (4,)))
    cluster = find_clusters(program).clusters[0]
    classes = ExtentClasses(program, cluster.instructions)
    nodes = build_nodes(program, cluster.instructions, cluster.outputs, classes)
    plan = plan_fusion(nodes, program.specs, classes)
    first = next(step for step in plan.steps if isinstance(step, Group))
    assert lower_group(first, plan).kernel.text == _GOLDEN


_GOLDEN = """\
def kernel(
    partial0: 'partial f32[n0]',
    in0: 'in f32',
    in1: 'in f32',
    out0: 'out f32',
    partial1: 'partial f32[n2]',
    n0,
    n1,
    n2,
    c0: 'f32',
):
    acc0 = f32(0.0)
    for i1 in vector(n0):
        partial0[i1] = f32(0.0)
    for i0 in parallel(n1):
        for i1 in vector(n0):
            v1 = in0[i0*n0 + i1]
            v2 = in1[i1]
            v3 = f32(add(v1, v2))
            v4 = f32(tanh(v3))
            acc0 = add_product(acc0, v4, v4)
            v6 = f32(multiply(c0, v4))
            v7 = f32(multiply(v4, v4))
            v8 = f32(subtract(f32(1.0), v7))
            v9 = f32(multiply(v6, v8))
            out0[i0*n0 + i1] = v9
            v10 = partial0[i1]
            v11 = f32(add(v10, v9))
            partial0[i1] = v11
    partial1[0] = acc0
"""


def _kernels_compiled() -> int:
    return statistics.compiles + statistics.disk_hits


@pytest.mark.parametrize("name", _fusions)
def test_another_extent_compiles_nothing(name: str) -> None:
    f, shapes, _ = _fusions[name]
    make_executable(_program(f, *shapes))
    before = _kernels_compiled()
    for n in (63, 2, 1000, 10, 48):
        program = _program(f, (n, *shapes[0][1:]), *shapes[1:])
        arrays = [
            np.random.default_rng(n).standard_normal(program.specs[v].shape).astype(np.float32) for v in program.inputs
        ]
        _assert_close(make_executable(program)(arrays), interpret(program, arrays), program)
    assert _kernels_compiled() == before


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 5), (5, 1), (1, 1)])
def test_empty_and_unit_extents(shape: tuple[int, int]) -> None:
    program = _program(lambda x: np.sum(np.exp(x - np.mean(x, axis=0)) ** 2), shape)
    arrays = [np.ones(shape, np.float32)]
    _assert_close(make_executable(program)(arrays), interpret(program, arrays), program)


def test_same_bits_for_any_number_of_threads() -> None:
    program = _program(_layer_norm, (1000, 300), (300,), (300,))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(program.specs[v].shape).astype(np.float32) for v in program.inputs]
    executable = make_executable(program)
    threads = jg.get_num_threads()
    results = []
    try:
        for n in (1, 2, 3):
            jg.set_num_threads(n)
            results.append([r.tobytes() for r in executable(arrays)])
    finally:
        jg.set_num_threads(threads)
    assert results[0] == results[1] == results[2]


def test_concurrent_calls_do_not_disturb_one_another() -> None:
    program = _program(_classifier, (256, 48), (48, 10), (10,))
    rng = np.random.default_rng(0)
    feeds = [[rng.standard_normal(program.specs[v].shape).astype(np.float32) for v in program.inputs] for _ in range(4)]
    executable = make_executable(program)
    expected = [[r.tobytes() for r in executable(arrays)] for arrays in feeds]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(50):
            if [r.tobytes() for r in executable(feeds[k])] != expected[k]:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_outputs_share_memory_with_nothing() -> None:
    with Graph().as_default(), jit_scope():
        x = functions["placeholder"](np.float64, (3, 4))
        y = x + 1.0
        fetches = [
            y,
            functions["reshape"](y, (12,)),
            x,
            functions["reshape"](x, (4, 3)),
            y,
            functions["zeros"]((7, 0)),
            functions["constant"](np.arange(3.0)),
        ]
        program = slice_graph(fetches, {x: x.spec})
    feeds = [np.arange(12.0).reshape(3, 4)]
    results = make_executable(program)(feeds)
    _assert_close(results, interpret(program, feeds), program)
    for k, a in enumerate(results):
        assert a.flags.writeable
        assert a.flags.c_contiguous
        assert not np.shares_memory(a, feeds[0])
        assert not any(np.shares_memory(a, b) for b in results[:k])


@pytest.mark.parametrize("way", ["compiled", "interpreted"])
def test_a_compiled_functions_outputs_are_arrays_of_the_callers_own(way: str) -> None:
    """One value returned twice, a constant, an empty array, an input passed through."""
    kept, x, empty = np.arange(3.0), np.arange(12.0).reshape(3, 4), np.zeros((7, 0))

    def fn(x: Any, empty: Any) -> Any:
        y = x + 1.0
        return y, y, kept, empty, np.zeros_like(empty), x, x.reshape(4, 3), x.T, x[1:]

    f = jg.compile(fn)
    run = f if way == "compiled" else f.interpret
    for _ in range(2):
        results = run(x, empty)
        for a, expected in zip(results, fn(x, empty), strict=True):
            np.testing.assert_array_equal(a, expected)
            assert a.flags.writeable and a.flags.c_contiguous
        for k, a in enumerate(results):
            assert not any(np.shares_memory(a, other) for other in (x, kept, *results[:k]))
            assert a is not empty
            a += 100.0


def test_a_result_of_numpys_is_copied_only_where_somebody_else_refers_to_it() -> None:
    """Arrays that a Python call keeps, or keeps a view of, are the caller's no more than those that it drops are."""
    made: dict[str, int] = {}
    kept: list[Any] = []

    def dropped(x: Any) -> Any:
        y = x + 1.0
        made["dropped"] = y.ctypes.data
        return y

    def whole(x: Any) -> Any:
        kept.append(x + 2.0)
        return kept[-1]

    def seen(x: Any) -> Any:
        y = x + 3.0
        kept.append(y[1:])
        return y

    def locked(x: Any) -> Any:
        y = x + 4.0
        y.flags.writeable = False
        return y

    calls = (dropped, whole, seen, locked, lambda x: np.asfortranarray(x + 5.0))
    f = jg.compile(lambda x: [jg.py_func(call, [x], np.float64) for call in calls])
    x = np.arange(6.0).reshape(2, 3)
    for _ in range(3):
        results = f(x)
        assert results[0].ctypes.data == made["dropped"]
        for a, expected in zip(results, (x + 1, x + 2, x + 3, x + 4, x + 5), strict=True):
            np.testing.assert_array_equal(a, expected)
            assert a.flags.writeable and a.flags.c_contiguous
            assert not any(np.shares_memory(a, other) for other in kept)
