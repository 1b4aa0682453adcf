"""Emission of factorizations and solutions on tiles: every instruction works on as many matrices as there are lanes.

A matrix of n rows lies in its tile row by row. LU is Gaussian elimination with partial pivoting: the first of the
largest elements in magnitude is the pivot; where all are zero the column is left alone, so that a singular matrix has
a zero on the diagonal and no NaN. Pivots differ from lane to lane: rows are exchanged under a mask, and not at all
where no lane wants it.

What is not finite goes where it goes in OpenBLAS (``getf2``), which NumPy has: no search finds a NaN, so only one that
is on the diagonal already is a pivot, and nothing is divided by it; below an infinite pivot all is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.emission.registers import INT64
from jitgrad.compiler.emission.scalar_values import call_intrinsic, constant
from jitgrad.compiler.emission.tiles import Routine


class Matrices:
    """Loops over places of tiles, written with row and column numbers."""

    def __init__(self, r: Routine, n: ir.Value) -> None:
        self.r = r
        self.b = r.builder
        self.n = n
        self.numbers = ir.VectorType(INT64, r.lanes)

    def place(self, row: ir.Value, column: ir.Value, columns: ir.Value | None = None) -> ir.Value:
        """Where an element lies in its tile."""
        return self.b.add(self.b.mul(row, self.n if columns is None else columns), column)

    def below(self, k: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """For each row below k."""
        self.r.loop(self.b.add(k, self.r.number(1)), self.n, 1, body)

    def rows(self, body: Callable[[ir.Value], None]) -> None:
        """For each row, downwards."""
        self.r.loop(self.r.number(0), self.n, 1, body)

    def upwards(self, body: Callable[[ir.Value], None]) -> None:
        """For each row, upwards."""
        last = self.b.sub(self.n, self.r.number(1))
        self.rows(lambda k: body(self.b.sub(last, k)))

    def above(self, k: ir.Value, body: Callable[[ir.Value], None]) -> None:
        """For each row above k."""
        self.r.loop(self.r.number(0), k, 1, body)

    def number(self, value: float) -> ir.Value:
        """A number in all lanes."""
        numbers: ir.Value = constant(value, self.r.dtype, self.r.lanes)
        return numbers

    def size(self, x: ir.Value) -> ir.Value:
        """The magnitude."""
        size: ir.Value = call_intrinsic(self.b, "fabs", [x])
        return size

    def load_number(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """An integer per lane."""
        return self.b.load(self.b.gep(tile, [place], source_etype=self.numbers), typ=self.numbers, align=8)

    def store_number(self, value: ir.Value, tile: ir.Value, place: ir.Value) -> None:
        """Write an integer per lane."""
        self.b.store(value, self.b.gep(tile, [place], source_etype=self.numbers), align=8)

    def get(self, cell: ir.Value, type_: ir.Type | None = None) -> ir.Value:
        """What a variable holds."""
        return self.b.load(cell, typ=type_ or self.r.vector)

    def less_product(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """z - x * y."""
        product = self.b.fmul(x, y, flags=("contract",))
        return self.b.fsub(z, product, flags=("contract",))

    def any_lane(self, mask: ir.Value) -> ir.Value:
        """Whether a mask is true in any lane."""
        bits = ir.IntType(self.r.lanes)
        return self.b.icmp_unsigned("!=", self.b.bitcast(mask, bits), ir.Constant(bits, 0))

    def exchange(self, tile: ir.Value, pivots: ir.Value, k: ir.Value, columns: ir.Value) -> None:
        """Exchange row k of a tile with each lane's pivot row."""
        b, r = self.b, self.r
        pivot = self.load_number(pivots, k)
        if r.lanes == 1:
            self.swap_rows(tile, k, b.extract_element(pivot, r.number(0)), columns)
            return

        def with_row(row: ir.Value) -> None:
            mask = b.icmp_signed("==", pivot, r.splat(row))

            def swap(column: ir.Value) -> None:
                upper, lower = self.place(k, column, columns), self.place(row, column, columns)
                x, y = r.load(tile, upper), r.load(tile, lower)
                r.store(b.select(mask, y, x), tile, upper)
                r.store(b.select(mask, x, y), tile, lower)

            with b.if_then(self.any_lane(mask)):
                r.loop(r.number(0), columns, 1, swap)

        self.below(k, with_row)

    def swap_rows(self, tile: ir.Value, k: ir.Value, row: ir.Value, columns: ir.Value) -> None:
        """Exchange two rows of a matrix that is alone."""
        zero = self.r.number(0)
        rows = [(tile, self.place(k, zero, columns)), (tile, self.place(row, zero, columns))]
        with self.b.if_then(self.b.icmp_signed("!=", k, row)):
            self.r.along(zero, columns, rows, lambda values: values[::-1])

    def subtract_row(
        self, factor: ir.Value, tile: ir.Value, source: ir.Value, target: ir.Value, columns: ir.Value,
        start: ir.Value | None = None,
    ) -> None:  # fmt: skip
        """Row ``target`` less ``factor`` times row ``source``, from column ``start`` on."""
        zero = self.r.number(0)
        rows = [(tile, self.place(target, zero, columns)), (tile, self.place(source, zero, columns))]

        def subtract(values: Sequence[ir.Value]) -> list[ir.Value]:
            return [self.less_product(self.r.across(factor, values[0]), values[1], values[0])]

        self.r.along(zero if start is None else start, columns, rows, subtract)

    def divide_row(self, tile: ir.Value, k: ir.Value, divisor: ir.Value, columns: ir.Value) -> None:
        """Row k over a number."""
        zero = self.r.number(0)
        rows = [(tile, self.place(k, zero, columns))]
        self.r.along(zero, columns, rows, lambda values: [self.b.fdiv(values[0], self.r.across(divisor, values[0]))])


def _lu(r: Routine) -> None:
    a, pivots, n, _ = r.function.args
    m, b = Matrices(r, n), r.builder
    zero = m.number(0)

    def find_pivot(k: ir.Value) -> None:
        best = r.cell(m.size(r.load(a, m.place(k, k))))
        at = m.r.cell(r.splat(k))

        def compare(row: ir.Value) -> None:
            size, before = m.size(r.load(a, m.place(row, k))), m.get(best)
            wins = b.fcmp_ordered(">", size, before)
            b.store(b.select(wins, size, before), best)
            b.store(b.select(wins, r.splat(row), m.get(at, m.numbers)), at)

        m.below(k, compare)
        m.store_number(m.get(at, m.numbers), pivots, k)

    def step(k: ir.Value) -> None:
        find_pivot(k)
        m.exchange(a, pivots, k, n)
        pivot = r.load(a, m.place(k, k))
        divisor = b.select(b.fcmp_unordered("==", pivot, zero), m.number(1), pivot)
        is_infinite = b.fcmp_ordered("==", m.size(pivot), m.number(float("inf")))

        def eliminate(row: ir.Value) -> None:
            place = m.place(row, k)
            factor = b.select(is_infinite, zero, b.fdiv(r.load(a, place), divisor))
            r.store(factor, a, place)
            m.subtract_row(factor, a, k, row, n, b.add(k, r.number(1)))

        m.below(k, eliminate)

    m.rows(step)


def _lu_solve(r: Routine) -> None:
    """PA = LU: the exchanges, L downwards, U upwards."""
    lu, pivots, x, n, columns, _ = r.function.args
    m = Matrices(r, n)
    m.rows(lambda k: m.exchange(x, pivots, k, columns))
    _forward(m, lu, x, columns)
    _backward(m, lu, x, columns)


def _forward(m: Matrices, lu: ir.Value, x: ir.Value, columns: ir.Value) -> None:
    """With the unit lower triangle."""
    m.rows(lambda k: m.below(k, lambda row: m.subtract_row(m.r.load(lu, m.place(row, k)), x, k, row, columns)))


def _backward(m: Matrices, lu: ir.Value, x: ir.Value, columns: ir.Value) -> None:
    """With the upper triangle."""

    def step(k: ir.Value) -> None:
        m.divide_row(x, k, m.r.load(lu, m.place(k, k)), columns)
        m.above(k, lambda row: m.subtract_row(m.r.load(lu, m.place(row, k)), x, k, row, columns))

    m.upwards(step)


def _lu_solve_transposed(r: Routine) -> None:
    """The transpose of PA = LU: U' downwards, L' upwards, the exchanges from the last to the first."""
    lu, pivots, x, n, columns, _ = r.function.args
    m = Matrices(r, n)

    def down(k: ir.Value) -> None:
        m.divide_row(x, k, r.load(lu, m.place(k, k)), columns)
        m.below(k, lambda row: m.subtract_row(r.load(lu, m.place(k, row)), x, k, row, columns))

    m.rows(down)
    m.upwards(lambda k: m.above(k, lambda row: m.subtract_row(r.load(lu, m.place(k, row)), x, k, row, columns)))
    m.upwards(lambda k: m.exchange(x, pivots, k, columns))


def _solve_lower(r: Routine) -> None:
    a, x, n, columns, _ = r.function.args
    m = Matrices(r, n)

    def step(k: ir.Value) -> None:
        m.divide_row(x, k, r.load(a, m.place(k, k)), columns)
        m.below(k, lambda row: m.subtract_row(r.load(a, m.place(row, k)), x, k, row, columns))

    m.rows(step)


def _solve_upper(r: Routine) -> None:
    a, x, n, columns, _ = r.function.args
    _backward(Matrices(r, n), a, x, columns)


def _has_zero(m: Matrices, a: ir.Value) -> ir.Value:
    """Whether the diagonal has a zero, per lane."""
    mask_type = ir.VectorType(ir.IntType(1), m.r.lanes)
    found = m.r.cell(ir.Constant(mask_type, [0] * m.r.lanes))

    def look(k: ir.Value) -> None:
        is_zero = m.b.fcmp_ordered("==", m.r.load(a, m.place(k, k)), m.number(0))
        m.b.store(m.b.or_(m.get(found, mask_type), is_zero), found)

    m.rows(look)
    return m.get(found, mask_type)


def _find_zero(r: Routine) -> None:
    a, flags, n, _ = r.function.args
    m = Matrices(r, n)
    m.store_number(r.builder.zext(_has_zero(m, a), m.numbers), flags, r.number(0))


def _sign(m: Matrices, lu: ir.Value, pivots: ir.Value) -> ir.Value:
    """The sign of the determinant, before zeros are looked for."""
    b, r = m.b, m.r
    sign = m.r.cell(m.number(1))

    def turn(k: ir.Value) -> None:
        is_moved = b.icmp_signed("!=", m.load_number(pivots, k), r.splat(k))
        is_negative = b.fcmp_ordered("<", r.load(lu, m.place(k, k)), m.number(0))
        before = m.get(sign)
        b.store(b.select(b.xor(is_moved, is_negative), b.fneg(before), before), sign)

    m.rows(turn)
    return m.get(sign)


def _logarithm(m: Matrices, lu: ir.Value) -> ir.Value:
    """The logarithm of the magnitude of the determinant; minus infinity where the diagonal has a zero."""
    total = m.r.cell(m.number(0))

    def add(k: ir.Value) -> None:
        term = vecmath.emit(m.b, "log", [m.size(m.r.load(lu, m.place(k, k)))])
        m.b.store(m.b.fadd(m.get(total), term), total)

    m.rows(add)
    return m.b.select(_has_zero(m, lu), m.number(float("-inf")), m.get(total))


def _lu_sign(r: Routine) -> None:
    out, lu, pivots, n, _ = r.function.args
    m = Matrices(r, n)
    r.store(r.builder.select(_has_zero(m, lu), m.number(0), _sign(m, lu, pivots)), out, r.number(0))


def _lu_log(r: Routine) -> None:
    out, lu, n, _ = r.function.args
    r.store(_logarithm(Matrices(r, n), lu), out, r.number(0))


def _lu_det(r: Routine) -> None:
    """From sign and logarithm, as in NumPy, so that no partial product overflows."""
    out, lu, pivots, n, _ = r.function.args
    m = Matrices(r, n)
    size = vecmath.emit(r.builder, "exp", [_logarithm(m, lu)])
    r.store(r.builder.fmul(_sign(m, lu, pivots), size), out, r.number(0))


def _cholesky(r: Routine) -> None:
    """Row by row, from the lower triangle; flags say where one is not positive definite. NaN is passed on."""
    a, flags, n, _ = r.function.args
    m, b = Matrices(r, n), r.builder
    m.store_number(ir.Constant(m.numbers, [0] * r.lanes), flags, r.number(0))

    def dot(i: ir.Value, j: ir.Value) -> ir.Value:
        """a[i, j] less the product of the parts of rows i and j in front of column j."""
        rest = m.r.cell(r.load(a, m.place(i, j)))

        def subtract(k: ir.Value) -> None:
            b.store(m.less_product(r.load(a, m.place(i, k)), r.load(a, m.place(j, k)), m.get(rest)), rest)

        m.above(j, subtract)
        return m.get(rest)

    def row(i: ir.Value) -> None:
        m.above(i, lambda j: r.store(b.fdiv(dot(i, j), r.load(a, m.place(j, j))), a, m.place(i, j)))
        square = dot(i, i)
        fails = b.zext(b.fcmp_ordered("<=", square, m.number(0)), m.numbers)
        m.store_number(b.or_(m.load_number(flags, r.number(0)), fails), flags, r.number(0))
        r.store(call_intrinsic(b, "sqrt", [square]), a, m.place(i, i))
        m.below(i, lambda column: r.store(m.number(0), a, m.place(i, column)))

    m.rows(row)


def _identity(r: Routine) -> None:
    a, n, _ = r.function.args
    m, b = Matrices(r, n), r.builder

    def row(i: ir.Value) -> None:
        def put(j: ir.Value) -> None:
            r.store(b.select(b.icmp_signed("==", i, j), m.number(1), m.number(0)), a, m.place(i, j))

        m.rows(put)

    m.rows(row)


WRITERS: dict[str, Callable[[Routine], None]] = {
    "lu": _lu, "lu_solve": _lu_solve, "lu_solve_transposed": _lu_solve_transposed, "solve_lower": _solve_lower,
    "solve_upper": _solve_upper, "find_zero": _find_zero, "lu_sign": _lu_sign, "lu_log": _lu_log, "lu_det": _lu_det,
    "cholesky": _cholesky, "identity_matrix": _identity,
}  # fmt: skip
