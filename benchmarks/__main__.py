"""`python -m benchmarks`: value and gradient of each workload by jitgrad, its interpreter and the peers that are
installed (`python -m benchmarks.environments`), each in its own process, called in turns, as one table.

Figures, the table and a picture are written to benchmarks/results/. `--smoke` runs a hundredth of the rows without
peers, all workloads in the same processes, to see that all works and agrees with the reference.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import interpreter_of
from benchmarks.frameworks import OURS, PEERS
from benchmarks.measure import Bench, Options
from benchmarks.picture import picture
from benchmarks.report import Report, Row
from benchmarks.tables import chosen_workloads
from benchmarks.workloads import WORKLOADS

RESULTS = Path(__file__).resolve().parent / "results"


def run(names: Sequence[str], frameworks: Sequence[str], options: Options) -> Iterator[Report]:
    """Measure the workloads, telling on standard error how it goes; after each, the report so far."""
    rows: list[Row] = []
    load = f"{os.getloadavg()[0]:.1f}"
    with tempfile.TemporaryDirectory(prefix="jitgrad-benchmarks-") as directory:
        bench = Bench(frameworks, options, Path(directory))
        try:
            for name in names:
                start = time.perf_counter()
                rows.append(Row(WORKLOADS[name], *bench.measure(WORKLOADS[name])))
                seconds = time.perf_counter() - start
                print(f"{name}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
                yield Report(_machine(rows) | {"load before": load}, tuple(rows), asdict(options))
        finally:
            bench.close()


def _machine(rows: Sequence[Row]) -> dict[str, Any]:
    found = {
        name: figures.version for row in rows for name, figures in row.figures.items() if figures.version
    }
    versions = {name: found[name] for name in ("jitgrad", *PEERS) if name in found}
    return {
        "processors": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        **versions,
        **_rates(rows),
    }


def _rates(rows: Sequence[Row]) -> dict[str, str]:
    """What the machine was measured to do at its best: bytes to and from memory, multiply-adds."""
    streams = [row.figures["stream"] for row in rows if "stream" in row.figures and row.figures["stream"].turns]
    moved = [f.details["bytes"] / min(map(min, f.turns)) for f in streams if f.details.get("level") == "memory"]
    counted = [row.figures["arithmetic"].details for row in rows if "arithmetic" in row.figures]
    done = [details["products"]["4"] for details in counted if details]
    rates = {"memory GB/s": min(moved, default=None), "float32 multiply-adds G/s": max(done, default=None)}
    return {name: f"{rate / 1e9:.0f}" for name, rate in rates.items() if rate}


def write(report: Report) -> None:
    """Write JSON, table and picture into benchmarks/results/."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "results.json").write_text(json.dumps(report.json, indent=1))
    (RESULTS / "results.txt").write_text(report.text + "\n")
    (RESULTS / "results.svg").write_text(picture(report.rows))


def write_markdown(report: Report, path: Path) -> None:
    """Write the table as a page for docs/."""
    head = f"# Benchmarks\n\nMade by `python -m benchmarks {shlex.join(sys.argv[1:])}`.\n\n"
    path.write_text(head + report.markdown + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a hundredth of the work, without peers")
    parser.add_argument(
        "--only", metavar="NAME,...", default="", help="workloads with these words in their names"
    )
    parser.add_argument(
        "--peers", metavar="NAME,...", help="of jax,torch,pytensor (default: those installed)"
    )
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="turns (default: 10)")
    parser.add_argument("--scale", type=float, default=1.0, metavar="N", help="times as many rows (default: 1)")
    parser.add_argument("--markdown", type=Path, metavar="PATH", help="write the table there as well")
    options = parser.parse_args(arguments)
    names = chosen_workloads(options.only, parser)
    frameworks, how = OURS, Options(repeat=2, turn=0.001, pause=0.0, scale=0.01, fresh=False)
    if not options.smoke:
        peers = [p for p in PEERS if interpreter_of(p)] if options.peers is None else options.peers.split(",")
        if unknown := set(peers) - {*PEERS, ""}:
            parser.error(f"no such peer: {', '.join(sorted(unknown))}")
        frameworks, how = (*OURS, *filter(None, peers)), Options(repeat=options.repeat, scale=options.scale)
    for report in run(names, frameworks, how):
        if not options.smoke:
            write(report)
    print(report.text)
    if options.markdown:
        write_markdown(report, options.markdown)
    return int(
        any(figures.error for row in report.rows for name, figures in row.figures.items() if name in OURS)
    )


if __name__ == "__main__":
    sys.exit(main())
