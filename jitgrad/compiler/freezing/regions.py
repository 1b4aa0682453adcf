"""Regions: the product of a long matrix with a vector, the kernels over its rows, and the product with the transposed
matrix, run chunk by chunk one after another, so that the matrix is read from memory once. So do small kernels in a row
over the same rows, so that nobody waits between them: a chain of 1000 operations on 1000 numbers is two regions in
place of a hundred. And so do the products of a batch that are a call of BLAS each, and kernels over the batch, so that
what one makes is in cache for the next. It decides which, and in what order all runs; it makes no steps.

Between two steps of a region nobody waits for the other chunks, so each may read of what the others make only its own
rows. Steps between them that a region does not need come after it, those that do not need the region before it. All
of it is decided when a program is frozen, from extents; the number of chunks follows from the sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Placed
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Product, Transform
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered, LoweredBodies
from jitgrad.compiler.products.gemv_steps import GemvPlan
from jitgrad.compiler.symbols import least
from jitgrad.records import NamedTuple

LEAST_BYTES = 2_000_000  # of the matrix: less stays in cache anyway
CHUNK_BYTES = 125_000  # two of which fit in the second cache: the next one is asked for meanwhile
MOST_CHUNKS = 256  # unless they would be larger than the next number
LARGEST_CHUNK = 250_000  # bytes: with 1,000,000 a second cache of 1.25 MB does not hold two (Huber 24 and 15 ms)
SMALL_CHUNKS = 16  # that a small kernel has at most: longer ones are not held up by waiting
MOST_LOST = 1_000_000  # bytes of values that end in a region: inside, only results in place use their memory again
MOST_LOST_OF_BATCH = 64_000_000
ITEM_BYTES = 1_000_000  # that steps make of an item of a batch: half of the second cache
_REACH = 8  # how many steps behind its first a region may end


class Unit(NamedTuple):
    """Steps, by their numbers, that run together; more than one is a region of ``chunks`` over ``rows``."""

    members: tuple[int, ...]
    rows: int = 0
    chunks: int = 0


class Sizes(NamedTuple):
    """What regions are decided from: how a product is our own with a vector, in how many chunks the products of a batch
    run by themselves that are a call of BLAS each (else 0), what a kernel's chunks divide, and the number of elements
    of a value, in how many chunks a kernel by itself would run, and the extents of classes.
    """

    vector_plan: Callable[[Product], GemvPlan | None]
    batch_chunks: Callable[[Product], int]
    extent: Callable[[Lowered], int]
    count: Callable[[int], int]
    chunks: Callable[[int], int]
    extents: Mapping[int, int]


def find_units(compiled: CompiledCluster, order: Sequence[int], sizes: Sizes) -> list[Unit]:
    """All steps of a cluster in the order in which they run: ``order``, but for what regions change of it."""
    units: list[Unit] = []
    pending = list(order)
    search = Search(compiled, order, sizes)
    while pending:
        found = search.region(pending) or search.batch(pending) or search.small_kernels(pending)
        if found is None:
            units.append(Unit((pending.pop(0),)))
            continue
        before, region, pending = found
        units += [Unit((number,)) for number in before]
        units.append(region)
    return units


class Search:
    """Finds regions by their first step: the product of a long matrix with a vector, a batch of products, a kernel."""

    def __init__(self, compiled: CompiledCluster, order: Sequence[int], sizes: Sizes) -> None:
        self.plan, self.lowered = compiled.plan, compiled.lowered
        self.reads, self.writes = compiled.reads, compiled.writes
        self.sizes = sizes
        self.last_read = {v: number for number in order for v in self.reads[number]}
        found = {number: self._batch_chunks(number) for number in order}
        self.batches = {number: chunks for number, chunks in found.items() if chunks > 0}

    def small_kernels(self, pending: list[int]) -> tuple[list[int], Unit, list[int]] | None:
        """The same for small kernels over the same rows, in as many chunks as the first one, one after the other; those
        behind it may be too small for any.
        """
        if not all(map(self._may_be_small, pending[:2])):
            return None
        rows = self._rows_of_small(pending[0])
        chunks = self.sizes.chunks(pending[0])
        if rows is None or chunks < 2:
            return None
        count, made, lost = 1, set(self.writes[pending[0]]), 0
        for number in pending[1:]:
            lost += sum(self._nbytes(v) for v in made if self.last_read.get(v) == number)
            is_as_small = self.sizes.chunks(number) in (1, chunks)
            fits = is_as_small and self._rows_of_small(number) == rows and lost <= MOST_LOST
            if not (fits and self._joins(number, rows, made)) or self._overwrites(pending[: count + 1]):
                break
            count += 1
            made |= self.writes[number]
        return ([], Unit(tuple(pending[:count]), rows, chunks), pending[count:]) if count > 1 else None

    def batch(self, pending: list[int]) -> tuple[list[int], Unit, list[int]] | None:
        """The same for steps over a batch, one after the other, products among them, in as many chunks as they have by
        themselves, all together; as long as what they make of an item of the batch stays in the second cache.
        """
        rows = None if self.batches.keys().isdisjoint(pending) else self._rows_of_batch(pending[0])
        if not rows:  # a kernel over nothing may stand before products
            return None
        made, lost, chunks, count = set[int](), 0, 0, 0
        for number in pending:
            lost += sum(self._nbytes(v) for v in made if self.last_read.get(v) == number)
            fits = lost <= MOST_LOST_OF_BATCH and self._rows_of_batch(number) == rows
            if not (fits and self._reads_own_items(number, rows, made)) or self._overwrites(pending[: count + 1]):
                break
            made |= self.writes[number]
            if sum(self._nbytes(v) for v in made if v not in self.plan.chunked) > rows * ITEM_BYTES:
                break
            count += 1
            chunks += self.batches[number] if number in self.batches else self.sizes.chunks(number)
        if count < 2 or self.batches.keys().isdisjoint(pending[:count]):
            return None
        return [], Unit(tuple(pending[:count]), rows, least(chunks, rows)), pending[count:]

    def _batch_chunks(self, number: int) -> int:
        """In how many chunks the products of a batch run by themselves; 0 for any other step."""
        item = self.lowered[number]
        return self.sizes.batch_chunks(item) if isinstance(item, Product) else 0

    def _rows_of_batch(self, number: int) -> int | None:
        """What the chunks of a kernel divide, or the number of products in a batch."""
        item = self.lowered[number]
        if isinstance(item, Product):
            return self._leading(item.value) if number in self.batches else None
        return self.sizes.extent(item) if isinstance(item, Lowered) and self._may_be_small(number) else None

    def _leading(self, v: int) -> int:
        """The extent of the first dimension of a value that is not 1."""
        return next((self.sizes.extents[c] for c in self.plan.classes[v] if c != ONE), 1)

    def _reads_own_items(self, number: int, rows: int, made: set[int]) -> bool:
        """Whether a step over a batch reads of what is ``made`` the same item only."""
        item = self.lowered[number]
        if isinstance(item, Product):
            return all(self._leading(v) == rows for v in item.reads if self.root(v) in made)
        return self._joins(number, rows, made)

    def _may_be_small(self, number: int) -> bool:
        """Whether a step is a kernel of which each chunk writes at its own rows, of whatever size."""
        item = self.lowered[number]
        return isinstance(item, Lowered) and not item.group.is_serial and not item.group.rolled and item.writes_rows

    def _rows_of_small(self, number: int) -> int | None:
        """What a small kernel's chunks divide, if each writes at its own rows."""
        item = self.lowered[number]
        if not isinstance(item, Lowered) or not self._may_be_small(number):
            return None
        return self.sizes.extent(item) if self.sizes.chunks(number) <= SMALL_CHUNKS else None

    def _nbytes(self, v: int) -> int:
        return self.sizes.count(v) * self.plan.specs[v].dtype.itemsize

    def region(self, pending: list[int]) -> tuple[list[int], Unit, list[int]] | None:
        """The steps before it, the region that begins with the first of ``pending``, and the steps that are left."""
        found = self._long_product(pending[0])
        if found is None or self._overwrites(pending[:_REACH]):
            return None
        cut, nbytes = found
        members, before, after = [pending[0]], [], []
        made, late = set(self.writes[pending[0]]), set[int]()
        ends = False
        for number in pending[1:_REACH]:
            reads = self.reads[number]
            if not reads & late and self._joins(number, cut.rows, made):
                members.append(number)
                if isinstance(self.lowered[number], Product):
                    ends = True
                    late |= self.writes[number]  # what chunks give is added up behind the region
                else:
                    made |= self.writes[number]
            elif reads & (made | late) or self._long_product(number) is not None:  # that begins one of its own
                after.append(number)
                late |= self.writes[number]
            else:
                before.append(number)
        if not ends:
            return None
        chunks = max(min(MOST_CHUNKS, math.ceil(nbytes / CHUNK_BYTES)), math.ceil(nbytes / LARGEST_CHUNK))
        return before, Unit(tuple(members), cut.rows, chunks), after + pending[_REACH:]

    def _long_product(self, number: int) -> tuple[GemvPlan, int] | None:
        """How the product of a long matrix with a vector is our own, where its rows are made one by one, and the bytes
        of the matrix; None for any other step.
        """
        item = self.lowered[number]
        cut = self.sizes.vector_plan(item) if isinstance(item, Product) else None
        if not isinstance(item, Product) or cut is None or cut.combines:
            return None
        nbytes = cut.rows * cut.columns * self.plan.specs[item.value].dtype.itemsize
        return (cut, nbytes) if nbytes >= LEAST_BYTES else None

    def root(self, v: int) -> int:
        """The value in whose memory a value lies."""
        return self.plan.aliases.get(v, v)

    def _overwrites(self, numbers: Sequence[int]) -> bool:
        """Whether a step writes what one before it has read or written: then their order must stay as it is."""
        touched: set[int] = set()
        for number in numbers:
            if self.writes[number] & touched:
                return True
            touched |= self.reads[number] | self.writes[number]
        return False

    def _joins(self, number: int, rows: int, made: set[int]) -> bool:
        """Whether a step runs over the rows, and reads of what the region makes its own rows only."""
        item = self.lowered[number]
        if isinstance(item, LoweredBodies | Convolution | Factor | Transform):
            return False
        if isinstance(item, Product):
            cut = self.sizes.vector_plan(item)
            if cut is None or not cut.combines or cut.rows != rows:
                return False
            matrix, vector = (item.a, item.b) if item.transpose_a else (item.b, item.a)
            return self.root(vector) in made and self.root(matrix) not in made
        group = item.group
        if group.is_serial or group.lead is not None or group.is_alone or group.rolled:
            return False
        if self.sizes.extent(item) != rows:
            return False
        is_kept = all(self.sizes.count(v) % rows == 0 for v in group.stored)
        return is_kept and all(self.reads_own_row(p, rows, made) for p in group.nodes)

    def reads_own_row(self, placed: Placed, rows: int, made: set[int]) -> bool:
        """Whether a node reads of what is ``made`` its own rows only."""
        node = placed.node
        if node.table is not None and self.root(node.table) in made:
            return False
        return all(
            all(self._rows_read(placed, v, rows)) for v in dict.fromkeys(node.reads) if self.root(v) in made
        )

    def _rows_read(self, placed: Placed, v: int, rows: int) -> Iterator[bool]:
        """For each way in which a node reads a value over the rows: whether it is at its own row.

        Rows are elements where all axes have become one loop.
        """
        sized = [d for d, c in enumerate(self.plan.classes[v]) if c != ONE]
        is_over_rows = [self.sizes.extents[self.plan.classes[v][d]] for d in sized[:1]] == [rows]
        for leaf in (leaf for o in placed.node.operands for leaf in o.leaves if leaf.source == v):
            dims = [leaf.dims[d] for d in sized]
            axes = [None if i.axis is None else placed.axes[i.axis] for i in dims]
            is_plain = [i.axis is not None and (i.scale, i.offset, i.divisor) == (1, 0, 1) for i in dims]
            is_own = is_plain[:1] == [True] and axes[0] == 0 and 0 not in axes[1:]
            is_one_loop = self.sizes.count(v) == rows and all(is_plain) and [a for a in axes if a is not None] == [0]
            yield (is_over_rows and is_own) or is_one_loop


def are_several_small(*chunks: int) -> bool:
    """Whether more than one step has chunks, and few, so that they may run as one region."""
    return sum(1 < n <= SMALL_CHUNKS for n in chunks) > 1
