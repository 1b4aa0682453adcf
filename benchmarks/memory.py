"""`python -m benchmarks.memory`: what the plan says of each workload's memory, and what the process shows.

Each workload has a process of its own, in which it is called until all is compiled, and the memory of its arenas and
results is given back to the system: what the compiler takes, and what is made once for all calls, is not counted. Then:

    arena, alive, ratio   the plan: bytes of the arena, most bytes of temporaries alive at once, and one over the other
    process               peak of resident memory in a call on fresh memory, beyond arguments and results
    faults                minor page faults of a call, results dropped as the next ones come
    growth                of resident memory over so many calls, after as many before
    at once               four threads that call at the same time: whether each gets the same bits as alone, and growth
                          once each has an arena of its own
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import mmap
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jitgrad as jg
from benchmarks.tables import aligned, chosen_workloads
from benchmarks.worker import memory
from benchmarks.workloads import WORKLOADS
from jitgrad.compiler.driver.pools import Arena, outputs
from jitgrad.compiler.machine.tiers import improver

ROOT = Path(__file__).resolve().parent.parent
CALLERS = 4
CALLS_UNTIL_COMPILED = 5
ROUNDS = 6
HEAD = ("MB", "arguments", "results", "arena", "alive", "ratio", "process", "faults", "growth", "calls", "at once")


def measure(name: str, calls: int, seconds: float) -> dict[str, Any]:
    """The figures of one workload, in bytes; in a process that has done nothing else."""
    workload = WORKLOADS[name]
    f = jg.compile(jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux))
    arrays = workload.make(1.0)
    figures = _plan(f, arrays)
    for _ in range(CALLS_UNTIL_COMPILED):
        f(*arrays)
    improver.wait()
    level = _fresh_level()
    result = f(*arrays)
    figures["results"] = sum(a.nbytes for a in _arrays(result))
    figures["process"] = memory("VmHWM") - level - figures["results"]
    figures["arguments"] = sum(a.nbytes for a in arrays)
    figures["faults"] = _faults(lambda: f(*arrays))
    del result
    figures["growth"], figures["calls"] = _growth(lambda: f(*arrays), calls, seconds)
    return {**figures, **_at_once(lambda: f(*arrays), seconds)}


def _plan(f: Any, arrays: Sequence[Any]) -> dict[str, Any]:
    """Arenas of all clusters that run, and the most that any plan needs for them; everything is compiled for that."""
    from jitgrad.compiler.freezing.bind import BoundCluster

    executables = [stage.executable(given) for stage, given in f.stages(*arrays)]
    arenas = [s.arena for e in executables for s in e.bound.steps if isinstance(s, BoundCluster)]
    return {"arena": sum(a.nbytes for a in arenas), "alive": sum(a.bound for a in arenas)}


def _fresh_level() -> int:
    """Resident memory without what arenas, the pool or the allocator keep; the peak begins again, where the system
    can.
    """
    outputs.release()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        for arena in [o for o in gc.get_objects() if type(o) is Arena]:
            _give_back(arena)
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def _give_back(arena: Arena) -> None:
    """Leave an arena without memory, but for pages that others have a part of."""
    page = mmap.PAGESIZE
    start, end = -(-arena.address // page) * page, (arena.address + arena.nbytes) // page * page
    if start < end:
        room = ctypes.c_size_t(end - start)
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), room, mmap.MADV_DONTNEED)


def _arrays(result: Any) -> list[Any]:
    """All arrays of a nested result."""
    if isinstance(result, tuple | list):
        return [a for part in result for a in _arrays(part)]
    return [np.asarray(result)]


def _faults(call: Callable[[], Any]) -> float:
    for _ in range(3):
        kept = call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        kept = call()
    del kept
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10


def _growth(call: Callable[[], Any], calls: int, seconds: float) -> tuple[int, int]:
    """Growth over some calls, at most ``calls`` and for about so many seconds, and how many there were."""
    start = time.perf_counter()
    done = 0
    while done < calls and time.perf_counter() - start < seconds:
        call()
        done += 1
    before = memory("VmRSS")
    for _ in range(done):
        call()
    return memory("VmRSS") - before, done


def _at_once(call: Callable[[], Any], seconds: float) -> dict[str, Any]:
    expected = [a.tobytes() for a in _arrays(call())]
    wrong: list[int] = []

    def work(number: int) -> None:
        end = time.perf_counter() + seconds / 4
        while time.perf_counter() < end:
            if [a.tobytes() for a in _arrays(call())] != expected:
                wrong.append(number)

    levels = []
    for _ in range(ROUNDS):
        threads = [threading.Thread(target=work, args=(k,)) for k in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        levels.append(memory("VmRSS"))
    return {"right": not wrong, "growth_at_once": levels[-1] - levels[ROUNDS // 2]}


def _cells(name: str, figures: dict[str, Any]) -> list[str]:
    def megabytes(key: str) -> str:
        return f"{figures[key] / 1e6:.3g}"

    ratio = f"{figures['arena'] / figures['alive']:.2f}" if figures["alive"] else "-"
    at_once = f"{'right' if figures['right'] else 'WRONG'}, {figures['growth_at_once'] / 1e6:+.2g}"
    plan = [*map(megabytes, ("arguments", "results", "arena", "alive")), ratio]
    process = [megabytes("process"), f"{figures['faults']:.1f}", megabytes("growth"), str(figures["calls"])]
    return [WORKLOADS[name].title, *plan, *process, at_once]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.memory", description=__doc__)
    parser.add_argument("--only", metavar="NAME,...", default="", help="workloads with these words in their names")
    parser.add_argument("--calls", type=int, default=100_000, help="calls over which memory must not grow")
    parser.add_argument("--seconds", type=float, default=3.0, help="but no more than fit in this time")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.one, options.calls, options.seconds)))
        return 0
    rows: list[list[str]] = [list(HEAD)]
    right = True
    for name in chosen_workloads(options.only, parser):
        command = [sys.executable, "-m", "benchmarks.memory", "--one", name]
        command += ["--calls", str(options.calls), "--seconds", str(options.seconds)]
        done = subprocess.run(command, cwd=ROOT, env=os.environ, check=True, capture_output=True, text=True)
        figures = json.loads(done.stdout)
        rows.append(_cells(name, figures))
        right &= figures["right"]
        print(rows[-1][0], file=sys.stderr)
    print(aligned(rows))
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
