"""Emission of a routine's function: loops and whole rows of lanes of tiles; what routines compute is elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.registers import INT32, INT64, count_through
from jitgrad.compiler.emission.scalar_values import memory_type
from jitgrad.spec import DType


class Routine:
    """A function that is being written: its builder, its dtype, and loops."""

    def __init__(self, function: ir.Function, dtype: DType, lanes: int) -> None:
        self.function = function
        self.dtype = dtype
        self.lanes = lanes
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.vector = ir.VectorType(memory_type(dtype), lanes)

    def number(self, value: int) -> ir.Value:
        """A 64-bit integer."""
        return ir.Constant(INT64, value)

    def loop(self, start: ir.Value, stop: ir.Value, step: int, body: Callable[[ir.Value], None]) -> None:
        """``for i in range(start, stop, step): body(i)``."""
        count_through(self.builder, self.function, start, stop, step, body)

    def element(self, base: ir.Value, place: ir.Value) -> ir.Value:
        """The address of one element."""
        return self.builder.gep(base, [place], source_etype=memory_type(self.dtype))

    def row(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """The address of one element of a tile, for all lanes."""
        return self.builder.gep(tile, [place], source_etype=self.vector)

    def load(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """One element of a tile, for all lanes."""
        return self.builder.load(self.row(tile, place), typ=self.vector, align=self.dtype.itemsize)

    def store(self, value: ir.Value, tile: ir.Value, place: ir.Value) -> None:
        """Write one element of a tile, for all lanes."""
        self.builder.store(value, self.row(tile, place), align=self.dtype.itemsize)

    def cell(self, value: ir.Value) -> ir.Value:
        """A variable."""
        with self.builder.goto_entry_block():
            cell = self.builder.alloca(value.type)
        self.builder.store(value, cell)
        return cell

    def lane_numbers(self) -> ir.Value:
        """0, 1, 2, ... in the lanes."""
        return ir.Constant(ir.VectorType(INT32, self.lanes), list(range(self.lanes)))

    def splat(self, value: ir.Value) -> ir.Value:
        """One scalar in all lanes."""
        type_ = ir.VectorType(value.type, self.lanes)
        single = self.builder.insert_element(ir.Constant(type_, ir.Undefined), value, ir.Constant(INT32, 0))
        return self.shuffled(single, single, [0] * self.lanes)

    def shuffled(self, x: ir.Value, y: ir.Value, picks: Sequence[int]) -> ir.Value:
        """The lanes ``picks`` of x and y, one behind the other."""
        return self.builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(INT32, len(picks)), list(picks)))
