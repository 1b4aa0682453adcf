"""Kernels compiled quickly and then well: the same bits, in the same places, kept on disk, forked or not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.loopir.nests import Repeat, statements
from jitgrad.compiler.lowering.lower import kernels_of
from jitgrad.compiler.machine import firsts, tiers
from jitgrad.compiler.machine.compilation import kernel_module
from jitgrad.compiler.machine.firsts import FirstCalls, first_calls
from jitgrad.compiler.machine.tiers import Improver, Task, may_be_compiled_twice
from jitgrad.executable import Executable

_SCRIPT = """
import os, sys, warnings
import numpy as np
import jitgrad as jg
from jitgrad.compiler.machine.compilation import statistics
from jitgrad.compiler.machine.tiers import improver
from scipy import special

rng = np.random.default_rng(0)
x, y = rng.standard_normal((2, 37, 53))
w, n = rng.standard_normal((53, 21)).astype(np.float32), rng.integers(-9, 9, (37, 53))
special_values = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.0, -1.0, 1e308, 0.5])


def layer_norm(x):
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)


def log_softmax(x):
    shifted = x - x.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def long(x):
    for k in range(10):
        x = ((np.sin(x * 1.01) + 0.1 * k) * x - 0.3) * 0.1 + 0.9 * x
    return x


CASES = [
    (jg.value_and_grad(lambda x, y: np.sum(np.tanh(x) * y), (0, 1)), (x, y)),
    (jg.value_and_grad(lambda x: np.sum(layer_norm(x) ** 3)), (x,)),
    (jg.value_and_grad(lambda x: np.sum(log_softmax(x)[np.arange(37), np.arange(37)])), (x,)),
    (jg.value_and_grad(lambda w: np.sum(special.erf(w) + special.gammaln(np.abs(w) + 1))), (w,)),
    (lambda n, x: (n // 3 + n % 5, np.argmax(x, axis=1), np.where(n > 0, x, -x).min(axis=0)), (n, x)),
    (lambda v: (np.exp(v), np.log(v), np.sin(v), v / v[::-1], np.minimum(v, 0.0)), (special_values,)),
    (lambda v: (np.sum(v[5:]), np.prod(v[7:]), np.power(v, 3.5), v.astype(np.float32)), (special_values,)),
    (lambda x, w: (np.sum(x), np.prod(x), np.min(w), np.argmax(w), np.any(x > 3), np.sum(w * w)), (x, w)),
    (lambda x: (np.argmin(x, axis=1), np.sum(np.exp(x)), np.sum(x + 1, axis=1), np.all(x < 3, axis=1)), (x,)),
    (lambda x, w: (np.sum(long(x)), np.prod(1 + 1e-3 * long(x), axis=1), np.max(long(w)), long(w)), (x, w)),
    (lambda x, w: (np.argmax(long(x)), np.argmin(long(w), axis=1), np.any(long(x) > 0.9, axis=1)), (x, w)),
    (lambda x: np.sum(long(np.pad(x[1:], ((0, 1), (2, 0))) * np.roll(x[:, :51], 1, 1).mean())), (x,)),
    (jg.value_and_grad(lambda x: np.sum(np.diff(long(x), axis=1) ** 2)), (x,)),
    (jg.value_and_grad(lambda x: np.sum((np.roll(x, 1, 0) + np.roll(x, -1, 1) - 2 * x) ** 2)), (x,)),
]


def bits(result):
    from optree import tree_leaves
    return [np.asarray(leaf).tobytes() for leaf in tree_leaves(result)]
"""

_SAME_BITS = """
functions = [(jg.compile(f), arrays) for f, arrays in CASES]
first = [bits(f(*arrays)) for f, arrays in functions]
assert statistics.compiles > 10
improver.wait()
assert len(improver._replaced) == statistics.compiles
executables = [e for f, _ in functions for entry in f._calls.entries() for e in entry.runner._only.executables()]
steps = [s.steps for e in executables for s in e.bound.steps if hasattr(s, "steps")]
assert len(steps) >= len(CASES)
assert not {int(a) for table in steps for a in table[:, 0]} & {*improver._replaced}
assert first == [bits(f(*arrays)) for f, arrays in functions]
"""

_FORKED = """
f, arrays = CASES[1]
compiled = jg.compile(f)
before = bits(compiled(*arrays))
warnings.simplefilter("ignore")
child = os.fork()
improver.wait()
assert len(improver._replaced) == statistics.compiles
assert bits(compiled(*arrays)) == before
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""

_WITHOUT_THREADS = """
import _thread, threading
from jitgrad.compiler.freezing import keeping

def refuse(*args, **kwargs):
    raise RuntimeError("can't create new thread at interpreter shutdown")

for name in ("_start_new_thread", "_start_joinable_thread"):
    if hasattr(threading, name):
        setattr(threading, name, refuse)
_thread.start_new_thread = refuse
f, arrays = CASES[1]
expected = f(*arrays)
value, gradient = jg.compile(f)(*arrays)
print(threading.active_count(), np.allclose(value, expected[0]), np.allclose(gradient, expected[1]))
"""

_COUNTS = """
for f, arrays in CASES[:2]:
    compiled = jg.compile(f)
    for _ in range(2):  # the second call asks for code of calls
        compiled(*arrays)
print(statistics.compiles, statistics.disk_hits)
"""


def run(script: str, cache: Path, **variables: str) -> str:
    root = Path(__file__).parent.parent
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(cache), "PYTHONPATH": str(root), "JITGRAD_QUICK_START": "1"}
    environment |= {"JITGRAD_NUM_THREADS": "2", **variables}
    command = [sys.executable, "-W", "error", "-c", _SCRIPT + script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("threads", ["1", "2"])
def test_both_codes_give_the_same_bits(threads: str, tmp_path: Path) -> None:
    run(_SAME_BITS, tmp_path, JITGRAD_NUM_THREADS=threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_gets_good_code_too(tmp_path: Path) -> None:
    run(_FORKED, tmp_path)


def test_a_process_leaves_good_code_on_disk(tmp_path: Path) -> None:
    compiles = run(_COUNTS, tmp_path).split()[0]
    assert int(compiles) > 2
    quickly = {file.name: file.read_bytes() for file in tmp_path.glob("*.kernel")}
    assert run(_COUNTS, tmp_path).split() == ["0", compiles]
    once = tmp_path / "once"
    run(_COUNTS, once, JITGRAD_QUICK_START="0")
    assert {name: (once / name).read_bytes() for name in quickly} == quickly


def test_kernels_are_compiled_once_where_that_is_asked_for(tmp_path: Path) -> None:
    run(_COUNTS + "assert not improver._replaced and improver._thread is None", tmp_path, JITGRAD_QUICK_START="0")


def test_records_are_changed_before_and_after_they_are_watched() -> None:
    improver = Improver()
    early, late = (np.array([[7, 0], [8, 0], [7, 0]]) for _ in range(2))

    def text() -> str:
        return "define void @f() { ret void }"

    with improver._busy:
        improver.add([Task(text, lambda code: (7, 70)), Task(text, lambda code: (8, 80))])
        improver.watch(early)
    improver.wait()
    assert early[:, 0].tolist() == [70, 80, 70]
    improver.watch(late)
    assert late[:, 0].tolist() == [70, 80, 70]


def test_good_code_is_made_by_the_next_thread_where_none_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    improver, records = Improver(), np.array([[7, 0], [8, 0]])

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        improver.add([Task(lambda: "define void @f() { ret void }", lambda code: (7, 70))])
    improver.watch(records)
    improver.wait()
    assert records[:, 0].tolist() == [7, 8]
    improver.add([Task(lambda: "define void @g() { ret void }", lambda code: (8, 80))])
    improver.wait()
    assert records[:, 0].tolist() == [70, 80]


def test_a_first_call_without_threads_keeps_plans_at_the_end(tmp_path: Path) -> None:
    """From Python 3.12 on there are none where a first call is one of the last things that a process does."""
    out = run(_WITHOUT_THREADS, tmp_path)
    assert out.split() == ["1", "True", "True"]
    assert list(tmp_path.glob("*.plan"))


def test_a_kernel_whose_good_code_cannot_be_made_keeps_the_quick_one() -> None:
    improver = Improver()
    records = np.array([[7, 0]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with improver._busy:
            improver.add([Task(lambda: "nonsense", lambda code: (7, 70))])
            improver.watch(records)
        improver.wait()
    assert records[0, 0] == 7
    assert "keeps its quick code" in str(caught[0].message)


def test_what_may_be_contracted_is_compiled_once() -> None:
    assert may_be_compiled_twice("%y = fmul double %x, %x")
    assert not may_be_compiled_twice("%y = fmul contract double %x, %x")


def test_good_code_waits_for_first_calls_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def task(name: str) -> Task:
        return Task(lambda: "define void @f() { ret void }", lambda code: (done.append(name) or 7, 70))

    improver = Improver()
    monkeypatch.setattr(tiers, "_PATIENCE", 60.0)
    with first_calls.one():
        with first_calls.one():
            improver.add([task("first")])
        assert improver._thread is not None
        improver._thread.join(0.05)
        assert not done
    improver.wait()
    assert done == ["first"]
    monkeypatch.setattr(tiers, "_PATIENCE", 0.01)
    with first_calls.one():
        improver.add([task("second")])
        improver.wait()
    assert done == ["first", "second"]


def test_a_first_call_lasts_until_its_run_is_over_and_others_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[bool] = []
    call = Executable.__call__

    def watched(executable: Executable, arrays: Sequence[Any]) -> list[Any]:
        under_way.append(first_calls.are_under_way)
        return call(executable, arrays)

    monkeypatch.setattr(Executable, "__call__", watched)
    f = jg.compile(lambda x: np.sin(x) * x)
    for n in (3, 3, 4):
        f(np.ones(n))
    assert under_way == [True, False, True]
    assert not first_calls.are_under_way


def test_what_is_long_is_written_once_where_code_is_wanted_quickly() -> None:
    explanation = jg.compile(lambda x: np.sin(np.sin(np.sin(x)))).explain(np.ones(1000))
    [cluster] = explanation.compiled[0].steps
    [kernel] = kernels_of(cluster)
    module = kernel_module(kernel, "k", True)
    quick, good = str(module), str(kernel_module(kernel, "k"))
    written = r'define [^@]*@"jitgrad\.sin\.v\d+f64"'
    assert not re.findall(written, quick)
    assert len(re.findall(r'call [^@]*@"jitgrad\.sin\.v\d+f64"', quick)) == 3  # all in one loop, over masked registers
    assert not re.findall(written, good)
    assert module.parts is not None
    [(name, part)] = module.parts.items()
    assert len(re.findall(written, str(part()))) == 1
    assert f'@"{name}"' in quick
    assert len(quick) < 0.3 * len(good)


def test_sine_and_cosine_share_what_huge_arguments_take() -> None:
    explanation = jg.compile(lambda x: np.sin(x) * np.cos(x)).explain(np.ones(1000))
    [cluster] = explanation.compiled[0].steps
    [kernel] = kernels_of(cluster)
    module = kernel_module(kernel, "k", True)
    assert module.parts is not None
    called = [list(part().parts or {}) for part in module.parts.values()]
    assert len(called) == 2 and called[0] == called[1] and len(called[0]) == 1
    text = str(kernel_module(kernel, "k"))
    assert len(re.findall(r'define [^@]*@"jitgrad\.\w+\.large"', text)) == 1
    assert text.count("llvm.ctlz.i128") == 1 + 1  # and its declaration


def _long(x: Any) -> Any:
    for k in range(10):
        x = ((np.sin(x * 1.01) + 0.1 * k) * x - 0.3) * 0.1 + 0.9 * x
    return x


@pytest.mark.parametrize("axis", [None, 1])
def test_a_long_loop_with_a_sum_is_written_once_where_code_is_wanted_quickly(axis: int | None) -> None:
    explanation = jg.compile(lambda x: np.sum(_long(x), axis=axis)).explain(np.ones((10, 100)))
    [cluster] = explanation.compiled[0].steps
    kernel = next(iter(kernels_of(cluster)))
    quick, good = (str(kernel_module(kernel, "k", quickly)) for quickly in (True, False))
    repeats = [s for s in statements(kernel.body) if isinstance(s, Repeat)]
    written = 10 - sum(s.turns - 1 for s in repeats)
    assert quick.count('@"jitgrad.sin.v') == written + 1  # and its declaration
    summed = re.compile(r"load <(\d+) x double>.*\n  %v\d+ = fadd")
    assert len(set(summed.findall(quick))) == 1  # of the registers in turn, and of what is left
    assert len(set(summed.findall(good))) == 2


_ONCE = """
from jitgrad.compiler.machine import ahead
taken = []
result = ahead._result
ahead._result = lambda name, *module: taken.append(name) or result(name, *module)
x = np.linspace(-1e9, 1e9, 1000)  # huge arguments have functions of their own
for f in (np.sin, lambda x: np.sin(x) * 2, lambda x: np.sum(np.sin(x)) + np.cos(x)):
    first = bits(jg.compile(f)(x))
    improver.wait()
    assert first == bits(jg.compile(f)(x))
parts = [name for name in taken if name.startswith("jitgrad.")]
assert len(parts) == len(set(parts)) == 4, taken
"""


def test_functions_of_analysis_are_compiled_once_for_all_quick_kernels(tmp_path: Path) -> None:
    run(_ONCE, tmp_path)


def test_what_waits_begins_when_no_first_call_has_come_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FirstCalls()
    monkeypatch.setattr(firsts, "_QUIET", 0.1)
    with calls.one():
        pass
    start = time.monotonic()
    calls.wait(start + 60)
    assert 0.05 < time.monotonic() - start < 30
    calls.wait(start + 60)
    with calls.one():
        pass
    start = time.monotonic()
    calls.wait(start + 0.01)
    assert time.monotonic() - start < 0.1


def test_threads_take_short_turns_in_first_calls_alone() -> None:
    calls, before = FirstCalls(), sys.getswitchinterval()
    with calls.one(), calls.one():
        assert sys.getswitchinterval() == pytest.approx(min(before, firsts._TURN), rel=0.1)
    assert sys.getswitchinterval() == before
    with pytest.raises(ZeroDivisionError), calls.one():
        _ = 1 // 0
    assert sys.getswitchinterval() == before


def test_tracing_is_part_of_a_first_call() -> None:
    under_way: list[bool] = []
    f = jg.compile(lambda x: under_way.append(first_calls.are_under_way) or np.cos(x))
    f(np.ones(3))
    assert under_way == [True]
