"""Operation and Tensor: the nodes of a graph, their outputs, and what scopes give to new ones; they build nothing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from jitgrad.dispatch import NumpyProtocols
from jitgrad.opdef import OpDef
from jitgrad.operators import Operators
from jitgrad.records import NamedTuple
from jitgrad.refusals import missing_attribute
from jitgrad.sources import Source, user_source
from jitgrad.spec import DType, TensorSpec

if TYPE_CHECKING:
    from jitgrad.graph import Graph
    from jitgrad.views import View

_no_params: dict[str, Any] = {}


class Tensor(Operators, NumpyProtocols):
    """One output of an operation: a value that does not exist yet, with a dtype and a shape, perhaps partly unknown."""

    __slots__ = ("__weakref__", "_consumers", "_view", "is_weak", "op", "shaped_like", "spec", "value_index")

    op: Operation

    def __init__(self, op: Operation, value_index: int, spec: TensorSpec) -> None:
        self.op = op
        self.value_index = value_index
        self.spec = spec
        self.is_weak = False
        self.shaped_like: Tensor | None = None  # a tensor known to have the same shape, where the extents are not
        self._consumers: list[Operation] = []
        self._view: View | None = None  # whose memory it shares in NumPy, see jitgrad.views

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, name)

    @property
    def graph(self) -> Graph:
        """The graph that the tensor belongs to."""
        return self.op.graph

    @property
    def name(self) -> str:
        """``op_name:index``."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def dtype(self) -> DType:
        """NumPy dtype."""
        return self.spec.dtype

    @property
    def shape(self) -> Any:
        """Tuple of extents, None for an unknown one; None when the rank is unknown."""
        return self.spec.shape

    def _leading_extent(self, what: str) -> int:
        self.op.graph.tells_extents = True
        return super()._leading_extent(what)

    def eval(self, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Its value in the session that was entered, if it runs this graph, else in a new one."""
        from jitgrad.session import session_for

        return session_for(self.graph).run(self, feed_dict)

    def consumers(self) -> list[Operation]:
        """The operations that take this tensor as an input, in the order in which they were made."""
        self.op.graph.settle()
        return list(self._consumers)

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {self.spec}>"


class Operation:
    """A node of a graph: an op applied to tensors, with params (what is computed) and attrs (annotations)."""

    __slots__ = (
        "__weakref__",
        "_attrs",
        "_colocation",
        "control_inputs",
        "device",
        "graph",
        "id",
        "inputs",
        "is_gradient",
        "name",
        "opdef",
        "original_op",
        "origins",
        "outputs",
        "params",
        "source",
    )  # fmt: skip

    outputs: tuple[Tensor, ...]

    def __init__(
        self, graph: Graph, opdef: OpDef, inputs: tuple[Tensor, ...], params: Mapping[str, Any], name: str, here: Here
    ) -> None:
        self.graph = graph
        self.opdef = opdef
        self.inputs = inputs
        self.params = params or _no_params
        self.name = name
        self._attrs: Mapping[str, Any] = here.attrs  # those of the scope until they are asked for
        self.control_inputs: tuple[Operation, ...] = ()
        self.device = here.device
        self._colocation = here.colocation
        self.original_op = here.original_op
        self.is_gradient = here.is_gradient
        """Whether it was made for a gradient: by the rule of an operation, or as a seed, a sum or a gate."""
        self.source: Source | None = here.source or user_source()
        self.id = len(graph._operations)
        self.origins = 0  # bits: of which operations without inputs it is made
        self.outputs = ()

    @property
    def attrs(self) -> dict[str, Any]:
        """The annotations, a dictionary of its own."""
        if not isinstance(self._attrs, dict):
            self._attrs = dict(self._attrs)
        return self._attrs

    @property
    def type(self) -> str:
        """Name of the op: ``"matmul"``."""
        return self.opdef.name

    @property
    def colocation_groups(self) -> list[str]:
        """``["loc:@name"]`` of the operations that this one is placed with; its own when none was asked for."""
        return list(self._colocation) or [f"loc:@{self.name}"]

    def get_attr(self, key: str) -> Any:
        """The attr or param of that name; LookupError when there is none."""
        for table in (self._attrs, self.params):
            if key in table:
                return table[key]
        raise LookupError(f"operation {self.name!r} has no attribute {key!r}")

    def __repr__(self) -> str:
        return f"<Operation {self.name!r} type={self.type}>"


class PromisedOperation(Operation):
    """An operation whose ``inputs``, ``params`` and ``original_op`` are made when somebody looks at them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name not in ("inputs", "params", "original_op"):
            raise AttributeError(f"an operation has no attribute {name!r}")
        self.graph.settle()  # which makes this one like all others
        return object.__getattribute__(self, name)


class Here(NamedTuple):
    """What the active scopes of a graph give to the operations that are made now."""

    device: str = ""
    colocation: tuple[str, ...] = ()
    name_scope: str = ""
    attrs: MappingProxyType[str, Any] = MappingProxyType({})
    asks: bool = False  # whether some attr is a function of the operation
    control: tuple[Operation, ...] = ()
    original_op: Operation | None = None
    source: Source | None = None
    rules: Mapping[str, Any] = MappingProxyType({})  # op type → the gradient rule that stands in for its own
    is_gradient: bool = False

    def beside(self, op: Operation) -> Here:
        """With the device of ``op``, and its colocation groups beside those of the enclosing scopes."""
        groups = tuple(dict.fromkeys((*self.colocation, *op.colocation_groups)))
        return self._replace(device=op.device, colocation=groups)
