"""`python -m benchmarks.rows`: what a training step costs that touches 100 rows of a table, by the number of its rows.

The table is a float32 Variable of 64 columns. The step looks rows up, takes the gradient of their squared distance to a
target and subtracts it: as slices, whose cost is that of the rows, and as a dense tensor, whose cost is the table's.
It compares nothing with other frameworks.
"""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg

ROWS = (1_000, 100_000, 1_000_000)
COLUMNS, TOUCHED = 64, 100
WAYS = {"slices, interpreted": (True, False), "slices, compiled": (True, True), "dense, compiled": (False, True)}


def step(rows: int, is_sparse: bool, is_compiled: bool) -> Callable[[], object]:
    """One step, made ready to run."""
    rng = np.random.default_rng(0)
    table = jg.Variable(np.zeros((rows, COLUMNS), np.float32))
    with jg.Graph().as_default() as graph:
        positions = jg.placeholder(np.int64, [TOUCHED])
        target = jg.placeholder(np.float32, [TOUCHED, COLUMNS])
        with jg.jit_scope(is_compiled):
            loss = np.sum((jg.gather(table, positions) - target) ** 2)
        (g,) = jg.gradients(loss, [table])
        if is_sparse:
            scaled = jg.IndexedSlices(g.values * np.float32(0.1), g.indices, g.dense_shape)
            update = table.scatter_sub(scaled)
        else:
            update = table.assign_sub(g * np.float32(0.1))
    session = jg.Session(graph)
    feeds = {positions: rng.integers(0, rows, TOUCHED), target: np.ones((TOUCHED, COLUMNS), np.float32)}
    return lambda: session.run([loss, update.op], feeds)


def measure(run: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Microseconds, the median of so many runs; and the most bytes that one run has allocated at a time."""
    run()
    run()
    spent = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    tracemalloc.start()
    try:
        run()
        return 1e6 * float(np.median(spent)), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def table() -> str:
    """All figures in Markdown."""
    heads = [f"{rows:,} rows" for rows in ROWS]
    lines = ["| step | " + " | ".join(f"{head}: µs | MB" for head in heads) + " |", "|---|" + "---:|---:|" * len(ROWS)]
    for name, (is_sparse, is_compiled) in WAYS.items():
        cells: list[Any] = []
        for rows in ROWS:
            spent, peak = measure(step(rows, is_sparse, is_compiled), 50 if is_sparse else 5)
            cells += [f"{spent:,.0f}", f"{peak / 1e6:.3g}"]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


def main() -> int:
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
