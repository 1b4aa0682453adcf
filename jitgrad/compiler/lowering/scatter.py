"""Scatters: zeros, then one addition per update, in order, so that duplicates add up in a fixed order."""

from __future__ import annotations

from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.looptree import TreeLoop
from jitgrad.compiler.loopir.nests import SERIAL, VECTOR, Index, Let, Literal, Load, Loop, Statement, Store, Term
from jitgrad.compiler.loopir.quantities import product
from jitgrad.compiler.lowering.body import Body, Lowering
from jitgrad.opdef import AxisIndex


class ScatterLowering(Lowering):
    """Lowers a group that is one scatter."""

    def body(self) -> list[Statement]:
        """The loop that clears the output, and the nest that adds the updates."""
        placed = self.group.nodes[0]
        node = placed.node
        out = self.signature.buffer("out", node.value, node.dtype)
        total = self.signature.product(product(tuple(c for c in self.plan.classes[node.value] if c != ONE)))
        zero = Literal(node.dtype.type(0), node.dtype)
        clear = Loop("j", total, VECTOR, (Store(out, Index((Term("j"),)), zero, node.dtype),))
        trees = [self.tree.root]
        axes = [a for a in placed.axes if a is not None]
        for axis in axes:
            trees.append(TreeLoop(axis, trees[-1]))
        bodies = [self.bodies.setdefault(tree, Body(tree)) for tree in trees]
        body = bodies[-1]
        args = tuple(self.read(operand, placed, body) for operand in node.operands)
        index, bounds = self.table_index(placed, node.value, args[1:], body)
        before, after = self.name(), self.name()
        body.rest.append(Load(before, node.dtype, out, index, bounds, zero))
        body.rest.append(Let(after, node.dtype, "add", (before, args[0])))
        body.rest.append(Store(out, index, after, node.dtype, bounds))
        free = {placed.axes[e.axis] for e in node.table_dims if isinstance(e, AxisIndex) and e.axis is not None}
        statements: list[Statement] = body.loads + body.rest
        for position, axis in enumerate(reversed(axes)):
            kind = VECTOR if position == 0 and axis in free else SERIAL
            statements = [Loop(f"i{axis}", self.extent((axis,)), kind, tuple(statements))]
            outer = bodies[len(axes) - 1 - position]
            statements = outer.loads + outer.rest + statements
        return [clear, *statements]
