"""Binding: a frozen cluster becomes step records, with addresses of code, slots of the table and offsets of the arena.

It decides nothing that the stages decide; it runs in a process that has loaded none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from jitgrad.compiler.driver.pools import SMALL_BYTES
from jitgrad.compiler.driver.runtime import MAX_WORKERS, pack_steps
from jitgrad.compiler.freezing.bind_loops import (
    Layout,
    Layouts,
    describe_loop,
    loop_layouts,
    products_in,
    spans_of,
)
from jitgrad.compiler.fusing.buffers import ArenaPlan, plan_memory
from jitgrad.compiler.machine.kernels import watchers
from jitgrad.config import available_cpus, get_num_threads

Spec = tuple[np.dtype[Any], tuple[int, ...]]
Addresses = dict[str, int]
Step = tuple[str, int, tuple[int, ...], int, int]
"""Name, address of the code, words of the block, extent, number of chunks."""


class BoundCluster(NamedTuple):
    """What a call of a cluster needs: step records, the table's layout, the arena, and what its outputs look like.

    Slots 0.. of the table are the cluster's inputs, then its outputs, then temporaries at offsets of the arena;
    a temporary that lies in an output has no slot of its own. The last slot is that of the status: 1 + the value that
    had a position out of bounds, 0 when none had; ``checks`` says that a kernel sets it. ``in_specs`` and ``out_specs``
    are dtypes and shapes. ``copied`` are outputs that share memory with another value and are copied from it after the
    run: the value, the number of an output or ~ that of an input, and the shape.
    """

    steps: npt.NDArray[np.int64]
    blocks: tuple[npt.NDArray[np.int64], ...]
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    in_specs: tuple[Spec, ...]
    outputs: tuple[int, ...]
    out_specs: tuple[Spec, ...]
    copied: tuple[tuple[int, int, tuple[int, ...]], ...]
    checks: bool
    temporaries: tuple[tuple[int, int], ...]
    arena: ArenaPlan
    nslots: int
    workers: int

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
        kinds = ("kernel", "product", "rows", "tiles", "windows", "filters", "region", "loop", "scan")
        parts = [name.split("_") for name in self.names]
        return tuple(tuple(map(int, numbers)) if kind in kinds else () for kind, *numbers in parts)


def bind_cluster(frozen: tuple[Any, ...], addresses: Addresses) -> BoundCluster:
    """Step records of a frozen cluster; ``addresses`` are those of its kernels by their keys."""
    _, inputs, outputs, copied, checks, lifetimes, *tasks = frozen
    workers = min(MAX_WORKERS, max(available_cpus(), get_num_threads()))
    fixed = len(inputs) + len(outputs)
    layouts = loop_layouts(tasks, workers)
    spans = spans_of(lifetimes, layouts, workers)
    lenders = [item for item in spans[len(inputs) : fixed] if item.nbytes >= SMALL_BYTES and item.first <= item.last]
    arena = plan_memory(spans[fixed:], lenders)
    slots = _slots(fixed, len(lifetimes), arena)
    records, blocks, names = _guarded(*_records(tasks, slots, addresses, layouts), products_in(tasks))
    steps = pack_steps(records)
    for watch in watchers:
        watch(steps)
    return BoundCluster(
        steps, tuple(blocks), tuple(names),
        tuple(v for v, _, _ in inputs), _specs(inputs), tuple(v for v, _, _ in outputs), _specs(outputs), copied,
        checks, tuple(enumerate(arena.offsets.values(), fixed)), arena, slots[-1] + 1,
        workers,
    )  # fmt: skip


def _slots(fixed: int, count: int, arena: ArenaPlan) -> list[int]:
    """The slot of each place; the last one is that of the status, which is place -1."""
    slots: dict[object, int] = {place: place for place in range(fixed)}
    slots |= {place: slot for slot, place in enumerate(arena.offsets, fixed)}
    slots |= {place: slots[output] for place, output in arena.lent.items()}
    return [*[slots[place] for place in range(count)], fixed + len(arena.offsets)]


def _specs(described: Sequence[tuple[int, str, tuple[int, ...]]]) -> tuple[Spec, ...]:
    return tuple((np.dtype(dtype), shape) for _, dtype, shape in described)


Record = tuple[int, int, int, int]
"""Address of the code, address of the block, extent, number of chunks: as `runtime.StepRecord`."""
Records = tuple[list[Record], list[npt.NDArray[np.int64]], list[str]]


def _records(
    tasks: Sequence[tuple[Any, ...]], slots: Sequence[int], addresses: Addresses, layouts: Layouts
) -> Records:
    steps: list[Step] = []
    blocks: list[npt.NDArray[np.int64]] = []
    for task in tasks:
        if task[0] == "region":
            made = _region(task, slots, addresses, blocks)
        elif task[0] == "loop":
            made = [_loop(task, slots, addresses, layouts[task[3]], blocks)]
        else:
            made = _steps(task, slots, addresses)
        steps += made
    records = []
    block = np.array([word for _, _, words, _, _ in steps for word in words], np.int64)
    blocks.append(block)
    place = block.ctypes.data
    for _, address, words, extent, nchunks in steps:
        records.append((address, place, extent, nchunks))
        place += 8 * len(words)
    return records, blocks, [name for name, *_ in steps]


def _loop(
    task: tuple[Any, ...], slots: Sequence[int], addresses: Addresses, layout: Layout,
    blocks: list[npt.NDArray[np.int64]],
) -> Step:  # fmt: skip
    """A control op as one step; what it refers to is put in ``blocks``."""
    lists: list[npt.NDArray[np.int64]] = []
    for (cluster, *_), region in zip(task[5], layout.regions, strict=True):
        records, inner, _ = _records(cluster[6:], region.slots, addresses, region.layouts)
        blocks += inner
        lists.append(pack_steps(records))
        for watch in watchers:
            watch(lists[-1])
    blocks += lists
    address, words, kept = describe_loop(task, slots, layout, lists)
    blocks += kept
    details = dict(task[6])
    return f"loop_{task[1]}", address, words, details.get("rows", 1), details.get("chunks", 1)


def _steps(task: tuple[Any, ...], slots: Sequence[int], addresses: Addresses) -> list[Step]:
    """The steps of a kernel or a product: none when there is nothing to do."""
    if task[0] in ("kernel", "loop kernel"):
        _, number, key, places, ints, constants, extent, nchunks = task
        words = (*[slots[place] for place in places], *ints, *constants)
        name = "kernel" if task[0] == "kernel" else "scan"
        return [(f"{name}_{number}", addresses[key], words, extent, nchunks)]
    made = {
        "product": _product, "row product": _row_product, "vector product": _vector_product,
        "own product": _own_product, "convolution": _convolution,
    }  # fmt: skip
    return made[task[0]](task, slots)


def _product(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.blas import matmul_step

    _, number, dtype, sizes, *operands, batch = task
    a, b, c = _operands(operands, slots)
    step = matmul_step(np.dtype(dtype), sizes, a, b, c, (batch,))
    return [] if step is None else [(f"product_{number}", *step[1:])]


def _row_product(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.blas import matmul_step

    _, number, dtype, sizes, *operands, chunks = task
    a, b, c = _operands(operands, slots)
    step = matmul_step(np.dtype(dtype), sizes, a, b, c, rows=sizes[0] // chunks)
    return [] if step is None else [(f"product_{number}", *step[1:])]


def _vector_product(task: tuple[Any, ...], slots: Sequence[int], asks: bool = False) -> list[Step]:
    from jitgrad.compiler.products.gemv_steps import vector_steps

    _, number, dtype, n, cut, part, *operands = task
    made = vector_steps(np.dtype(dtype), n, cut, _operands(operands, slots), slots[part], asks)
    return [(name, *step[1:]) for name, step in zip((f"rows_{number}", f"sum_{number}"), made, strict=False)]


def _own_product(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.gemm_steps import product_steps

    _, number, dtype, sizes, cut, scratch, part, *operands = task
    made = product_steps(np.dtype(dtype), sizes, cut, _operands(operands, slots), slots[scratch], slots[part])
    return [(name, *step[1:]) for name, step in zip((f"tiles_{number}", f"sum_{number}"), made, strict=False)]


def _convolution(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.conv_steps import convolution_steps

    _, number, dtype, form, (words, cells, chunks), places = task
    made = convolution_steps(np.dtype(dtype), form, dict(words), cells, chunks, [slots[place] for place in places])
    return [(name, *step[1:]) for name, step in zip((f"{form}_{number}", f"sum_{number}"), made, strict=False)]


def _operands(operands: Sequence[tuple[Any, ...]], slots: Sequence[int]) -> Any:
    from jitgrad.compiler.products.blas import Operand

    return [
        Operand(slots[place], row_stride, (batch_stride,), is_transposed)
        for place, row_stride, batch_stride, is_transposed in operands
    ]


def _region(
    task: tuple[Any, ...], slots: Sequence[int], addresses: Addresses, blocks: list[npt.NDArray[np.int64]]
) -> list[Step]:
    """A region as one step, and what comes after it of its members, whose blocks are put in ``blocks``."""
    from jitgrad.compiler.products.gemv_steps import sequence_address

    _, dtype, rows, chunks, *members = task
    firsts: list[Step] = []
    after: list[Step] = []
    for member in members:
        is_product = member[0] == "vector product"
        first, *rest = _vector_product(member, slots, True) if is_product else _steps(member, slots, addresses)
        firsts.append(first)
        after += rest
    sequence = np.zeros((len(firsts), 2), np.int64)
    for pair, (_, address, words, *_) in zip(sequence, firsts, strict=True):
        blocks.append(np.array(words, np.int64))
        pair[:] = address, blocks[-1].ctypes.data
    blocks.append(sequence)
    for watch in watchers:
        watch(sequence)
    name = "region_" + "_".join(str(member[1]) for member in members)
    words = (len(firsts), sequence.ctypes.data)
    return [(name, sequence_address(np.dtype(dtype)), words, rows, chunks), *after]


def _guarded(
    records: list[Record], blocks: list[npt.NDArray[np.int64]], names: list[str], inside: frozenset[str]
) -> Records:
    """The records with BLAS kept to one thread from the first product to the last, also of those ``inside`` a loop."""
    products = [k for k, name in enumerate(names) if name.startswith("product_") or name in inside]
    if not products:
        return records, blocks, names
    from jitgrad.compiler.products import blas

    guards = blas.guard_steps()
    if guards is not None:
        for position, guard in ((products[-1] + 1, guards[1]), (products[0], guards[0])):
            block = np.array(guard.block, np.int64)
            blocks.append(block)
            records.insert(position, (guard.address, block.ctypes.data, guard.extent, guard.nchunks))
            names.insert(position, guard.name)
    return records, blocks, names
