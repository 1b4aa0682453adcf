"""The outputs of a cluster: which have memory of their own, and which are copies of what lies elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitgrad.compiler.clustering.clusters import Cluster


def split_outputs(cluster: Cluster, aliases: Mapping[int, int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Outputs with memory of their own as (value, root), and those to be copied from another value."""
    direct: list[tuple[int, int]] = []
    copied: list[tuple[int, int]] = []
    taken: dict[int, int] = {}
    inside = set(cluster.inputs)
    for v in sorted(cluster.outputs, key=lambda v: v in aliases):
        root = aliases.get(v, v)
        if root in inside or root in taken:
            copied.append((v, taken.get(root, root)))
        else:
            taken[root] = v
            direct.append((v, root))
    return direct, copied


def place_copied(root: int, outputs: Sequence[int], inputs: Sequence[int]) -> int:
    """Where a copy comes from: the number of an output, or ~number of an input."""
    return outputs.index(root) if root in outputs else ~inputs.index(root)
