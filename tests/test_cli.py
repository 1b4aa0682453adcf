"""The command line and what it prints: info, compare, explain, cache; and the comparison behind it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.cli import load_function, main
from jitgrad.profiler.comparing import difference
from jitgrad.profiler.comparison import Comparison, Measurement
from jitgrad.profiler.tables import bytes_text, text_table
from jitgrad.profiler.timing import Times, time_in_turns
from jitgrad.profiler.work import Work

MODULE = """
import numpy as np
import jitgrad as jg

def loss(w, x):
    return np.sum(np.tanh(x @ w) ** 2)

step = jg.compile(jg.value_and_grad(loss))
not_a_function = 3

def example_args():
    return np.full((4, 2), 0.5), np.arange(12.0).reshape(3, 4)
"""


@pytest.fixture
def module(tmp_path: Path) -> str:
    """The path of a module with a compiled step and its arguments."""
    path = tmp_path / "cli_example.py"
    path.write_text(MODULE)
    return str(path)


def test_info(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for word in (
        f"jitgrad       {jg.__version__}",
        "numpy",
        "llvmlite",
        "processor",
        "threads",
        "BLAS",
        "cache",
    ):
        assert word in printed


def test_compare(module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert main(["compare", f"{module}:step", "--repeat", "2", "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert [line.split(" ")[0].rstrip(",") for line in printed.splitlines()[2:5]] == [
        "interpreted",
        "fused",
        "fused",
    ]
    assert printed.splitlines()[5].startswith("Use ")
    assert "<table>" in page.read_text()


def test_explain(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{module}:step"]) == 0
    merged = capsys.readouterr().out
    assert "program" in merged and "cluster 0 @jit_scope_0(" in merged and "_grad_" not in merged
    assert main(["explain", f"{module}:step", "--separate", "--stage", "clusters"]) == 0
    assert "@jit_scope_0_grad_gradients(" in capsys.readouterr().out
    assert main(["explain", f"{module}:step", "--stage", "llvm"]) == 0
    assert "define void" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["compare", "--repeat", "1", "--html"], ["explain", "--svg"]])
def test_files_that_cannot_be_written(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    nowhere = tmp_path / "missing" / "file"
    assert main([*command, str(nowhere), f"{module}:step"]) == 2
    assert f"could not write {nowhere}: No such file" in capsys.readouterr().err


def test_a_plain_function_is_compiled_first(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", f"{module}:loss", "--stage", "fusion"]) == 0
    assert capsys.readouterr().out.startswith("cluster 0:")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("{module}", "expected file.py:function"),
        ("nowhere.py:f", "nowhere.py is not a Python file"),
        ("{module}:gradient", "has no function 'gradient'"),
        ("{module}:not_a_function", "has no function 'not_a_function'"),
    ],
)
def test_wrong_places(module: str, place: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", place.format(module=module)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.quick
def test_example_args(tmp_path: Path) -> None:
    path = tmp_path / "cli_without_args.py"
    path.write_text("def f(x): return x\n")
    with pytest.raises(Exception, match="no example_args"):
        load_function(f"{path}:f")
    path.write_text("def f(x): return x\nexample_args = [1]\n")
    with pytest.raises(Exception, match="must be a tuple or return one, got list"):
        load_function(f"{path}:f")
    path.write_text("def f(x): return x\nexample_args = (1,)\n")
    assert load_function(f"{path}:f")[1] == (1,)


def test_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with jg.config(cache_dir=str(tmp_path / "kernels")):
        jg.compile(lambda x: np.cos(x) * 0.12345 - x)(np.ones(3))
        assert main(["cache"]) == 0
        listed = capsys.readouterr().out.splitlines()
        assert len(listed) > 1 and str(tmp_path) in listed[-1]
        assert main(["cache", "verify"]) == 0
        damaged = next((tmp_path / "kernels").rglob("*.kernel"))
        damaged.write_bytes(damaged.read_bytes()[:-1])
        assert main(["cache", "verify"]) == 1
        assert f"damaged: {damaged.stem}" in capsys.readouterr().out
        assert main(["cache", "clear"]) == 0
        assert "deleted" in capsys.readouterr().out
        assert not list((tmp_path / "kernels").rglob("*.kernel"))


def test_python_m_jitgrad() -> None:
    run = subprocess.run([sys.executable, "-m", "jitgrad", "--help"], capture_output=True, text=True, check=True)
    assert "compare" in run.stdout


# -- the comparison ------------------------------------------------------------------------------------------


def step(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A value and its gradient."""
    return jg.value_and_grad(lambda w: np.sum(np.tanh(x * w) ** 2))(w)


def test_compare_counts_what_runs() -> None:
    x, w = np.linspace(-2, 2, 1000), np.linspace(-1, 1, 1000)
    comparison = jg.compare(step, x, w, repeat=3)
    interpreted, separate, merged = comparison.rows
    assert interpreted.difference is None and max(separate.difference or 0, merged.difference or 0) < 1e-14
    assert interpreted.work.kernels == 0 and interpreted.work.launches == interpreted.work.numpy_calls > 5
    assert (merged.work.launches, separate.work.launches) == (1, 2)
    assert merged.work.numpy_calls == merged.work.products == 0
    assert 3 * x.nbytes <= merged.work.bytes_moved < separate.work.bytes_moved < interpreted.work.bytes_moved
    assert x.nbytes <= merged.work.peak_bytes < separate.work.peak_bytes
    assert all(row.times.low <= row.times.median <= row.times.high and row.times.count == 3 for row in comparison.rows)


def test_compare_takes_compiled_functions_and_keeps_their_options() -> None:
    power = jg.compile(lambda x, n: x**n, static_argnums=1)
    comparison = jg.compare(power, np.arange(4.0), 3, repeat=1)
    assert comparison.merged.difference == 0


@pytest.mark.quick
@pytest.mark.parametrize(
    ("merged", "separate", "said"),
    [
        (Work(launches=1, bytes_moved=10), Work(launches=2, bytes_moved=20), "1 launch in place of 2 and 10 B moved"),
        (Work(launches=2, bytes_moved=10), Work(launches=2, bytes_moved=20), "with 10 B moved in place of 20 B."),
        (Work(launches=2, bytes_moved=10), Work(launches=2, bytes_moved=10), "with as many launches and bytes moved."),
    ],
)
def test_advice_names_only_what_differs(merged: Work, separate: Work, said: str) -> None:
    slow, fast = Times(9.0, 9.0, 9.0, 1), Times(1.0, 1.0, 1.0, 1)
    rows = [("interpreted", slow, Work()), ("separate", fast, separate), ("merged", fast, merged)]
    advice = Comparison("f", tuple(Measurement(name, times, work, 0.0, "") for name, times, work in rows)).advice
    assert said in advice and "2 launches in place of 2" not in advice


@pytest.mark.quick
def test_difference() -> None:
    a = np.array([1.0, np.nan, 4.0])
    assert difference((a, 1), (a, 1)) == 0
    assert difference(a + 1, a) == 0.25
    assert difference(np.array([1.0, 2.0, 4.0]), a) == np.inf
    assert difference(np.float32(1), np.float64(1)) == np.inf
    assert difference(np.array([1, 2]), np.array([1, 3])) == np.inf


@pytest.mark.quick
def test_times() -> None:
    calls = [0, 0]

    def count(k: int) -> None:
        calls[k] += 1

    times = time_in_turns([lambda: count(0), lambda: count(1)], repeat=4)
    assert [t.count for t in times] == [4, 4] and min(calls) >= 4
    assert str(Times(0.00123, 0.0012, 0.0013, 5)) == "1.23 ms (1.2-1.3)"
    with pytest.raises(ValueError, match="repeat must be at least 1"):
        time_in_turns([lambda: None], repeat=0)


@pytest.mark.quick
def test_texts() -> None:
    assert [bytes_text(n) for n in (7, 1023, 2048, 3 << 20, 5 << 30)] == [
        "7 B",
        "1023 B",
        "2 KiB",
        "3 MiB",
        "5 GiB",
    ]
    assert text_table([("a", "bb"), ("ccc", "d")]) == "a    bb\n-------\nccc   d"


def counting() -> tuple[jg.Variable, Any]:
    """A Variable that a run of the second changes, in the default graph."""
    count = jg.Variable(np.arange(3.0), name="count")
    return count, count.assign(np.tanh(count) + 1.0)


def test_compare_leaves_variables_as_they_were() -> None:
    with jg.Graph().as_default():
        count, update = counting()
        comparison = jg.compare([np.sum(count), update], repeat=3)
    assert comparison.merged.difference is not None and comparison.merged.difference < 1e-14
    np.testing.assert_array_equal(count.numpy(), np.arange(3.0))


def test_compare_leaves_variables_of_functions_as_they_were() -> None:
    count = jg.Variable(np.arange(3.0), name="count")

    def step(x: Any) -> Any:
        count.assign_add(x)
        return np.sum(count.read() * x)

    comparison = jg.compare(step, np.ones(3), repeat=3)
    assert comparison.merged.difference is not None and comparison.merged.difference < 1e-14
    np.testing.assert_array_equal(count.numpy(), np.arange(3.0))


def test_compare_refuses_a_graph_that_is_cut() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, [3], name="x")
        y = np.tanh(jg.py_func(np.sort, x, np.float64, name="sorted"))
        with pytest.raises(ValueError, match=r"cannot run py_func 'sorted' \(test_cli.py:\d+\): its shapes are known"):
            jg.compare([y], {x: np.ones(3)})
