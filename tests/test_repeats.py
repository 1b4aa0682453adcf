"""Bodies that repeat themselves are loops in kernels: what becomes one, and that nothing but the code changes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import python_results
from traced import traced

import jitgrad as jg
from jitgrad.compiler import stages
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.freezing.chunks import LONG_CHUNK
from jitgrad.compiler.fusing.drafts import MOST_WEIGHT
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    Buffer,
    Index,
    Kernel,
    Let,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
    Term,
    kept_name,
    kept_turn,
    statements,
)
from jitgrad.compiler.lowering import repeats as repeats_module
from jitgrad.compiler.lowering.in_place import find_overwritable
from jitgrad.compiler.lowering.lower import kernels_of
from jitgrad.compiler.lowering.repeats import is_small, repeat_bodies, repeats_itself, written_weight
from jitgrad.compiler.machine.tiers import improver
from jitgrad.compiler.verifying import verify_kernel
from jitgrad.interpreter import interpret
from jitgrad.profiler.operations import operations

Function = Callable[[Any], Any]


def chain(x: Any) -> Any:
    for _ in range(12):
        x = np.sin(x) * 1.01 + 0.1
    return x


def coupled(x: Any) -> Any:
    """Two values that each step makes of both, and the first input in every step."""
    y, v = x, 0.5 * x
    for k in range(5):
        v = v - (0.05 + 0.01 * k) * np.sin(y) + 1e-3 * x
        y = y + 0.1 * v
    return y * v


def mixture(x: Any) -> Any:
    """Steps that read nothing of each other but a sum; the gradient reads all of them."""
    total = 0.25
    for k in range(6):
        total = total + (1 + k) / 7 * np.exp(-((x - 0.3 * k) ** 2))
    return np.log(total)


def choices(x: Any) -> Any:
    """Truth values are kept for the gradient."""
    y = x
    for k in range(7):
        y = np.where(y > 0.1 * k, np.tanh(y), np.maximum(1.5 * y, -2.0) + 0.3)
    return y


def middle(x: Any) -> Any:
    """Values of turns in the middle are read behind them."""
    steps = [x]
    for _ in range(9):
        steps.append(np.cos(steps[-1]) * 0.9)
    return steps[3] * steps[7] + np.arctan(steps[-1]) - steps[1]


def two(x: Any) -> Any:
    """Two kinds of steps, of which the second reads what the first has kept, from the end."""
    steps = [x]
    for k in range(6):
        steps.append(np.sin(steps[-1]) * (1.0 + 0.25 * k))
    y = x * 0.0
    for step in reversed(steps[1:-1]):
        y = np.tanh(y + step) * 0.7
    return y


def narrowed(x: Any) -> Any:
    """The first turn is given an integer, the others floats; each divides twice by the same."""
    y = np.clip(np.where(np.isfinite(x), x, 0), -5, 5).astype(np.int32)
    for _ in range(6):
        y = np.exp(-np.abs(y.astype(np.float64)))
        y = (0.5 * y / (1.1 + y) + x / (1.1 + y)).astype(np.float32)
    return y


def series(x: Any) -> Any:
    """Divisions by numbers, whose factors are made in front of the loop where they are not repeated."""
    total = np.sin(x)
    for k in range(2, 11):
        total = total + np.cos(k * x) / (3.0 * k)
    return total / 7.0


def before_last(x: Any) -> Any:
    """A step reads the two before it."""
    last, y = x, 0.9 * x
    for _ in range(8):
        last, y = y, 2.0 * y - last - 0.01 * np.sin(y)
    return y


def far_back(x: Any) -> Any:
    """A step reads the three before it, which no repeat hands on."""
    steps = [x, 0.9 * x, 0.8 * x]
    for _ in range(8):
        steps.append(np.sin(steps[-1]) + np.cos(steps[-3]) * np.sin(steps[-2]))
    return steps[-1]


FUNCTIONS: tuple[Function, ...] = (
    chain, coupled, mixture, choices, middle, two, narrowed, series, before_last, far_back,
)  # fmt: skip


def places(x: Any) -> Any:
    """Turns read twelve parts of one array."""
    parts = x[: x.size // 12 * 12].reshape(12, x.size // 12)
    y = np.cos(parts[0])
    for part in parts:
        y = np.tanh(1.1 * y + part)
    return y


def kernels(fn: Callable[..., Any], *args: Any) -> Iterator[Kernel]:
    for program in jg.compile(fn).explain(*args).compiled:
        for step in program.steps:
            yield from () if isinstance(step, int) else kernels_of(step)


def repeats(fn: Callable[..., Any], *args: Any) -> list[Repeat]:
    return [s for kernel in kernels(fn, *args) for s in statements(kernel.body) if isinstance(s, Repeat)]


def with_gradient(fn: Function) -> Callable[[Any], Any]:
    """The values, their sum, and its gradient."""
    return jg.value_and_grad(lambda x: (np.sum(y := fn(x)), y), has_aux=True)


def given(size: int, dtype: Any) -> Any:
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 1e30, 1e-40], dtype)
    x[5::97] = special[np.arange(x[5::97].size) % special.size]
    return x


# -- what becomes a repeat -------------------------------------------------------------------------------------------


def test_a_chain_is_written_once() -> None:
    (repeat,) = repeats(chain, np.ones(100))
    assert repeat.turns == 12
    assert [s.op for s in repeat.body if isinstance(s, Let)] == ["sin", "multiply", "add"]
    assert [members[:2] for members in repeat.members] == [("c0", "c2"), ("c1", "c3")]
    ((carried, first, following),) = repeat.carried
    assert first == "v0" and repeat.body[0].args == (carried,) and repeat.body[-1].name == following
    assert not repeat.kept


@pytest.mark.parametrize(
    ("fn", "turns"),
    [
        (chain, [12]), (coupled, [4]), (mixture, [5]), (choices, [6]), (middle, [9]), (two, [4, 4]), (series, [8]),
    ],
)  # fmt: skip
def test_turns_of_functions(fn: Function, turns: list[int]) -> None:
    """A first turn that has other numbers, like 0 and 1, which stand in the code, or less to do, is none."""
    assert [repeat.turns for repeat in repeats(fn, np.ones(200))] == turns


def test_parts_of_one_array_follow_the_turns() -> None:
    (repeat,) = repeats(places, np.ones(240))
    (load,) = [s for s in repeat.body if isinstance(s, Load)]
    assert load.buffer == "in0" and load.index.offset in repeat.names
    assert repeat.members[repeat.names.index(load.index.offset)] == tuple(f"o{k}" for k in range(repeat.turns))


def test_what_is_read_behind_is_kept() -> None:
    (repeat,) = repeats(middle, np.ones(100))
    (kept,) = repeat.kept
    (kernel,) = kernels(middle, np.ones(100))
    read = {a for s in statements(kernel.body) if isinstance(s, Let) for a in s.args}
    assert {kept_name(kept, turn) for turn in (0, 2, 6)} <= read
    assert kept in read  # the last turn's value has its name
    assert kept_turn(kept_name(kept, 6)) == (kept, 6)


def test_the_gradient_reads_what_was_kept_from_the_end() -> None:
    found = repeats(jg.grad(lambda x: np.sum(chain(x))), np.ones(100))
    assert len(found) == 2
    (kept,) = found[0].kept
    (turns,) = [members for members in found[1].members if members[0].startswith(kept)]
    first = kept_turn(turns[0])[1]
    assert [kept_turn(name)[1] for name in turns] == list(range(first, first - found[1].turns, -1))


def steps(count: int) -> Function:
    """The sum of a chain."""

    def loss(x: Any) -> Any:
        for _ in range(count):
            x = np.sin(x) * 1.01 + 0.1
        return np.sum(x)

    return loss


def test_arrays_that_are_read_and_written_follow_the_turns() -> None:
    """In a long chain values go through memory between kernels."""
    found = repeats(jg.grad(steps(130)), np.ones(100))
    stores = [r for r in found if any(isinstance(s, Store) for s in r.body)]
    loads = [r for r in found if any(isinstance(s, Load) for s in r.body)]
    assert stores and loads
    for repeat in stores:
        (store,) = [s for s in repeat.body if isinstance(s, Store)]
        members = repeat.members[repeat.names.index(store.buffer)]
        assert members == tuple(f"out{k}" for k in range(repeat.turns))


@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(lambda x: chain(x[:, None] * x).sum(axis=1), id="rows"),
        pytest.param(lambda x: np.sin(np.sin(np.sin(x * 1.1) * 1.2) * 1.3), id="few turns"),
        pytest.param(lambda x: [x := x * 1.1 + 0.3 * k for k in range(20)][-1], id="no function of analysis"),
        pytest.param(lambda x: [x := np.sin(x) if k % 3 else np.cos(x) for k in range(5)][-1], id="unlike"),
        pytest.param(far_back, id="more than one turn back"),
    ],
)
def test_what_stays_as_it_is(fn: Function) -> None:
    assert not repeats(fn, np.ones(20))


def test_what_asks_for_the_place_of_an_element_is_in_no_repeat() -> None:
    """A loop is cut where the answers turn, and for that its own statements are looked through."""
    f64, here = np.dtype(np.float64), Index((Term("i0"),))
    body: list[Statement] = [Load("v0", f64, "in0", here)]
    for k in range(8):
        body += [
            Let(f"less{k}", np.dtype(bool), "less", ("i0", f"o{k}")),
            Let(f"sin{k}", f64, "sin", (f"v{k}",)),
            Let(f"v{k + 1}", f64, "where", (f"less{k}", f"sin{k}", f"v{k}")),
        ]
    buffers = Buffer("in0", f64, "in"), Buffer("out0", f64, "out")
    loop = Loop("i0", "n0", PARALLEL_VECTOR, (*body, Store("out0", here, "v8", f64)))
    kernel = Kernel(buffers, ("n0", *(f"o{k}" for k in range(8))), (), (loop,))
    assert repeat_bodies(kernel) is kernel


def test_two_arrays_may_be_read_at_the_same_places() -> None:
    f64, here = np.dtype(np.float64), Index((Term("i0"),))
    offsets = tuple(f"o{k}" for k in range(8))
    loads = [Load(f"{b}_{o}", f64, b, Index((Term("i0"),), o)) for o in offsets for b in ("in0", "in1")]
    body: list[Statement] = [*loads, Load("v0", f64, "in0", here)]
    for k, o in enumerate(offsets):
        body += [
            Let(f"sin{k}", f64, "sin", (f"v{k}",)),
            Let(f"product{k}", f64, "multiply", (f"sin{k}", f"in0_{o}")),
            Let(f"v{k + 1}", f64, "add", (f"product{k}", f"in1_{o}")),
        ]
    buffers = Buffer("in0", f64, "in"), Buffer("in1", f64, "in"), Buffer("out0", f64, "out")
    loop = Loop("i0", "n0", PARALLEL_VECTOR, (*body, Store("out0", here, "v8", f64)))
    kernel = verify_kernel(repeat_bodies(Kernel(buffers, ("n0", *offsets), (), (loop,))))
    (repeat,) = [s for s in statements(kernel.body) if isinstance(s, Repeat)]
    buffer_of = {s.name: s.buffer for s in repeat.body if isinstance(s, Load)}
    product, total = [s for s in repeat.body if isinstance(s, Let)][1:]
    assert [buffer_of[str(s.args[1])] for s in (product, total)] == ["in0", "in1"]


def test_bodies_of_loops_stay_as_they_are() -> None:
    """They become part of other kernels."""
    assert not repeats(lambda x: jg.scan(lambda c, _: (chain(c), None), x, None, length=3)[0], np.ones(20))


def test_the_kernel_without_repeats_is_the_same_object() -> None:
    (kernel,) = kernels(far_back, np.ones(20))
    assert repeat_bodies(kernel) is kernel


def test_kernels_of_what_repeats_itself_hold_more() -> None:
    """Forth and back in one, and what ends the sum."""
    loss = jg.value_and_grad(steps(40))
    assert len(list(kernels(loss, np.ones(1000)))) == 2
    assert [repeat.turns for repeat in repeats(loss, np.ones(1000))] == [40, 39]
    assert max(written_weight(kernel) for kernel in kernels(loss, np.ones(1000))) < 60


def test_kernels_that_would_be_written_out_hold_no_more() -> None:
    """Steps with the same operations, of which each reads another one before it."""

    def loss(x: Any) -> Any:
        rng, made = random.Random(0), [x]
        for k in range(40):
            made.append(np.sin(rng.choice(made)) * (0.9 + 0.01 * k) + 0.1)
        return np.sum(made[-1]) + np.sum(jg.add_n(made[-20:]))

    x = np.linspace(-1, 1, 50)
    found = list(kernels(jg.value_and_grad(loss), x))
    assert len(found) > 2 and max(map(written_weight, found)) <= MOST_WEIGHT
    value, gradient = jg.compile(jg.value_and_grad(loss))(x)
    expected, wanted = jg.compile(jg.value_and_grad(loss)).interpret(x)
    np.testing.assert_allclose(value, expected, rtol=1e-13)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-12)


def test_what_repeats_itself_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long ones without a function of analysis, too: it took a third of the compilation of 30,000 operations."""
    reads = 0

    class Counted(list[int]):
        def __getitem__(self, place: Any) -> Any:
            nonlocal reads
            reads += 1
            return super().__getitem__(place)

    def steps_without(x: Any) -> Any:
        for _ in range(500):
            x = x * 1.01 + 0.1
        return x

    program = traced(steps_without, np.ones(3))
    count, numbered = len(program.instructions), repeats_module._numbered
    monkeypatch.setattr(repeats_module, "_numbered", lambda keys: Counted(numbered(keys)))
    assert not repeats_itself(program, range(count))
    assert 2 * count < reads < 20 * count


@pytest.mark.parametrize(("turns", "values", "fits"), [(128, 2, True), (129, 2, False), (60, 5, False)])
def test_what_turns_keep_has_room(turns: int, values: int, fits: bool) -> None:
    f64, names = np.dtype(np.float64), tuple(f"v{k}" for k in range(values))
    body = tuple(Let(name, f64, "sin", ("x",)) for name in names)
    loop = Loop("i0", "n0", PARALLEL_VECTOR, (Repeat(turns, (), (), (), names, body),))
    assert is_small(Kernel((), ("n0",), (), (loop,))) is fits


def test_long_chains_are_still_regions() -> None:
    """Forth and back: the kernels of three hundred steps run one after another, chunk by chunk."""
    ((stage, args),) = jg.compile(jg.value_and_grad(steps(300))).stages(np.ones(1000))
    (cluster,) = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
    assert [name.split("_")[0] for name in cluster.names] == ["region", "kernel", "region"]


@pytest.mark.parametrize(("size", "most"), [(100, 1), (1000, 6), (5000, 38)])
def test_chunks_of_elements_are_not_short(size: int, most: int) -> None:
    """However long an element takes: what is left over of whole turns takes as long as a turn for each register."""
    ((stage, args),) = jg.compile(jg.value_and_grad(steps(40))).stages(np.ones(size))
    (cluster,) = [step for step in stage.executable(args).bound.steps if isinstance(step, BoundCluster)]
    assert 1 <= max(cluster.steps[:, 3]) <= most <= max(1, size // LONG_CHUNK)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 64, 1003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fn", [*FUNCTIONS, places])
def test_values_and_gradients(fn: Function, dtype: Any, size: int) -> None:
    x = given(size, dtype)
    compiled = jg.compile(with_gradient(fn))
    (_, values), gradient = compiled(x)
    (_, expected), wanted = compiled.interpret(x)
    ulps = 64 * np.finfo(dtype).eps
    np.testing.assert_allclose(values, expected, rtol=ulps, atol=ulps)
    np.testing.assert_allclose(gradient, wanted, rtol=ulps, atol=ulps)
    for threads in (1, 2):
        with jg.config(num_threads=threads):
            assert compiled(x)[1].tobytes() == gradient.tobytes()


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_elements_have_the_same_bits_in_any_company(fn: Function) -> None:
    x = given(301, np.float64)
    compiled = jg.compile(fn)
    together = compiled(x)
    for k in (0, 5, 102, 200, 299):
        np.testing.assert_array_equal(compiled(x[k : k + 2]), together[k : k + 2])


@pytest.mark.parametrize("fn", [*FUNCTIONS, places])
def test_the_text_of_kernels_runs(fn: Function) -> None:
    x = given(24, np.float64)
    program = traced(fn, x)
    for got, expected in zip(python_results(program, [x]), interpret(program, [x]), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def compare_codes() -> None:
    """In a new process with an empty cache: quick code and good code give the same bits."""
    for fn in (*FUNCTIONS, places):
        sets = [given(size, dtype) for size in (0, 1, 7, 64, 1003) for dtype in (np.float32, np.float64)]
        compiled = jg.compile(with_gradient(fn))
        with improver._busy:
            quick = [compiled(x) for x in sets]
            assert improver._tasks
        improver.wait()
        for x, results in zip(sets, quick, strict=True):
            assert _bits(compiled(x)) == _bits(results)


def write_out() -> None:
    """In a new process: the bits of all functions, and how many operations they take, where no body is repeated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "repeat_bodies", lambda kernel: kernel)
        assert not repeats(chain, np.ones(100))
        print(json.dumps(_facts()))


def _facts() -> list[Any]:
    x = given(1003, np.float64)
    compiled = [jg.compile(with_gradient(fn)) for fn in (*FUNCTIONS, places)]
    counts = [[str(operations(stage.executable(args))) for stage, args in fn.stages(x)] for fn in compiled]
    results = [fn(x) for fn in compiled]
    bits = [_bits(((0.0, values), gradient)) for (_, values), gradient in results]
    return [[*found] for found in zip(bits, counts, strict=True)]


def _bits(results: Any) -> list[str]:
    """All bits but those of NaN, whose sign is that of either operand of a sum."""
    (total, values), gradient = results
    return [np.where(np.isnan(a), np.nan, a).tobytes().hex() for a in (total, values, gradient)]


def _in_new_process(call: str, cache: Path) -> str:
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    environment = {"PYTHONPATH": paths, "JITGRAD_CACHE_DIR": str(cache), "JITGRAD_QUICK_START": "1"}
    code = f"import test_repeats; test_repeats.{call}()"
    command = [sys.executable, "-W", "ignore", "-c", code]
    run = subprocess.run(command, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout


def test_quick_code_and_good_code_give_the_same_bits(tmp_path: Path) -> None:
    _in_new_process("compare_codes", tmp_path)


def test_bits_and_operations_are_those_of_the_body_written_out(tmp_path: Path) -> None:
    assert json.loads(_in_new_process("write_out", tmp_path)) == _facts()


def test_numbers_may_differ_from_call_to_call() -> None:
    """The constants of turns are given at run time: other numbers take the same kernels."""

    def scaled(step: float) -> Function:
        def fn(x: Any) -> Any:
            for k in range(8):
                x = np.sin(x) * (1 + step * (k + 1)) + step
            return x

        return fn

    x = np.linspace(-2, 2, 50)
    assert list(kernels(scaled(0.125), x)) == list(kernels(scaled(0.375), x))
    for step in (0.125, 0.375):
        np.testing.assert_allclose(jg.compile(scaled(step))(x), scaled(step)(x), rtol=1e-13)


# -- what reads kernels ----------------------------------------------------------------------------------------------


def test_a_result_may_lie_over_what_its_turn_has_read() -> None:
    """The first array is read before all turns, the others each in its own, after what earlier turns have written."""
    (kernel,) = kernels(lambda *xs: _outputs(xs), *np.ones((6, 20)))
    names = [buffer.name for buffer in kernel.buffers]
    pairs = {(names[a], names[b]) for a, b in find_overwritable(kernel)}
    assert {("in0", "out0"), ("in3", "out2"), ("in3", "out3"), ("in5", "out4")} <= pairs
    assert not {("in3", "out0"), ("in3", "out1"), ("in5", "out3")} & pairs


def _outputs(xs: tuple[Any, ...]) -> list[Any]:
    """A step for each array, with a result of its own."""
    y, results = xs[0], []
    for x in xs[1:]:
        y = np.sin(y) * 1.5 + x
        results.append(y)
    return results
