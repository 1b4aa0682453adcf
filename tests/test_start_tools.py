"""The tools that measure first calls and starts keep up with the code whose parts they time; figures are not tested."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import first_call, starts


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
