"""Binding: a cluster's kernels and products become step records, with numbers for extents, chunks and table slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jitgrad.compiler import blas
from jitgrad.compiler.buffers import ArenaPlan, Lifetime, plan_memory
from jitgrad.compiler.caches import last_level_bytes
from jitgrad.compiler.clusters import Cluster
from jitgrad.compiler.drafts import weight_of
from jitgrad.compiler.emit import lanes_for, part_bytes
from jitgrad.compiler.emit_memory import CACHE_LINE
from jitgrad.compiler.extents import ONE
from jitgrad.compiler.groups import Group, Plan
from jitgrad.compiler.loopir import Buffer, Literal
from jitgrad.compiler.lower import Lowered
from jitgrad.compiler.machine import load_kernels, vector_bytes
from jitgrad.compiler.nodes import Product
from jitgrad.compiler.pools import SMALL_BYTES
from jitgrad.compiler.runtime import MAX_WORKERS, StepRecord, pack_steps
from jitgrad.compiler.tiers import improver
from jitgrad.config import available_cpus, get_num_threads
from jitgrad.program import Program

# A chunk should take some microseconds, so that sharing it out costs little; the count depends on the work alone,
# never on the number of threads, because the order of partial sums follows it.
CHUNK_NANOSECONDS = 8_000
MOST_CHUNKS = 64
STATUS = "status"
NANOSECONDS_PER_NODE = 0.08  # one element of one node, vectorised, in cache


@dataclass(frozen=True)
class BoundCluster:
    """What a call of a cluster needs: step records, the table's layout, the arena, and what its outputs look like.

    Slots 0.. of the table are the cluster's inputs, then its outputs, then temporaries at ``offsets`` of the arena;
    a temporary that lies in an output has no slot of its own.
    The last slot is that of the status: 1 + the value that had a position out of bounds, 0 when none had.
    ``copied`` are outputs that share memory with another value and are copied from it after the run.
    """

    steps: npt.NDArray[np.int64]
    blocks: tuple[npt.NDArray[np.int64], ...]
    names: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    copied: tuple[tuple[int, int], ...]
    temporaries: tuple[tuple[int, int], ...]
    arena: ArenaPlan
    nslots: int
    workers: int


def bind_cluster(program: Program, cluster: Cluster, plan: Plan, lowered: Sequence[Lowered | Product]) -> BoundCluster:
    """Step records of a cluster for the shapes of ``program``."""
    return _Binder(program, cluster, plan, lowered).bind()


class _Binder:
    def __init__(self, program: Program, cluster: Cluster, plan: Plan, lowered: Sequence[Lowered | Product]) -> None:
        self.program = program
        self.cluster = cluster
        self.plan = plan
        self.lowered = lowered
        self.workers = min(MAX_WORKERS, max(available_cpus(), get_num_threads()))
        self.chunks = [chunk_count(item) if isinstance(item, Lowered) else 1 for item in lowered]
        self.extents = self._class_extents()
        self.slots: dict[object, int] = {}

    def bind(self) -> BoundCluster:
        inputs = self.cluster.inputs
        self.slots |= {v: slot for slot, v in enumerate(inputs)}
        direct, copied = self._split_outputs()
        self.slots |= {root: len(inputs) + position for position, (_, root) in enumerate(direct)}
        lifetimes = self._lifetimes()
        temporaries = [item for item in lifetimes if item.key not in self.slots]
        outputs = {root for _, root in direct}
        lenders = [item for item in lifetimes if item.key in outputs and item.nbytes >= SMALL_BYTES]
        arena = plan_memory(temporaries, lenders)
        first = len(inputs) + len(direct)
        self.slots |= {item: self.slots[output] for item, output in arena.lent.items()}
        self.slots |= {key: first + position for position, key in enumerate(arena.offsets)}
        self.slots[STATUS] = first + len(arena.offsets)
        records, blocks, names = self._records()
        steps = pack_steps(records)
        improver.watch(steps)
        return BoundCluster(
            steps, tuple(blocks), tuple(names), inputs, tuple(v for v, _ in direct), tuple(copied),
            tuple((first + p, offset) for p, offset in enumerate(arena.offsets.values())), arena,
            self.slots[STATUS] + 1, self.workers,
        )  # fmt: skip

    def _root(self, v: int) -> int:
        return self.plan.aliases.get(v, v)

    def _split_outputs(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Outputs with memory of their own as (value, root), and those to be copied from another value."""
        direct: list[tuple[int, int]] = []
        copied: list[tuple[int, int]] = []
        taken: dict[int, int] = {}
        inside = set(self.cluster.inputs)
        for v in sorted(self.cluster.outputs, key=lambda v: v in self.plan.aliases):
            root = self._root(v)
            if root in inside or root in taken:
                copied.append((v, taken.get(root, root)))
            else:
                taken[root] = v
                direct.append((v, root))
        return direct, copied

    def _class_extents(self) -> dict[int, int]:
        extents: dict[int, int] = {}
        for v, classes in self.plan.classes.items():
            if v not in self.plan.chunked:
                extents |= {c: n for c, n in zip(classes, self.plan.specs[v].known_shape, strict=True) if c != ONE}
        for step in self.plan.steps:
            if isinstance(step, Group):
                extents |= {c: n for c, n in zip(step.axes, step.extents, strict=True) if c not in extents}
        for partial, number in self.plan.chunked.items():
            extents[self.plan.classes[partial][0]] = self.chunks[number]
        return extents

    def _nbytes(self, v: int) -> int:
        shape = math.prod(self.extents[c] for c in self.plan.classes[v] if c != ONE)
        return shape * self.plan.specs[v].dtype.itemsize

    def _lifetimes(self) -> list[Lifetime]:
        """Of all that the steps read and write, inputs and outputs too."""
        spans: dict[object, tuple[int, int, int]] = {}
        for number, item in enumerate(self.lowered):
            for key, nbytes in self._touched(number, item):
                first = spans[key][1] if key in spans else number
                spans[key] = (nbytes, first, number)
        return [Lifetime(key, nbytes, first, last) for key, (nbytes, first, last) in spans.items()]

    def _touched(self, number: int, item: Lowered | Product) -> list[tuple[object, int]]:
        if isinstance(item, Product):
            values = [self._root(v) for v in (item.a, item.b, item.value)]
            return [(v, self._nbytes(v)) for v in values]
        touched: list[tuple[object, int]] = []
        numbers = dict(zip(item.kernel.ints, self._ints(item), strict=True))
        lanes = lanes_for(item.kernel, vector_bytes())
        for buffer, v in zip(item.kernel.buffers, item.values, strict=True):
            if buffer.role == "status":
                continue
            if v is None:
                assert buffer.extent is not None
                part = part_bytes(buffer, numbers[buffer.extent], lanes)
                touched.append(((number, buffer.name), part * self.workers))
            else:
                touched.append((self._root(v), self._nbytes(v)))
        return touched

    def _ints(self, item: Lowered) -> list[int]:
        return [quantity.value(self.extents) for quantity in item.ints]

    def _records(self) -> tuple[list[StepRecord], list[npt.NDArray[np.int64]], list[str]]:
        kernels = [item.kernel for item in self.lowered if isinstance(item, Lowered)]
        addresses = iter(load_kernels(kernels))
        records: list[StepRecord] = []
        blocks: list[npt.NDArray[np.int64]] = []
        names: list[str] = []
        for number, item in enumerate(self.lowered):
            if isinstance(item, Product):
                step = self._product(item)
                if step is None:
                    continue
                address, words, extent, nchunks = step.address, list(step.block), step.extent, step.nchunks
                names.append(step.name)
            else:
                address, extent, nchunks = next(addresses), self._cut_extent(item), self.chunks[number]
                keys = [self._key(number, b, v) for b, v in zip(item.kernel.buffers, item.values, strict=True)]
                words = [self.slots[key] for key in keys] + self._ints(item)
                words += [*map(constant_word, item.constants), 0 if self._streams(item) else -1]
                names.append(f"kernel_{number}")
            block = np.array(words, np.int64)
            blocks.append(block)
            records.append(StepRecord(address, block.ctypes.data, extent, nchunks))
        return self._guarded(records, blocks, names)

    def _cut_extent(self, item: Lowered) -> int:
        """What a kernel's chunks divide: the extent of its parallel loop, in vectors where it has a matrix per lane."""
        extent = item.extent.value(self.extents)
        return -(-extent // lanes_for(item.kernel, vector_bytes())) if item.group.lead is not None else extent

    def _streams(self, item: Lowered) -> bool:
        """Whether a kernel's stores go past the caches: it touches more than stays there, and rows are whole lines.

        Arrays of 12 MB in all are added 7 % slower so, of 37 MB in half the time (a cache of 32 MB). Rows that share
        lines take up to a quarter more. The kernel is the same for all sizes, and so is the plan; this is one of the
        numbers that the kernel is given.
        """
        touched: set[int] = set()
        for buffer, v in zip(item.kernel.buffers, item.values, strict=True):
            if v is None or v in self.plan.chunked or buffer.role == "status":
                continue
            touched.add(self._root(v))
            shape = self.plan.specs[v].known_shape
            if buffer.role == "out" and len(shape) > 1 and shape[-1] * buffer.dtype.itemsize % CACHE_LINE:
                return False
        return sum(map(self._nbytes, touched)) > last_level_bytes() * 3 // 4

    def _key(self, number: int, buffer: Buffer, value: int | None) -> object:
        """What the slot of a kernel's buffer is found by."""
        if buffer.role == "status":
            return STATUS
        return (number, buffer.name) if value is None else self._root(value)

    def _guarded(
        self, records: list[StepRecord], blocks: list[npt.NDArray[np.int64]], names: list[str]
    ) -> tuple[list[StepRecord], list[npt.NDArray[np.int64]], list[str]]:
        """The records with BLAS kept to one thread from the first product to the last."""
        products = [k for k, name in enumerate(names) if not name.startswith("kernel_")]
        guards = blas.guard_steps() if products else None
        if guards is None:
            return records, blocks, names
        for position, guard in ((products[-1] + 1, guards[1]), (products[0], guards[0])):
            block = np.array(guard.block, np.int64)
            blocks.append(block)
            records.insert(position, StepRecord(guard.address, block.ctypes.data, guard.extent, guard.nchunks))
            names.insert(position, guard.name)
        return records, blocks, names

    def _product(self, item: Product) -> blas.BlasStep | None:
        a, b, c = (self.program.specs[v].known_shape for v in (item.a, item.b, item.value))
        m, n = c[-2:]
        k = a[-2] if item.transpose_a else a[-1]
        batch = math.prod(c[:-2])
        operands = [
            blas.Operand(self.slots[self._root(v)], shape[-1], (shape[-1] * shape[-2],), transposed)
            for v, shape, transposed in (
                (item.a, a, item.transpose_a), (item.b, b, item.transpose_b), (item.value, c, False)
            )
        ]  # fmt: skip
        dtype = self.program.specs[item.value].dtype
        return blas.matmul_step(dtype, (m, n, k), operands[0], operands[1], operands[2], (batch,))


def constant_word(literal: Literal) -> int:
    """A number as the eight bytes of a block word, padded with zeros."""
    raw = np.asarray(literal.value, literal.dtype).tobytes()
    return int.from_bytes(raw.ljust(8, b"\0"), "little", signed=True)


def chunk_count(item: Lowered) -> int:
    """In how many chunks the parallel loop of a kernel is cut."""
    group = item.group
    if group.is_serial or not group.extents:
        return 1
    work = sum(math.prod(placed.node.shape) * weight_of(placed.node) for placed in group.nodes)
    wanted = int(work * NANOSECONDS_PER_NODE / CHUNK_NANOSECONDS)
    extent = item.extent.value(dict(zip(group.axes, group.extents, strict=True)))
    return 1 if wanted < 2 else min(wanted, MOST_CHUNKS, max(1, extent))
