"""Instructions of a body for all steps at once: each becomes one with a leading axis, by its kernel kind.

A matrix product of what differs from step to step with what does not is one product over the rows of all steps; the sum
over the steps of products is one product that sums over all of their rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Contract, Elementwise, Reduce, View
from jitgrad.program import Instruction, Program
from jitgrad.spec import TensorSpec, normalize_axes

Shape = tuple[int, ...]


def can_stack(ins: Instruction, stacked: Collection[int], specs: Sequence[TensorSpec]) -> bool:
    """Whether an instruction can be done for all steps at once; ``stacked`` differ from step to step."""
    kind = ins.op.kind
    if len(ins.outputs) != 1 or ins.op.stateful or ins.after:
        return False
    if isinstance(kind, Elementwise | View) or ins.op.name in ("broadcast_to", "transpose"):
        return True
    if isinstance(kind, Reduce):
        return not kind.combine.startswith("arg")
    return isinstance(kind, Contract) and _can_multiply(ins, stacked, specs)


def _can_multiply(ins: Instruction, stacked: Collection[int], specs: Sequence[TensorSpec]) -> bool:
    a, b = (specs[v].known_shape for v in ins.inputs)
    if len(a) != 2 or len(b) != 2:
        return False
    is_a, is_b = (v in stacked for v in ins.inputs)
    if is_a and is_b:
        return True
    if is_a:
        return not ins.params["transpose_a"] or 1 in a
    return is_b and b[0 if ins.params["transpose_b"] else 1] == 1


def is_product_with_constant(ins: Instruction, stacked: Collection[int]) -> bool:
    """Whether an instruction multiplies a matrix that differs from step to step with one that does not."""
    return isinstance(ins.op.kind, Contract) and sum(v in stacked for v in ins.inputs) == 1


def terms_of(ins: Instruction, specs: Sequence[TensorSpec]) -> int:
    """How many terms each element of a matrix product sums."""
    shape = specs[ins.inputs[0]].known_shape
    return shape[-2] if ins.params["transpose_a"] else shape[-1]


class AtOnce:
    """What is made before or behind a loop of ``n`` steps for values of its body.

    ``consts`` and ``stacks``: what stands outside for values of the body, the latter with a leading axis.
    """

    def __init__(
        self, rw: Rewriter, body: Program, n: int, consts: Mapping[int, int], stacks: Mapping[int, int]
    ) -> None:
        self.rw, self.body, self.n = rw, body, n
        self.consts = dict(consts)
        self.stacks = dict(stacks)

    def make(self, ins: Instruction) -> None:
        """All steps of an instruction; once, if it is the same at each."""
        (out,) = ins.outputs
        if not any(v in self.stacks for v in ins.inputs):
            inputs = tuple([self._same(v) for v in ins.inputs])
            (self.consts[out],) = self.rw.emit_all(ins.origin, ins.op, inputs, ins.params)
        else:
            self.stacks[out] = self._stacked(ins)

    def _same(self, v: int) -> int:
        """A value that is the same at each step: the loop may need it too, and is not told to give it."""
        if v not in self.consts:
            self.make(self.body.instructions[self.body.producers()[v]])
        return self.consts[v]

    def sum_of(self, v: int, maker: Instruction | None, like: Instruction) -> int:
        """The sum of a value over all steps."""
        if maker is not None and isinstance(maker.op.kind, Contract) and all(x in self.stacks for x in maker.inputs):
            return self._sum_of_products(maker)
        return self.rw.emit(like.origin, "sum", self.stacks[v], axis=(0,), keepdims=False)

    # -- per kind ------------------------------------------------------------------------------------------------------

    def _shape(self, v: int) -> Shape:
        return self.body.specs[v].known_shape

    def _all(self, ins: Instruction, v: int) -> int:
        if v in self.stacks:
            return self.stacks[v]
        return self.rw.emit(ins.origin, "broadcast_to", self._same(v), shape=(self.n, *self._shape(v)))

    def _stacked(self, ins: Instruction) -> int:
        kind, rw, shape = ins.op.kind, self.rw, self._shape(ins.outputs[0])
        if isinstance(kind, Contract):
            return self._products(ins)
        if isinstance(kind, Elementwise):
            return rw.emit_op(ins.origin, ins.op, tuple([self._all(ins, v) for v in ins.inputs]), ins.params)
        x = self.stacks[ins.inputs[0]]
        if isinstance(kind, View):
            return rw.emit(ins.origin, "reshape", x, shape=(self.n, *shape))
        if ins.op.name == "transpose":
            return rw.emit(ins.origin, "transpose", x, axes=(0, *(axis + 1 for axis in ins.params["axes"])))
        inner = self._shape(ins.inputs[0])
        if ins.op.name == "broadcast_to":
            wide = (self.n, *(1,) * (len(shape) - len(inner)), *inner)
            x = rw.emit(ins.origin, "reshape", x, shape=wide)
            return rw.emit(ins.origin, "broadcast_to", x, shape=(self.n, *shape))
        axes = tuple(axis + 1 for axis in normalize_axes(ins.params["axis"], len(inner)))
        return rw.emit_op(ins.origin, ins.op, (x,), {**ins.params, "axis": axes})

    def _reshaped(self, ins: Instruction, v: int, shape: Shape) -> int:
        return self.rw.emit(ins.origin, "reshape", self.stacks[v], shape=shape)

    def _products(self, ins: Instruction) -> int:
        """A product at each step."""
        a, b = ins.inputs
        shape = (self.n, *self._shape(ins.outputs[0]))
        terms, emit = terms_of(ins, self.body.specs), self.rw.emit
        if a in self.stacks and b in self.stacks:
            return emit(ins.origin, ins.op.name, self.stacks[a], self.stacks[b], **ins.params)
        if a in self.stacks:
            rows = self._reshaped(ins, a, (math.prod(shape[:-1]), terms))
            params = {**ins.params, "transpose_a": False}
            return emit(
                ins.origin, "reshape", emit(ins.origin, ins.op.name, rows, self._same(b), **params), shape=shape
            )
        rows = self._reshaped(ins, b, (self.n, terms))  # A x = (xᵀ Aᵀ)ᵀ for each column x
        params = {"transpose_a": False, "transpose_b": not ins.params["transpose_a"]}
        return emit(ins.origin, "reshape", emit(ins.origin, ins.op.name, rows, self._same(a), **params), shape=shape)

    def _sum_of_products(self, ins: Instruction) -> int:
        """The sum of a product over all steps, as one product."""
        rows, columns = self._shape(ins.outputs[0])
        terms = terms_of(ins, self.body.specs)
        a = self._with_terms_first(ins, ins.inputs[0], not ins.params["transpose_a"], terms, rows)
        b = self._with_terms_first(ins, ins.inputs[1], ins.params["transpose_b"], terms, columns)
        return self.rw.emit(ins.origin, ins.op.name, a, b, transpose_a=True, transpose_b=False)

    def _with_terms_first(self, ins: Instruction, v: int, is_last: bool, terms: int, extent: int) -> int:
        """A factor at all steps as one matrix of n * terms rows; ``is_last``: its terms lie along the second axis."""
        x = self.stacks[v]
        if is_last and terms > 1 and extent > 1:
            x = self.rw.emit(ins.origin, "transpose", x, axes=(0, 2, 1))
        return self.rw.emit(ins.origin, "reshape", x, shape=(self.n * terms, extent))
