"""Plans on disk: what is part of a key and what is not, what a new process loads, and what happens to damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.freezing import freeze_ops
from jitgrad.compiler.freezing.alike import forget_templates
from jitgrad.compiler.freezing.keeping import keep_now
from jitgrad.compiler.freezing.plankey import exact_key, plan_key
from jitgrad.compiler.freezing.stored import MOST_BYTES, UnkeptError, decode, dump, encode, load, runs_of
from jitgrad.compiler.machine.cache import default_directory, kernel_cache
from jitgrad.compiler.machine.kernels import statistics
from jitgrad.errors import CompileError
from jitgrad.executable import make_executable
from jitgrad.graph import Graph
from jitgrad.operators import functions
from jitgrad.program import Program, slice_graph
from tests.plan_functions import columns
from tests.random_programs import random_program
from tests.tolerances import assert_same_up_to_rounding
from tests.traced import traced

rng = np.random.default_rng(0)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    forget_templates()
    with jg.config(cache=True, cache_dir=str(tmp_path), verify=False):
        yield tmp_path


def _program(fn: Callable[..., Any], *args: Any) -> Program:
    [(stage, arrays)] = jg.compile(fn).stages(*args)
    return stage.program([t.spec for t in stage.feeds]) if arrays is not None else stage


def _key(fn: Callable[..., Any], *args: Any) -> str | None:
    return plan_key(_program(fn, *args))


# -- keys --------------------------------------------------------------------------------------------------------------

X = np.ones((4, 3))
different: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "shape": (lambda x: np.sin(x) * 2.5, (np.ones((5, 3)),)),
    "dtype": (lambda x: np.sin(x) * 2.5, (np.ones((4, 3), np.float32),)),
    "op": (lambda x: np.cos(x) * 2.5, (X,)),
    "number": (lambda x: np.sin(x) * 2.25, (X,)),
    "sign of zero": (lambda x: np.sin(x) * -0.0, (X,)),
    "zero": (lambda x: np.sin(x) * 0.0, (X,)),
    "another output": (lambda x: (np.sin(x) * 2.5, np.sin(x)), (X,)),
    "constant array": (lambda x: np.sin(x) * np.array([2.5, 2.5, 2.0]), (X,)),
    "another constant array": (lambda x: np.sin(x) * np.array([2.5, 2.0, 2.0]), (X,)),
    "axis": (lambda x: np.sum(x, axis=0), (X,)),
    "another axis": (lambda x: np.sum(x, axis=1), (X,)),
}


def test_keys_differ_where_programs_do() -> None:
    keys = [_key(fn, *args) for fn, args in ((lambda x: np.sin(x) * 2.5, (X,)), *different.values())]
    assert None not in keys
    assert len(set(keys)) == len(keys)


def test_keys_know_no_names() -> None:
    def one(first: Any) -> Any:
        return np.tanh(first) + first

    def other(second: Any) -> Any:
        y = np.tanh(second)
        return y + second

    assert _key(one, X) == _key(other, X)


def test_keys_know_the_scope() -> None:
    def in_one(x: Any) -> Any:
        return np.sin(np.cos(x))

    def in_none(x: Any) -> Any:
        with jg.jit_scope(compile_ops=False):
            return np.sin(np.cos(x))

    assert _key(in_one, X) != _key(in_none, X)


def test_ops_of_others_have_no_key() -> None:
    program = _program(np.sin, X)
    assert plan_key(program) is not None
    first, *rest = program.instructions
    assert plan_key(program.with_instructions([replace(first, op=replace(first.op)), *rest])) is None


def test_large_constants_count_by_shape() -> None:
    large, other = rng.standard_normal((2, MOST_BYTES // 8 + 1))
    x = np.ones(large.shape)
    assert _key(lambda x: x * large, x) == _key(lambda x: x * other, x)
    assert _key(lambda x: x * large, x) != _key(lambda x: x * large.reshape(1, -1), x)


def test_large_constants_of_one_number_count_by_it(folder: Path) -> None:
    x, looked_into = np.ones(MOST_BYTES // 8 + 1), np.array([3.0, 1.0, 2.0])

    def adding(number: float) -> Callable[[Any], Any]:
        return lambda x: np.sum(x + number) + np.sum(-x[:3] * (x[:3] * looked_into) * (-looked_into))

    assert _key(adding(2.0), x) == _key(adding(2.0), x) != _key(adding(3.0), x)
    for number, kept in ((2.0, 1), (3.0, 2), (2.0, 2)):
        forget_templates()
        assert jg.compile(adding(number))(x) == (number + 1) * x.size + 14
        assert len(list(folder.glob("*.plan"))) == kept


def test_large_constants_are_the_callers_own(folder: Path) -> None:
    x = np.ones(MOST_BYTES // 8 + 1)
    for _ in range(2):
        large = rng.standard_normal(x.shape)
        np.testing.assert_array_equal(jg.compile(lambda x, c=large: x * c * 3.5)(x), x * large * 3.5)


def test_what_was_computed_from_large_constants_is_not_kept(folder: Path) -> None:
    x = np.ones(MOST_BYTES // 8 + 1)
    for _ in range(2):
        large = rng.standard_normal(x.shape)
        np.testing.assert_array_equal(jg.compile(lambda x, c=large: -x * (x * c) * (-c))(x), x * x * large * large)


def test_plans_that_depend_on_elements_are_kept_with_those_of_large_constants(folder: Path) -> None:
    """The product of small constants is made with the program, which so depends on elements."""
    n = MOST_BYTES // 8 + 1
    x, data, small = rng.standard_normal(n), rng.standard_normal(n), np.array([3.0, 1.0, 2.0])
    for large, kept in ((data, 1), (data.copy(), 1), (data + 1.0, 2), (data, 2)):
        forget_templates()
        f = jg.compile(lambda x, c=large: np.sum(x * c) + np.sum(-x[:3] * (x[:3] * small) * (-small)))
        np.testing.assert_allclose(f(x), np.sum(x * large) + np.sum(x[:3] ** 2 * small**2))
        assert len(list(folder.glob("*.plan"))) == kept


def test_constants_of_megabytes_are_not_read_for_a_key() -> None:
    many = rng.standard_normal(1 << 20)
    assert exact_key(_program(lambda x: x * many, np.ones(1 << 20)), "key") is None
    few = many[: 1 << 18]
    assert exact_key(_program(lambda x: x * few, np.ones(1 << 18)), "key") is not None


# -- params as bytes ---------------------------------------------------------------------------------------------------

params = [
    None, True, 1, 1.0, -0.0, float("inf"), 2 + 3j, "axis", b"x", (1, (2, None)), [1, (2,)], {"a": 1, "b": (2,)},
    slice(1, None, 2), np.dtype(np.float32), np.float32, np.float64(2.5), np.int8(3), np.bool_(True),
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("value", params, ids=repr)
def test_params_come_back(value: Any) -> None:
    found = decode(load(dump(encode(value))))
    assert type(found) is type(value)
    assert found == value


@pytest.mark.quick
@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.zeros((0, 3)), np.array(2.5), np.ones(3, bool)])
def test_arrays_come_back(array: Any) -> None:
    found = decode(load(dump(encode(array))))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert dump(encode(found)) == dump(encode(array))


@pytest.mark.quick
def test_splats_come_back_as_splats() -> None:
    found = decode(encode(np.broadcast_to(np.float32(2.5), (1000, 1000))))
    assert found.strides == (0, 0)
    assert found[0, 0] == np.float32(2.5)


@pytest.mark.quick
def test_bytes_tell_types_and_signs_apart() -> None:
    values = [1, 1.0, True, 0.0, -0.0, (1,), [1], "1", b"1", None, np.float32(1), np.float64(1), np.array(1.0)]
    assert len({dump(encode(value)) for value in values}) == len(values)


@pytest.mark.quick
@pytest.mark.parametrize("value", [object(), len, lambda: 0, np.array([None]), np.zeros(MOST_BYTES)])
def test_what_cannot_be_written(value: Any) -> None:
    with pytest.raises(UnkeptError):
        encode(value)


@pytest.mark.quick
@pytest.mark.parametrize("dtype", ["?", "i1", "i4", "f2", "f4", "f8", "c8"])
def test_long_arrays_are_written_by_runs(dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = np.array([0, 1, -0.0, np.nan if dtype[0] in "fc" else 3, 2, 2]).astype(dtype)
    array = np.repeat(rng.choice(values, 700), 4 * MOST_BYTES // 700).reshape(4, -1)
    read = decode(load(dump(runs_of(array))))
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert not read.flags.writeable
    assert len(dump(runs_of(array))) < MOST_BYTES
    assert np.array_equal(decode(runs_of(array[::2, 1::7])), array[::2, 1::7], equal_nan=True)


@pytest.mark.quick
@pytest.mark.parametrize("array", [np.arange(MOST_BYTES), np.ones(MOST_BYTES, complex)])
def test_arrays_of_many_runs_are_not_written(array: np.ndarray) -> None:
    with pytest.raises(UnkeptError):
        runs_of(array)


# -- files -------------------------------------------------------------------------------------------------------------


def test_random_programs_from_plans(folder: Path) -> None:
    for seed in range(10):
        program, arrays = random_program(seed, ops=6, orders=1 + seed % 2)
        first = make_executable(program)
        before = statistics.compiles
        again = make_executable(program)
        assert statistics.compiles == before
        assert [a.tobytes() for a in first(arrays)] == [a.tobytes() for a in again(arrays)]
        assert_same_up_to_rounding(again(arrays), program, arrays, f"seed {seed}")


def test_damaged_plans_are_made_again(folder: Path) -> None:
    expected = jg.compile(columns)(X)
    [plan] = folder.glob("*.plan")
    for damage in (b"", plan.read_bytes()[:-1], plan.read_bytes() + b"x"):
        plan.write_bytes(damage)
        forget_templates()
        np.testing.assert_array_equal(jg.compile(columns)(X), expected)
        assert [entry.is_plan for entry in kernel_cache().entries()].count(True) == 1
        assert not kernel_cache().verify()


def test_a_plan_without_its_kernels_is_made_again(folder: Path) -> None:
    jg.compile(columns)(X)
    kernels = list(folder.glob("*.kernel"))
    for kernel in kernels:
        kernel.unlink()
    run = _in_process(folder, "columns")
    assert run["compiles"] > 0
    assert _in_process(folder, "columns")["compiles"] == 0


def test_plans_are_compared_with_the_stages_when_all_is_verified(folder: Path) -> None:
    jg.compile(columns)(X)
    key = _key(columns, X)
    assert key is not None
    data = kernel_cache().get_plan(key)
    assert data is not None
    frozen = load(data)
    kernel_cache().put_plan(key, dump((frozen[0] + 1, *frozen[1:])))
    with jg.config(verify=True), pytest.raises(CompileError, match="not the one that the stages make"):
        jg.compile(columns)(X)


def _fixed(array: np.ndarray) -> np.ndarray:
    """A constant as it is: an array that may be written is copied."""
    array.flags.writeable = False
    return array


def _of_constants(p: np.ndarray, q: np.ndarray) -> Program:
    with Graph().as_default(), jg.jit_scope():
        x = functions["placeholder"](np.float64, p.shape)
        a, b = functions["constant"](p), functions["constant"](q)
        return slice_graph([np.tanh(x * a) + np.sin(x * b), np.exp(a + x) * b], {x: x.spec})


@pytest.mark.parametrize("is_first_one", [True, False])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (3,)])
def test_arrays_that_are_one_or_two_have_other_plans(folder: Path, shape: tuple[int, ...], is_first_one: bool) -> None:
    """The stages merge what is one array; what is on disk is what they make, whichever was there before."""
    one, other = _fixed(np.full(shape, 2.5)), _fixed(np.full(shape, 2.5))
    programs = [_of_constants(one, one), _of_constants(one, other)]
    assert plan_key(programs[0]) != plan_key(programs[1])
    assert plan_key(programs[1]) == plan_key(_of_constants(_fixed(one.copy()), other))
    x = np.ones(shape)
    with jg.config(verify=True):
        for program in programs if is_first_one else programs[::-1]:
            first, second = make_executable(program)([x])
            np.testing.assert_allclose(first, np.tanh(x * 2.5) + np.sin(x * 2.5))
            np.testing.assert_allclose(second, np.exp(2.5 + x) * 2.5)


def test_plans_taken_from_programs_of_two_arrays_are_not_kept_for_one(folder: Path) -> None:
    one, other = _fixed(rng.standard_normal(3)), _fixed(rng.standard_normal(3))
    for program in (_of_constants(one, other), _of_constants(one, one)):
        make_executable(program)
    keep_now()
    forget_templates()
    with jg.config(verify=True):
        make_executable(_of_constants(one, one))


def test_errors_in_bodies_from_plans_name_the_line(folder: Path) -> None:
    """The line is that of the code that is running, not of that which made the plan."""

    def walk(x: Any, at: Any) -> Any:
        return jg.scan(lambda c, i: (np.sort(c) + c[i], None), x, at)[0]

    def same(x: Any, at: Any) -> Any:
        return jg.scan(lambda c, i: (np.sort(c) + c[i], None), x, at)[0]

    x, at = np.arange(4.0), np.array([0, 3, 9])
    lines, plans = [], kernel_cache()
    for fn in (walk, same):
        with pytest.raises(IndexError, match="out of bounds") as raised:
            jg.compile(fn)(x, at)
        lines.append(str(raised.value).split("test_plans.py:")[1].split()[0])
    key = _key(walk, x, at)
    assert key is not None and key == _key(same, x, at) and plans.get_plan(key) is not None
    assert int(lines[1]) - int(lines[0]) == 3


# -- a new process -----------------------------------------------------------------------------------------------------


def _in_process(folder: Path, name: str) -> dict[str, Any]:
    """A new process that calls value and gradient of a function of this module: the results and what was loaded."""
    code = f"""
import json, sys
import numpy as np, jitgrad as jg
sys.path[:0] = [{str(Path(__file__).parent)!r}]
loaded = set(sys.modules)
from plan_functions import {name} as f
value, gradient = jg.compile(jg.value_and_grad(f))(np.linspace(0.1, 2.0, 12).reshape(4, 3))
from jitgrad.compiler.machine.kernels import statistics
new = sorted(m for m in set(sys.modules) - loaded)
print(json.dumps([value.tobytes().hex(), gradient.tobytes().hex(), statistics.compiles, new]))
"""
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(folder), "JITGRAD_CACHE": "1", "JITGRAD_VERIFY": "0"}
    environment["PYTHONPATH"] = str(Path(jg.__file__).parent.parent)
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    value, gradient, compiles, loaded = json.loads(run.stdout)
    return {"results": (value, gradient), "compiles": compiles, "loaded": set(loaded)}


@pytest.mark.parametrize("name", ["elementwise", "products", "gathers", "interpreted", "loops", "wrappers"])
def test_a_new_process_loads_no_compiler(tmp_path: Path, name: str) -> None:
    first, second = _in_process(tmp_path, name), _in_process(tmp_path, name)
    assert first["results"] == second["results"]
    assert first["compiles"] > 0
    assert second["compiles"] == 0
    heavy = {"numba", "llvmlite", "scipy", "platformdirs", "optree", "hashlib", "jitgrad.eager"}
    heavy |= {f"jitgrad.compiler.{name}" for name in ("stages", "simplify", "fusion", "machine", "emit", "driver")}
    assert {"llvmlite", "jitgrad.compiler.stages"} <= first["loaded"]
    assert sorted(heavy & second["loaded"]) == []


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("caches", [None, "", "  ", "/tmp/caches"])
def test_the_folder_is_the_one_of_platformdirs(caches: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    from platformdirs import user_cache_dir

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if caches is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", caches)
    assert default_directory() == user_cache_dir("jitgrad", appauthor=False)


def test_interpreted_steps_are_found_in_their_program_once() -> None:
    """Each looked through all of it: half of the compilation of a thousand transforms."""
    program = traced(lambda x: np.fft.irfft(np.fft.rfft(np.fft.irfft(np.fft.rfft(x)))), np.ones(8))
    first = freeze_ops._first_with(program)
    assert freeze_ops._first_with(program) is first
    for number, ins in enumerate(program.instructions):
        frozen = freeze_ops.freeze_op(program, program, number)
        assert program.instructions[frozen[1]].params is ins.params and frozen[1] <= number
