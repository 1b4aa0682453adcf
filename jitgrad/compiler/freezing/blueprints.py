"""Blueprints: bound clusters for extents that are symbols; the numbers that follow from extents are put into words that
are there already. How these follow is a formula (symbols.py); nothing is frozen here, and nothing planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.calling.unbox import Spec, words_of
from jitgrad.compiler.freezing.arranging import arrange
from jitgrad.compiler.freezing.bind import (
    BoundCluster,
    arguments_of,
    bind_cluster,
    lenders_of,
    slots_of,
    specs_of,
    workers_now,
)
from jitgrad.compiler.freezing.bind_loops import spans_of
from jitgrad.compiler.freezing.records import Addresses, Records, Words, settle, write_records
from jitgrad.compiler.fusing.buffers import ArenaPlan
from jitgrad.compiler.symbols import Formula, Symbol
from jitgrad.records import NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt


class Numbers(NamedTuple):
    """What a bound cluster has of extents: some of its words, offsets, size and bound of the arena, specs."""

    words: tuple[Any, ...]
    offsets: tuple[Any, ...]
    arena: tuple[Any, Any]
    in_specs: Any
    out_specs: Any
    copied: Any


class Blueprint(NamedTuple):
    """A bound cluster without its `Numbers`: the words that are always the same, and ``places`` of the others. Behind
    those of the records come those of the arguments, which point at ``objects``.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    checks: bool
    fixed: Words
    places: npt.NDArray[np.intp]
    records: Records
    objects: tuple[object, ...]
    temporaries: tuple[object, ...]
    lent: dict[object, object]
    nslots: int
    workers: int


class Family(NamedTuple):
    """Bound programs for all extents for which a formula gives the `Numbers` of each cluster."""

    formula: Formula
    blueprints: tuple[Blueprint, ...]
    nvalues: int
    outputs: tuple[int, ...]
    kernels: tuple[str, ...]

    @property
    def serves(self) -> bool:
        """Whether scratch memory is still planned for as many threads."""
        workers = workers_now()
        return all(blueprint.workers == workers for blueprint in self.blueprints)


def blueprint_of(frozen: tuple[Any, ...]) -> tuple[Blueprint, Numbers]:
    """That of a cluster without loops, frozen for symbols, and its numbers, which are symbols."""
    _, inputs, outputs, copied, checks, lifetimes, *tasks = frozen
    workers, fixed = workers_now(), len(inputs) + len(outputs)
    spans = spans_of(lifetimes, {}, workers)
    arena = arrange(spans[fixed:], lenders_of(spans[len(inputs) : fixed]))
    slots = slots_of(fixed, len(lifetimes), arena)
    records, in_specs, out_specs = write_records(tasks, slots, {}, {}), specs_of(inputs), specs_of(outputs)
    arguments = words_of(arguments_of(in_specs + out_specs))
    all_words = [*records.words, *arguments.words]
    places = [place for place, word in enumerate(all_words) if type(word) is Symbol]
    words = np.array([0 if type(word) is Symbol else word for word in all_words], np.int64)
    numbers = Numbers(
        tuple([all_words[place] for place in places]), tuple(arena.offsets.values()), (arena.nbytes, arena.bound),
        in_specs, out_specs, copied,
    )  # fmt: skip
    blueprint = Blueprint(
        tuple([v for v, _, _ in inputs]), tuple([v for v, _, _ in outputs]), checks, words, np.array(places, np.intp),
        records._replace(words=[], links=np.array(records.links, np.intp)), tuple(arguments.objects),
        tuple(arena.offsets), dict(arena.lent), slots[-1] + 1, workers,
    )  # fmt: skip
    return blueprint, numbers


def bind_blueprint(blueprint: Blueprint, numbers: tuple[Any, ...], addresses: Addresses) -> BoundCluster:
    """The bound cluster of such numbers."""
    words, offsets, (nbytes, bound), in_specs, out_specs, copied = numbers
    memory, records = blueprint.fixed.copy(), blueprint.records
    memory[blueprint.places] = words
    place = memory.ctypes.data
    steps, blocks = settle(records, memory, place, addresses)
    arena = ArenaPlan(dict(zip(blueprint.temporaries, offsets, strict=True)), nbytes, bound, blueprint.lent)
    first = len(blueprint.inputs) + len(blueprint.outputs)
    return BoundCluster(
        steps, tuple(blocks), records.names, blueprint.inputs, in_specs, blueprint.outputs, out_specs, copied,
        blueprint.checks, tuple(enumerate(offsets, first)), arena, blueprint.nslots, blueprint.workers,
        Spec(memory[records.end :], blueprint.objects), (place + 8 * records.first, place + 8 * records.end),
    )  # fmt: skip


def is_bound_alike(bound: Any, frozen: tuple[Any, ...], addresses: Addresses) -> bool:
    """Whether a cluster is bound as the frozen one is, in an arena in which no two overlap that live together."""
    _, inputs, outputs, _, _, lifetimes, *_ = frozen
    spans = spans_of(lifetimes, {}, bound.workers)[len(inputs) + len(outputs) :]
    placed = [(span, offset, offset + span.nbytes) for span in spans
              if (offset := bound.arena.offsets.get(span.key)) is not None]  # fmt: skip
    for number, (a, start, end) in enumerate(placed):
        for b, other_start, other_end in placed[:number]:
            if a.first <= b.last and b.first <= a.last and start < other_end and other_start < end:
                return False
    other = bind_cluster(frozen, addresses, bound.arena)
    return (
        _distances(bound) == _distances(other) and bound.names == other.names and bound[3:10] == other[3:10]
        and bound[11:13] == other[11:13] and bound.arguments.words.tolist() == other.arguments.words.tolist()
        and max((end for *_, end in placed), default=0) <= bound.arena.nbytes
        and bound.addresses == (bound.steps.ctypes.data, bound.arguments.address)
    )  # fmt: skip


def _distances(bound: BoundCluster) -> list[int]:
    """The words of a cluster up to its last step, those that are addresses among them as distances from the first."""
    place = bound.blocks[0].ctypes.data
    memory = bound.blocks[0][: (bound.addresses[0] - place) // 8 + bound.steps.size]
    return [word - place if place <= word < place + memory.nbytes else word for word in memory.tolist()]
