"""Binding control ops: the memory of their bodies, and the words that describe a loop to the driver.

A loop has a table of its own at the start of its room: a slot per cell, then those of its bodies' temporaries, then
that of the status, and behind it the status itself. Cells of its own come next, and last what the bodies need while
they run; bodies do not run at the same time, so they share that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.driver.control import control_address
from jitgrad.compiler.driver.loop_layout import BLOCK, KINDS, LISTS
from jitgrad.compiler.fusing.buffers import Lifetime, aligned, plan_memory
from jitgrad.records import NamedTuple

Array = np.ndarray[Any, np.dtype[np.int64]]
Task = tuple[Any, ...]
_WORD = 8


class RegionLayout(NamedTuple):
    """Of a body: the slots of its places, the status last, and the layouts of the loops in it."""

    slots: tuple[int, ...]
    layouts: Layouts


class Layout(NamedTuple):
    """Of a loop: the bytes of its room; per slot of its table, the place in the cluster around that it begins at (None:
    the room) and the distance from there; and its bodies.
    """

    nbytes: int
    fills: tuple[tuple[int | None, int], ...]
    regions: tuple[RegionLayout, ...]


Layouts = Mapping[int, Layout]
"""The layouts of a cluster's loops, by the places of their rooms."""


def loop_layouts(tasks: Sequence[Task], workers: int) -> Layouts:
    """The layouts of the loops among the tasks of a cluster or a body."""
    return {task[3]: _layout(task, workers) for task in tasks if task[0] == "loop"}


def spans_of(lifetimes: Sequence[Any], layouts: Layouts, workers: int) -> list[Lifetime]:
    """The lifetimes of all places: scratch for every worker, rooms as large as their loops need."""
    return [
        Lifetime(place, _bytes_at(place, nbytes, layouts) * (workers if is_scratch else 1), first, last)
        for place, (nbytes, is_scratch, first, last) in enumerate(lifetimes)
    ]


def _bytes_at(place: int, nbytes: int, layouts: Layouts) -> int:
    return layouts[place].nbytes if place in layouts else nbytes


def _layout(task: Task, workers: int) -> Layout:
    _, _, _, _, cells, regions, details = task
    inner: list[Layouts] = []
    slots: list[list[int]] = []
    temporaries: list[int] = []
    arena_bytes = 0
    for cluster, inputs, outputs, *_ in regions:
        fixed, lifetimes = len(inputs) + len(outputs), cluster[5]
        inner.append(loop_layouts(cluster[6:], workers))
        arena = plan_memory(spans_of(lifetimes, inner[-1], workers)[fixed:], ())
        first = len(cells) + len(temporaries)
        temporaries += arena.offsets.values()
        slot_of = {place: slot for slot, place in enumerate(arena.offsets, first)}
        slots.append([*inputs, *outputs, *[slot_of[place] for place in range(fixed, len(lifetimes))]])
        arena_bytes = max(arena_bytes, arena.nbytes)
    count = len(cells) + len(temporaries) + 1
    end = _table_bytes(count) * dict(details).get("chunks", 1)
    fills: list[tuple[int | None, int]] = []
    for place, number in cells:
        fills.append((place, end if place is None else number))
        end += aligned(number) if place is None else 0
    fills += [(None, end + offset) for offset in temporaries]
    fills.append((None, _WORD * count))
    made = (RegionLayout((*s, count - 1), layouts) for s, layouts in zip(slots, inner, strict=True))
    return Layout(end + arena_bytes, tuple(fills), tuple(made))


def _table_bytes(count: int) -> int:
    """Of a table with so many slots, and the status behind them."""
    return aligned(_WORD * (count + 1))


def products_in(tasks: Sequence[Task]) -> frozenset[str]:
    """The names of the loops and regions in which BLAS is called."""
    return frozenset(
        region_name(task) if task[0] == "region" else f"loop_{task[1]}"
        for task in tasks if task[0] in ("loop", "region") and _has_products(task)
    )  # fmt: skip


def region_name(task: Task) -> str:
    """The name of the step of a region: it has the numbers of its members."""
    return "region_" + "_".join(str(member[1]) for member in task[5:])


def _has_products(task: Task) -> bool:
    if task[0] == "loop":
        return any(_has_products(inside) for cluster, *_ in task[5] for inside in cluster[6:])
    if task[0] == "region":
        return any(map(_has_products, task[5:]))
    return task[0] in ("product", "row product")


def describe_loop(
    task: Task, slots: Sequence[int], layout: Layout, steps: Sequence[Array]
) -> tuple[int, tuple[int, ...], list[Array]]:
    """The address of a loop's code, the words of its block, and what these refer to.

    ``slots`` are those of the places around it, ``steps`` the records of each body.
    """
    _, _, form, room, _, regions, pairs = task
    details = dict(pairs)
    kept: list[Array] = []

    def listed(rows: Any) -> Array:
        kept.append(np.array(list(rows), np.int64))
        return kept[-1]

    records = []
    for (*_, copies, writes, offset), own in zip(regions, steps, strict=True):
        walked = [(len(rows), rows.ctypes.data) for rows in (own, listed(copies), listed(writes))]
        records.append((*[word for pair in walked for word in pair], offset))
    table = listed(records)
    words: dict[str, int] = {"room": slots[room], "status": slots[-1], "regions": len(regions)}
    words |= _numbers(form, details, slots) | {"table_bytes": _table_bytes(len(layout.fills))}
    addresses = [table.ctypes.data + k * table.strides[0] for k in range(len(regions))]
    words |= dict(zip(("second",) if form == "scan" else ("first", "second", "third"), addresses, strict=False))
    lists = {name: details.get(name, ()) for name in LISTS}
    lists["fills"] = [(slots[room if place is None else place], offset) for place, offset in layout.fills]
    for name, rows in lists.items():
        words |= {name: len(rows), f"{name}_list": listed(rows).ctypes.data}
    return control_address(control_op_of(task)), tuple(words.get(name, 0) for name in BLOCK), kept


def control_op_of(task: Task) -> str:
    """The name of the code that runs a loop or a branch, as driver/control.py has it."""
    _, _, form, _, _, _, pairs = task
    return control_op(form, "rows" in dict(pairs))


def control_op(form: str, by_rows: bool = False) -> str:
    """The same for a form of control op."""
    plain = "loop_rows" if by_rows else "loop"
    return {"while_gradient": "loop_gradient", "cond": "choose", "call": "choose"}.get(form, plain)


def _numbers(form: str, details: Mapping[str, Any], slots: Sequence[int]) -> dict[str, int]:
    """The words that are numbers."""
    if form == "call":
        return {"index": -1}
    if form == "cond":
        kind = KINDS.index(np.dtype(details["dtype"]).str.lstrip("<>|=").replace("b1", "?"))
        return {"index": slots[details["index"]], "index_kind": kind}
    if form == "scan":
        return {name: details[name] for name in ("count", "rows") if name in details}
    words = {name: details[name] for name in ("flag", "limit", "code")} | {"conditional": 1}
    if form == "while_gradient":
        words |= {"record": details["record"], "stack": details["stack"][0], "stack_bytes": details["stack"][1]}
    return words
