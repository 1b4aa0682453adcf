"""Settings: environment, calls, blocks, threads of execution, errors."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jitgrad.config import (
    MAX_THREADS,
    Settings,
    available_cpus,
    config,
    get_num_threads,
    log,
    set_num_threads,
    settings_of_environment,
)

pytestmark = pytest.mark.quick


def test_defaults() -> None:
    settings = settings_of_environment({})
    assert settings == Settings(available_cpus(), True, None, 512 << 20, (), False, True, False)
    if hasattr(os, "sched_getaffinity"):
        assert settings.num_threads == min(MAX_THREADS, len(os.sched_getaffinity(0)))


def test_environment() -> None:
    variables = {"NUM_THREADS": "3", "CACHE": "0", "CACHE_DIR": "/x", "LOG": "recompile, all,"}
    environment = {f"JITGRAD_{name}": value for name, value in variables.items()}
    expected = Settings(3, False, "/x", 512 << 20, ("recompile", "all"), False, True, False)
    assert settings_of_environment(environment) == expected


@pytest.mark.parametrize("text", ["many", "0", "-1", "65", "1.5"])
def test_environment_that_makes_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"JITGRAD_NUM_THREADS|num_threads"):
        settings_of_environment({"JITGRAD_NUM_THREADS": text})


def test_unknown_topics_are_named() -> None:
    with pytest.warns(UserWarning, match="JITGRAD_LOG has no topic 'nonsense'; it has recompile, all"):
        assert settings_of_environment({"JITGRAD_LOG": "nonsense"}).log == ("nonsense",)
    with pytest.raises(ValueError, match="log has no topic 'b', 'c'; it has recompile"):
        config(log="recompile,b,c")


def test_affinity_is_honoured() -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs sched_setaffinity")
    script = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from jitgrad.config import get_num_threads
assert get_num_threads() == 1
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_block_is_for_this_context_only() -> None:
    before = config.settings
    seen: list[Settings] = []
    with config(cache_bytes=7, log="all") as settings:
        assert settings is config.settings
        assert (config.cache_bytes, config.log) == (7, ("all",))
        with config(cache_bytes=8):
            assert (config.cache_bytes, config.log) == (8, ("all",))
        assert config.cache_bytes == 7
        thread = threading.Thread(target=lambda: seen.append(config.settings))
        thread.start()
        thread.join()
    assert seen == [before]
    assert config.settings == before


def test_block_ends_with_an_exception() -> None:
    before = config.settings
    with pytest.raises(KeyError), config(cache=not before.cache):
        raise KeyError
    assert config.settings == before


def test_call_is_for_the_process() -> None:
    before = config.cache_bytes
    seen: list[int] = []
    try:
        config(cache_bytes=5)
        thread = threading.Thread(target=lambda: seen.append(config.cache_bytes))
        thread.start()
        thread.join()
        assert seen == [5]
    finally:
        config(cache_bytes=before)


def test_threads_include_blas() -> None:
    from threadpoolctl import threadpool_info

    def blas_threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    before, pools = get_num_threads(), blas_threads()
    try:
        set_num_threads(1)
        assert get_num_threads() == 1
        assert blas_threads() <= {1}
        with config(num_threads=2):
            assert get_num_threads() == 2
        assert blas_threads() <= {1}
    finally:
        set_num_threads(before)
    assert blas_threads() == pools


@pytest.mark.parametrize("threads", [0, -1, 65])
def test_impossible_thread_counts(threads: int) -> None:
    before = get_num_threads()
    with pytest.raises(ValueError, match="from 1 to 64"):
        set_num_threads(threads)
    with pytest.raises(TypeError):
        set_num_threads(1.5)  # type: ignore[arg-type]
    assert get_num_threads() == before


def test_unknown_settings_are_named() -> None:
    with pytest.raises(TypeError, match=r"'colour'; it has num_threads, cache"):
        config(colour=1)
    with pytest.raises(AttributeError):
        _ = config.colour


def test_paths_are_taken(tmp_path: Path) -> None:
    with config(cache_dir=tmp_path):
        assert config.cache_dir == str(tmp_path)


def test_log(capsys: pytest.CaptureFixture[str]) -> None:
    log("recompile", "silent")
    with config(log="recompile"):
        log("recompile", "because")
        log("other", "silent")
    with config(log=("all",)):
        log("other", "too")
    assert capsys.readouterr().err == "jitgrad recompile: because\njitgrad other: too\n"
