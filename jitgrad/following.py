"""Following: a trace beside an earlier one of the same function, for other shapes. Where the function has made the same
operations, those that gradients() then added are copied in place of a walk, and at the end the program follows from the
other's. It traces nothing, and whoever follows nothing loses nothing.

Two traces are compared operation by operation: the same ops on the same tensors, of the same lines and scopes, with
extents that correspond as for plans (compiler/likeness.py). Then gradient rules, which are code of this package that
compares shapes, do the same in both; a trace with rules of the user's, with assignments, Variables, state or bodies is
not followed. A copied operation gets corresponding shapes, and where its op computes with extents they are inferred
again; one with a number that might come from an extent is not copied. With ``verify``, rules are applied all the same.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jitgrad.compiler.constants import is_splat, splat_number
from jitgrad.compiler.likeness import EXACT, Extents, Shape, UnlikeError, is_named
from jitgrad.config import config
from jitgrad.copying import Part, Place, Row, check_shapes, copied_params, exact_among_operations, part_of, row_of
from jitgrad.errors import CompileError
from jitgrad.gradient_rules import registered_rules
from jitgrad.graph import Graph, Operation, PromisedOperation, Tensor
from jitgrad.keys import frozen
from jitgrad.program import Instruction, Origin, Program
from jitgrad.records import NamedTuple
from jitgrad.sources import Source, operation_text
from jitgrad.spec import TensorSpec


class PromisedTensors(Sequence[Tensor]):
    """Tensors of known shapes at some places of a graph, whose operations are made when somebody looks at one."""

    def __init__(self, operations: Callable[[], Sequence[Operation]], places: tuple[Place, ...]) -> None:
        self.places = places
        self._operations = operations

    @functools.cached_property
    def _tensors(self) -> tuple[Tensor, ...]:
        operations = self._operations()
        return tuple([operations[number].outputs[index] for number, index in self.places])

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        return self._tensors[index]


class Asked(NamedTuple):
    """What a call of gradients() was asked: places, and options."""

    ys: tuple[Place, ...]
    xs: tuple[Place, ...]
    grad_ys: tuple[Place | None, ...] | None
    stopped: frozenset[Place]
    options: tuple[Any, ...]
    here: tuple[Any, ...]


class Walk(NamedTuple):
    """A call of gradients(): the operations that it added, what it gave, and the names that were new."""

    asked: Asked
    first: int
    last: int
    given: tuple[Place | None, ...]
    names: dict[str, int]


def _is_alone(graph: Graph) -> bool:
    """Whether a graph neither follows nor is followed, because of more than its operations and their shapes."""
    return bool(
        graph.variables or graph.functions or graph.definitions or graph.is_written or graph.weighs_numbers
    )


class Follower:
    """Notes what gradients() adds to a graph, and copies it where the graph follows an earlier one, its ``model``."""

    def __init__(self, graph: Graph, model: Follower | None) -> None:
        self.graph = graph
        self.walks: list[Walk] = []
        self._model = model
        self._compared = 0  # how many operations are like those of the model
        self.extents = Extents(EXACT if model is None else model.exact)
        self._attrs: list[tuple[Any, Any]] = []  # annotations that were found equal
        self._sources: dict[Source | None, Source | None] = {}  # lines of the model that are others here
        self._rows: list[Row] = []
        self._parts: dict[int, Part] = {}
        self._predicted: list[Operation] = []
        self._followed: Sequence[Row] | None = None  # all operations of the model, known to be like all here
        self.numbers: dict[int, Any] = {}
        """The numbers of constants that differ from the model's, by operation."""
        self.has_other_arrays = False
        """Whether a constant that is an array is another object than the model's."""

    # -- what gradients() asks -----------------------------------------------------------------------------------------

    def ask(
        self,
        ys: Sequence[Tensor],
        xs: Sequence[Tensor],
        grad_ys: Any,
        stopped: Sequence[Tensor],
        options: tuple[Any, ...],
    ) -> Asked | None:
        """A call of gradients() as it is noted; None where it cannot be, and nothing is followed any more."""
        here = self.graph.here
        seeds = [] if grad_ys is None else list(grad_ys) if isinstance(grad_ys, list | tuple) else [grad_ys]
        is_plain = not (here.asks or here.control or here.original_op or here.source or here.rules)
        if not is_plain or not all(g is None or isinstance(g, Tensor) for g in seeds):
            self.stop()
            return None
        return Asked(
            tuple(map(_place, ys)), tuple(map(_place, xs)),
            None if grad_ys is None else tuple([None if g is None else _place(g) for g in seeds]),
            frozenset(map(_place, stopped)), options,
            (here.device, here.colocation, here.name_scope, tuple(here.attrs.items())),
        )  # fmt: skip

    def recall(self, asked: Asked) -> list[Tensor | None] | None:
        """The gradients, copied from the model; None where there is nothing to copy, or where all is verified."""
        model, first = self._model, len(self.graph)
        self._predicted = []
        if model is None:
            return None
        number = len(self.walks)
        try:
            if number >= len(model.walks) or model.walks[number][:2] != (asked, first):
                raise UnlikeError
            walk = model.walks[number]
            self._compare(first)
            check_shapes(model.part(number), self.extents.shape)
        except UnlikeError:
            self.stop()
            return None
        if config.verify:
            self._predicted = self._copies(model.part(number), first, {})
            return None
        self._promise(model.part(number), walk)
        operations = self.graph.promised
        return [None if place is None else operations[place[0]].outputs[place[1]] for place in walk.given]

    def note(self, asked: Asked, first: int, names: int, given: Sequence[Tensor | None]) -> None:
        """What a walk has added from the operation ``first`` on; so many ``names`` were in use before it."""
        made = self.graph.promised[first:]
        if self._predicted:
            _check(self._predicted, made)
        places = tuple([None if t is None else _place(t) for t in given])
        self.walks.append(Walk(asked, first, first + len(made), places, self.graph.names_behind(names)))

    def stop(self) -> None:
        """Follow nothing any more."""
        self._model = None

    # -- comparing -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Compare what is left, now that the function has ended."""
        model = self._model
        if model is None:
            return
        count = len(self.graph)
        if count == len(model.graph):
            with contextlib.suppress(UnlikeError):  # then all is as if nothing had been followed
                self._compare(count)
                if len(self.walks) == len(model.walks):
                    self._followed = model._rows
        self.stop()

    @functools.cached_property
    def exact(self) -> int:
        """Up to where extents are part of the pattern of this graph, whose function has ended: those that follow it
        have them, too.
        """
        if self.is_whole:
            return self.extents.exact
        return exact_among_operations(self.graph.operations)

    @property
    def is_whole(self) -> bool:
        """Whether all operations, once the function has ended, are like the model's."""
        return self._followed is not None

    def _rows_until(self, last: int) -> list[Row]:
        """The operations of this graph, as others follow them."""
        graph = self.graph
        if _is_alone(graph):
            raise UnlikeError
        self._rows += map(row_of, graph.operations_since(len(self._rows), last))
        return self._rows

    def _compare(self, last: int) -> None:
        assert self._model is not None
        graph = self.graph
        if _is_alone(graph):
            raise UnlikeError
        rows = self._model._rows_until(last)
        if len(rows) < last or (registered_rules and any(row.opdef.name in registered_rules for row in rows)):
            raise UnlikeError
        for op, row in zip(graph.promised[self._compared : last], rows[self._compared : last], strict=True):
            if op._attrs is not row.attrs:
                self._compare_attrs(op._attrs, row.attrs)
            self._compare_one(op, row)
        self._compared = last

    def _compare_one(self, op: Operation, row: Row) -> None:
        inputs, outputs, original = op.inputs, op.outputs, op.original_op
        if (
            op.opdef is not row.opdef or op.name != row.name or op.control_inputs
            or (op.source is not row.source and self._sources.setdefault(row.source, op.source) != op.source)
            or op.device != row.device or op._colocation != row.colocation
            or (-1 if original is None else original.id) != row.original
            or len(inputs) != len(row.inputs) or len(outputs) != len(row.outputs)
        ):  # fmt: skip
            raise UnlikeError
        for x, (number, index) in zip(inputs, row.inputs, strict=True):
            if x.op.id != number or x.value_index != index:
                raise UnlikeError
        for t, (shape, dtype, is_weak) in zip(outputs, row.outputs, strict=True):
            spec = t.spec
            if t.is_weak != is_weak or (spec.dtype is not dtype and spec.dtype != dtype):
                raise UnlikeError
            self.extents.enter(shape, spec.shape)
        if row.compared is not None:
            row.compared.compare(op.params, self.extents)
            if row.number is not None:
                self._compare_numbers(op, row.number)
            elif row.compared.array is not None and op.params["value"] is not row.compared.array:
                self.has_other_arrays = True
        elif op.params:
            raise UnlikeError

    def _compare_attrs(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> None:
        latest = self._attrs[-1] if self._attrs else (None, None)
        if (latest[0] is new and latest[1] is old) or any(new is a and old is b for a, b in self._attrs):
            return
        if dict(new) != dict(old):
            raise UnlikeError
        self._attrs.append((new, old))

    def _compare_numbers(self, op: Operation, old: Any) -> None:
        """UnlikeError where a rule might tell constants apart: by their sign, or as a small integer."""
        new = splat_number(op.params["value"])
        if old.tobytes() != new.tobytes():
            if is_named(old.item()) or is_named(new.item()) or (old < 0) != (new < 0):
                raise UnlikeError
            self.numbers[op.id] = new

    # -- copying -------------------------------------------------------------------------------------------------------

    def part(self, number: int) -> Part:
        """What a walk has added, as others copy it; UnlikeError where they cannot."""
        found = self._parts.get(number)
        if found is None:
            walk = self.walks[number]
            rows = self._rows_until(walk.last)
            found = self._parts[number] = part_of(rows[: walk.last], walk.first)
        if not found.is_copied:
            raise UnlikeError
        return found


    def _promise(self, part: Part, walk: Walk) -> None:
        """Append the operations of a walk, of which those that it gives are there from now on."""
        self._promise_part(part, walk.first, [place[0] for place in walk.given if place is not None])
        self.graph.take_names(walk.names)
        self._compared = walk.last
        self.walks.append(walk)

    def _promise_part(self, part: Part, first: int, numbers: Sequence[int]) -> None:
        """Append operations from the number ``first`` on, of which those of these ``numbers`` are there from now on."""
        given = {number: self._begun(part.rows[number - first], number) for number in set(numbers) if number >= first}

        def make() -> None:
            self.graph.fulfil(first, self._copies(part, first, given))

        self.graph.promise(given, len(part.rows), make)

    def _copies(self, part: Part, first: int, given: Mapping[int, Operation]) -> list[Operation]:
        """The operations of a part for this graph, which does not know of them yet."""
        operations, made = self.graph.promised, list[Operation]()

        def operation(number: int) -> Operation:
            found: Operation = operations[number] if number < first else made[number - first]
            return found

        for number, row in enumerate(part.rows, first):
            op = given[number] if number in given else self._begun(row, number)
            op.inputs = tuple([operation(k).outputs[index] for k, index in row.inputs])
            op.params = copied_params(row, self.extents.shape, self.numbers.get(number, row.number))
            op.original_op = None if row.original < 0 else operation(row.original)
            op.__class__ = Operation
            made.append(op)
        return made

    def _begun(self, row: Row, number: int) -> Operation:
        """The operation of a row, which gets this number, without what it is made of."""
        op = PromisedOperation.__new__(PromisedOperation)
        op.graph, op.opdef, op.name, op.id = self.graph, row.opdef, row.name, number
        op._attrs = dict(row.attrs) if isinstance(row.attrs, dict) else row.attrs
        op.control_inputs, op.device, op._colocation = (), row.device, row.colocation
        op.source = self._sources.get(row.source, row.source)
        op.is_gradient, op.origins = row.is_gradient, row.origins
        shape = self.extents.shape
        outputs = [Tensor(op, k, TensorSpec(shape(old), dtype)) for k, (old, dtype, _) in enumerate(row.outputs)]
        for t, (_, _, is_weak) in zip(outputs, row.outputs, strict=True):
            t.is_weak = is_weak
        op.outputs = tuple(outputs)
        return op

    # -- whole traces --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def whole(self) -> Part:
        """All operations of this graph, whose function has ended, as they are foretold for other shapes; UnlikeError
        where they cannot be.
        """
        rows = self._rows_until(len(self.graph))
        if any(row.compared is not None and row.compared.array is not None and row.number is None for row in rows):
            raise UnlikeError
        return part_of(rows, 0)

    def number_of(self, place: int) -> Any:
        """The number of a constant of this graph, which is like its model's, by operation."""
        assert self._followed is not None
        return self.numbers.get(place, self._followed[place].number)

    @property
    def obeys_registered_rules(self) -> bool:
        """Whether the user has given rules for operations of this graph."""
        return bool(registered_rules) and any(row.opdef.name in registered_rules for row in self.whole.rows)

    def check_shapes(self, shape: Callable[[Shape], Any]) -> None:
        """UnlikeError where other shapes do not follow from one another as those of this graph, for which they stand;
        their extents may be symbols.
        """
        check_shapes(self.whole, shape)

    def relate(self, model: Follower, feeds: Mapping[int, Shape], here: Source) -> None:
        """Take the extents of a model's operations for those of this graph, by the shapes of placeholders; and the line
        that calls for the one that called.
        """
        self.extents = Extents(model.exact)
        for number, shape in feeds.items():
            row = model.whole.rows[number]
            self._sources[row.source] = here
            self.extents.enter(row.outputs[0][0], shape)

    def foretell(self, model: Follower, numbers: Mapping[int, Any]) -> None:
        """Promise the operations of a model, with the extents that were related and these numbers of constants."""
        part = model.whole
        self.numbers = dict(numbers)
        self.graph.close_like(model.graph)
        self._promise_part(part, 0, ())
        self._followed = part.rows

    def check_foretold(self, other: Graph) -> None:
        """CompileError unless what was foretold is what another graph of the function has, but for lines."""
        _check(self.graph.operations, other.operations, has_lines=False)

    # -- the program ---------------------------------------------------------------------------------------------------

    def program_like(self, model: Program, numbers: Sequence[int], feeds: Sequence[TensorSpec]) -> Program:
        """The program of this graph's operations of these numbers, from that of the model, which has one instruction
        for each of its own; all of this graph is like the model.
        """
        assert self._followed is not None
        specs, instructions = list(feeds), []
        operations, rows = self.graph.operations, self._followed
        for number, ins in zip(numbers, model.instructions, strict=True):
            op, row = operations[number], rows[number]
            specs += [t.spec for t in op.outputs]
            is_same = row.is_fixed and op.source is row.source
            instructions.append(ins if is_same else _instruction_of(op, ins))
        return Program(model.inputs, model.outputs, tuple(instructions), tuple(specs), model.name)


def _instruction_of(op: Operation, like: Instruction) -> Instruction:
    """The instruction of an operation, on the values of a like one."""
    origin = like.origin
    if op.source is not origin.source:
        origin = Origin(origin.name, op.source, origin.scope, origin.is_gradient, origin.is_refused)
    return Instruction(like.op, like.inputs, like.outputs, op.params, origin, like.after)


def _place(t: Tensor) -> Place:
    return t.op.id, t.value_index


def _check(predicted: Sequence[Operation], made: Sequence[Operation], has_lines: bool = True) -> None:
    """CompileError unless the copies are what the walk has made."""
    texts = [[(_text(op), has_lines and op.source) for op in ops] for ops in (predicted, made)]
    if texts[0] != texts[1]:
        first = next((k for k, pair in enumerate(zip(*texts, strict=False)) if pair[0] != pair[1]), 0)
        raise CompileError(f"a copied gradient is not the one that is made: {operation_text(made[first])}")


def _text(op: Operation) -> Any:
    def of_array(array: Any) -> Any:
        return array.dtype, array.shape, (splat_number(array) if is_splat(array) else array).tobytes()

    return (
        op.opdef, op.name, op.device, [_place(x) for x in op.inputs], [t.spec for t in op.outputs],
        [t.is_weak for t in op.outputs], dict(op._attrs), op.original_op and op.original_op.id,
        {name: frozen(value, of_array) for name, value in op.params.items()},
    )  # fmt: skip
