"""`python -m benchmarks.hessians`: what second derivatives cost beside gradients and one matrix product."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

import jitgrad as jg

ROWS, PARAMETERS = 10_000, 100


def logistic_regression() -> dict[str, Callable[[], Any]]:
    """What is measured: the product X.T @ X, and derivatives of the negative log likelihood, in one graph."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(ROWS, PARAMETERS)), 0.1 * rng.normal(size=PARAMETERS)
    labels = (rng.random(ROWS) < 0.5).astype(float)
    with jg.Graph().as_default():
        data, classes = jg.placeholder(np.float64, x.shape), jg.placeholder(np.float64, labels.shape)
        weights, vector = (jg.placeholder(np.float64, w.shape) for _ in range(2))
        with jg.jit_scope():
            score = data @ weights
            loss = np.sum(jg.nn.softplus(score) - classes * score)
        fetches = {
            "gradient": jg.gradients(loss, weights)[0],
            "Hessian": jg.hessians(loss, weights)[0],
            "Hessian times vector": jg.hessian_vector_product(loss, weights, vector)[0],
        }
        session = jg.Session()
    feeds = {data: x, classes: labels, weights: w, vector: w}
    right = x.copy()  # another matrix, so that BLAS makes no symmetric product of it
    calls: dict[str, Callable[[], Any]] = {"dgemm": lambda: x.T @ right}
    return calls | {name: lambda fetch=fetch: session.run(fetch, feeds) for name, fetch in fetches.items()}


def milliseconds(calls: Mapping[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Medians of calls in turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(repeat + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if number > 2:
                samples[name].append(1e3 * (time.perf_counter() - start))
    return {name: median(times) for name, times in samples.items()}


def main() -> None:
    """Print the figures as a table of Markdown."""
    parser = argparse.ArgumentParser("python -m benchmarks.hessians", description=__doc__)
    parser.add_argument("--repeat", type=int, default=30)
    found = milliseconds(logistic_regression(), parser.parse_args().repeat)
    print("| | ms |\n|---|---:|")
    for name, time_ in found.items():
        print(f"| {name} | {time_:.2f} |")
    print(f"\nHessian / dgemm: {found['Hessian'] / found['dgemm']:.2f}")
    print(f"Hessian / (3 dgemm + 10 gradients): {found['Hessian'] / (3 * found['dgemm'] + 10 * found['gradient']):.2f}")
    print(f"Hessian times vector / gradient: {found['Hessian times vector'] / found['gradient']:.2f}")


if __name__ == "__main__":
    main()
