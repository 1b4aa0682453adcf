"""Ops with a state or an effect: reading and assigning Variables, and the operation that only groups
others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.dispatch import NumpyProtocols
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.graph import Graph, Operation, Tensor, apply, checked_name, default_graph
from jitgrad.opdef import Interpreted, Params, Specs, define
from jitgrad.operators import Operators
from jitgrad.ops.common import as_tensor
from jitgrad.spec import DType, TensorSpec, is_compatible, spec_of


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

no_op = define(
    "no_op", infer=lambda specs, params: (), impl=lambda: (), kind=Interpreted("nothing to do"), stateful=True
)


class Variable(Operators, NumpyProtocols):
    """A value that stays between runs. In a graph it stands where a tensor does.

    The shape and dtype are those of the initial value and do not change. One operation per graph reads it, at
    its first use there. ``read()`` adds another, and so does each use where control dependencies are in force:
    it reads what the variable holds once they have run. Gradients with respect to the variable count them all.
    """

    __slots__ = ("__weakref__", "_value", "is_weak", "name", "spec", "trainable")

    def __init__(self, initial_value: Any, name: str | None = None, trainable: bool = True) -> None:
        value = np.array(initial_value, order="C")
        if value.dtype.kind not in "fiubc":
            raise DTypeError(f"a Variable cannot hold values of dtype {value.dtype}")
        self.spec: TensorSpec = spec_of(value)
        self.name = default_graph().unique_name(checked_name(name or "Variable"))
        self.trainable = trainable
        self.is_weak = False
        self._set(value)

    def _set(self, value: Any) -> None:
        array = np.array(value, dtype=self.spec.dtype, order="C")
        array.flags.writeable = False
        self._value = array

    @property
    def shape(self) -> Any:
        """Tuple of extents."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """NumPy dtype."""
        return self.spec.dtype

    def numpy(self) -> Any:
        """A copy of the present value."""
        return self._value.copy()

    def value(self) -> Tensor:
        """The tensor of its value in the default graph."""
        return self.as_graph_element()

    def read(self) -> Tensor:
        """A new tensor of its value, read where the graph has come to, after the control dependencies in
        force.
        """
        return apply(read_op, self._first_read(default_graph()), name=f"{self.name}/read", variable=self)  # type: ignore[no-any-return]

    def as_graph_element(self, graph: Graph | None = None) -> Tensor:
        """The tensor that stands for it in ``graph``, the default graph if none is given."""
        graph = default_graph() if graph is None else graph
        if not graph.has_control_dependencies:
            return self._first_read(graph)
        with graph.as_default():
            return self.read()

    def _first_read(self, graph: Graph) -> Tensor:
        if self not in graph.variables:
            with graph.as_default(), graph.control_dependencies(None), graph.name_scope(""):
                graph.variables[self] = apply(read_op, name=f"{self.name}/read", variable=self)
        return graph.variables[self]

    def assign(self, value: Any) -> Tensor:
        """The operation's output, the new value, which the variable has once it has run. ShapeError,
        DTypeError for a value that does not fit.
        """
        tensor = as_tensor(value)
        if not np.can_cast(tensor.dtype, self.dtype, "same_kind"):
            raise DTypeError(
                layout(f"variable {self.name!r} cannot take the value", expected=self.spec, got=tensor.spec)
            )
        return apply(assign_op, as_tensor(tensor, self.dtype), variable=self, name=f"{self.name}/assign")  # type: ignore[no-any-return]

    def assign_add(self, value: Any) -> Tensor:
        """As ``assign``, to the sum of the present value and ``value``."""
        return self.assign(self.read() + value)

    def assign_sub(self, value: Any) -> Tensor:
        """As ``assign``, to the present value less ``value``."""
        return self.assign(self.read() - value)

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} {self.spec}>"


def group(*ops: Any, name: str | None = None) -> Operation:
    """An operation that runs once all of ``ops`` (tensors, operations, assignments) have run; there may be
    none.
    """
    graph = next((element.graph for element in ops if hasattr(element, "graph")), default_graph())
    with graph.as_default(), graph.control_dependencies(list(ops)):
        return graph.add(no_op, (), {}, (), name or "group")
