"""Products, factorizations and solutions in kernels with a matrix per lane: calls of routines on tiles.

A matrix that several nodes solve with, invert or take the determinant of, itself or transposed, is factored once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from jitgrad.compiler.fusing.accesses import Operand
from jitgrad.compiler.fusing.extents import ONE
from jitgrad.compiler.fusing.groups import Placed
from jitgrad.compiler.fusing.matrices import lead_dims
from jitgrad.compiler.fusing.nodes import REDUCE, ROUTINE, Node
from jitgrad.compiler.fusing.small import depends_on, sized
from jitgrad.compiler.loopir.nests import Bound, Call, Check, Index, Literal, Load, Store, Term
from jitgrad.compiler.loopir.quantities import Quantity, product
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.reading import Body
from jitgrad.compiler.lowering.tiles import TileLowering

_CHECKED = {"solve", "inv"}


class RoutineLowering(TileLowering):
    """Lowers a group with a matrix per lane that may hold routines."""

    def _lower_node(self, placed: Placed) -> None:
        if placed.node.form != ROUTINE:
            is_product = placed.node.form == REDUCE and placed.node.batch is not None
            (self._product if is_product else super()._lower_node)(placed)
        elif placed.node.op == "cholesky":
            self._cholesky(placed)
        elif placed.node.op in ("solve_lower", "solve_upper"):
            self._solve_triangular(placed)
        else:
            self._with_factors(placed)

    # -- products --------------------------------------------------------------------------------------------------

    def _product(self, placed: Placed) -> None:
        node = placed.node
        first = _first(node)
        m, k, n = first, first + 1, first + 2
        left, right = self._matrix(placed, 0, (m, k)), self._matrix(placed, 1, (k, n))
        extents = [self._extent_of_class(node.classes[d]) for d in (m, n, k)]
        self._call("product", (self._tile(node.value), left[0], right[0]), *extents, *left[1:], *right[1:])

    def _matrix(self, placed: Placed, position: int, dims: tuple[int, int]) -> tuple[str, str, str, str]:
        """The tile in which an operand lies, where it begins, and the strides of its rows and columns."""
        operand = placed.node.operands[position]
        leaf = operand.leaves[0]
        is_divided = any(index.divisor != 1 for index in leaf.dims)
        if len(operand.leaves) > 1 or leaf.guards or isinstance(leaf.source, Literal) or is_divided:
            return self._copied(placed, position, dims)
        lead = lead_dims(placed.node, self.lead) or []
        inner = self._inner_dims(leaf.source)
        if leaf.source in self.makers or depends_on(leaf, lead):
            tile = self._packed(leaf.source)
        elif leaf.is_selection and all(leaf.dims[d].axis in dims for d in inner):
            tile = self._spread(leaf.source)
        else:
            return self._copied(placed, position, dims)
        shape, classes = self.plan.specs[leaf.source].known_shape, self.plan.classes[leaf.source]
        strides, start = dict.fromkeys(dims, Quantity((), 0)), 0
        for d in inner:
            index = leaf.dims[d]
            start += index.offset * math.prod(shape[d + 1 :])
            if index.axis in strides:
                strides[index.axis] = product(tuple(c for c in classes[d + 1 :] if c != ONE), index.scale)
        moved = [n for d in inner if leaf.dims[d].offset for n in shape[d + 1 :]]
        first = self.signature.number((leaf, "start"), start, moved)
        row, column = (self.signature.product(strides[d]) for d in dims)
        return tile, first, row, column

    def _spread(self, v: int) -> str:
        """The tile of a value that is the same for all matrices, filled in front of the loop."""
        if v not in self.packed:
            self.packed.add(v)
            source = self.signature.buffer("in", self.plan.aliases.get(v, v), self.plan.specs[v].dtype)
            self.before.append(Call("spread", (self._tile(v), source), (self._count(v),)))
        return self._tile(v)

    def _copied(self, placed: Placed, position: int, dims: tuple[int, int]) -> tuple[str, str, str, str]:
        """A copy of an operand in a tile of its own."""
        classes = tuple(placed.node.classes[d] for d in dims)
        tile = self._scratch(placed.node, classes)
        self._copy(placed, position, tile, dims)
        row = self._extent_of_class(classes[1])
        one = self.signature.product(Quantity())
        return tile, self.signature.number("zero", 0), row, one

    # -- routines --------------------------------------------------------------------------------------------------

    def _cholesky(self, placed: Placed) -> None:
        node = placed.node
        self._copy(placed, 0, self._tile(node.value), self._square(node))
        self._call("cholesky", (self._tile(node.value), self._flags()), self._rows(node))
        self._report(placed)

    def _solve_triangular(self, placed: Placed) -> None:
        node = placed.node
        first = _first(node)
        matrix = self._scratch(node, node.classes[first : first + 2])
        self._copy(placed, 0, matrix, self._square(node))
        self._copy(placed, 1, self._tile(node.value), (first, first + 2))
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
                self._copy(placed, 1, out, (_first(node), _first(node) + 2))
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
            factors = self._scratch(node, node.classes[_first(node) : _first(node) + 2])
            pivots = self.signature.buffer("tile", self._fresh(), INT64, self._rows(node))
            self._copy(placed, 0, factors, self._square(node)[:: -1 if transposed else 1])
            self._call("lu", (factors, pivots), self._rows(node))
            self.factors[key] = factors, pivots
        return *self.factors[key], transposed

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _fresh(self) -> int:
        """A number for a tile that holds no value of the program; such are below -1."""
        return -2 - self.signature.fresh()

    def _scratch(self, node: Node, classes: tuple[int, ...]) -> str:
        """A tile of a node's dtype that holds no value of the program."""
        count = self.signature.product(product(tuple(c for c in classes if c != ONE)))
        return self.signature.buffer("tile", self._fresh(), node.dtype, count)

    def _square(self, node: Node) -> tuple[int, int]:
        return _first(node), _first(node) + 1

    def _rows(self, node: Node) -> str:
        return self._extent_of_class(node.classes[_first(node)])

    def _columns_of(self, node: Node) -> str:
        return self._extent_of_class(node.classes[_first(node) + 2])

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

    def _copy(self, placed: Placed, position: int, tile: str, dims: tuple[int, ...]) -> None:
        """An operand into a tile, with the dimensions ``dims`` as rows and columns."""
        node = placed.node

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


def _first(node: Node) -> int:
    """The first dimension of a matrix, behind those that count them."""
    assert node.batch is not None
    return node.batch


def _identity_of(node: Node) -> tuple[object, bool]:
    """What tells the matrix of a node from others, and whether the node reads it transposed."""
    operand = node.operands[0]
    leaf = operand.leaves[0]
    row, column = _first(node), _first(node) + 1
    axes = [index.axis for index in leaf.dims]
    if len(operand.leaves) > 1 or row not in axes or column not in axes or axes.index(row) < axes.index(column):
        return operand, False
    turned = {row: column, column: row}
    dims = tuple(i if i.axis not in turned else replace(i, axis=turned[i.axis]) for i in leaf.dims)
    guards = tuple(type(g)(turned.get(g.axis, g.axis), g.lo, g.hi) for g in leaf.guards)
    return Operand((type(leaf)(leaf.source, dims, guards),), operand.fill), True
