"""Emission of routines: internal functions of a module that work on whole tiles, made when they are first called."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission import linalg as emit_linalg
from jitgrad.compiler.emission import products as emit_products
from jitgrad.compiler.emission.registers import INT32, POINTER
from jitgrad.compiler.emission.scalar_emit import emit_op
from jitgrad.compiler.emission.scalar_values import cast, memory_type
from jitgrad.compiler.emission.tiles import Routine
from jitgrad.compiler.loopir.nests import Buffer
from jitgrad.compiler.vecmath.lanes import declare
from jitgrad.spec import DType, dtype_text


def emit_routine(
    builder: ir.IRBuilder, routine: str, buffers: Sequence[tuple[ir.Value, Buffer]], numbers: Sequence[ir.Value],
    lanes: int,
) -> None:  # fmt: skip
    """Call a routine on buffers, with numbers; the dtype of the first buffer is that of all its elements."""
    dtype = buffers[0][1].dtype
    name = f"{routine}_{dtype_text(dtype)}"
    types = [POINTER] * len(buffers) + [n.type for n in numbers]
    function = builder.module.functions.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), types), name)
        function.linkage = "internal"
        function.attributes.add("nounwind")
        _write(routine, Routine(function, dtype, lanes))
    builder.call(function, [address for address, _ in buffers] + list(numbers))


def _write(routine: str, r: Routine) -> None:
    if routine.startswith("fold_"):
        _fold(r, routine.removeprefix("fold_"))
    else:
        _writers[routine](r)
    r.builder.ret_void()


def transposed(r: Routine, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """A square of as many rows as lanes, transposed by exchanging blocks of 1, 2, 4, ... elements."""
    rows = list(rows)
    size, lanes = 1, r.lanes
    while size < lanes:
        low = [k if not k & size else lanes + k - size for k in range(lanes)]
        high = [k + size if not k & size else lanes + k for k in range(lanes)]
        for k in range(lanes):
            if not k & size:
                x, y = rows[k], rows[k + size]
                rows[k], rows[k + size] = r.shuffled(x, y, low), r.shuffled(x, y, high)
        size *= 2
    return rows


def _columns(r: Routine, start: ir.Value, n: ir.Value) -> ir.Value:
    """Which of the columns from ``start`` on exist."""
    b = r.builder
    left = b.trunc(b.sub(n, start), INT32)
    return b.icmp_signed("<", r.lane_numbers(), r.splat(left))


def _masked(r: Routine, name: str, args: list[ir.Value]) -> ir.Value:
    result = r.vector if name == "load" else ir.VoidType()
    full = f"llvm.masked.{name}.{r.vector.suffix}.p0"
    return r.builder.call(declare(r.builder.module, full, ir.FunctionType(result, [a.type for a in args])), args)


def _starts(r: Routine, base: ir.Value, first: ir.Value, n: ir.Value, valid: ir.Value) -> list[ir.Value]:
    """Where the matrix of each lane begins; the last one stands in for those beyond the end."""
    b = r.builder
    last = b.sub(valid, r.number(1))
    starts = []
    for k in range(r.lanes):
        lane = b.select(b.icmp_signed("<", r.number(k), valid), r.number(k), last)
        starts.append(r.element(base, b.mul(b.add(first, lane), n)))
    return starts


def _pack(r: Routine) -> None:
    """A square of elements at a time, whose rows are matrices."""
    tile, source, first, n, valid = r.function.args
    align = ir.Constant(INT32, r.dtype.itemsize)
    starts = _starts(r, source, first, n, valid)

    def square(start: ir.Value) -> None:
        mask = _columns(r, start, n)
        zero = ir.Constant(r.vector, None)
        rows = [_masked(r, "load", [r.element(row, start), align, mask, zero]) for row in starts]
        for k, column in enumerate(transposed(r, rows)):
            r.store(column, tile, r.builder.add(start, r.number(k)))

    r.loop(r.number(0), n, r.lanes, square)


def _unpack(r: Routine) -> None:
    """The way back. Lanes beyond the end hold what the last one holds, because they were given the same."""
    out, tile, first, n, valid = r.function.args
    align = ir.Constant(INT32, r.dtype.itemsize)
    starts = _starts(r, out, first, n, valid)

    def square(start: ir.Value) -> None:
        mask = _columns(r, start, n)
        columns = [r.load(tile, r.builder.add(start, r.number(k))) for k in range(r.lanes)]
        rows, places = transposed(r, columns), [r.element(target, start) for target in starts]
        is_whole = r.builder.icmp_signed("<=", r.builder.add(start, r.number(r.lanes)), n)
        with r.builder.if_else(is_whole) as (whole, part):
            with whole:
                for row, place in zip(rows, places, strict=True):
                    r.builder.store(row, place, align=r.dtype.itemsize)
            with part:
                for row, place in zip(rows, places, strict=True):
                    _masked(r, "store", [row, place, align, mask])

    r.loop(r.number(0), n, r.lanes, square)


def _fill(r: Routine) -> None:
    sums, value, n = r.function.args
    raw = cast(r.builder, value, r.dtype, _stored(r.dtype), 0)
    splat = r.splat(raw)
    r.loop(r.number(0), n, 1, lambda k: r.store(splat, sums, k))


def _stored(dtype: DType) -> DType:
    """The dtype of an element in memory."""
    return np.dtype(np.uint8) if dtype.kind == "b" else dtype


def _fold(r: Routine, combine: str) -> None:
    """Halves of the lanes are combined until one is left."""
    b = r.builder
    partial, sums, n = r.function.args

    def fold(k: ir.Value) -> None:
        value = cast(b, r.load(sums, k), _stored(r.dtype), r.dtype, r.lanes)
        lanes = r.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (r.shuffled(value, value, range(first, first + lanes)) for first in (0, lanes))
            value = emit_op(b, combine, [low, high], [r.dtype, r.dtype], r.dtype, lanes)
        single = b.extract_element(value, ir.Constant(INT32, 0))
        b.store(cast(b, single, r.dtype, _stored(r.dtype), 0), r.element(partial, k), align=r.dtype.itemsize)

    r.loop(r.number(0), n, 1, fold)


def _spread(r: Routine) -> None:
    tile, source, n = r.function.args
    type_, align = memory_type(r.dtype), r.dtype.itemsize
    r.loop(r.number(0), n, 1, lambda k: r.store(
        r.splat(r.builder.load(r.element(source, k), typ=type_, align=align)), tile, k
    ))  # fmt: skip


_writers = {
    "pack": _pack, "unpack": _unpack, "spread": _spread, "fill": _fill, "product": emit_products.product,
    **emit_linalg.WRITERS,
}  # fmt: skip
