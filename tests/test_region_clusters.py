"""Clusters around loops, branches and functions: what lies before and behind one that is not compiled is apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.clustering.clusters import Clustering

X = np.linspace(-1, 2, 50)


def clustering_of(fetches: Any, feeds: dict[Any, Any]) -> Clustering:
    """The clustering of a run with one program, whose values equal the interpreter's."""
    session = jg.Session(next(iter(feeds)).graph)
    ((stage, arrays),) = session.stages(fetches, feeds)
    for got, expected in zip(stage.run(arrays), stage.interpret(arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-13)
    (compiled,) = stage.executable(arrays).explanation.compiled
    clustering: Clustering = compiled.clustering
    return clustering


def cluster_with(clustering: Clustering, name: str) -> int | None:
    """The number of the cluster that holds the operation of that name; None where it is interpreted."""
    for cluster in clustering.clusters:
        if any(clustering.program.instructions[n].origin.name == name for n in cluster.instructions):
            return cluster.number
    return None


def assert_apart(clustering: Clustering, first: Any, second: Any) -> None:
    """Two operations of one scope are in two clusters, and a reason says what lies between them."""
    numbers = [cluster_with(clustering, t.op.name) for t in (first, second)]
    assert None not in numbers and numbers[0] != numbers[1]
    assert any(
        first.op.name in reason.text and second.op.name in reason.text and "are not compiled together" in reason.text
        for reason in clustering.reasons
    )


@pytest.fixture
def x() -> Any:
    """A placeholder of five numbers in a graph of its own, which is the default one."""
    with jg.Graph().as_default():
        yield jg.placeholder(np.float64, X.shape, name="x")


@pytest.mark.parametrize("why", ["refused", "no kernel"])
def test_before_and_behind_a_loop_that_is_not_compiled(x: Any, why: str) -> None:
    """c = a + b → while loop → d = c + exit: c and d are apart."""

    def step(v: Any) -> Any:
        return np.sort(v) * 1.5 if why == "no kernel" else v * 1.5

    with jg.jit_scope():
        c = x + 2 * x
        with jg.jit_scope(compile_ops=why != "refused"):
            end = jg.while_loop(lambda v: v.sum() < 100, step, c)
        d = c + end
    clustering = clustering_of([d], {x: X})
    assert_apart(clustering, c, d)
    assert cluster_with(clustering, end.op.name) is None


def test_around_a_branch_that_is_not_compiled(x: Any) -> None:
    """scope{z = x + 1; w = cond(p, z, y); t = z + w}, with a branch that has no kernel: z and t are apart."""
    y, p = jg.placeholder(np.float64, X.shape), jg.placeholder(np.bool_, ())
    with jg.jit_scope():
        z = x + 1
        w = jg.cond(p, lambda: np.sort(z), lambda: y)
        t = z + w
    for chosen, expected in ((True, np.sort(X + 1) + X + 1), (False, 2 * X + 1)):
        feeds = {x: X, y: X, p: chosen}
        assert_apart(clustering_of([t], feeds), z, t)
        np.testing.assert_allclose(jg.Session(x.graph).run(t, feeds), expected)


def test_a_branch_is_no_part_of_the_cluster_of_another(x: Any) -> None:
    """Operations of a branch are in no cluster of the program around: only the whole op can be."""
    with jg.jit_scope():
        z = jg.cond(x[0] > 0, lambda: np.sin(x), lambda: np.cos(x)) * 2
    clustering = clustering_of([z], {x: X})
    outside = {ins.op.name for ins in clustering.program.instructions}
    assert not {"sin", "cos"} & outside


def test_a_function_with_a_part_that_has_no_kernel(x: Any) -> None:
    f = jg.function(lambda a: np.cos(np.sort(np.sin(a))), func_name="f", compiled=True)
    y = f(x)
    clustering = clustering_of([y], {x: X})
    found = [cluster_with(clustering, f"f/{name}") for name in ("sin", "sort", "cos")]
    assert found[0] is not None and found[1] is None and found[2] is not None and found[0] != found[2]
    assert any("f/sort" in reason.text for reason in clustering.reasons)


def test_calls_of_two_scopes_share_no_cluster(x: Any) -> None:
    f = jg.function(lambda a: a * 2, func_name="f")
    with jg.jit_scope():
        y = f(np.sin(x))
    with jg.jit_scope():
        z = f(np.cos(y))
    clustering = clustering_of([z], {x: X})
    assert [c.scope for c in clustering.clusters] == ["jit_scope_0", "jit_scope_1"]


def test_a_call_joins_the_clusters_before_and_behind_it(x: Any) -> None:
    f = jg.function(lambda a: np.tanh(a), func_name="f")
    with jg.jit_scope():
        y = np.sin(f(np.cos(x)))
    assert len(clustering_of([y], {x: X}).clusters) == 1
    left_out = jg.function(lambda a: np.tanh(a), func_name="g", compiled=False)
    with jg.jit_scope():
        first = np.cos(x)
        y = np.sin(left_out(first))
    assert_apart(clustering_of([y], {x: X}), first, y)
