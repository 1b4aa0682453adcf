"""Emission of repeats: a body of a vector loop that runs once for each of several turns, as a loop of its own.

What a turn reads lies as many words further in the kernel's block as those of the turn before: the turn's number says
where. What a repeat keeps lies on the stack, a register of lanes for each turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.arguments import ArgumentEmitter
from jitgrad.compiler.emission.registers import INT64, POINTER, Register
from jitgrad.compiler.emission.scalar_values import element_type
from jitgrad.compiler.loopir.nests import Let, Repeat, Statement, is_kept, kept_turn
from jitgrad.spec import DType


class RepeatEmitter(ArgumentEmitter):
    """Emits repeats."""

    def _body(self, body: Sequence[Statement]) -> None:
        """Emit statements."""
        raise NotImplementedError

    def _repeat(self, repeat: Repeat) -> None:
        b = self.builder
        first = [self._argument(first, self.lanes) for _, first, _ in repeat.carried]
        for let in (s for s in repeat.body if isinstance(s, Let) and s.name in repeat.kept):
            with b.goto_entry_block():
                cell = b.alloca(ir.ArrayType(self._lanes_type(let.dtype), repeat.turns))
            self.kept[let.name] = cell, let.dtype
        before, head, behind = b.block, b.append_basic_block("turn"), b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        turn = b.phi(INT64)
        turn.add_incoming(ir.Constant(INT64, 0), before)
        phis = [b.phi(register.value.type) for register in first]
        for (name, _, _), phi, register in zip(repeat.carried, phis, first, strict=True):
            phi.add_incoming(register.value, before)
            self.registers[name] = Register(phi, register.dtype, self.lanes)
        for name, members in zip(repeat.names, repeat.members, strict=True):
            self._stand_for(name, members, turn)
        outside, self.is_repeated = self.is_repeated, True
        self._body(repeat.body)
        self.is_repeated = outside
        for name in repeat.kept:
            b.store(self._argument(name, self.lanes).value, self._kept_address(name, turn))
        for (_, _, following), phi in zip(repeat.carried, phis, strict=True):
            phi.add_incoming(self._argument(following, self.lanes).value, b.block)
        next_turn = b.add(turn, ir.Constant(INT64, 1), flags=["nsw"])
        turn.add_incoming(next_turn, b.block)
        b.cbranch(b.icmp_signed("<", next_turn, ir.Constant(INT64, repeat.turns)), head, behind)
        b.position_at_end(behind)

    def _stand_for(self, name: str, members: Sequence[str], turn: ir.Value) -> None:
        """Let a name stand for the member of a turn: a value that was kept, a buffer, an int or a constant."""
        b, kernel, (first, second) = self.builder, self.kernel, members[:2]
        if is_kept(first):
            (value, start), (_, then) = kept_turn(first), kept_turn(second)
            self.registers[name] = self._kept_value(value, self._number(start, then, turn))
            return
        table, block = self.function.args[:2]
        word = kernel.words[first]
        place = b.gep(block, [self._number(word.number, kernel.words[second].number, turn)], source_etype=INT64)
        if word.kind in ("int", "constant"):
            self.registers[name] = Register(b.load(place, typ=element_type(word.dtype)), word.dtype)
            return
        slot = b.load(place, typ=INT64)
        address = b.load(b.gep(table, [slot], source_etype=INT64), typ=POINTER)
        self.buffers[name] = address, replace(kernel.buffers[word.number], name=name)

    def _number(self, first: int, second: int, turn: ir.Value) -> ir.Value:
        """The first number in the first turn, the second in the second, and so on."""
        b, step = self.builder, second - first
        scaled = turn if step == 1 else b.mul(turn, ir.Constant(INT64, step))
        return b.add(scaled, ir.Constant(INT64, first))

    def _register(self, name: str) -> Register:
        if self.kept and is_kept(name):
            value, turn = kept_turn(name)
            return self._kept_value(value, ir.Constant(INT64, turn))
        return super()._register(name)

    def _kept_value(self, name: str, turn: ir.Value) -> Register:
        """What a repeat that is done has kept of a turn."""
        dtype = self.kept[name][1]
        value = self.builder.load(self._kept_address(name, turn), typ=self._lanes_type(dtype))
        return Register(value, dtype, self.lanes)

    def _kept_address(self, name: str, turn: ir.Value) -> ir.Value:
        cell, dtype = self.kept[name]
        return self.builder.gep(cell, [turn], source_etype=self._lanes_type(dtype))

    def _lanes_type(self, dtype: DType) -> ir.Type:
        return ir.vector_of(element_type(dtype), self.lanes)
