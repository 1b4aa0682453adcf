"""How nodes are made: one from each computing instruction of a cluster; moves of elements become operands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Accesses, Leaf, Operand, is_move, splat_literal
from jitgrad.compiler.fusing.extents import ONE, ExtentClasses
from jitgrad.compiler.fusing.factors import TRANSFORMS, is_factor, is_lower, routine_of
from jitgrad.compiler.fusing.nodes import (
    DOTS,
    GATHER,
    MAP,
    PLACE,
    REDUCE,
    ROUTINE,
    SCAN,
    SCATTER,
    SLIDE,
    SWEEP,
    ClusterNodes,
    Convolution,
    Factor,
    Item,
    Nested,
    Node,
    Product,
    Transform,
)
from jitgrad.compiler.fusing.packing import pack, pack_end, pack_scatter, turn_scatter
from jitgrad.compiler.fusing.small import is_small_product, is_tiny, reads_by_matrix, sized
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.opdef import (
    AxisIndex,
    Contract,
    Control,
    Convolve,
    Elementwise,
    Fill,
    Gather,
    Library,
    Pairs,
    Reduce,
    Scan,
    Scatter,
    Sweep,
    View,
)  # fmt: skip
from jitgrad.program import Instruction, Program
from jitgrad.spec import normalize_axes, normalize_axis

_FEW = 128  # results: too few for a lane each, some registers at once


def build_nodes(
    program: Program, members: Sequence[int], outputs: Sequence[int], classes: ExtentClasses
) -> ClusterNodes:
    """The nodes of a cluster whose values ``outputs`` are needed outside."""
    accesses = Accesses(program, set(members))
    return _Builder(program, accesses, classes).build(members, outputs)


class _Builder:
    def __init__(self, program: Program, accesses: Accesses, classes: ExtentClasses) -> None:
        self.program = program
        self.accesses = accesses
        self.classes = classes
        self.aliases: dict[int, int] = {}
        self.kept: set[int] = set()
        self.leads: dict[int, tuple[int, ...]] = {}  # values read matrix by matrix → the classes that count matrices

    def build(self, members: Sequence[int], outputs: Sequence[int]) -> ClusterNodes:
        instructions = [self.program.instructions[number] for number in members]
        wanted = set(outputs)
        for ins in instructions:
            wanted.update(self._read_from_memory(ins))
            for v in (*ins.inputs, *ins.outputs):
                self.accesses.operand(v)
            wanted.update(self._turned_first(ins))
        wanted |= self.accesses.unresolved
        self._find_leads(instructions)
        items: list[Item] = []
        for number, ins in zip(members, instructions, strict=True):
            if isinstance(ins.op.kind, Control):
                items.append(Nested(number, ins.op.kind.form, tuple(dict.fromkeys(ins.inputs)), ins.outputs))
            elif self._is_view(ins) or (ins.outputs and ins.outputs[0] in wanted and self._can_alias(ins)):
                self.aliases[ins.outputs[0]] = self.aliases.get(ins.inputs[0], ins.inputs[0])
            elif is_move(self.program, ins) or (isinstance(ins.op.kind, Fill) and ins.op.kind.scalar == "constant"):
                items += [self._copy(v) for v in ins.outputs if v in wanted and self._needs_copy(ins)]
            elif is_factor(ins, self.program):
                items.append(self._factor(ins))
            elif isinstance(ins.op.kind, Library):
                items += self._routines(ins, ins.op.kind.routine)
            else:
                items.append(self._node(ins))
        self.kept = {self.aliases.get(v, v) for v in wanted}
        ends = self.kept.difference(*[item.reads for item in items if isinstance(item, Node)])
        items = [pack_end(item) if isinstance(item, Node) and item.value in ends else item for item in items]
        return ClusterNodes(tuple(items), self.aliases, frozenset(self.kept))

    def _needs_copy(self, ins: Instruction) -> bool:
        return not isinstance(ins.op.kind, Fill) or splat_literal(ins) is not None

    def _is_view(self, ins: Instruction) -> bool:
        return isinstance(ins.op.kind, View | Pairs) and not is_move(self.program, ins)

    def _can_alias(self, ins: Instruction) -> bool:
        """Whether a reshape that adds or drops extents of 1 is another shape of its input's memory: of what is read as
        it lies, no move before it.
        """
        is_reshape = isinstance(ins.op.kind, View) and is_move(self.program, ins)
        return is_reshape and self.accesses.operand(ins.inputs[0]) == self.accesses.identity(ins.inputs[0])

    def _read_from_memory(self, ins: Instruction) -> Iterator[int]:
        """Inputs that an instruction reads by address, not by element."""
        match ins.op.kind:
            case View() | Pairs() if not is_move(self.program, ins):
                yield ins.inputs[0]
            case Contract() | Library() if self._is_by_matrix(ins):
                yield from (v for v in ins.inputs if self._by_matrix(v) != self.accesses.operand(v))
            case Contract() if self._is_blas(ins):
                yield from ins.inputs
            case Gather(form):
                yield self.accesses.table(ins.inputs[0], form)[0]
            case Control() | Convolve() | Sweep() | Library():
                yield from ins.inputs

    def _turned_first(self, ins: Instruction) -> Iterator[int]:
        """What a broadcast repeats, if lanes would read places of it that lie far apart, each time again: it is made in
        memory as it is read. Short arrays are in the first cache anyway.
        """
        if not is_move(self.program, ins) or len(ins.inputs) != 1:
            return
        x, out = ins.inputs[0], ins.outputs[0]
        leaves, dims = self.accesses.operand(out).leaves, sized(self.classes.of(out))
        is_short = max(self.program.specs[x].known_shape, default=1) <= PLAIN_EXACT
        if is_short or len(leaves) != 1 or not leaves[0].is_selection:
            return
        axes = [index.axis for index in leaves[0].dims if index.axis is not None]
        if len(axes) < len(dims) and dims[-1] in axes[:-1] and self.accesses.operand(x) != self.accesses.identity(x):
            self.accesses.make(x, out)
            yield x

    def _is_blas(self, ins: Instruction) -> bool:
        return self.program.specs[ins.outputs[0]].dtype.kind == "f"

    def _is_by_matrix(self, ins: Instruction) -> bool:
        is_routine = isinstance(ins.op.kind, Library)
        return not is_factor(ins, self.program) if is_routine else self._is_small(ins)

    def _is_small(self, ins: Instruction) -> bool:
        """Whether a product is one of many of small matrices of floats."""
        a, out = (self.program.specs[v].known_shape for v in (ins.inputs[0], ins.outputs[0]))
        k = a[-2] if ins.params.get("transpose_a", False) else a[-1]
        return self._is_blas(ins) and is_small_product(math.prod(out[:-2]), out[-2], out[-1], k)

    def _find_leads(self, instructions: Sequence[Instruction]) -> None:
        """From the last to the first, for what products and routines read, and what that is computed from."""
        for ins in reversed(instructions):
            if isinstance(ins.op.kind, Contract | Library) and self._is_by_matrix(ins):
                classes = self.classes.of(ins.inputs[0])[:-2]
                lead: tuple[int, ...] | None = tuple(classes[d] for d in sized(classes))
            elif isinstance(ins.op.kind, Elementwise) or is_move(self.program, ins):
                lead = self.leads.get(ins.outputs[0])
            else:
                lead = None
            if lead is not None:
                self.leads |= dict.fromkeys(ins.inputs, lead)

    def _by_lead(self, node: Node) -> Node:
        """An elementwise node in a kernel with a matrix per lane, if its value is read there and it can be."""
        lead = self.leads.get(node.value)
        if not lead:
            return node
        dims = sized(node.classes)
        inner = [node.shape[d] for d in dims[len(lead) :]]
        is_led = tuple(node.classes[d] for d in dims[: len(lead)]) == lead
        if not is_led or not inner or len(inner) > 2 or not all(map(is_tiny, inner)):
            return node
        for leaf in (leaf for operand in node.operands for leaf in operand.leaves):
            source = self.classes.of(leaf.source) if isinstance(leaf.source, int) else ()
            if not reads_by_matrix(leaf, dims[: len(lead)], node.classes, source):
                return node
        return replace(node, batch=dims[len(lead) - 1] + 1)

    def _copy(self, v: int) -> Node:
        operand = self.accesses.made.get(v) or self.accesses.operand(v)
        packed = pack(v, operand, self.program.specs[v], self.classes.of(v))
        return packed or self._map(v, "identity", (operand,))

    def _map(self, v: int, op: str, operands: tuple[Operand, ...], form: str = MAP) -> Node:
        spec = self.program.specs[v]
        classes = self.classes.of(v)
        return Node(v, form, op, operands, spec.known_shape, classes, _sized(classes), spec.dtype)

    def _operands(self, ins: Instruction) -> tuple[Operand, ...]:
        return tuple(self.accesses.operand(x) for x in ins.inputs)

    def _node(self, ins: Instruction) -> Node | Product | Convolution:
        out = ins.outputs[0]
        match ins.op.kind:
            case Elementwise(scalar):
                return self._by_lead(self._map(out, scalar, self._operands(ins)))
            case Fill():
                axis = normalize_axis(ins.params.get("axis", 0), len(self.program.specs[out].known_shape))
                return self._map(out, f"iota{axis}", ())
            case Reduce(combine):
                return self._reduce(ins, combine)
            case Scan(combine):
                return self._scan(ins, combine)
            case Contract():
                return self._product(ins)
            case Convolve(form):
                (top, _), (left, _) = ins.params["padding"]
                return Convolution(out, form, ins.inputs[0], ins.inputs[1], (top, left), ins.params["dilation"])
            case Sweep(form):
                return self._sweep(ins, form)
            case Gather(form):
                return self._gather(ins, form)
            case Scatter(form):
                return self._scatter(ins, form)
        raise AssertionError(f"{ins.op.name} has a kind that is not compiled: {ins.op.kind}")

    def _factor(self, ins: Instruction) -> Factor | Transform:
        assert isinstance(ins.op.kind, Library)
        if ins.op.kind.routine in TRANSFORMS:
            is_divided = ins.params.get("divided", ins.params.get("inverse"))
            return Transform(ins.outputs[0], ins.op.kind.routine, ins.inputs, bool(is_divided))
        value, *others = ins.outputs
        forms = {"lower": is_lower(ins), "transposed": ins.params.get("transposed", False)}
        return Factor(value, routine_of(ins, self.program), ins.inputs, others=tuple(others), **forms)

    def _reduce(self, ins: Instruction, combine: str) -> Node:
        x, out = ins.inputs[0], ins.outputs[0]
        shape, classes = self.program.specs[x].known_shape, self.classes.of(x)
        axes = normalize_axes(ins.params["axis"], len(shape))
        kept = [d for d in range(len(shape)) if d not in axes]
        if ins.params.get("keepdims", False):
            out_dims = tuple(d if d in kept and classes[d] != ONE else None for d in range(len(shape)))
        else:
            out_dims = tuple(d if classes[d] != ONE else None for d in kept)
        dtype = self.program.specs[out].dtype
        node = Node(
            out, REDUCE, "identity", (self.accesses.operand(x),), shape, classes, out_dims, dtype, axes, combine
        )
        return _reduced_last(node) if combine.startswith("arg") else node

    def _scan(self, ins: Instruction, combine: str) -> Node:
        x, out = ins.inputs[0], ins.outputs[0]
        shape, classes = self.program.specs[x].known_shape, self.classes.of(x)
        axis = normalize_axis(ins.params["axis"], len(shape))
        return Node(
            out, SCAN, "identity", self._operands(ins), shape, classes, _sized(classes),
            self.program.specs[out].dtype, (axis,), combine,
        )  # fmt: skip

    def _product(self, ins: Instruction) -> Node | Product:
        (a, b), out = ins.inputs, ins.outputs[0]
        ta, tb = bool(ins.params.get("transpose_a", False)), bool(ins.params.get("transpose_b", False))
        if self._is_blas(ins) and not self._is_small(ins):
            return Product(out, a, b, ta, tb)
        return self._loop_product(ins, ta, tb)

    def _loop_product(self, ins: Instruction, ta: bool, tb: bool) -> Node:
        """A product as a reduction over the domain (batch..., m, k, n)."""
        a, out = ins.inputs[0], ins.outputs[0]
        spec, a_spec = self.program.specs[out], self.program.specs[a]
        rank = len(spec.known_shape)
        k_dim = rank - 2 if ta else rank - 1
        batch = tuple(range(rank - 2))
        m, k, n = rank - 2, rank - 1, rank
        shape = (*spec.known_shape[:-1], a_spec.known_shape[k_dim], spec.known_shape[-1])
        out_classes = self.classes.of(out)
        classes = (*out_classes[:-1], self.classes.of(a)[k_dim], out_classes[-1])
        is_small = self._is_small(ins)
        factors = [self._by_matrix(x) if is_small else self.accesses.operand(x) for x in ins.inputs]
        left = self._permuted(factors[0], (*batch, *((k, m) if ta else (m, k))), classes)
        right = self._permuted(factors[1], (*batch, *((n, k) if tb else (k, n))), classes)
        out_dims = tuple(d if classes[d] != ONE else None for d in (*batch, m, n))
        return Node(
            out, REDUCE, "multiply", (left, right), shape, classes, out_dims, spec.dtype, (k,), "add",
            batch=len(batch) if is_small else None,
        )  # fmt: skip

    def _by_matrix(self, v: int) -> Operand:
        """A batch of matrices read matrix by matrix; where a move hinders that, as an array made in memory."""
        operand, classes = self.accesses.operand(v), self.classes.of(v)
        lead = sized(classes[:-2])
        for leaf in operand.leaves:
            source = self.classes.of(leaf.source) if isinstance(leaf.source, int) else ()
            if not reads_by_matrix(leaf, lead, classes, source):
                return self.accesses.identity(v)
        return operand

    def _routines(self, ins: Instruction, routine: str) -> Iterator[Node]:
        """One node per output, over (batch..., rows, columns) of the matrix, and right sides' columns."""
        a, *sides = ins.inputs
        shape, classes = self.program.specs[a].known_shape, self.classes.of(a)
        batch = tuple(range(len(shape) - 2))
        row, column, side = len(batch), len(batch) + 1, len(batch) + 2
        operands = [self._by_matrix(a)]
        if sides:
            shape += self.program.specs[sides[0]].known_shape[-1:]
            classes += self.classes.of(sides[0])[-1:]
            operands.append(self._permuted(self._by_matrix(sides[0]), (*batch, row, side), classes))
        if routine == "solve_triangular":
            routine = "solve_lower" if ins.params["lower"] else "solve_upper"
        for number, v in enumerate(ins.outputs):
            dims = (*batch, row, side if sides else column)[: len(self.program.specs[v].known_shape)]
            yield Node(
                v, ROUTINE, f"{routine}_{number}" if number else routine, tuple(operands), shape, classes,
                tuple(d if classes[d] != ONE else None for d in dims), self.program.specs[v].dtype, batch=len(batch),
            )  # fmt: skip

    def _permuted(self, operand: Operand, axes: tuple[int, ...], classes: tuple[int, ...]) -> Operand:
        """An operand read with its dimensions along the given axes of a domain."""
        place = [a if classes[a] != ONE else None for a in axes]

        def moved(leaf: Leaf) -> Leaf:
            dims = tuple(replace(i, axis=None if i.axis is None else place[i.axis]) for i in leaf.dims)
            return replace(leaf, dims=dims, guards=tuple(replace(g, axis=axes[g.axis]) for g in leaf.guards))

        return replace(operand, leaves=tuple(map(moved, operand.leaves)))

    def _sweep(self, ins: Instruction, form: str) -> Node:
        """Over the elements of the result, and those of what slides; both inputs are read from memory."""
        out, other = ins.outputs[0], ins.inputs[1]
        shape, classes = self.program.specs[out].known_shape, self.classes.of(out)
        op = ins.params.get("side", SLIDE)
        out_dims = _sized(classes)
        is_single = form == SLIDE and classes == (ONE,)
        if form == SLIDE:
            shape += self.program.specs[other].known_shape
            classes += self.classes.of(other)
            op = DOTS if shape[0] < min(shape[1], _FEW) else SLIDE
        operands = tuple(Operand((Leaf(v, (AxisIndex(None, 0),)),)) for v in ins.inputs)
        dtype = self.program.specs[out].dtype
        return Node(out, SWEEP, op, operands, shape, classes, out_dims, dtype, is_serial=is_single)

    def _gather(self, ins: Instruction, form: str) -> Node:
        table, out = ins.inputs[0], ins.outputs[0]
        spec, classes = self.program.specs[out], self.classes.of(out)
        indices, table_dims = self._indices(ins.inputs[1:], table, classes, form, ins)
        source, dims = self.accesses.table(table, form)
        entries = [table_dims[i.axis] if i.axis is not None else i for i in dims]
        return Node(
            out, GATHER, "gather", indices, spec.known_shape, classes, _sized(classes), spec.dtype,
            table=source, table_dims=tuple(entries),
        )  # fmt: skip

    def _scatter(self, ins: Instruction, form: str) -> Node:
        if form == "take_along" and (placing := self._placing(ins)) is not None:
            return placing
        like, updates, *index_values = ins.inputs
        spec = self.program.specs[updates]
        classes = self.classes.of(updates)
        indices, table_dims = self._indices(tuple(index_values), like, classes, form, ins)
        node = Node(
            ins.outputs[0], SCATTER, "scatter", (self.accesses.operand(updates), *indices), spec.known_shape, classes,
            (), self.program.specs[ins.outputs[0]].dtype, table=ins.outputs[0], table_dims=table_dims,
        )  # fmt: skip
        return turn_scatter(pack_scatter(node))

    def _placing(self, ins: Instruction) -> Node | None:
        """A scatter of one update per row, as a choice at each element of the row between the update and zero.

        None for several updates per row, which may fall on one element.
        """
        _, updates, index = ins.inputs
        out = ins.outputs[0]
        axis = normalize_axis(ins.params["axis"], len(self.program.specs[out].known_shape))
        if self.program.specs[updates].known_shape[axis] != 1:
            return None
        operands = [_at_start(self.accesses.operand(v), axis) for v in (updates, index)]
        if any(operand is None for operand in operands):
            return None
        return self._map(out, f"{PLACE}{axis}", tuple(o for o in operands if o is not None))

    def _indices(
        self, indices: tuple[int, ...], table: int, classes: tuple[int, ...], form: str, ins: Instruction
    ) -> tuple[tuple[Operand, ...], tuple[AxisIndex | int, ...]]:
        """Index operands over the domain of the gathered elements, and how each dimension of the table is indexed."""
        rank = len(self.program.specs[table].known_shape)
        index_rank = len(self.program.specs[indices[0]].known_shape)
        if form == "take_along":
            axis = normalize_axis(ins.params["axis"], rank)
            dims: list[AxisIndex | int] = [0 if d == axis else _axis(d, classes) for d in range(rank)]
            return (self.accesses.operand(indices[0]),), tuple(dims)
        axes = [normalize_axis(ins.params["axis"], rank)] if form == "take" else list(ins.params["axes"])
        first = axes[0]
        dims = []
        for d in range(rank):
            if d in axes:
                dims.append(axes.index(d))
            else:
                dims.append(_axis(d if d < first else d - len(axes) + index_rank, classes))
        return tuple(self._shifted(self.accesses.operand(x), first) for x in indices), tuple(dims)

    def _shifted(self, operand: Operand, by: int) -> Operand:
        """An operand over index axes, as one over the domain in which they begin at dimension ``by``."""
        leaves = tuple(
            replace(
                leaf,
                dims=tuple(replace(i, axis=None if i.axis is None else i.axis + by) for i in leaf.dims),
                guards=tuple(replace(g, axis=g.axis + by) for g in leaf.guards),
            )
            for leaf in operand.leaves
        )
        return Operand(leaves, operand.fill)


def _reduced_last(node: Node) -> Node:
    """The reduction with its combined dimensions innermost: an index is carried in a register, not in a row of
    memory.
    """
    order = [d for d in range(len(node.shape)) if d not in node.along] + list(node.along)
    place = {d: k for k, d in enumerate(order)}

    def moved(leaf: Leaf) -> Leaf:
        dims = tuple(replace(i, axis=None if i.axis is None else place[i.axis]) for i in leaf.dims)
        return replace(leaf, dims=dims, guards=tuple(replace(g, axis=place[g.axis]) for g in leaf.guards))

    operands = tuple(replace(o, leaves=tuple(moved(leaf) for leaf in o.leaves)) for o in node.operands)
    return replace(
        node, operands=operands, shape=tuple(node.shape[d] for d in order), classes=tuple(node.classes[d] for d in
        order), out_dims=tuple(None if d is None else place[d] for d in node.out_dims), along=tuple(place[d] for d in
        node.along),
    )  # fmt: skip


def _at_start(operand: Operand, axis: int) -> Operand | None:
    """An operand over an axis of extent 1, for a domain in which that axis is longer; None where guards forbid it."""
    if any(guard.axis == axis and not guard.lo <= 0 < guard.hi for leaf in operand.leaves for guard in leaf.guards):
        return None
    leaves = tuple(
        replace(
            leaf,
            dims=tuple(replace(i, axis=None) if i.axis == axis else i for i in leaf.dims),
            guards=tuple(guard for guard in leaf.guards if guard.axis != axis),
        )
        for leaf in operand.leaves
    )
    return Operand(leaves, operand.fill)


def _axis(d: int, classes: tuple[int, ...]) -> AxisIndex:
    return AxisIndex(d if classes[d] != ONE else None)


def _sized(classes: tuple[int, ...]) -> tuple[int | None, ...]:
    return tuple(d if c != ONE else None for d, c in enumerate(classes))
