"""Records: the steps of a frozen cluster and the words of their blocks, in one stretch of memory, but for what differs
from process to process: where that lies, and the addresses of kernels. It places nothing and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.driver.pool_layout import STEP_WORDS
from jitgrad.compiler.driver.trials import TRIED
from jitgrad.compiler.freezing.bind_loops import Layout, Layouts, describe_loop, products_in, region_name
from jitgrad.compiler.loopir.asked import asked_word
from jitgrad.compiler.machine.kernels import watchers
from jitgrad.records import NamedTuple

Words = np.ndarray[Any, np.dtype[np.int64]]
Addresses = dict[str, int]
Step = tuple[str, int | str, tuple[int, ...], int, int]
"""Name, address of the code or key of the kernel, words of the block, extent, number of chunks."""


class Records(NamedTuple):
    """The words of a cluster's blocks, and from the word ``first`` up to ``end`` the records of its steps.

    ``links`` are words that are distances from the first one, ``kernels`` words that are addresses of the kernels with
    these keys; ``sequences`` are where pairs begin of which the first is an address, and how many there are. ``kept``
    is other memory that words point at.
    """

    words: list[Any]
    first: int
    end: int
    links: Any
    kernels: list[tuple[int, str]]
    sequences: list[tuple[int, int]]
    kept: list[Words]
    names: tuple[str, ...]


class _Writer:
    """Words under way."""

    def __init__(self) -> None:
        self.words: list[Any] = []
        self.links: list[int] = []
        self.kernels: list[tuple[int, str]] = []
        self.sequences: list[tuple[int, int]] = []
        self.kept: list[Words] = []

    def put(self, words: Sequence[Any]) -> int:
        """Append words; the distance of the first one."""
        place = len(self.words)
        self.words += words
        return 8 * place

    def code(self, address: int | str) -> None:
        """Append an address, or that of a kernel."""
        if isinstance(address, str):
            self.kernels.append((len(self.words), address))
            address = 0
        self.words.append(address)

    def link(self, distance: int) -> None:
        """Append an address in these words."""
        self.links.append(len(self.words))
        self.words.append(distance)


def write_records(
    tasks: Sequence[tuple[Any, ...]], slots: Sequence[int], layouts: Layouts, addresses: Addresses,
    is_body: bool = False,
) -> Records:  # fmt: skip
    """The records of a cluster, or of the body of a loop; ``addresses`` are for what is in loops. Numbers that are
    symbols stay symbols.
    """
    writer, steps = _Writer(), list[tuple[int, Step]]()
    for task in tasks:
        if task[0] == "region":
            steps += _region(task, slots, writer)
            continue
        made = [_loop(task, slots, addresses, layouts[task[3]], writer)] if task[0] == "loop" else _steps(task, slots)
        steps += [(writer.put(step[2]), step) for step in made]
    inside = products_in(tasks)
    products = [k for k, (_, step) in enumerate(steps) if step[0].startswith("product_") or step[0] in inside]
    for position, guard in [] if is_body else _guards(products):
        steps.insert(position, (writer.put(guard[2]), guard))
    first = len(writer.words)
    for distance, (name, address, words, extent, chunks) in steps:
        writer.code(address)
        writer.link(distance)
        writer.words += (extent, chunks, _trial(name, words), *[0] * (STEP_WORDS - 5))
    names = tuple([step[0] for _, step in steps])
    end = len(writer.words)
    return Records(writer.words, first, end, writer.links, writer.kernels, writer.sequences, writer.kept, names)


def _trial(name: str, words: Sequence[Any]) -> int:
    """How far in the block of a step the word lies that runs are to settle; 0 for none."""
    return 8 * (len(words) - 1) if name.startswith("kernel_") and words[-1] == TRIED else 0


def memory_of(records: Records) -> Words:
    """The words as memory, which lies nowhere yet."""
    return np.array(records.words, np.int64)


def settle(
    records: Records, memory: Words, place: int, addresses: Addresses
) -> tuple[Words, list[Words]]:  # fmt: skip
    """The steps among words that lie at this ``place`` from now on, and all memory that belongs to them: arrays that
    watchers know are among it, so that they live as long.
    """
    memory[records.links] += place
    for number, key in records.kernels:
        memory[number] = addresses[key]
    steps = memory[records.first : records.end].reshape(-1, STEP_WORDS)
    pairs = [memory[first : first + 2 * count].reshape(-1, 2) for first, count in records.sequences]
    for watch in watchers:
        for watched in (steps, *pairs):
            watch(watched)
    return steps, [memory, steps, *pairs, *records.kept]


def _guards(products: Sequence[int]) -> list[tuple[int, Step]]:
    """Steps that keep BLAS to one thread from the first product to the last, and where they are inserted."""
    if not products:
        return []
    from jitgrad.compiler.products import blas

    guards = blas.guard_steps()
    if guards is None:
        return []
    enter, leave = guards
    return [(products[-1] + 1, (*leave,)), (products[0], (*enter,))]


def _loop(
    task: tuple[Any, ...], slots: Sequence[int], addresses: Addresses, layout: Layout, writer: _Writer
) -> Step:  # fmt: skip
    """A control op as one step."""
    lists: list[Words] = []
    for (cluster, *_), region in zip(task[5], layout.regions, strict=True):
        inner = write_records(cluster[6:], region.slots, region.layouts, addresses, True)
        memory = memory_of(inner)
        steps, kept = settle(inner, memory, memory.ctypes.data, addresses)
        lists.append(steps)
        writer.kept += kept
    address, words, kept = describe_loop(task, slots, layout, lists)
    writer.kept += kept
    details = dict(task[6])
    return f"loop_{task[1]}", address, words, details.get("rows", 1), details.get("chunks", 1)


def _steps(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    """The steps of a kernel or a product: none when there is nothing to do."""
    if task[0] in ("kernel", "loop kernel"):
        _, number, key, places, ints, constants, extent, nchunks = task
        words = (*[slots[place] for place in places], *ints, *constants)
        name = "kernel" if task[0] == "kernel" else "scan"
        return [(f"{name}_{number}", key, words, extent, nchunks)]
    made = {
        "product": _product, "row product": _row_product, "vector product": _vector_product,
        "own product": _own_product, "convolution": _convolution, "factor": _factor,
        "transform": _transform,
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


def _vector_product(task: tuple[Any, ...], slots: Sequence[int], asks: Any = 0) -> list[Step]:
    from jitgrad.compiler.products.gemv_steps import GemvPlan, vector_steps

    _, number, dtype, n, cut, part, *operands = task
    made = vector_steps(np.dtype(dtype), n, GemvPlan(*cut), _operands(operands, slots), slots[part], asks)
    return [(name, *step[1:]) for name, step in zip((f"rows_{number}", f"sum_{number}"), made, strict=False)]


def _own_product(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.gemm_steps import GemmPlan, product_steps

    _, number, dtype, sizes, cut, scratch, part, *operands = task
    plan = GemmPlan(*cut)
    made = product_steps(np.dtype(dtype), sizes, plan, _operands(operands, slots), slots[scratch], slots[part])
    names = ("pack", "tiles") if plan.form == "shared" else ("tiles", "sum")
    return [(f"{name}_{number}", *step[1:]) for name, step in zip(names, made, strict=False)]


def _convolution(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.conv_steps import convolution_steps

    _, number, dtype, form, (words, cells, chunks), places = task
    made = convolution_steps(np.dtype(dtype), form, dict(words), cells, chunks, [slots[place] for place in places])
    return [(name, *step[1:]) for name, step in zip((f"{form}_{number}", f"sum_{number}"), made, strict=False)]


def _factor(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.factor_steps import Request, factor_steps

    _, number, routine, form, sizes, places, code = task
    (lower, transposed), own = form, [slots[place] for place in places]
    made = factor_steps(Request(routine, lower, transposed, sizes, own, slots[-1], code))
    return [(f"{name}_{number}", *step[1:]) for name, step in made]


def _transform(task: tuple[Any, ...], slots: Sequence[int]) -> list[Step]:
    from jitgrad.compiler.products.transform_steps import transform_step

    _, number, char, routine, is_divided, rows, points, chunks, places = task
    made = transform_step(char, routine, is_divided, rows, points, chunks, [slots[place] for place in places])
    return [(f"transform_{number}", *made[1:])]


def _operands(operands: Sequence[tuple[Any, ...]], slots: Sequence[int]) -> Any:
    from jitgrad.compiler.products.blas import Operand

    return [
        Operand(slots[place], row_stride, (batch_stride,), is_transposed)
        for place, row_stride, batch_stride, is_transposed in operands
    ]


def _region(
    task: tuple[Any, ...], slots: Sequence[int], writer: _Writer
) -> list[tuple[int, Step]]:  # fmt: skip
    """A region as one step, and what comes after it of its members."""
    from jitgrad.compiler.products.sequences import sequence_address

    _, rows, chunks, owned, asked, *members = task
    place, row_bytes, parts = asked or (-1, 0, (0,) * len(members))
    nslots = slots[-1] + 1
    firsts: list[tuple[int, int | str]] = []
    after: list[tuple[int, Step]] = []
    for member, part in zip(members, parts, strict=True):
        first, *rest = _asking(member, slots, asked_word(nslots, part)) if asked else _steps(member, slots)
        firsts.append((writer.put(first[2]), first[1]))
        after += [(writer.put(step[2]), step) for step in rest]
    sequence = writer.put(())
    writer.sequences.append((sequence // 8, len(firsts)))
    for distance, address in firsts:
        writer.code(address)
        writer.link(distance)
    moves = writer.put([word for place, row, part in owned for word in (slots[place], row, part)])
    ahead = writer.put([sum(parts[:k]) for k in range(len(parts))])
    block = writer.put((len(firsts),))
    writer.link(sequence)
    writer.words += (len(owned), nslots)
    writer.link(moves)
    writer.words += (slots[place], row_bytes)
    writer.link(ahead)
    return [(block, (region_name(task), sequence_address(), (), rows, chunks)), *after]


def _asking(task: tuple[Any, ...], slots: Sequence[int], word: Any) -> list[Step]:
    """The steps of a kernel or a product with a vector that is told what to ask for."""
    if task[0] == "vector product":
        return _vector_product(task, slots, word)
    (name, key, words, extent, chunks), *others = _steps(task, slots)
    return [(name, key, (*words[:-1], word or words[-1]), extent, chunks), *others]
