"""Freezing: what the stages made of a program becomes nested tuples of numbers and names, which the cache can keep.

A frozen program says all that running it takes but where things lie in this process; bind.py adds that. What the stages
needed to get there (programs, nodes, groups, kernels) is left behind. Its shape:

    program  ::= (number of values, outputs, step*)
    step     ::= ("cluster", inputs, outputs, copies, checks, lifetimes, task*)
               | ("interpreted", instruction, None, None, inputs, outputs)
               | ("interpreted", None, op, params, inputs, outputs)
    inputs   ::= (value, dtype, shape)*                                  outputs: likewise
    copies   ::= (value, place, dtype, shape)*         place: number of an output, or ~number of an input
    lifetime ::= (bytes, is_scratch, first task, last task)              of inputs, outputs, then temporaries
    task     ::= ("kernel", number, key, places, ints, words, extent, chunks)
               | ("product", number, dtype, (m, n, k), operand a, b, c, batch)
               | ("row product", number, dtype, (m, n, k), operand a, b, c, chunks)      in a loop over independent rows
               | ("vector product", number, dtype, n, how it is cut, place of parts, operand a, b, c)
               | ("own product", number, dtype, (m, n, k), how it is cut, places of scratch and parts, operand a, b, c)
               | ("convolution", number, dtype, form, how it is cut, places of operands, result, scratch, parts)
               | ("transform", number, dtype, routine, flag, rows, points read and made, chunks, places of both)
               | ("factor", number, routine, form, sizes, places of operands, result and memory, code of a failure)
               | ("region", rows, chunks, owned, asked, task*)           tasks whose chunks run one after another
               | ("loop kernel", ...)                                    a scan that is a kernel, as "kernel"
               | ("loop", ...)                                           a control op, see freeze_loops.py
    words    ::= constants, then how the kernel stores (driver/trials.py)
    operand  ::= (place, row stride, batch stride, is_transposed)
    owned    ::= (place, bytes of a row, bytes of a worker)*             see owned.py
    asked    ::= () | (place, bytes of a row, part of each task of these)      see next_chunks.py

A place is the number of a lifetime, -1 is the status of a run. The number of a task is that of its step in the plan. An
interpreted step has op and params of an instruction of the program as it was before the stages, else those that are
written down, with the programs of bodies; a step that cannot be written down holds the instruction itself, and such a
program runs, but is not kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from jitgrad.compiler.bodies.updates import planned_bodies
from jitgrad.compiler.constants import splat_number, word_in
from jitgrad.compiler.driver.trials import PAST, THROUGH, TRIED, WHOLE_LINES
from jitgrad.compiler.emission.arguments import own_bytes
from jitgrad.compiler.emission.kernel import lanes_for
from jitgrad.compiler.freezing.chunks import LONG_CHUNK, chunk_count
from jitgrad.compiler.freezing.freeze_loops import Frozen, freeze_loop
from jitgrad.compiler.freezing.freeze_own import SCRATCH, freeze_own, freeze_transform, own_memory
from jitgrad.compiler.freezing.freeze_products import Cuts, cut_product, freeze_product, product_memory
from jitgrad.compiler.freezing.in_place import find_in_place
from jitgrad.compiler.freezing.lines import finds_lines, has_whole_lines, is_elementwise
from jitgrad.compiler.freezing.next_chunks import find_asked
from jitgrad.compiler.freezing.outputs import place_copied, split_outputs
from jitgrad.compiler.freezing.owned import Owned, find_owned
from jitgrad.compiler.freezing.regions import Sizes, Unit, are_several_small, find_units
from jitgrad.compiler.freezing.row_loops import RowCut, find_row_cut
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Group
from jitgrad.compiler.fusing.nodes import Convolution, Factor, Product, Transform
from jitgrad.compiler.fusing.order import order_steps
from jitgrad.compiler.loopir.nests import Buffer, Literal
from jitgrad.compiler.lowering.lower import CompiledCluster, FusedScan, Lowered, LoweredBodies, LoweredStep
from jitgrad.compiler.machine.caches import last_level_bytes
from jitgrad.compiler.machine.compilation import vector_bytes
from jitgrad.compiler.products.gemv_steps import GemvPlan
from jitgrad.compiler.products.own_products import calls_in_chunks
from jitgrad.compiler.subprograms import LOOPS, status_offsets
from jitgrad.compiler.symbols import Symbol, at_once
from jitgrad.program import Program
from jitgrad.records import dataclass

STATUS = -1
_ROOM = "room"


def freeze_cluster(program: Program, compiled: CompiledCluster) -> Frozen:
    """A cluster's step."""
    return _Freezer(program, compiled).freeze()


@dataclass(slots=True)
class _Span:
    """Bytes of a value, whether each worker has a part of its own, and the tasks that touch it first and last."""

    nbytes: int
    is_scratch: bool
    first: int
    last: int


class _Freezer:
    """Freezes a cluster, or the body of a control op; of a scan with these params."""

    def __init__(
        self, program: Program, compiled: CompiledCluster, is_body: bool = False, scan: Mapping[str, Any] | None = None,
        shared: Collection[int] = (), is_repeated: bool = False,
    ) -> None:  # fmt: skip
        self.program = program
        self.compiled, self.cluster, self.plan = compiled, compiled.cluster, compiled.plan
        lowered = self.lowered = compiled.lowered
        self.keys, self.dims, self.producers = compiled.keys, compiled.dims, program.producers()
        self.counts: dict[int, int] = {}
        self.cuts: dict[int, Cuts] = {}
        self.is_body, self.shared, self.is_repeated = is_body, shared, is_repeated
        self.factors = {item.value: number for number, item in enumerate(lowered) if _is_factor(item, "cholesky")}
        self.row_cut: RowCut | None = None
        freezers = {
            number: self._body_freezers(item)
            for number, item in enumerate(lowered) if isinstance(item, LoweredBodies) and item.fused is None
        }  # fmt: skip
        self.bodies = {number: tuple(f.freeze() for f in made) for number, made in freezers.items()}
        self.body_cuts = {number: made[-1].row_cut for number, made in freezers.items()}
        self.extents = self._class_extents()
        self.order = self._order()
        self.chunks = [chunk_count(item, self.extents) if isinstance(item, Lowered) else 1 for item in lowered]
        self._note_chunks()
        if scan is not None and lowered:
            self.row_cut = find_row_cut(program, compiled, self._sizes(), scan)
        self.units = self._units()
        self.regions = {number: unit for unit in self.units if unit.chunks for number in unit.members}
        self.chunks = [self.regions[k].chunks if k in self.regions else n for k, n in enumerate(self.chunks)]
        if self.row_cut is not None:
            self.chunks = [self.row_cut.chunks] * len(lowered)
        self._note_chunks()
        self.places: dict[object, int] = {}
        self.owned: dict[tuple[int, ...], Sequence[Owned]] = {}

    def _order(self) -> Sequence[int]:
        """The numbers of the steps in the order in which they run, before regions are found."""
        needs = self.compiled.needs
        return range(len(self.lowered)) if needs is None else order_steps(needs, self._nbytes)

    def _units(self) -> list[Unit]:
        """The steps in the order in which they run, some of them together; each by itself where there is nothing that
        begins a region. Steps for independent rows all count as one, for any two may run at the same time.
        """
        if self.row_cut is not None:
            return [Unit(tuple(self.order))]
        products = [item for item in self.lowered if isinstance(item, Product)]
        is_cut = any(self._vector_plan(item) is not None or self._batch_chunks(item) > 0 for item in products)
        if not is_cut and not at_once(are_several_small, *self.chunks):
            return [Unit((number,)) for number in self.order]
        return find_units(self.compiled, self.order, self._sizes())

    def _sizes(self) -> Sizes:
        plans = self._vector_plan, self._batch_chunks
        return Sizes(*plans, self._cut_extent, self._count, self.chunks.__getitem__, self.extents)

    def _body_freezers(self, item: LoweredBodies) -> list[_Freezer]:
        ins = self.program.instructions[item.step.number]
        scan = ins.params if item.step.form == "scan" else None
        made, is_repeated = [], self.is_repeated or item.step.form in LOOPS
        for (sub, _, shared), body in zip(planned_bodies(ins), item.regions, strict=True):
            made.append(_Freezer(sub, body, True, scan, [sub.outputs[n] for n, _ in shared], is_repeated))
        return made

    def _note_chunks(self) -> None:
        """Partial results have as many parts as their kernel has chunks."""
        chunked = self.plan.chunked
        self.extents |= {self.plan.classes[partial][0]: self.chunks[number] for partial, number in chunked.items()}
        self.counts.clear()

    def freeze(self) -> Frozen:
        """The cluster as tuples."""
        inputs = self.cluster.inputs
        direct, copied = split_outputs(self.cluster, self.plan.aliases)
        spans = self._spans()
        in_place = self._lay_in_place(spans)
        self._own_chunks(spans)
        order: list[object] = [*dict.fromkeys([*inputs, *(root for _, root in direct), *spans])]
        self.places = {key: place for place, key in enumerate(order)}
        self.places |= {v: self.places[under] for v, under in in_place.items()}
        unused = _Span(0, False, 0, -1)
        lifetimes = [spans.get(key, unused) for key in order]
        outputs = [v for v, _ in direct]
        return (
            "cluster",
            tuple(self._described(v) for v in inputs),
            tuple(self._described(v) for v in outputs),
            tuple((v, place_copied(root, outputs, inputs), *self._described(v)[1:]) for v, root in copied),
            any(map(self._may_fail, range(len(self.lowered)))),
            tuple((s.nbytes, s.is_scratch, s.first, s.last) for s in lifetimes),
            *self._tasks(),
        )

    def _may_fail(self, number: int) -> bool:
        """Whether a step may set the status: a position out of bounds, too many steps of a loop, no memory for it."""
        item = self.lowered[number]
        if isinstance(item, Product | Convolution | Transform):
            return False
        if isinstance(item, Factor):
            return item.routine not in ("cholesky_cotangent", "lu", "qr")
        lowered = item if isinstance(item, Lowered) else item.fused
        if lowered is not None:
            return any(b.role == "status" for b in lowered.kernel.buffers)
        assert isinstance(item, LoweredBodies)
        params = self.program.instructions[item.step.number].params
        is_limited = params.get("maximum_iterations") is not None or item.step.form == "while_gradient"
        return is_limited or any(body[4] for body in self.bodies[number])

    def _shape(self, v: int) -> tuple[int, ...]:
        return self.program.specs[v].known_shape

    def _described(self, v: int) -> tuple[int, str, tuple[int, ...]]:
        return v, self.program.specs[v].dtype.str, self._shape(v)

    def _root(self, v: int) -> int:
        return self.plan.aliases.get(v, v)

    def _class_extents(self) -> dict[int, int]:
        """Extents by class: those of the program's values, else those of groups' axes."""
        specs = self.program.specs
        extents = {c: specs[v].known_shape[d] for c, v, d in self.dims if v < len(specs)}
        for step in self.plan.steps:
            for group in step.parts if isinstance(step, Group) else ():
                extents |= {c: n for c, n in zip(group.axes, group.extents, strict=True) if c not in extents}
        return extents

    # -- lifetimes -----------------------------------------------------------------------------------------------------

    def _spans(self) -> dict[object, _Span]:
        """Of all that the tasks read and write."""
        spans: dict[object, _Span] = {}
        for task, unit in enumerate(self.units):
            for key, nbytes, is_scratch in (touched for k in unit.members for touched in self._touched(k)):
                span = spans.get(key)
                if span is None:
                    spans[key] = _Span(nbytes, is_scratch, task, task)
                else:
                    span.nbytes, span.last = nbytes, task
        return spans

    def _lay_in_place(self, spans: dict[object, _Span]) -> Mapping[int, int]:
        """Values that lie where others were, which from now on live as long as both; steps of bodies run many times,
        also beside one another, and are left alone.
        """
        in_place = {} if self.is_body else find_in_place(self.compiled, self.units)
        for v, under in in_place.items():
            spans[under].last = spans.pop(v).last
        return in_place

    def _own_chunks(self, spans: dict[object, _Span]) -> None:
        """Of what only a region over a long matrix knows there are the rows of one chunk for each worker."""
        known = {*self.cluster.inputs, *map(self._root, self.cluster.outputs)}
        for task, unit in enumerate(self.units):
            if self._reads_long_matrix(unit):
                inside = [v for v, span in spans.items() if span.first == span.last == task and v not in known]
                owned = self.owned[unit.members] = find_owned(self.compiled, unit, inside, self._nbytes)
                spans |= {v: _Span(part, True, task, task) for v, _, part in owned}

    def _reads_long_matrix(self, unit: Unit) -> bool:
        """Whether steps are a region that begins with a product of a matrix and a vector."""
        first = self.lowered[unit.members[0]]
        return unit.chunks > 0 and isinstance(first, Product) and self._vector_plan(first) is not None

    def _touched(self, number: int) -> list[tuple[object, int, bool]]:
        item = self.lowered[number]
        touched: list[tuple[object, int, bool]] = []
        if isinstance(item, Product):
            touched += [(v, self._nbytes(v), False) for v in map(self._root, (item.a, item.b, item.value))]
            cuts = self._cuts_in(number, item)
            return touched + product_memory(self.program, number, item, cuts, self._nbytes(item.value))
        if isinstance(item, Convolution | Factor | Transform):
            touched += [(v, self._nbytes(v), False) for v in map(self._root, (*item.reads, *item.values))]
            own = [] if isinstance(item, Transform) else own_memory(self.program, number, item, self._factor_of(item))
            return touched + own
        if isinstance(item, LoweredBodies):
            touched += [(v, self._nbytes(v), False) for v in map(self._root, (*item.reads, *item.values))]
            # As much as binding finds that its bodies need.
            return touched if item.fused is not None else [*touched, ((number, _ROOM), 0, False)]
        touches = self.compiled.touches[number]
        touched += [(root, self._nbytes(v), False) for root, v in touches.values]
        if touches.own:
            extents = [extent.value(self.extents) for extent in touches.own]
            nbytes = own_bytes(item.kernel, extents, lanes_for(item.kernel, vector_bytes()))
            touched.append(((number, SCRATCH), nbytes, True))
        return touched

    def _factor_of(self, item: Convolution | Factor) -> int | None:
        """The step that has made the factor whose gradient a step is, and left its blocks in memory."""
        return self.factors.get(self._root(item.reads[0])) if _is_factor(item, "cholesky_cotangent") else None

    def _count(self, v: int) -> int:
        found = self.counts.get(v)
        if found is None:
            extents = self.extents
            found = self.counts[v] = math.prod([extents[c] for c in self.plan.classes[v] if c != ONE])
        return found

    def _nbytes(self, v: int) -> int:
        return self._count(v) * self.plan.specs[v].dtype.itemsize

    def _ints(self, item: Lowered) -> list[int]:
        return [quantity.value(self.extents) for quantity in item.ints]

    # -- tasks ---------------------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterable[Frozen]:
        numbers = [k for k, item in enumerate(self.lowered) if isinstance(item, Lowered) or _fused(item) is not None]
        kernels = dict(zip(numbers, self.keys, strict=True))
        for unit in self.units:
            tasks = tuple(self._task(number, kernels.get(number, "")) for number in unit.members)
            if not unit.chunks:
                yield from tasks
            else:
                owned = tuple((self.places[v], row, part) for v, row, part in self.owned.get(unit.members, ()))
                yield "region", unit.rows, unit.chunks, owned, self._asked(unit), *tasks

    def _asked(self, unit: Unit) -> Frozen:
        """What the steps of a region ask for, see next_chunks.py."""
        items = [self.lowered[number] for number in unit.members]
        cuts = [self._vector_plan(item) if isinstance(item, Product) else None for item in items]
        asked = find_asked(self.program, items, cuts, unit.rows, self.extents)
        return () if asked is None else (self._place_of(asked[0]), *asked[1:])

    def _task(self, number: int, key: str) -> Frozen:
        item = self.lowered[number]
        if isinstance(item, Product):
            return self._product(number, item)
        if isinstance(item, Transform):
            return freeze_transform(self.program, number, item, self._place_at)
        if isinstance(item, Convolution | Factor):
            return freeze_own(self.program, number, item, self._place_at, self._factor_of(item))
        if isinstance(item, LoweredBodies) and item.fused is not None:
            return self._fused_scan(number, item, item.fused, key)
        if isinstance(item, LoweredBodies):
            room, bodies = self.places[number, _ROOM], self.bodies[number]
            cut = self.body_cuts[number]
            return freeze_loop(self.program, item.step.number, number, bodies, self._place_of, room, cut, self.shared)
        places = tuple(self._place(number, b, v) for b, v in zip(item.kernel.buffers, item.values, strict=True))
        ints, extent = tuple(self._ints(item)), self._cut_extent(item)
        past = THROUGH if self.is_body or number in self.regions else self._past_caches(item)
        past = self._cut_of_rows(number, extent) if past == THROUGH else past
        words = (*map(self._constant_word, item.constants), past)
        return "kernel", number, key, places, ints, words, extent, self.chunks[number]

    def _cut_of_rows(self, number: int, extent: int) -> int:
        """Whether chunks of a kernel that stores through the caches begin with whole lines: long ones of elements, if
        those of all in its region do.
        """
        together = self.regions[number].members if number in self.regions else (number,)
        items = [self.lowered[k] for k in together]
        by_elements = [isinstance(item, Lowered) and is_elementwise(item.kernel) for item in items]
        is_by_elements = not self.is_body and all(by_elements)
        return WHOLE_LINES if is_by_elements and extent >= LONG_CHUNK * self.chunks[number] else THROUGH

    def _fused_scan(self, number: int, item: LoweredBodies, fused: FusedScan, key: str) -> Frozen:
        """A scan as the task of one kernel."""
        ins = self.program.instructions[item.step.number]
        body = _Freezer(ins.params["body"], item.regions[0], True)
        steps, codes = ins.params["length"], status_offsets(self.program)[item.step.number][0]
        ints = [
            value + (codes if name in fused.codes else 0)
            for name, value in zip(fused.body.kernel.ints, body._ints(fused.body), strict=True)
        ]
        ints += [steps, steps - 1, *[body.program.specs[v].size for v in fused.widths]]
        values = {"input": ins.inputs, "output": ins.outputs}
        places = tuple(STATUS if role == "status" else self._place_of(values[role][n]) for role, n in fused.sources)
        words = (*map(body._constant_word, fused.body.constants), -1)
        chunks = chunk_count(fused.body, body.extents, steps)
        return "loop kernel", number, key, places, tuple(ints), words, body._cut_extent(fused.body), chunks

    def _constant_word(self, literal: Literal) -> Any:
        """A number as the eight bytes of a block word, padded with zeros: this program's, where a value holds it."""
        maker = None if literal.maker is None else self.program.instructions[self.producers[literal.maker]]
        known = self.compiled.words.get(id(literal))
        if known is not None and known[0] is maker:
            return known[1]
        if maker is not None and type(maker.params["value"]) is Symbol:
            return maker.params["value"].computed(word_in(literal.dtype))
        word = word_in(literal.dtype)(literal.value if maker is None else splat_number(maker.params["value"]))
        self.compiled.words[id(literal)] = maker, word
        return word

    def _cut_extent(self, item: Lowered) -> int:
        """What a kernel's chunks divide: the extent of its parallel loop, in vectors where it has a matrix per lane."""
        extent = item.extent.value(self.extents)
        return -(-extent // lanes_for(item.kernel, vector_bytes())) if item.group.lead is not None else extent

    def _past_caches(self, item: Lowered) -> int:
        """Whether a kernel's stores go past the caches: it touches more than stays there. A trial tells where loads and
        stores alternate, and where rows share lines.

        Arrays of 12 MB in all are added 7 % slower so, of 37 MB in half the time (a cache of 32 MB). The kernel is the
        same for all sizes, and so is the plan; this is one of the numbers that the kernel is given.
        """
        values = {v for v in item.values if v is not None and v not in self.plan.chunked}
        touched = {self._place_of(v): self._nbytes(v) for v in values}  # a result may lie where an operand was
        if sum(touched.values()) <= last_level_bytes() * 3 // 4:
            return THROUGH
        if is_elementwise(item.kernel):
            return TRIED
        classes = [self.plan.classes[v] if v in values and v is not None else () for v in item.values]
        if item.group.rolled or has_whole_lines(item.kernel, classes, self.extents):  # or loops that find lines
            return PAST
        return TRIED if finds_lines(item.kernel) else THROUGH

    def _place_of(self, v: int) -> int:
        return self.places[self._root(v)]

    def _place_at(self, key: object) -> int:
        """Where a value lies, or memory of a step's own."""
        return self._place_of(key) if isinstance(key, int) else self.places[key]

    def _place(self, number: int, buffer: Buffer, value: int | None) -> int:
        """Where the buffer of a kernel is found."""
        if buffer.role == "status":
            return STATUS
        return self.places[(number, SCRATCH) if value is None else self._root(value)]

    # -- products ------------------------------------------------------------------------------------------------------

    def _cuts(self, item: Product) -> Cuts:
        """How a product is cut; in a loop over independent rows not at all."""
        found = (None, None) if self.row_cut is not None else self.cuts.get(item.value)
        if found is None:
            found = self.cuts[item.value] = cut_product(self.program, item, self.is_repeated)
        return found

    def _vector_plan(self, item: Product) -> GemvPlan | None:
        """How a product with a vector is cut; None when it is left to BLAS."""
        return self._cuts(item)[0]

    def _batch_chunks(self, item: Product) -> int:
        """In how many chunks the products of a batch run that are a call of BLAS each; 0 for others."""
        return calls_in_chunks(self.program, item) if self._cuts(item) == (None, None) else 0

    def _cuts_in(self, number: int, item: Product) -> Cuts:
        """How a product is cut, in the chunks of its region."""
        vector, matrix = self._cuts(item)
        together = vector and vector._replace(chunks=self.regions.get(number, vector).chunks)
        return together, matrix

    def _product(self, number: int, item: Product) -> Frozen:
        cuts, at = self._cuts_in(number, item), [self._place_of(v) for v in (item.a, item.b, item.value)]
        row_chunks = 0 if self.row_cut is None else self.row_cut.chunks
        return freeze_product(self.program, number, item, cuts, at, self.places, row_chunks)


def _is_factor(item: LoweredStep, routine: str) -> TypeGuard[Factor]:
    return isinstance(item, Factor) and item.routine == routine


def _fused(item: LoweredStep) -> FusedScan | None:
    return item.fused if isinstance(item, LoweredBodies) else None
