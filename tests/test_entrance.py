"""Where the machine code of calls comes from: compiled in the background, found on disk, or made at once."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jitgrad.compiler.machine import capi

_SCRIPT = """
import types
import numpy as np
import jitgrad as jg
from jitgrad.compiler.machine import ahead
from jitgrad.compiler.calling import entrance
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.tiers import improver

compiled = []
compile_to_object = native.compile_to_object
native.compile_to_object = lambda *args, **kwargs: compiled.append(args) or compile_to_object(*args, **kwargs)
f, x = jg.compile(lambda x: np.sin(x) + x), np.arange(3.0)
with improver._busy:
    results = [f(x) for _ in range({calls})]
    is_coming = entrance.is_coming()
    here = any("jitgrad_call" in args[0] for args in compiled)
    is_builtin = isinstance(f.__call__, types.BuiltinFunctionType)
improver.wait()
for _ in range(3):
    results.append(f(x))
assert not entrance.is_coming() and isinstance(f.__call__, types.BuiltinFunctionType)
assert all(result.tobytes() == results[0].tobytes() for result in results)
print(is_coming, here, is_builtin)
"""


def _run(cache: Path, calls: int = 4, **variables: str) -> str:
    root = Path(__file__).parent.parent
    environment = os.environ | {"JITGRAD_CACHE_DIR": str(cache), "PYTHONPATH": str(root), "JITGRAD_QUICK_START": "1"}
    environment |= {"JITGRAD_NUM_THREADS": "2", "JITGRAD_VERIFY": "0", **variables}
    command = [sys.executable, "-W", "error", "-c", _SCRIPT.replace("{calls}", str(calls))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("calls", [1, 5])
def test_python_takes_calls_until_the_code_is_there_and_the_next_process_finds_it(tmp_path: Path, calls: int) -> None:
    assert _run(tmp_path, calls) == "True False False"
    assert _run(tmp_path) == "False False True"


def test_the_code_is_compiled_at_once_where_nothing_works_in_the_background(tmp_path: Path) -> None:
    assert _run(tmp_path, JITGRAD_QUICK_START="0") == "False True True"


def test_two_threads_that_make_the_first_builtin_have_one_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builtins point at it: one that nobody keeps is memory that others get."""
    monkeypatch.setattr(capi, "_definitions", {})
    interval = sys.getswitchinterval()
    barrier = threading.Barrier(2)

    def make(k: int) -> int:
        barrier.wait()
        return ctypes.addressof(capi._definition(f"name{k}", 1, 0, "text"))

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            pairs = [[pool.submit(make, k) for _ in range(2)] for k in range(500)]
            found = [{made.result() for made in pair} for pair in pairs]
    finally:
        sys.setswitchinterval(interval)
    assert all(len(addresses) == 1 for addresses in found)
    assert len(capi._definitions) == 500
