"""Graph: what the user builds, append-only, and ``apply``, which builds it; it runs nothing."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jitgrad.advice import advised
from jitgrad.errors import LeakedTracerError, OtherGraphError, ShapeError, layout
from jitgrad.forking import wait_for_when_forking
from jitgrad.graph_scopes import Scopes
from jitgrad.inference import infer_specs
from jitgrad.opdef import OpDef, Specs
from jitgrad.operations import Here, Operation, PromisedOperation, Tensor
from jitgrad.sources import (
    checked_name,
    closed_message,
    foreign_message,
    operation_text,
    param_text,
    source_text,
    user_source,
)

if TYPE_CHECKING:
    from jitgrad.following import Follower

__all__ = [
    "GRADIENT_RULE", "Graph", "Here", "Operation", "PromisedOperation", "Tensor", "apply", "apply_one", "default_graph",
    "graph_of", "in_graph", "innermost",
]  # fmt: skip

# The attr that names the gradient rule of an operation made inside gradient_override_map, or is the rule.
GRADIENT_RULE = "_gradient_op_type"
_number = operator.attrgetter("id")
# How many operations without inputs a graph tells apart when it looks for what lies between two tensors.
ORIGINS = 256


def _output_of(op: Operation, index: str) -> Tensor:
    """The tensor ``op:index``; ValueError for an index that is no number, KeyError for one that there is not."""
    if not index.isdecimal():
        raise ValueError(f"'{op.name}:{index}' is not the name of a tensor: that is an operation and a number, 'op:0'")
    if int(index) >= len(op.outputs):
        raise KeyError(f"operation {op.name!r} has {len(op.outputs)} outputs, and no tensor '{op.name}:{index}'")
    return op.outputs[int(index)]


class Graph(Scopes):
    """An append-only list of operations with unique names and the scopes that new operations get."""

    is_trace = False  # whether a function is being traced into it
    is_function = False  # whether it is the body of a graph function, or inside of one
    assigns_in_place = False  # whether ``x += y`` changes the object x, as it changes an array
    is_repeated = False  # whether it is the body of a loop or a branch, which may run again for a gradient
    outer: Graph | None = None  # the graph whose tensors this one may read, for the body of a loop or a branch
    tells_extents = False  # whether len() was asked of a tensor, or a loop ran over one
    is_written = False  # whether an array was assigned to, so that a tensor has had several values
    weighs_numbers = False  # whether what a walk did depends on the values of numbers or on extents: it is not copied
    follower: Follower | None = None  # what knows of an earlier trace of the same function
    uses: dict[Any, Any] | None = None  # where Variables keep the order of the code: what was done with each so far

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[Any] = []  # None for one that is promised
        self._promises: list[Callable[[], None]] = []
        self._by_name: dict[str, Operation] = {}
        self.scope_counter = itertools.count()
        self.origin_counter = itertools.count()
        self.seed: int | None = None
        self.draws = itertools.count()  # numbers of the operations that draw random numbers
        self.functions: dict[str, Any] = {}
        self.definitions: dict[Any, Any] = {}  # the same by what was called, and with which dtypes and shapes
        self.variables: dict[Any, Tensor] = {}  # the first read of each
        self.closed_over: list[tuple[Tensor, Any]] = []  # of a trace: eager tensors met, each after what stands for it
        self.closed_by: str | None = None
        self.constant_values: dict[Operation, tuple[Any, ...]] = {}  # that somebody asked for while it was traced
        self.stand_ins: set[Operation] = set()  # whose results stand for each of many

    # -- looking up ------------------------------------------------------------------------------------------------

    @property
    def takes_feeds(self) -> bool:
        """Whether a session may feed tensors in between: not what is traced, nor the body of a loop or a branch."""
        return not self.is_trace and self.outer is None

    @property
    def operations(self) -> list[Operation]:
        """All operations, in the order in which they were made."""
        return self.operations_since(0)

    def operations_since(self, count: int, end: int | None = None) -> list[Operation]:
        """The operations made when the graph had so many, and until it had ``end``; the others are not looked at."""
        self.settle()
        return self._operations[count:end]

    def __len__(self) -> int:
        return len(self._operations)

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation of that name; KeyError when there is none."""
        if not isinstance(name, str):
            raise TypeError(f"operations have names, which are strings, got {name!r}")
        self.settle()
        found = self._by_name
        for op in self._operations[len(found) :]:
            found[op.name] = op
        if name not in found:
            raise KeyError(f"the graph has no operation {name!r}")
        return found[name]

    def as_graph_element(self, obj: Any) -> Tensor | Operation:
        """The tensor or operation that a name (``"op"``, ``"op:0"``) or an object stands for, checked to be of
        this graph.
        """
        if isinstance(obj, str):
            name, colon, index = obj.partition(":")
            op = self.get_operation_by_name(name)
            return _output_of(op, index) if colon else op
        element = obj.as_graph_element() if hasattr(obj, "as_graph_element") else obj
        if not isinstance(element, Tensor | Operation):
            raise TypeError(f"{obj!r} is neither a tensor nor an operation, nor the name of one")
        if isinstance(element, Tensor) and element.graph is not self:
            element = self.captured(element)
        if element.graph is not self:
            raise OtherGraphError(foreign_message(element))
        found: Tensor | Operation = element
        if isinstance(found, Tensor) and found._view is not None:
            found._view.renew(found)
        return found

    def captured(self, x: Tensor, variable: Any = None) -> Tensor:
        """What stands here for a tensor of another graph: itself, unless this is a graph inside that one. It is read
        of ``variable``, if one is given.
        """
        return x

    def step(self) -> Tensor:
        """The number of the step in the body of a loop; only a body has one."""
        raise NotImplementedError

    def source_of(self, x: Tensor) -> Tensor:
        """What a tensor of this graph stands for in the graphs around; itself where it is made here."""
        return x

    def is_captured(self, x: Tensor) -> bool:
        """Whether a tensor of this graph only stands for one of the graph around."""
        return False

    # -- building --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """This graph takes the operations that are made inside without a tensor that says which."""
        before = _default.get()
        try:
            _default.set(self)  # inside: a signal's exception may come between any two calls
            yield self
        finally:
            _default.set(before)

    def promise(self, given: Mapping[int, Operation], count: int, make: Callable[[], None]) -> None:
        """Append so many operations that are not there yet but for those ``given``, by their numbers; ``make`` enters
        them all when somebody looks.
        """
        first = len(self._operations)
        self._operations += [given.get(number) for number in range(first, first + count)] if given else [None] * count
        self._promises.append(make)

    def fulfil(self, first: int, made: Sequence[Operation]) -> None:
        """Enter operations where they were promised, from the number ``first`` on, and with what they read."""
        self._operations[first : first + len(made)] = made
        late = []
        for op in made:
            for x in op.inputs:
                if x._consumers and x._consumers[-1].id > op.id:
                    late.append(x)
                x._consumers.append(op)
        for x in late:
            x._consumers.sort(key=_number)

    def close_like(self, other: Graph) -> None:
        """Take no more operations than those that are promised now, whose names are those of a closed graph."""
        assert other.closed_by is not None
        self._names, self.closed_by = other._names, other.closed_by

    @property
    def promised(self) -> Sequence[Any]:
        """All operations; None for those that are promised and were not given."""
        return self._operations

    def settle(self) -> None:
        """Make the operations that were promised."""
        while self._promises:
            with _settling:
                if self._promises:
                    self._promises[0]()
                    del self._promises[0]

    def add(
        self, opdef: OpDef, inputs: tuple[Tensor, ...], params: Mapping[str, Any], specs: Specs, name: str | None = None
    ) -> Operation:
        """Append an operation with outputs of these specs."""
        if self.closed_by is not None:
            raise LeakedTracerError(closed_message(self, inputs))
        if self.outer is not None:
            inputs = tuple([x if x.op.graph is self else self.captured(x) for x in inputs])
        for x in inputs:
            if x.op.graph is not self:
                raise OtherGraphError(foreign_message(x))
            if x._view is not None:
                x._view.renew(x)
        here = self._here
        op = Operation(self, opdef, inputs, params, self.unique_name(checked_name(name) if name else opdef.name), here)
        if len(specs) == 1:
            op.outputs = (Tensor(op, 0, specs[0]),)
        else:
            op.outputs = tuple([Tensor(op, index, spec) for index, spec in enumerate(specs)])
        if here.control:
            op.control_inputs = tuple(c for c in here.control if all(x.op is not c for x in inputs))
        self._operations.append(op)
        origins = inputs[0].op.origins if inputs else self._new_origin(opdef)
        for x in inputs:
            x._consumers.append(op)
            if (joint := origins | x.op.origins) != origins:
                origins = joint
        op.origins = origins
        if here.asks or here.rules:
            _enter_attrs(op, here)
        return op

    def forget(self, count: int) -> None:
        """Drop the operations after the first ``count``, which nobody else has seen; what others may look up stays:
        reads of Variables, and what stands for tensors of the graph around.
        """
        self.settle()
        kept = []
        for op in reversed(self._operations[count:]):
            if op.type == "placeholder" or (op.opdef.stateful and not op.inputs):
                kept.append(op)
                continue
            for x in op.inputs:
                x._consumers = [c for c in x._consumers if c is not op]
            self._names.pop(op.name, None)
            self._by_name.pop(op.name, None)
            base, _, number = op.name.rpartition("_")
            if number.isdigit() and base in self._names:
                self._names[base] = int(number)
        self._operations[count:] = reversed(kept)
        for place, op in enumerate(self._operations[count:], count):
            op.id = place

    def _new_origin(self, opdef: OpDef) -> int:
        """The bit of an operation without inputs, none for a constant; beyond ORIGINS, several share one."""
        return 0 if opdef.name == "constant" else 1 << next(self.origin_counter) % ORIGINS


def _enter_attrs(op: Operation, here: Here) -> None:
    """The attrs of an operation where scopes ask with each, or give a rule to some."""
    if here.asks:
        op._attrs = {}
        for key, value in here.attrs.items():
            op._attrs[key] = value(op) if callable(value) else value
    if op.opdef.name in here.rules:
        op._attrs = {**op._attrs, GRADIENT_RULE: here.rules[op.opdef.name]}


_settling = threading.RLock()
wait_for_when_forking(_settling)
_default: contextvars.ContextVar[Graph | None] = contextvars.ContextVar("jitgrad_default_graph", default=None)
_process_graph = Graph()


def in_graph() -> bool:
    """Whether operations made here go into a graph that was made the default one; else Variables are eager."""
    return _default.get() is not None


def default_graph() -> Graph:
    """The innermost graph made default with ``as_default``, else one per process."""
    graph = _default.get()
    return _process_graph if graph is None else graph


def innermost(graph: Graph) -> Graph:
    """The body that is being built inside ``graph``, where there is one: operations made now belong there."""
    here = inside = _default.get()
    while inside is not None and inside.outer is not None:
        inside = inside.outer
        if inside is graph and here is not None:
            return here
    return graph


def graph_of(inputs: Sequence[Any]) -> Graph:
    """The graph of the first tensor among ``inputs``, or the body being built in it; else the default graph."""
    for x in inputs:
        if isinstance(x, Tensor):
            graph = x.op.graph
            if graph.closed_by is not None:
                raise LeakedTracerError(closed_message(graph, (x,)))
            return innermost(graph)
    return default_graph()


def apply(opdef: OpDef, *inputs: Tensor, name: str | None = None, **params: Any) -> Any:
    """Add an operation on tensors of one graph; gives its output tensor, or a tuple of them.

    ShapeError and DTypeError of the op's inference get the op, its inputs and the user's line.
    """
    graph = graph_of(inputs)
    specs = tuple([x.spec for x in inputs])
    try:
        out_specs = infer_specs(opdef, specs, params)
    except (ShapeError, TypeError) as error:
        raise type(error)(_refusal(opdef, inputs, params, str(error))) from None
    outputs = graph.add(opdef, inputs, params, out_specs, name).outputs
    return outputs[0] if len(outputs) == 1 else outputs


def apply_one(opdef: OpDef, *inputs: Tensor, **params: Any) -> Tensor:
    """As ``apply``, for an op with one output."""
    out: Tensor = apply(opdef, *inputs, **params)
    return out


def _refusal(opdef: OpDef, inputs: Sequence[Tensor], params: Mapping[str, Any], reason: str) -> str:
    args = [f"{x.op.name}: {x.spec}" for x in inputs] + [f"{key}={param_text(v)}" for key, v in params.items()]
    return advised(
        layout(
            f"op {opdef.name!r}: {reason}",
            op=f"{opdef.name}({', '.join(args)})    made at {source_text(user_source())}",
            inputs="; ".join(dict.fromkeys(operation_text(x.op) for x in inputs)) or None,
        )
    )
