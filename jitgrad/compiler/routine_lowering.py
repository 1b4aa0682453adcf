"""Factorizations and solutions in kernels with a matrix per lane: calls of routines on tiles.

A matrix that several nodes solve with, invert or take the determinant of, itself or transposed, is factored once.
"""

from __future__ import annotations

from jitgrad.compiler.accesses import Operand
from jitgrad.compiler.extents import ONE
from jitgrad.compiler.groups import Placed
from jitgrad.compiler.loopir import Bound, Call, Check, Index, Load, Store, Term
from jitgrad.compiler.lowering import INT64, Body
from jitgrad.compiler.nodes import ROUTINE, Node
from jitgrad.compiler.quantities import Quantity, product
from jitgrad.compiler.small import sized
from jitgrad.compiler.tile_lowering import TileLowering

_CHECKED = {"solve", "inv"}


class RoutineLowering(TileLowering):
    """Lowers a group with a matrix per lane that may hold routines."""

    def _lower_node(self, placed: Placed) -> None:
        if placed.node.form != ROUTINE:
            super()._lower_node(placed)
        elif placed.node.op == "cholesky":
            self._cholesky(placed)
        elif placed.node.op in ("solve_lower", "solve_upper"):
            self._solve_triangular(placed)
        else:
            self._with_factors(placed)

    # -- routines --------------------------------------------------------------------------------------------------

    def _cholesky(self, placed: Placed) -> None:
        node = placed.node
        self._copy(placed, 0, self._tile(node.value))
        self._call("cholesky", (self._tile(node.value), self._flags()), self._rows(node))
        self._report(placed)

    def _solve_triangular(self, placed: Placed) -> None:
        node = placed.node
        matrix = self._scratch(placed)
        self._copy(placed, 0, matrix)
        self._copy(placed, 1, self._tile(node.value))
        self._call("find_zero", (matrix, self._flags()), self._rows(node))
        self._report(placed)
        self._call(node.op, (matrix, self._tile(node.value)), self._rows(node), self._columns_of(node))

    def _with_factors(self, placed: Placed) -> None:
        node, out = placed.node, self._tile(placed.node.value)
        factors, pivots, transposed = self._factored(placed)
        rows = self._rows(node)
        if node.op in _CHECKED:
            self._call("find_zero", (factors, self._flags()), rows)
            self._report(placed)
        suffix = "_transposed" if transposed else ""
        match node.op:
            case "solve":
                self._copy(placed, 1, out)
                self._call(f"lu_solve{suffix}", (factors, pivots, out), rows, self._columns_of(node))
            case "inv":
                self._call("identity_matrix", (out,), rows)
                self._call(f"lu_solve{suffix}", (factors, pivots, out), rows, rows)
            case "det":
                self._call("lu_det", (out, factors, pivots), rows)
            case "slogdet":
                self._call("lu_sign", (out, factors, pivots), rows)
            case "slogdet_1":
                self._call("lu_log", (out, factors), rows)

    def _factored(self, placed: Placed) -> tuple[str, str, bool]:
        """The tiles of the factors and the pivots of a node's matrix, made at its first use; and whether they are of
        its transpose.
        """
        node = placed.node
        key, transposed = _identity_of(node)
        if key not in self.factors:
            factors = self._scratch(placed)
            pivots = self.signature.buffer("tile", self._fresh(), INT64, self._rows(node))
            self._copy(placed, 0, factors, transposed)
            self._call("lu", (factors, pivots), self._rows(node))
            self.factors[key] = factors, pivots
        return *self.factors[key], transposed

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _fresh(self) -> int:
        """A number for a tile that holds no value of the program; such are below -1."""
        self.counter += 1
        return -1 - self.counter

    def _scratch(self, placed: Placed) -> str:
        """A tile as large as the matrix of a node."""
        node = placed.node
        classes = tuple(c for c in node.classes[node.batch : node.batch + 2] if c != ONE)
        return self.signature.buffer("tile", self._fresh(), node.dtype, self.signature.product(product(classes)))

    def _rows(self, node: Node) -> str:
        return self._extent_of_class(node.classes[node.batch])

    def _columns_of(self, node: Node) -> str:
        return self._extent_of_class(node.classes[node.batch + 2])

    def _extent_of_class(self, c: int) -> str:
        return self.signature.product(product(() if c == ONE else (c,)))

    def _flags(self) -> str:
        return self.signature.buffer("tile", -1, INT64, self.signature.product(Quantity()))

    def _call(self, routine: str, tiles: tuple[str, ...], *numbers: str) -> None:
        self.statements.append(Call(routine, tiles, numbers))

    def _report(self, placed: Placed) -> None:
        """What the flags say goes to the status."""
        name = self.name()
        status = self.signature.buffer("status", 0, INT64)
        code = self.signature.number(("code", placed.node.value), placed.node.value + 1)
        self.statements.append(Load(name, INT64, self._flags(), Index(())))
        self.statements.append(Check(status, (Bound(name, None, self.signature.product(Quantity())),), code))

    def _copy(self, placed: Placed, position: int, tile: str, transposed: bool = False) -> None:
        """An operand into a tile, row by row or column by column."""
        node = placed.node
        first = node.batch
        dims = (first, first + 1) if position == 0 else (first, first + 2)
        dims = dims[::-1] if transposed else dims

        def write(body: Body) -> None:
            value = self.read(node.operands[position], placed, body)
            terms = []
            if (outer := placed.axes[dims[0]]) is not None:
                stride = self._extent_of_class(node.classes[dims[1]]) if node.classes[dims[1]] != ONE else 1
                terms.append(Term(f"i{outer}", stride))
            if (inner := placed.axes[dims[1]]) is not None:
                terms.append(Term(f"i{inner}"))
            body.rest.append(Store(tile, Index(tuple(terms)), value, node.dtype))

        self._nest(placed, [d for d in dims if d in sized(node.classes)], write)


def _identity_of(node: Node) -> tuple[object, bool]:
    """What tells the matrix of a node from others, and whether the node reads it transposed."""
    operand = node.operands[0]
    leaf = operand.leaves[0]
    row, column = node.batch, node.batch + 1
    axes = [index.axis for index in leaf.dims]
    if len(operand.leaves) > 1 or row not in axes or column not in axes or axes.index(row) < axes.index(column):
        return operand, False
    turned = {row: column, column: row}
    dims = tuple(i if i.axis not in turned else type(i)(turned[i.axis], i.scale, i.offset) for i in leaf.dims)
    guards = tuple(type(g)(turned.get(g.axis, g.axis), g.lo, g.hi) for g in leaf.guards)
    return Operand((type(leaf)(leaf.source, dims, guards),), operand.fill), True
