"""`python -m benchmarks.compares`: `jg.compare` on workloads of the benchmark, as a table in Markdown: value and
gradient interpreted, fused with gradients apart and fused together, called in turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import jitgrad as jg
from benchmarks.tables import chosen_workloads
from benchmarks.workloads import WORKLOADS
from jitgrad.profiler import Comparison
from jitgrad.profiler.tables import bytes_text

FIVE = "gelu_1e6,black_scholes,mlp_512,layer_norm,cross_entropy"
HEAD = (
    "value and gradient of", "run", "time (quartiles)", "speed", "launches", "kernels + BLAS + NumPy", "moved",
    "peak memory", "residuals", "difference",
)  # fmt: skip


def compared(name: str, repeat: int | None) -> Comparison:
    """The comparison of one workload."""
    workload = WORKLOADS[name]
    step = jg.value_and_grad(workload.losses["numpy"], workload.argnums, workload.has_aux)
    return jg.compare(step, *workload.make(1.0), repeat=repeat)


def rows(title: str, comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """A row of text per way to run the call."""
    slowest = comparison.interpreted.times.median
    for number, row in enumerate(comparison.rows):
        work = row.work
        yield (
            "" if number else title,
            row.name,
            str(row.times),
            f"{slowest / row.times.median:.2f}",
            str(work.launches),
            f"{work.kernels} + {work.products} + {work.numpy_calls}",
            bytes_text(work.bytes_moved),
            bytes_text(work.peak_bytes),
            bytes_text(work.residual_bytes),
            "-" if row.difference is None else f"{row.difference:.0e}",
        )


def markdown(cells: Sequence[Sequence[str]]) -> str:
    """A table; the first two columns to the left, the others to the right."""
    rule = ["---" if k < 2 else "---:" for k in range(len(cells[0]))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.compares", description=__doc__)
    parser.add_argument("--only", default=FIVE, help="names of workloads, or parts of them, with commas")
    parser.add_argument("--repeat", type=int, help="calls of each (default: as many as take two seconds)")
    options = parser.parse_args()
    table: list[tuple[str, ...]] = [HEAD]
    advice: list[str] = []
    for name in chosen_workloads(options.only, parser):
        comparison = compared(name, options.repeat)
        table += rows(WORKLOADS[name].title, comparison)
        advice.append(f"- {WORKLOADS[name].title}: {comparison.advice}")
    print("\n".join([markdown(table), "", *advice]))


if __name__ == "__main__":
    main()
