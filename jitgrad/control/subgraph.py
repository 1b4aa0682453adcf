"""Subgraph: the body of a loop, a branch or a function as a value, part of a graph of its own; it runs nothing.

A body is built in a graph inside the graph of its op, and may read the tensors of that: each tensor read from outside
gets a placeholder here and becomes an input of the op. The graph stays open for rules: the gradient of a body is built
behind it, in the same graph, and is again a subgraph, with other inputs and outputs.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Graph, Here, Operation, Tensor
from jitgrad.inlining import inlined
from jitgrad.interpreter import run_operation
from jitgrad.opdef import Control
from jitgrad.ops.creation import placeholder
from jitgrad.program import Program, is_dynamic, needed_operations, slice_graph
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec


class Body(Graph):
    """A graph inside another: ``captures`` maps an output of an outer operation to what stands here for it.

    ``counter`` stands for the number of the step, once something has asked for it.
    """

    is_repeated = True

    def __init__(self, outer: Graph) -> None:
        super().__init__()
        self.counter: Tensor | None = None
        self.outer: Graph = outer
        self.assigns_in_place = outer.assigns_in_place
        self.is_trace = outer.is_trace
        self.is_function = outer.is_function
        self.seed, self.draws = outer.seed, outer.draws
        self.captures: dict[tuple[Operation, int], Tensor] = {}
        self.derived: dict[Any, Subgraph] = {}  # bodies with tangents that rules have built, by their tensors
        here = outer._here
        self._here = Here(device=here.device, attrs=here.attrs, asks=here.asks, rules=here.rules,
                          is_gradient=here.is_gradient)  # fmt: skip

    def captured(self, x: Tensor, variable: Any = None) -> Tensor:
        """The placeholder for a tensor of the graph around, or of one around that; any other as it is."""
        if x.graph is self:
            return x
        if x.graph is not self.outer:
            x = self.outer.captured(x, variable)
            if x.graph is not self.outer:
                return x
        if x._view is not None:
            x._view.renew(x)
        key = (x.op, x.value_index)
        if key not in self.captures:
            with self.as_default(), self.only_attrs({}), self.control_dependencies(None), self.name_scope(""):
                stand_in = placeholder(x.dtype, x.spec.shape, name=x.op.name.replace("/", "_"))
            stand_in.is_weak = x.is_weak
            self.captures[key] = stand_in
        return self.captures[key]

    def step(self) -> Tensor:
        """The number of the step, from 0 on: a uint64. What runs only once gets a 0 for it."""
        if self.counter is None:
            with self.as_default(), self.only_attrs({}), self.control_dependencies(None), self.name_scope(""):
                self.counter = placeholder(np.dtype(np.uint64), (), name="step")
        return self.counter

    def source_of(self, x: Tensor) -> Tensor:
        """What a tensor of this graph stands for in the graphs around; itself where it is made here."""
        for (op, index), inner in self.captures.items():
            if inner is x:
                return self.outer.source_of(op.outputs[index])
        return x

    def is_captured(self, x: Tensor) -> bool:
        """Whether a tensor only stands for one of the graph around."""
        return any(x is stand_in for stand_in in self.captures.values())

    @contextlib.contextmanager
    def reopened(self) -> Iterator[None]:
        """Operations are added by rules, with no scope but those of their own."""
        closed, self.closed_by = self.closed_by, None
        try:
            with self.as_default():
                yield
        finally:
            self.closed_by = closed


def outside(captures: Sequence[tuple[Operation, int]]) -> list[Tensor]:
    """The tensors that were captured."""
    return [op.outputs[index] for op, index in captures]


@dataclass(frozen=True, eq=False)
class Subgraph:
    """The tensors ``outputs`` of a graph as a function of its tensors ``inputs``, where ``effects`` run as well; one is
    equal to itself alone.
    """

    graph: Body = field(compare=False)
    inputs: tuple[Tensor, ...] = field(compare=False)
    outputs: tuple[Tensor, ...] = field(compare=False)
    name: str = field(compare=False)
    effects: tuple[Operation, ...] = field(default=(), compare=False)
    _cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def program(self, specs: Sequence[TensorSpec]) -> Program:
        """The program for inputs of these specs. ShapeError where a shape is not known before it runs."""
        key = tuple(specs)
        if key not in self._cache:
            feeds = dict(zip(self.inputs, key, strict=True))
            self._cache[key] = inlined(slice_graph(self.outputs, feeds, self.effects, self.name))
        found: Program = self._cache[key]
        return found

    def operations(self) -> list[Operation]:
        """The operations that the outputs need, in order."""
        return needed_operations(self.outputs, self.effects, self.inputs)

    @functools.cached_property
    def is_dynamic(self) -> bool:
        """Whether some shape is only known once it runs, so that there is no program."""
        return any(map(is_dynamic, self.operations()))

    @functools.cached_property
    def is_stateful(self) -> bool:
        """Whether an operation has a state or an effect outside."""
        return any(op.opdef.stateful and op.type != "no_op" for op in self.operations())

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The outputs for arrays, op by op: also where shapes are only known once it runs."""
        steps = self._cache.get("steps")
        if steps is None:
            steps = self._cache["steps"] = [op for op in self.operations() if op.inputs or op.type != "placeholder"]
        values: dict[Tensor, Any] = dict(zip(self.inputs, arrays, strict=True))
        for op in steps:
            with np.errstate(all="ignore"):
                result = run_operation(op, [values[x] for x in op.inputs])
            for t, value in zip(op.outputs, (result,) if len(op.outputs) == 1 else result, strict=True):
                values.setdefault(t, value)
        return [values[t] for t in self.outputs]

    def __repr__(self) -> str:
        return f"<{self.name}>"


def is_pure_call(op: Operation) -> bool:
    """Whether an operation calls a graph function that keeps no state."""
    kind = op.opdef.kind
    return isinstance(kind, Control) and kind.form == "function" and not op.opdef.stateful


Sub = Subgraph | Program


def program_of(sub: Sub, specs: Sequence[TensorSpec]) -> Program:
    """The sub-program for inputs of these specs."""
    return sub if isinstance(sub, Program) else sub.program(specs)


def output_specs(sub: Sub, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs of the outputs for inputs of these specs, as far as they can be told."""
    if isinstance(sub, Subgraph) and (sub.is_dynamic or not all(spec.is_known for spec in specs)):
        return tuple(t.spec for t in sub.outputs)
    program = program_of(sub, specs)
    expected = tuple(program.specs[v] for v in program.inputs)
    if expected != tuple(specs):
        raise ShapeError(f"{program.name} takes {_listed(expected)}, and is given {_listed(specs)}")
    return tuple(program.specs[v] for v in program.outputs)


def _listed(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(map(str, specs)) or "nothing"
