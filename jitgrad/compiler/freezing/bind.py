"""Binding: a frozen cluster becomes step records, with addresses of code, slots of the table and offsets of the arena.

It decides nothing that the stages decide; it runs in a process that has loaded none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.calling.patterns import Array
from jitgrad.compiler.calling.unbox import Spec, pack_arguments
from jitgrad.compiler.driver.pools import SMALL_BYTES
from jitgrad.compiler.driver.runtime import MAX_WORKERS
from jitgrad.compiler.freezing.bind_loops import loop_layouts, spans_of
from jitgrad.compiler.freezing.records import Addresses, memory_of, settle, write_records
from jitgrad.compiler.fusing.buffers import ArenaPlan, Lifetime, plan_memory
from jitgrad.config import available_cpus, get_num_threads
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

ArraySpec = tuple[np.dtype[Any], tuple[int, ...]]


class BoundCluster(NamedTuple):
    """What a call of a cluster needs: step records, the table's layout, the arena, and what its outputs look like.

    Slots 0.. of the table are the cluster's inputs, then its outputs, then temporaries at offsets of the arena;
    a temporary that lies in an output has no slot of its own. The last slot is that of the status: 1 + the value that
    had a position out of bounds, 0 when none had; ``checks`` says that a kernel sets it. ``in_specs`` and ``out_specs``
    are dtypes and shapes, ``arguments`` the same for `unbox`; ``addresses`` are those of the steps and of the
    arguments. ``copied`` are outputs that share memory with another value and are copied from it after the
    run: the value, the number of an output or ~ that of an input, dtype and shape.
    """

    steps: npt.NDArray[np.int64]
    blocks: tuple[npt.NDArray[np.int64], ...]
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    in_specs: tuple[ArraySpec, ...]
    outputs: tuple[int, ...]
    out_specs: tuple[ArraySpec, ...]
    copied: tuple[tuple[int, int, str, tuple[int, ...]], ...]
    checks: bool
    temporaries: tuple[tuple[int, int], ...]
    arena: ArenaPlan
    nslots: int
    workers: int
    arguments: Spec
    addresses: tuple[int, int]

    def words_at(self, address: int) -> npt.NDArray[np.int64]:
        """The words of a block, and what lies behind it."""
        for block in self.blocks:
            place, end = block.ctypes.data, block.ctypes.data + block.nbytes
            if place <= address < end:
                return block.reshape(-1)[(address - place) // block.itemsize :]
        raise LookupError(f"no block at {address}")

    @property
    def has_loops(self) -> bool:
        """Whether a step is a control op, which may run for long."""
        return any(name.startswith(("loop_", "scan_")) for name in self.names)

    @property
    def origins(self) -> tuple[tuple[int, ...], ...]:
        """Per step record the numbers of the plan's steps behind it: several for a region, none for what only prepares
        others or ends them.
        """
        kinds = (
            "kernel", "product", "rows", "tiles", "windows", "filters", "factor", "transform", "region", "loop", "scan",
        )  # fmt: skip
        parts = [name.split("_") for name in self.names]
        return tuple(tuple(map(int, numbers)) if kind in kinds else () for kind, *numbers in parts)


def bind_cluster(frozen: tuple[Any, ...], addresses: Addresses, arena: ArenaPlan | None = None) -> BoundCluster:
    """Step records of a frozen cluster; ``addresses`` are those of its kernels by their keys. Its arena is planned
    where none is given.
    """
    _, inputs, outputs, copied, checks, lifetimes, *tasks = frozen
    workers, fixed = workers_now(), len(inputs) + len(outputs)
    layouts = loop_layouts(tasks, workers)
    if arena is None:
        spans = spans_of(lifetimes, layouts, workers)
        arena = plan_memory(spans[fixed:], lenders_of(spans[len(inputs) : fixed]))
    slots = slots_of(fixed, len(lifetimes), arena)
    records = write_records(tasks, slots, layouts, addresses)
    memory, in_specs, out_specs = memory_of(records), specs_of(inputs), specs_of(outputs)
    steps, blocks = settle(records, memory, memory.ctypes.data, addresses)
    arguments = pack_arguments(arguments_of(in_specs + out_specs))
    return BoundCluster(
        steps, tuple(blocks), records.names, tuple(v for v, _, _ in inputs), in_specs, tuple(v for v, _, _ in outputs),
        out_specs, copied, checks, tuple(enumerate(arena.offsets.values(), fixed)), arena, slots[-1] + 1, workers,
        arguments, (steps.ctypes.data, arguments.address),
    )  # fmt: skip


def arguments_of(specs: Sequence[ArraySpec]) -> list[Array]:
    """What machine code looks for in a cluster's arrays: each has the slot of its number."""
    return [Array(slot, dtype, shape) for slot, (dtype, shape) in enumerate(specs)]


def workers_now() -> int:
    """For how many threads scratch memory is planned."""
    return min(MAX_WORKERS, max(available_cpus(), get_num_threads()))


def lenders_of(outputs: Sequence[Lifetime]) -> list[Lifetime]:
    """The outputs whose memory is there before they are written."""
    return [item for item in outputs if item.nbytes >= SMALL_BYTES and item.first <= item.last]


def slots_of(fixed: int, count: int, arena: ArenaPlan) -> list[int]:
    """The slot of each place; the last one is that of the status, which is place -1."""
    slots: dict[object, int] = {place: place for place in range(fixed)}
    slots |= {place: slot for slot, place in enumerate(arena.offsets, fixed)}
    slots |= {place: slots[output] for place, output in arena.lent.items()}
    return [*[slots[place] for place in range(count)], fixed + len(arena.offsets)]


def specs_of(described: Sequence[tuple[int, str, tuple[int, ...]]]) -> tuple[ArraySpec, ...]:
    """Dtypes and shapes of values as they are frozen."""
    return tuple([(np.dtype(dtype), shape) for _, dtype, shape in described])
