"""Ops with a state or an effect: reading and assigning Variables, and the operation that only groups
others.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any

import numpy as np

from jitgrad.eagerness import local
from jitgrad.errors import DTypeError, IndexingError, ShapeError, TracedValueError, UnsupportedOpError, layout
from jitgrad.graph import Graph, Operation, Tensor, apply_one, default_graph, graph_of, in_graph
from jitgrad.opdef import Interpreted, OpDef, Params, Specs, define
from jitgrad.ops.common import as_tensor
from jitgrad.ops.rows import change_rows
from jitgrad.ops.standing import Standing
from jitgrad.records import dataclass
from jitgrad.sources import checked_name, source_text, user_source
from jitgrad.spec import DType, TensorSpec, fits, is_compatible, native, spec_of


def _spec_of_variable(specs: Specs, params: Params) -> Specs:
    return (params["variable"].spec,)


def _infer_assign(specs: Specs, params: Params) -> Specs:
    variable = params["variable"]
    if not is_compatible(specs[0].shape, variable.shape):
        raise ShapeError(f"variable {variable.name!r} expected {variable.spec}, got {specs[0]}")
    return (variable.spec,)


def _assigned(value: Any, variable: Variable) -> Any:
    variable._set(value)
    return variable._value


read_op = define(
    "read_variable",
    infer=_spec_of_variable,
    impl=lambda *first, variable: variable._value,
    vjp=lambda g, out, *first, variable: (g,) * len(first),
    kind=Interpreted("a variable is read"),
    stateful=True,
)

assign_op = define(
    "assign",
    infer=_infer_assign,
    impl=_assigned,
    kind=Interpreted("a variable is assigned"),
    stateful=True,
    differentiable=False,
    infers_partial=True,
)

def _infer_scatter(specs: Specs, params: Params) -> Specs:
    return (params["variable"].spec,)


def _scattered(values: Any, indices: Any, variable: Variable, how: str) -> Any:
    variable._set_rows(how, values, indices)
    return variable._value


scatter_op = define(
    "scatter_variable",
    infer=_infer_scatter,
    impl=_scattered,
    kind=Interpreted("a variable is assigned"),
    stateful=True,
    differentiable=False,
    infers_partial=True,
)

no_op = define(
    "no_op", infer=lambda specs, params: (), impl=lambda: (), kind=Interpreted("nothing to do"), stateful=True
)


@dataclass(slots=True)
class Uses:
    """What a graph that keeps the order of the code did with a Variable: its last assignment, the reads since then."""

    assignment: Operation | None = None
    reads: list[Tensor] = field(default_factory=list)


_creations = itertools.count()

# How often an array is referred to that only its Variable holds: by the Variable, and by the act of counting.
_OWN_REFERENCES = 2


class Variable(Standing):
    """A value that stays between runs.

    Inside ``graph.as_default()``, and while a function is traced, it stands where a tensor of the graph does; outside
    it is an eager tensor, and tapes watch what is read from it.

    The shape and dtype are those of the initial value and do not change. One operation per graph reads it, at
    its first use there. ``read()`` adds another, and so does each use where control dependencies are in force:
    it reads what the variable holds once they have run. Gradients with respect to the variable count them all.
    While a function is traced, reads and assignments run in the order of the code: the first use after an assignment
    reads anew.
    """

    __slots__ = ("__weakref__", "_eager", "_value", "creation", "is_weak", "name", "spec", "trainable")

    def __init__(self, initial_value: Any, name: str | None = None, trainable: bool = True) -> None:
        value = native(np.array(initial_value, order="C"))
        if value.dtype.kind not in "fiubc":
            raise DTypeError(f"a Variable cannot hold values of dtype {value.dtype}")
        self.spec: TensorSpec = spec_of(value)
        self.name = default_graph().unique_name(checked_name(name or "Variable"))
        self.trainable = trainable
        self.creation = next(_creations)
        self.is_weak = False
        self._set(value)

    def _set(self, value: Any) -> None:
        array = np.array(value, dtype=self.spec.dtype, order="C")
        array.flags.writeable = False
        self._value = array
        self._eager: Any = None

    @property
    def shape(self) -> Any:
        """Tuple of extents."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """NumPy dtype."""
        return self.spec.dtype

    def present(self) -> Any:
        """The present value itself, an array that is not to be written to."""
        return self._value

    def hold(self, value: Any) -> None:
        """Have an array or a scalar of its own shape and dtype for its value, which nobody else will write to."""
        array = np.asarray(value)
        array.setflags(write=False)
        self._value, self._eager = array, None

    def numpy(self) -> Any:
        """A copy of the present value, as an array or, for a 0-d Variable, as a NumPy scalar."""
        return self._value.copy() if self._value.ndim else self._value[()]

    def stands_for_symbol(self) -> bool:
        """Whether operations on it go into a graph."""
        return in_graph()

    def value(self) -> Any:
        """The tensor of its value in the default graph; outside of graphs the present value, an eager tensor."""
        return self.as_graph_element() if in_graph() else self.eager_value()

    def eager_value(self) -> Any:
        """The present value as an eager tensor, the same until the next assignment; the tapes hear of it."""
        from jitgrad.eager.tensor import wrap

        if self._eager is None:
            self._eager = wrap(self._value)
        for tape in local.tapes:
            tape.read_variable(self, self._eager)
        return self._eager

    def read(self) -> Any:
        """A new tensor of its value, read where the graph has come to, after the control dependencies in
        force; outside of graphs the present value.
        """
        return self._read_in_graph() if in_graph() else self.eager_value()

    def _read_in_graph(self) -> Tensor:
        graph = default_graph()
        if graph.outer is not None:
            return self.as_graph_element(graph)
        self._tell_tapes()
        first, uses = self.first_read(graph), self._uses(graph)
        with graph.control_dependencies(_ops(uses.assignment)):
            read = apply_one(read_op, first, name=f"{self.name}/read", variable=self)
        uses.reads.append(read)
        return read

    def as_graph_element(self, graph: Graph | None = None) -> Tensor:
        """The tensor that stands for it in ``graph``, the default graph if none is given."""
        graph = default_graph() if graph is None else graph
        if graph.outer is not None:
            return graph.captured(self.as_graph_element(graph.outer), self)
        self._tell_tapes()
        if not graph.has_control_dependencies:
            first, uses = self.first_read(graph), self._uses(graph)
            if uses.assignment is None:
                return first
            if uses.reads:
                return uses.reads[0]
        with graph.as_default():
            return self._read_in_graph()

    def _tell_tapes(self) -> None:
        for tape in local.tapes:
            tape.read_in_graph(self)

    def first_read(self, graph: Graph) -> Tensor:
        """The read of it that was made first in ``graph``, or is made now; gradients of later reads reach it."""
        if self not in graph.variables:
            uses = self._uses(graph)
            alone, after = graph.control_dependencies(None), _ops(uses.assignment)
            with graph.as_default(), graph.name_scope(""), alone, graph.control_dependencies(after):
                read = apply_one(read_op, name=f"{self.name}/read", variable=self)
            graph.variables[self] = read
            uses.reads.append(read)
        return graph.variables[self]

    def _uses(self, graph: Graph) -> Uses:
        """What was done with it in ``graph``; nothing that is kept where the order of the code is not."""
        return Uses() if graph.uses is None else graph.uses.setdefault(self, Uses())

    def _change_in_graph(self, op: OpDef, *inputs: Tensor, **params: Any) -> Tensor:
        """An assignment, after what was done with the variable before."""
        graph = graph_of(inputs)
        if graph.outer is not None:
            raise UnsupportedOpError(
                layout(f"variable {self.name!r} is assigned inside the body of a loop, a branch or a function",
                       hint="return the new value from the body, and assign it afterwards")
            )  # fmt: skip
        uses = self._uses(graph)
        with graph.control_dependencies([*_ops(uses.assignment), *uses.reads]):
            made = apply_one(op, *inputs, variable=self, **params)
        uses.assignment = made.op
        uses.reads.clear()
        return made

    def assign(self, value: Any) -> Any:
        """The operation's output, the new value, which the variable has once it has run; outside of graphs the
        variable, which has the value now. ShapeError, DTypeError for a value that does not fit.
        """
        if not (in_graph() or isinstance(value, Tensor)):
            return self._assign_now(value)
        tensor = as_tensor(value)
        if not np.can_cast(tensor.dtype, self.dtype, "same_kind"):
            raise DTypeError(
                layout(f"variable {self.name!r} cannot take the value", expected=self.spec, got=tensor.spec)
            )
        return self._change_in_graph(assign_op, as_tensor(tensor, self.dtype), name=f"{self.name}/assign")

    def _assign_now(self, value: Any) -> Variable:
        array = np.asarray(value.eager_value() if isinstance(value, Variable) else value)
        is_number = not isinstance(value, np.ndarray | np.generic | Variable)
        if not (np.can_cast(array.dtype, self.dtype, "same_kind") or (is_number and _are_held(array, self.dtype))):
            is_integer = is_number and array.dtype.kind in "iu" and self.dtype.kind in "iu"
            raise DTypeError(
                layout(f"variable {self.name!r} cannot take the value", expected=self.spec, got=spec_of(array),
                       because=f"{self.dtype} does not hold {array.min()} to {array.max()}" if is_integer else None,
                       needed=f"at {source_text(user_source())}")
            )  # fmt: skip
        if array.shape != self.shape:
            raise self._misfit(array)
        self._set(array)
        return self

    def _misfit(self, value: Any) -> ShapeError:
        return ShapeError(
            layout(f"variable {self.name!r} cannot take a value of another shape", expected=self.spec,
                   got=spec_of(np.asarray(value)), needed=f"at {source_text(user_source())}")
        )  # fmt: skip

    def __copy__(self) -> Variable:
        return Variable(self.present(), self.name, self.trainable)

    def __deepcopy__(self, memo: Any) -> Variable:
        return self.__copy__()

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TracedValueError(
            layout(f"elements of variable {self.name!r} cannot be assigned to",
                   hint="use assign, or scatter_update(jg.IndexedSlices(values, rows)) for some of its rows")
        )  # fmt: skip

    def assign_add(self, value: Any) -> Any:
        """As ``assign``, to the sum of the present value and ``value``."""
        self._check_operand(value)
        return self.assign(self.read() + value)

    def assign_sub(self, value: Any) -> Any:
        """As ``assign``, to the present value less ``value``."""
        self._check_operand(value)
        return self.assign(self.read() - value)

    def _check_operand(self, value: Any) -> None:
        """ShapeError for a value that does not broadcast to the Variable's shape."""
        shape = value.shape if isinstance(value, Tensor) else np.shape(value)
        if shape is None or None in shape:
            return
        if not fits(shape, self.shape):
            raise self._misfit(np.broadcast_to(np.zeros((), value.dtype if hasattr(value, "dtype") else float), shape))

    def scatter_update(self, slices: Any) -> Any:
        """Rows set to those of IndexedSlices; of a row given several times the last one. As ``assign``, at the cost of
        the rows alone.
        """
        return self._scatter("update", slices)

    def scatter_add(self, slices: Any) -> Any:
        """Rows of IndexedSlices added; a row given several times is added so often."""
        return self._scatter("add", slices)

    def scatter_sub(self, slices: Any) -> Any:
        """Rows of IndexedSlices subtracted; a row given several times is subtracted so often."""
        return self._scatter("subtract", slices)

    def _scatter(self, how: str, slices: Any) -> Any:
        if not hasattr(slices, "indices"):
            raise TypeError(
                layout(f"variable {self.name!r}: only rows are scattered", expected="jg.IndexedSlices(values, indices)",
                       got=type(slices).__name__, needed=f"at {source_text(user_source())}",
                       hint=f"use {_DENSE[how]} for a value of the whole shape")
            )  # fmt: skip
        values, indices = slices.values, slices.indices
        if in_graph() or isinstance(values, Tensor):
            rows = as_tensor(values)
            self._check_rows(rows)
            name = f"{self.name}/scatter_{how}"
            return self._change_in_graph(
                scatter_op, as_tensor(rows, self.dtype), as_tensor(indices), how=how, name=name
            )
        self._set_rows(how, np.asarray(values), np.asarray(indices))
        return self

    def _check_rows(self, values: Any) -> None:
        if not np.can_cast(values.dtype, self.dtype, "same_kind"):
            raise DTypeError(f"variable {self.name!r} of {self.spec} cannot take rows of dtype {values.dtype}")

    def _set_rows(self, how: str, values: Any, indices: Any) -> None:
        """Change rows in place, or in a copy where somebody else holds the present value."""
        self._check_rows(values)
        if values.shape != (*indices.shape, *self.shape[1:]):
            raise ShapeError(f"variable {self.name!r} of {self.spec} got rows {values.shape} for {indices.shape}")
        if indices.size and not (-self.shape[0] <= indices.min() and indices.max() < self.shape[0]):
            raise IndexingError(f"variable {self.name!r} has {self.shape[0]} rows, got indices up to {indices.max()}")
        self._eager = None
        if sys.getrefcount(self._value) > _OWN_REFERENCES:
            self._value = self._value.copy()
        self._value.flags.writeable = True
        if how == "update":
            self._value[indices] = values
        else:
            change_rows(np.add if how == "add" else np.subtract, self._value, indices, values.astype(self.dtype))
        self._value.flags.writeable = False

    def rows(self, indices: Any) -> Any:
        """An array of the present values of some rows."""
        return self._value[indices]

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} {self.spec}>"


_DENSE = {"update": "assign", "add": "assign_add", "subtract": "assign_sub"}


def _are_held(numbers: Any, dtype: DType) -> bool:
    """Whether integers of Python's are values of an integer dtype."""
    kinds = numbers.dtype.kind + dtype.kind
    return not numbers.size or (set(kinds) <= {"i", "u"} and bool(np.all(numbers.astype(dtype) == numbers)))


def _in_place(sign: str, instead: str) -> Callable[[Variable, Any], Any]:
    def refuse(self: Variable, other: Any) -> Any:
        raise TracedValueError(
            layout(f"variable {self.name!r} is not changed by {sign}=, which would give the name to a tensor",
                   needed=f"at {source_text(user_source())}", hint=f"use {instead}")
        )  # fmt: skip

    return refuse


def _refuse_in_place() -> None:
    ways = {"add": ("+", "assign_add(x)"), "sub": ("-", "assign_sub(x)")} | {
        name: (sign, f"assign(v {sign} x)")
        for name, sign in {
            "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**", "matmul": "@", "and": "&",
            "or": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
        }.items()
    }  # fmt: skip
    for name, (sign, instead) in ways.items():
        setattr(Variable, f"__i{name}__", _in_place(sign, instead))


_refuse_in_place()


def _ops(assignment: Operation | None) -> list[Operation]:
    return [] if assignment is None else [assignment]


def group(*ops: Any, name: str | None = None) -> Operation:
    """An operation that runs once all of ``ops`` (tensors, operations, assignments) have run; there may be
    none.
    """
    graph = next((element.graph for element in ops if hasattr(element, "graph")), default_graph())
    with graph.as_default(), graph.control_dependencies(list(ops)):
        return graph.add(no_op, (), {}, (), name or "group")
