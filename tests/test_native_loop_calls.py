"""Native loops as calls see them: failures inside a body, several threads, other lengths, other processes, memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_programs import call, check, program_of, scan, while_gradient, while_loop

from jitgrad.config import config
from jitgrad.control.ops import LoopLimitError
from jitgrad.executable import Executable, make_executable
from jitgrad.interpreter import interpret


def assert_same_error(executable: Executable, arrays: Sequence[Any], error: type[Exception], text: str) -> None:
    """Compiled and interpreted raise the same error with the same first line."""
    with pytest.raises(error, match=text) as expected:
        interpret(executable.source, arrays)
    with pytest.raises(error, match=re.escape(str(expected.value).splitlines()[0])):
        executable(arrays)


def look_up(table: Any, positions: Any) -> list[Any]:
    """A scan that looks rows up, and one inside it that looks elements up."""

    def inner(row: Any, total: Any, k: Any) -> Any:
        return [total + np.take(row, k)]

    def body(table: Any, total: Any, ks: Any) -> Any:
        return scan(inner, [total], [ks], [np.take(table, ks[0], axis=0)])

    return scan(body, [np.sum(table) * 0], [positions], [table])


def test_positions_are_checked_in_bodies() -> None:
    table, good = np.arange(12.0).reshape(4, 3), np.array([[0, 1], [2, -1], [-3, 2]])
    executable = check(look_up, table, good)
    for k, bad in ((0, 4), (1, -4), (1, 3)):
        positions = good.copy()
        positions[1, k] = bad
        assert_same_error(executable, [table, positions], IndexError, "out of bounds")
        np.testing.assert_array_equal(executable([table, good]), interpret(executable.source, [table, good]))


def test_a_loop_that_goes_on_too_long() -> None:
    def inner(limit: Any, v: Any) -> Any:
        return while_loop(lambda limit, v: [v < limit], lambda limit, v: [v * 2], [v], [limit], most=3)

    def function(v: Any, limit: Any) -> Any:
        (v,) = while_loop(lambda v: [v < 100], lambda v: [v * 2], [v], most=5)
        return scan(inner, [v], consts=[limit], length=2)

    executable = check(function, np.float64(8), np.float64(500))
    assert_same_error(executable, [np.float64(1), np.float64(500)], LoopLimitError, "maximum_iterations=5")
    assert_same_error(executable, [np.float64(8), np.float64(1e9)], LoopLimitError, "maximum_iterations=3")
    check(function, np.float64(100), np.float64(0))


def saving(n: Any, x: Any, table: Any, limit: Any) -> Any:
    """A loop that saves its steps and looks a number up in each."""
    return while_gradient(
        lambda t, limit, n, x: [n < limit], lambda t, limit, n, x: (n + 1, np.sin(x) + np.take(t, n), x),
        lambda t, limit, x, g: [np.cos(x) * g], [n, x], [x], [table, limit], most=60_000,
    )  # fmt: skip


def test_a_loop_that_fails_gives_its_stack_back() -> None:
    def given(steps: int) -> list[Any]:
        return [np.int64(0), np.float64(0.5), table, np.int64(steps)]

    def fails(steps: int) -> None:
        with pytest.raises((IndexError, LoopLimitError)):
            executable(given(steps))

    table = np.ones(50_000)
    executable = check(saving, *given(30_000))
    assert_same_error(executable, given(50_001), IndexError, "out of bounds")
    table = np.ones(70_000)
    executable = check(saving, *given(0))
    assert_same_error(executable, given(60_001), LoopLimitError, "60000")
    assert grows(lambda: fails(60_001), 50) < 1 << 20
    assert grows(lambda: executable(given(20_000)), 50) < 1 << 20


def grows(action: Callable[[], Any], times: int) -> int:
    """By how many bytes the memory of the process grows in so many calls."""
    for _ in range(times):
        action()
    before = resident_bytes()
    for _ in range(times):
        action()
    return resident_bytes() - before


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def recurrence(w: Any, h: Any, xs: Any) -> Any:
    """A loop with all kinds of memory."""

    def step(w: Any, h: Any, total: Any, x: Any) -> Any:
        h = np.tanh(h @ w + x)
        (v,) = while_loop(lambda v: [np.sum(v) < 5], lambda v: [v * 1.5 + 0.5], [h])
        return h, total + np.sum(v), h, call(lambda v: [v * v], [v])[0]

    return scan(step, [h, np.sum(h)], [xs], [w])


def arguments(length: int, width: int, seed: int = 0) -> list[Any]:
    """Arrays for `recurrence`."""
    rng = np.random.default_rng(seed)
    shapes = (width, width), (3, width), (length, 3, width)
    return [rng.normal(size=shape) / width for shape in shapes]


def test_several_threads_call_at_once() -> None:
    arrays = [arguments(20, 70, seed) for seed in range(6)]
    executable = check(recurrence, *arrays[0])
    expected = [[y.tobytes() for y in executable(given)] for given in arrays]
    wrong: list[int] = []

    def work(k: int) -> None:
        for _ in range(30):
            if [y.tobytes() for y in executable(arrays[k])] != expected[k]:
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_other_extents_compile_nothing() -> None:
    check(recurrence, *arguments(70, 80))
    for length, width in ((90, 80), (71, 130), (100, 101)):
        assert check(recurrence, *arguments(length, width)).stats.compiles == 0
    check(recurrence, *arguments(7, 80))
    assert check(recurrence, *arguments(2, 80)).stats.compiles == 0


_SECOND = """
import sys
from test_native_loop_calls import arguments, program_of, recurrence
from jitgrad.executable import make_executable
given = arguments(12, 9)
executable = make_executable(program_of(recurrence, given))
total = sum(float(y.sum()) for y in executable(given))
print(executable.stats.compiles, "jitgrad.compiler.stages" in sys.modules, total)
"""


def test_a_second_process_needs_no_compiler(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    environment = {**os.environ, "JITGRAD_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    environment["JITGRAD_VERIFY"] = "0"
    said = [
        subprocess.run([sys.executable, "-c", _SECOND], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    first, second = (run.stdout.split() for run in said)
    assert int(first[0]) > 0 and first[1] == "True"
    assert second == ["0", "False", first[2]]


def test_equal_loops_run_once_and_others_apart() -> None:
    def function(x: Any, xs: Any) -> Any:
        found = []
        for factor in (2.0, 2.0, 3.0):
            (h,) = scan(lambda h, x, factor=factor: [h * factor + x], [x], [xs])
            found.append(h)
        return found

    executable = check(function, np.float64(1), np.arange(4.0))
    kinds = [ins.op.name for ins in executable.program.instructions]
    assert kinds.count("scan") == 2


def test_the_texts_tell_of_bodies() -> None:
    executable = check(recurrence, *arguments(5, 4))
    explanation = executable.explanation
    assert "native scan" in explanation.fusion
    assert "native while" in explanation.fusion
    assert "body 0" in explanation.fusion
    assert "1 control op\n" in explanation.fusion
    assert "scan" in explanation.svg


def test_a_body_that_cannot_be_compiled_is_named() -> None:
    def function(x: Any, xs: Any) -> Any:
        return scan(lambda h, x: [np.sort(h) + x], [x], [xs])

    arrays = [np.arange(40.0), np.ones((4, 40))]
    executable = make_executable(program_of(function, arrays))
    assert "scan runs in the interpreter: body has sort" in executable.explanation.clusters
    for got, want in zip(executable(arrays), interpret(executable.source, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_profiles_show_a_loop_as_one_step() -> None:
    import jitgrad

    given = arguments(5, 4)
    executable = check(recurrence, *given)
    with config(num_threads=1), jitgrad.profile() as profile:
        executable(given)
    assert any("scan" in event.name for event in profile.events if event.kind == "loop")


_INTERRUPTED = """
import os, signal, threading, time
import numpy as np, jitgrad as jg

def loop(x, n):
    return jg.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, np.tanh(s[1]) * 1.1), (0, x))[1]

def nest(x, n):
    return jg.scan(lambda c, _: (c + loop(x, n), None), x, None, 3)[0]

class Alarm(Exception): pass

def alarm(*args): raise Alarm

signal.signal(signal.SIGALRM, alarm)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
calls = [jg.compile(loop), jg.compile(nest), jg.compile(jg.grad(loop))]
expected = [f(0.5, 10) for f in calls]
for sent, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Alarm)):
    for before in (1, 4):  # calls by Python, then by machine code
        for f, wanted in zip(calls, expected):
            for _ in range(before):
                assert f(0.5, 10) == wanted
            timer = threading.Timer(0.3, os.kill, (os.getpid(), sent))
            timer.start()
            try:
                f(0.5, 10**7 if f is calls[2] else 10**15)
            except raised:
                print("ended")
            timer.join()
            assert f(0.5, 10) == wanted
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent by kill")
def test_signals_end_loops() -> None:
    """What a handler raises arrives, from calls that Python takes and from those that machine code takes; afterwards
    the function runs as before.
    """
    run = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["ended"] * 12, run.stderr
