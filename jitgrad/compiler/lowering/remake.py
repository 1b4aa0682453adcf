"""Remaking: a cheap value that one loop over a row would leave in scratch for the next is made again there.

A store takes as long as two loads or two operations, and the value's own inputs are in the first cache still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from jitgrad.compiler.fusing.drafts import CHEAP
from jitgrad.compiler.loopir.nests import (
    VECTOR,
    Argument,
    Kernel,
    Let,
    Load,
    Loop,
    Statement,
    Store,
    Update,
    statements,
)

_MOST_OPS, _MOST_LOADS = 2, 2

Recipe = tuple[Load | Let, ...]


def remake_cheap_values(kernel: Kernel) -> Kernel:
    """The kernel without the rows of scratch whose values are cheap; the same object when there are none."""
    rows = {b.name for b in kernel.buffers if b.role == "scratch"}
    inputs = {b.name for b in kernel.buffers if b.role == "in"}
    counts = Counter((type(s), s.buffer) for s in statements(kernel.body) if isinstance(s, Load | Store))
    once = {name for name in rows if counts[Store, name] == 1}
    if not once:
        return kernel
    remaking = _Remaking(once, inputs, counts)
    body = remaking.body(kernel.body)
    if not remaking.remade:
        return kernel
    buffers = tuple(b for b in kernel.buffers if b.name not in remaking.remade)
    return replace(kernel, buffers=buffers, body=tuple(_without_stores(body, remaking.remade)))


class _Remaking:
    def __init__(self, rows: Collection[str], inputs: Collection[str], counts: Counter[tuple[type, str]]) -> None:
        self.rows = rows
        self.inputs = inputs
        self.counts = counts
        self.remade: set[str] = set()

    def body(self, body: Sequence[Statement]) -> list[Statement]:
        """The body with rows remade between its own loops, and inside them."""
        result = [s.with_body(self.body(s.body)) if isinstance(s, Loop) else s for s in body]
        for position, maker in enumerate(result):
            if isinstance(maker, Loop) and maker.kind == VECTOR:
                for store in [s for s in maker.body if isinstance(s, Store) and s.buffer in self.rows]:
                    self._remake(store, maker, result, position)
        return result

    def _remake(self, store: Store, maker: Loop, body: list[Statement], position: int) -> None:
        """Replace all loads of a row by what makes its elements, if they stand in later loops alike."""
        running = {s.acc for s in (*maker.body, *body) if isinstance(s, Update)}
        recipe = _recipe(maker, store.value, self.inputs, running)
        if recipe is None or store.bounds:
            return
        found: dict[int, Loop] = {}
        count = 0
        for k, loop in enumerate(body[position + 1 :], position + 1):
            if isinstance(loop, Loop) and (loop.kind, loop.var, loop.extent) == (VECTOR, maker.var, maker.extent):
                found[k] = replace(loop, body=tuple(_replaced(loop.body, store, recipe)))
                count += sum(1 for s in loop.body if _reads(s, store))
        if count == self.counts[Load, store.buffer]:
            for k, loop in found.items():
                body[k] = loop
            self.remade.add(store.buffer)


def _reads(s: Statement, store: Store) -> bool:
    return isinstance(s, Load) and (s.buffer, s.index, s.bounds) == (store.buffer, store.index, ())


def _recipe(loop: Loop, value: Argument, inputs: Collection[str], running: Collection[str]) -> Recipe | None:
    """The statements of a loop that make a value of arrays and of what the loop does not change, if they are few."""
    made = {s.name: s for s in loop.body if isinstance(s, Load | Let)}
    pending, needed = [value], set[str]()
    while pending:
        name = pending.pop()
        if not isinstance(name, str) or name in needed:
            continue
        if name in running:
            return None
        s = made.get(name)
        if isinstance(s, Load) and (s.buffer not in inputs or s.bounds):
            return None
        if isinstance(s, Let):
            if CHEAP.get(s.op, 2) > 1:
                return None
            pending += s.args
        if s is not None:
            needed.add(name)
    recipe = tuple(s for s in made.values() if s.name in needed)
    loads = sum(isinstance(s, Load) for s in recipe)
    return recipe if recipe and loads <= _MOST_LOADS and len(recipe) - loads <= _MOST_OPS else None


def _replaced(body: Sequence[Statement], store: Store, recipe: Recipe) -> list[Statement]:
    result: list[Statement] = []
    for s in body:
        if not _reads(s, store):
            result.append(s)
            continue
        assert isinstance(s, Load)
        known = {(t.buffer, t.index, t.bounds): t.name for t in result if isinstance(t, Load)}
        names: dict[Argument, str] = {}
        for step in recipe:
            name = s.name if step.name == store.value else f"{s.name}_{step.name}"
            if isinstance(step, Let):
                result.append(replace(step, name=name, args=tuple(names.get(a, a) for a in step.args)))
            elif step.name != store.value and (step.buffer, step.index, ()) in known:
                name = known[step.buffer, step.index, ()]
            else:
                result.append(replace(step, name=name))
            names[step.name] = name
    return result


def _without_stores(body: Sequence[Statement], rows: Collection[str]) -> list[Statement]:
    return [
        replace(s, body=tuple(_without_stores(s.body, rows))) if isinstance(s, Loop) else s
        for s in body if not (isinstance(s, Store) and s.buffer in rows)
    ]  # fmt: skip
