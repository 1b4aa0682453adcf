"""Spills: values of a nest that are used in another loop than the one that makes them, and so need a row of memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jitgrad.compiler.fusing.looptree import LoopTree, TreeLoop


def ready_in(tree: LoopTree, v: int) -> TreeLoop:
    """The body in which a value is in a register: where it is computed, or where its reduction is complete."""
    done = tree.completes.get(v)
    if done is None:
        return tree.home[v]
    assert done.parent is not None
    return done.parent


def find_spilled(tree: LoopTree, made: Collection[int]) -> dict[int, tuple[int, ...]]:
    """Values used outside the body in which they are ready → the axes of the row that keeps them."""
    spilled: dict[int, tuple[int, ...]] = {}
    for user, reads in _uses(tree.root):
        for v in reads:
            if v in made and (home := ready_in(tree, v)) not in user.path:
                shared = [t for t in home.path if t in user.path][-1]
                axes = tuple(t.axis for t in home.path if t not in shared.path)
                spilled[v] = max(axes, spilled.get(v, ()), key=len)
    return spilled


def _uses(tree: TreeLoop) -> Iterator[tuple[TreeLoop, tuple[int, ...]]]:
    """Each body with the values that an entry of it reads."""
    for item in tree.items:
        if isinstance(item, TreeLoop):
            yield from _uses(item)
        else:
            yield tree, (item.placed.node.value,) if item.stores else item.placed.node.reads
