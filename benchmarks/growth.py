"""`python -m benchmarks.growth`: what an operation costs to build, differentiate, compile and run in graphs of 300,
3,000 and 30,000 operations, and whether gradients of a small part depend on the rest of the graph. It compares nothing
with other frameworks.

Each line is a process of its own with empty caches, in which another graph has been compiled and run. What the compiler
takes when its own code runs for the first time would be shared out among few operations or many, which is no growth; it
is shown beside it, by another process, whose first graph it is. Operations are those of the graph, gradients included;
build is per operation of the user's, gradients per operation that they add, the rest per operation of all.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad.compiler.machine.tiers import improver
from jitgrad.config import config

SIZES = (300, 3_000, 30_000)
OTHERS = (1_000, 10_000, 100_000)
ANOTHER = 70  # units of the graph that has been run before, 300 operations
COUNTS = (1, 10, 100)  # gradients asked for in one graph
Built = tuple[Any, list[Any]]


def chain(units: int) -> Built:
    """One op behind the other: sin(x) 1.01 + 0.1."""
    x = jg.placeholder(np.float64, (1000,))
    y: Any = x
    for _ in range(units):
        y = np.sin(y) * 1.01 + 0.1
    return np.sum(y), [x]


def wide(units: int) -> Built:
    """Many branches of one input, summed."""
    x = jg.placeholder(np.float64, (1000,))
    branches = [np.tanh(x * (1.0 + k)) for k in range(units)]
    return np.sum(jg.add_n(branches)), [x]


def network(units: int) -> Built:
    """A deep network of narrow layers."""
    y = jg.placeholder(np.float32, (16, 8))
    weights = []
    for _ in range(units):
        w, b = jg.placeholder(np.float32, (8, 8)), jg.placeholder(np.float32, (8,))
        y = np.tanh(y @ w + b)
        weights += [w, b]
    return np.sum(y * y), weights


def mixed(units: int, seed: int = 1, dtype: type = np.float64) -> Built:
    """Ops of several kinds on values made lately, so that no two kernels are equal."""
    rng = random.Random(seed)
    x = jg.placeholder(dtype, (1000,))
    values = [x]
    ops: tuple[Callable[[Any, Any], Any], ...] = (
        lambda a, b: a + b, lambda a, b: a * b, lambda a, b: np.tanh(a), lambda a, b: np.maximum(a, b),
        lambda a, b: a - b, lambda a, b: np.exp(a * 0.1),
    )  # fmt: skip
    for k in range(units):
        values.append(ops[k % len(ops)](*rng.choices(values[-20:], k=2)))
    return np.sum(jg.add_n(values[-20:])), [x]


def scans(units: int) -> Built:
    """Short loops one behind the other, whose states are stacked."""
    x = jg.placeholder(np.float64, (100,))
    y: Any = x
    for k in range(units):
        y, _ = jg.scan(lambda c, _: (np.sin(c) * 1.01, c), y * (1.0 + 0.001 * k), None, length=3)
    return np.sum(y), [x]


def branches(units: int) -> Built:
    """Choices one behind the other, each of what the one before gave."""
    x = jg.placeholder(np.float64, (100,))
    y: Any = x
    for _ in range(units):
        y = jg.cond(y[0] > 0.0, lambda y: np.sin(y) * 1.01, lambda y: y * 0.99, y)
    return np.sum(y), [x]


# How many operations a unit makes, its gradient included.
GRAPHS: dict[str, tuple[Callable[[int], Built], float]] = {
    "chain": (chain, 9.0), "wide": (wide, 9.0), "network": (network, 13.0), "mixed": (mixed, 4.4),
    "scans": (scans, 8.0), "branches": (branches, 5.0),
}  # fmt: skip


def measure(name: str, size: int, is_first: bool = False) -> dict[str, float]:
    """Microseconds per operation, by stage, of one graph in this process, whose first graph it is or not."""
    build, per_unit = GRAPHS[name]
    _warm_up()
    if not is_first:
        _run_another()
    graph, clock = jg.Graph(), [time.perf_counter()]
    with graph.as_default():
        with jg.jit_scope():
            y, xs = build(max(1, round(size / per_unit)))
        clock.append(time.perf_counter())
        built = len(graph)
        fetches = [y, *jg.gradients(y, xs)]
        clock.append(time.perf_counter())
        total = len(graph)
    feeds = {op.outputs[0]: _value(op.outputs[0]) for op in graph.operations if op.type == "placeholder"}
    session = jg.Session(graph)
    clock.append(time.perf_counter())
    session.run(fetches, feeds)
    clock.append(time.perf_counter())
    later = [_seconds(lambda: session.run(fetches, feeds)) for _ in range(3)]
    return {
        "ops": total,
        "build": _per(clock[1] - clock[0], built),
        "gradients": _per(clock[2] - clock[1], total - built),
        "first": _per(clock[4] - clock[3], total),
        "second": _per(min(later), total),
    }


def _warm_up() -> None:
    config(cache=False)
    jg.compile(jg.grad(lambda x: np.sum(np.log1p(x @ x) ** 3)))(np.ones((3, 3)))
    jg.add_n([np.ones(3), np.ones(3)])  # a name that imports what it is made of
    _settle()


def _run_another() -> None:
    """Compile and run a graph that has no kernel in common with those that are measured."""
    graph = jg.Graph()
    with graph.as_default():
        with jg.jit_scope():
            y, xs = mixed(ANOTHER, seed=2, dtype=np.float32)
        fetches = [y, *jg.gradients(y, xs)]
    jg.Session(graph).run(fetches, {xs[0].op.outputs[0]: np.ones(1000, np.float32)})
    _settle()


def _settle() -> None:
    improver.wait()  # good code of what is done is no part of a measurement
    gc.collect()
    gc.freeze()  # what has been imported is not looked through in the middle of a measurement


def _value(t: Any) -> Any:
    return np.random.default_rng(0).standard_normal(t.shape).astype(t.dtype) * 0.3


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _per(seconds: float, count: int) -> float:
    return 1e6 * seconds / count


def measure_others(others: int) -> dict[str, float]:
    """Microseconds that each of 1, 10, 100 gradients of small losses takes in a graph of so many other operations."""
    _warm_up()
    found: dict[str, float] = {"ops": others}
    for count in COUNTS:
        graph = jg.Graph()
        with graph.as_default():
            x = jg.placeholder(np.float64, (10,))
            losses = [np.sum(np.tanh(x * (1.0 + k)) ** 2) for k in range(3 * count)]
            y = np.exp(x)
            while len(graph) < others:
                y = np.sin(y) + x
            turns = [losses[k * count : (k + 1) * count] for k in range(3)]
            spent = [_seconds(functools.partial(_gradient_of_each, turn, x)) for turn in turns]
        found[str(count)] = 1e6 * min(spent) / count
    return found


def _gradient_of_each(losses: Sequence[Any], x: Any) -> None:
    for loss in losses:
        jg.gradients(loss, x)


def _in_own_process(*arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.growth", "--one", *arguments], capture_output=True, text=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(names: Sequence[str], sizes: Sequence[int]) -> str:
    """All figures as a page in Markdown."""
    heads = ("graph", "operations", "build", "gradients", "compile and first run", "as first graph", "later run")
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    for name in names:
        for size in sizes:
            f = _in_own_process(name, str(size))
            f["alone"] = _in_own_process(name, str(size), "--first-graph")["first"]
            figures = " | ".join(f"{f[key]:.3g}" for key in ("build", "gradients", "first", "alone", "second"))
            lines.append(f"| {name} | {f['ops']:,.0f} | {figures} |")
    counts = " | ".join(f"each of {count}, µs" for count in COUNTS)
    rule = "|---:|" + "---:|" * len(COUNTS)
    lines += ["", "Microseconds per operation.", "", f"| other operations | {counts} |", rule]
    for others in OTHERS:
        f = _in_own_process("others", str(others))
        lines.append(f"| {others:,} | {' | '.join(f'{f[str(count)]:.0f}' for count in COUNTS)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__)
    parser.add_argument("--only", default=",".join(GRAPHS), help=f"of {', '.join(GRAPHS)}")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="operations")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the tables there as well")
    parser.add_argument("--one", nargs=2, metavar=("GRAPH", "OPERATIONS"), help="one line, as JSON")
    parser.add_argument("--first-graph", action="store_true", help="with --one: no graph has been compiled before")
    options = parser.parse_args(arguments)
    names, sizes, known = options.only.split(","), options.sizes.split(","), {*GRAPHS}
    if options.one:
        names, sizes, known = options.one[:1], options.one[1:], {*GRAPHS, "others"}
    unknown = [name for name in names if name not in known]
    if unknown or not all(map(str.isdecimal, sizes)):
        parser.error(f"graphs are {', '.join(GRAPHS)}, sizes are integers, got {', '.join(unknown or sizes)}")
    if options.one:
        name, size = names[0], int(sizes[0])
        print(json.dumps(measure_others(size) if name == "others" else measure(name, size, options.first_graph)))
        return 0
    text = table(names, [int(size) for size in sizes])
    print(text)
    if options.markdown is not None:
        head = "# Growth\n\nMade by `python -m benchmarks.growth --markdown docs/growth.md`.\n\n"
        options.markdown.write_text(f"{head}{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
