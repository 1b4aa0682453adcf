"""All workloads, in the order of the table; each family is a module that imports no framework."""

from __future__ import annotations

from benchmarks.workload import Workload
from benchmarks.workloads import (
    attention,
    batched,
    black_scholes,
    chain,
    convolution,
    elbo,
    embedding,
    gaussian_process,
    gelu,
    gmm,
    mlp,
    recurrent,
    regression,
    rosenbrock,
    rowwise,
    sequences,
    stencil,
    transformer,
    waves,
)

FAMILIES = (
    gelu,
    black_scholes,
    mlp,
    rowwise,
    attention,
    transformer,
    embedding,
    regression,
    elbo,
    gmm,
    gaussian_process,
    rosenbrock,
    chain,
    waves,
    convolution,
    stencil,
    batched,
    sequences,
    recurrent,
)

WORKLOADS: dict[str, Workload] = {w.name: w for family in FAMILIES for w in family.WORKLOADS}
