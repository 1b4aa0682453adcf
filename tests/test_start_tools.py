"""The tools that measure first calls, starts and new shapes keep up with the code; figures are not tested."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import jitgrad as jg
from benchmarks import first_call, shapes, starts
from jitgrad.calls import max_traces


def test_the_phases_of_a_first_call_are_those_of_the_code() -> None:
    found = first_call._in_process("rosenbrock")
    assert found["all"] == pytest.approx(sum(ms for phase, ms in found.items() if phase != "all"))
    named = {phase for phase, _, _ in first_call.PHASES}
    assert named >= {phase for phase in found if phase not in ("all", "other")} >= {"trace", "emit", "compile", "run"}


def test_a_warm_start_has_all_phases_and_loads_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JITGRAD_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("JITGRAD_VERIFY", raising=False)
    monkeypatch.setattr(starts, "REPEAT", 1)
    times, heavy = starts.measure("rosenbrock")
    assert not heavy
    phases = dict.fromkeys(phase for phase, _, _ in starts.PHASES)
    assert sum(times[phase] for phase in (*phases, "import", "other")) == pytest.approx(times["total"])
    assert times["beyond"] == times["total"] - times["again"] > 0
    assert [phase for phase in phases if not times[phase]] == ["trace", "gradient", "slice", "key"]  # it is known


def test_what_measures_starts_loads_nothing_that_a_start_might() -> None:
    code = "import sys, benchmarks.starts; print({'optree', 'jitgrad', 'llvmlite', 'scipy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


def test_more_shapes_than_are_kept_compile_no_kernels() -> None:
    """And not fewer than none: what is dropped stays counted."""
    case = shapes.Case("sines", jg.grad(lambda x: np.sum(np.sin(x) * 0.4321 + x)), lambda n: (np.ones(n),))
    with jg.config(cache=False):
        found = shapes.measure(case, max_traces + 2)
    assert found["late"] == 0 and found["ops"] > 0
