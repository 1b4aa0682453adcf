"""The cost of eager operations on small arrays: ``python -m benchmarks.eager``; NumPy, HIPS autograd and torch beside
it.

Each row is one operation on ten float64 numbers, recorded by a tape, and its time over that of NumPy's own call made in
the same turns; autograd and torch, in environments of their own, likewise. Then the gradient of a thousand small
operations, recording included, and the memory that a tape of ten thousand of them keeps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

import jitgrad as jg
from benchmarks.eager_rows import LOOPS, Call, Operation, in_turns, measured, thousand, value
from benchmarks.environments import interpreter_of

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the tables."""
    jg.config(quick_start=False)  # machine code is there from the first tape on
    ours = measured(_recorded)
    ours["gradient of 1,000"] = [s * 1e3 for s in in_turns([lambda: thousand(np.sin, value()), _gradient()])]
    peers = {name: _of_peer(name) for name in ("autograd", "torch")}
    print("| on 10 float64, us | NumPy | jitgrad | jitgrad / NumPy | autograd / NumPy | torch / NumPy |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (numpy_us, us) in ours.items():
        others = " | ".join(_ratio(rows.get(name)) for rows in peers.values())
        unit = " operations, ms" if name.startswith("gradient") else ""
        print(f"| {name}{unit} | {numpy_us:.2f} | {us:.2f} | {us / numpy_us:.1f} | {others} |")
    kept, declared = _kept_bytes()
    print(f"\n10,000 operations on 1,000 float64 (80 MB): the tape keeps {kept / 1e6:.1f} MB, "
          f"of which {declared / 1e6:.1f} MB are what gradient rules read")  # fmt: skip


def _recorded(fn: Operation) -> Call:
    """An operation many times on a tape."""
    tape, tensor = jg.GradientTape(persistent=True), jg.asarray(value())

    def call() -> None:
        with tape:
            tape.reset()
            tape.watch(tensor)
            for _ in range(LOOPS):
                fn(np, tensor)

    return call


def _gradient() -> Call:
    x = jg.asarray(value())

    def call() -> Any:
        with jg.GradientTape() as tape:
            tape.watch(x)
            y = thousand(np.sin, x)
        return tape.gradient(y, x)

    call()
    return call


def _of_peer(name: str) -> dict[str, list[float]]:
    """What another framework takes, in its environment or, where that has it, in this one; empty without it."""
    python = interpreter_of(name) or Path(sys.executable)
    command = [str(python), "-m", "benchmarks.eager_rows", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {}


def _ratio(times: list[float] | None) -> str:
    return "-" if times is None else f"{times[1] / times[0]:.1f}"


def _kept_bytes() -> tuple[int, int]:
    """What a tape keeps of 10,000 values of 8 kB, and what of it rules read: sin its argument, a sum nothing."""
    x = jg.asarray(np.ones(1000))
    tracemalloc.start()
    with jg.GradientTape() as tape:
        tape.watch(x)
        y: Any = x
        for k in range(10_000):
            y = np.sin(y) if k % 10 == 0 else y + 1.0
    del y
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    residuals = {id(t): t for entry in tape.entries for t in entry if isinstance(t, np.ndarray)}
    return kept, sum(t.nbytes for t in residuals.values())


if __name__ == "__main__":
    main()
