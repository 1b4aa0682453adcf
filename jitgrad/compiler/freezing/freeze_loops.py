"""Freezing control ops: how the memory of a loop or a branch is laid out, as plain tuples; bodies are frozen clusters.

    loop     ::= ("loop", number, form, room, cells, region*, details)
    cell     ::= (place, offset)                 memory of the cluster around: a row of it moves from step to step
               | (None, bytes)                   memory of the loop's own
    region   ::= (cluster, input cells, output cells, copy*, write*, status offset)
    copy     ::= (cell to, cell from, bytes)
    write    ::= (cell of an array, cells of a place and of a part, stretches of it, bytes apart, bytes each)
    details  ::= pairs of a name and a value:
        starts, ends   copies before the first step and after the last
        swaps          pairs of cells, exchanged after each step: what is made becomes what is read
        moves          (cell, bytes) by which a cell moves on after each step
        count          number of steps; None where a condition decides
        flag           the cell of the condition's byte
        limit, code    the most steps, and the status when there would be more
        saved, record  (cell, offset) of what a step puts on the stack, and the bytes of a step's part of it
        back_swaps     as ``swaps``, of the steps back
        stack          the cell where the stack begins, with its bytes
        index, dtype   the place of a branch's number
        rows, chunks   of a scan whose rows are independent

``room`` is the place of the loop's own memory. A body's temporaries lie there too; a cell is a slot of the table that
its kernels see. The state is kept twice: a step reads one and makes the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from jitgrad.compiler.bodies.updates import Write, planned_bodies
from jitgrad.compiler.freezing.row_loops import RowCut
from jitgrad.compiler.subprograms import regions_of, status_offsets
from jitgrad.opdef import Control
from jitgrad.program import Program

Frozen = tuple[Any, ...]
Cell = tuple[int | None, int]
STACK_BYTES = 1 << 16
"""Room for a stack in the memory that a call has anyway; a longer one is taken from the system."""


def freeze_loop(
    program: Program, number: int, step: int, bodies: Sequence[Frozen], place: Callable[[int], int], room: int,
    cut: RowCut | None, shared: Collection[int],
) -> Frozen:  # fmt: skip
    """The task of a control op, by the numbers of its instruction and its step; ``place`` is that of a value, ``cut``
    that of a scan whose rows are independent. ``shared`` are values that lie where what they were made of did.
    """
    ins = program.instructions[number]
    assert isinstance(ins.op.kind, Control)
    layout = _Layout(program, number, bodies, place, shared)
    details = {
        "scan": layout.scan, "while": layout.while_loop, "while_gradient": layout.while_gradient,
        "cond": layout.branches, "call": layout.branches,
    }[ins.op.kind.form]()  # fmt: skip
    if cut is not None:
        details |= {"rows": cut.rows, "chunks": cut.chunks}
    return "loop", step, ins.op.kind.form, room, tuple(layout.cells), tuple(layout.regions), tuple(details.items())


class _Layout:
    """Gives each input and output of each body its cell."""

    def __init__(
        self, program: Program, number: int, bodies: Sequence[Frozen], place: Callable[[int], int],
        shared: Collection[int],
    ) -> None:  # fmt: skip
        self.program = program
        self.number = number
        self.ins = program.instructions[number]
        self.planned = planned_bodies(self.ins)
        self.subs = [planned.program for planned in self.planned]
        self.bodies = bodies
        self.place, self.shared = place, shared
        self.cells: list[Cell] = []
        self.regions: list[Frozen] = []
        self.starts: list[tuple[int, int, int]] = []
        self.ends: list[tuple[int, int, int]] = []

    # -- cells -----------------------------------------------------------------------------------------------------

    def cell(self, place: int | None, offset: int) -> int:
        """A new cell."""
        self.cells.append((place, offset))
        return len(self.cells) - 1

    def outer(self, v: int, offset: int = 0) -> int:
        """The cell of a value of the program around."""
        return self.cell(self.place(v), offset)

    def nbytes(self, v: int) -> int:
        """Bytes of a value of the program around."""
        return self.program.specs[v].nbytes

    def origin(self, k: int, v: int) -> tuple[bool, int]:
        """What an output of a body is: (True, n) the memory of its n-th own one, (False, n) that of its n-th input."""
        _, inputs, outputs, copied, *_ = self.bodies[k]
        for value, place, *_ in copied:
            if value == v:
                return (True, place) if place >= 0 else (False, ~place)
        made = [value for value, _, _ in outputs]
        return (True, made.index(v)) if v in made else (False, [value for value, _, _ in inputs].index(v))

    def region(self, k: int, inputs: Sequence[int], targets: Sequence[int | None]) -> None:
        """A body whose inputs lie in these cells, and whose outputs are wanted in those (None: where they are)."""
        sub = self.subs[k]
        planned = self.planned[k]
        homes = {
            self.origin(k, sub.outputs[n])[1]: self._cell_of_state(k, state, inputs) for n, state in planned.shared
        }
        copies: list[tuple[int, int, int]] = []
        for v, target in zip(sub.outputs, targets, strict=False):
            is_own, n = self.origin(k, v)
            if target is None:
                continue
            if is_own and n not in homes:
                homes[n] = target
            else:
                copies.append((target, homes[n] if is_own else inputs[n], sub.specs[v].nbytes))
        writes = tuple(self._write(k, write, inputs, homes) for write in planned.writes)
        own = tuple(homes[n] for n in range(len(self.bodies[k][2])))
        offset = status_offsets(self.program)[self.number][k]
        self.regions.append((self.bodies[k], tuple(inputs), own, tuple(copies), writes, offset))

    def _write(self, k: int, write: Write, inputs: Sequence[int], homes: dict[int, int]) -> Frozen:
        """What is written in place when a body has run; what only that reads gets memory."""
        sub, cells = self.subs[k], list[int]()
        for v in (sub.outputs[write.place], sub.outputs[write.values]):
            is_own, n = self.origin(k, v)
            if is_own and n not in homes:
                homes[n] = self.cell(None, sub.specs[v].nbytes)
            cells.append(homes[n] if is_own else inputs[n])
        size = sub.specs[sub.outputs[write.state]].dtype.itemsize
        state = self._cell_of_state(k, write.state, inputs)
        return state, *cells, write.outer, write.apart * size, write.inner * size

    def _cell_of_state(self, k: int, state: int, inputs: Sequence[int]) -> int:
        """Where a state lies that is changed in place: it comes out as it went in."""
        sub = self.subs[k]
        return inputs[sub.inputs.index(sub.outputs[state])]

    # -- state -----------------------------------------------------------------------------------------------------

    def state(
        self, k: int, first: int, values: Sequence[int], results: Sequence[int | None]
    ) -> tuple[list[int], list[int | None], list[tuple[int, int]]]:
        """Cells that a body reads the state from, cells that it makes the next one in, and the pairs to exchange.

        ``first`` is the number of the body's input that is the first of the state. What a body leaves as it is lies
        where it came from, what is changed in place in one cell, and where a loop around changes that so, there.
        """
        before: list[int] = []
        after: list[int | None] = []
        swaps: list[tuple[int, int]] = []
        in_place, lines = self.planned[k].in_place, self._lines(k, first, len(values))
        behind = {position for line in lines for position in line[1:]}
        for position, (v, result) in enumerate(zip(values, results, strict=True)):
            nbytes, given = self.nbytes(v), self.outer(v)
            if result is not None and result in self.shared:
                before.append(given)
                after.append(None)
                continue
            if position in in_place or position in behind:
                before.append(self.cell(None, nbytes))
                after.append(None)
                self.starts.append((before[-1], given, nbytes))
            elif self.origin(k, self.subs[k].outputs[position]) == (False, first + position):
                before.append(given)
                after.append(None)
            else:
                before.append(self.cell(None, nbytes))
                after.append(made := self.cell(None, nbytes))
                swaps.append((before[-1], made))
                self.starts.append((before[-1], given, nbytes))
            if result is not None:
                self.ends.append((self.outer(result), before[-1], nbytes))
        for line in lines:
            free = after[line[0]]
            assert free is not None
            swaps += [(free, before[position]) for position in line[1:]]
        return before, after, swaps

    def _lines(self, k: int, first: int, count: int) -> list[list[int]]:
        """States of which each becomes what the one before it was, behind one that is made anew: what was read of that
        is free when it has been exchanged, and takes the place of the next.
        """
        behind: dict[int, int] = {}
        places = [self.origin(k, v) for v in self.subs[k].outputs[:count]]
        kept = {n for n in range(count) if places[n] == (False, first + n)} | self.planned[k].in_place
        for position, (is_own, n) in enumerate(places):
            if not is_own and first <= n < first + count and n - first not in kept and position not in kept:
                behind.setdefault(n - first, position)
        lines = []
        for position in behind.keys() - set(behind.values()):
            is_own, n = places[position]
            if not is_own and first <= n < first + count:
                continue  # another has its place in the line
            line = [position]
            while line[-1] in behind:
                line.append(behind[line[-1]])
            lines.append(line)
        return sorted(lines)

    def _details(self, **details: Any) -> dict[str, Any]:
        return {"starts": tuple(self.starts), "ends": tuple(self.ends)} | details

    # -- forms -----------------------------------------------------------------------------------------------------

    def scan(self) -> dict[str, Any]:
        """The state's cells are exchanged, those of items move through their arrays."""
        ins, params = self.ins, self.ins.params
        first, last = params["n_consts"], params["n_consts"] + params["n_carry"]
        length, carried = params["length"], params["n_carry"]
        moves: list[tuple[int, int]] = []

        def items(values: Sequence[int]) -> list[int]:
            made = []
            for v in values:
                stride = self.nbytes(v) // length if length else 0
                made.append(self.outer(v, stride * max(length - 1, 0) if params["reverse"] else 0))
                moves.append((made[-1], -stride if params["reverse"] else stride))
            return made

        consts = [self.outer(v) for v in ins.inputs[:first]]
        before, after, swaps = self.state(0, first, ins.inputs[first:last], ins.outputs[:carried])
        inputs = [*consts, *before, *items(ins.inputs[last:])]
        self.region(0, inputs, [*after, *items(ins.outputs[carried:])])
        return self._details(swaps=tuple(swaps), moves=tuple(moves), count=length)

    def while_loop(self) -> dict[str, Any]:
        """The condition reads the same cells as the body."""
        first = self.ins.params["n_consts"]
        consts = [self.outer(v) for v in self.ins.inputs[:first]]
        before, after, swaps = self.state(1, first, self.ins.inputs[first:], self.ins.outputs)
        flag = self._condition([*consts, *before])
        self.region(1, [*consts, *before], after)
        return self._details(swaps=tuple(swaps), moves=(), flag=flag, **self._limit())

    def _limit(self) -> dict[str, Any]:
        most = self.ins.params["maximum_iterations"]
        return {"count": None, "limit": -1 if most is None else most, "code": self.ins.outputs[0] + 1}

    def _condition(self, inputs: Sequence[int]) -> int:
        """The cell of the condition's byte."""
        is_own, n = self.origin(0, self.subs[0].outputs[0])
        flag = self.cell(None, 1) if is_own else inputs[n]
        self.region(0, inputs, [flag if is_own else None])
        return flag

    def while_gradient(self) -> dict[str, Any]:
        """What a step saves lies together on a stack."""
        params, inputs = self.ins.params, self.ins.inputs
        first, last = params["n_consts"], params["n_consts"] + params["n_carry"]
        consts = [self.outer(v) for v in inputs[:first]]
        before, after, swaps = self.state(1, first, inputs[first:last], [None] * params["n_carry"])
        flag = self._condition([*consts, *before])
        sub, saved, record = self.subs[1], [], 0
        for v in sub.outputs[params["n_carry"] : len(regions_of(self.ins)[1].outputs)]:  # behind are parts for writes
            saved.append((self.cell(None, 0), record))
            record += -(-sub.specs[v].nbytes // 8) * 8
        kept = [cell for cell, _ in saved]
        self.region(1, [*consts, *before], [*after, *kept])
        sums, made, back_swaps = self.state(2, first + len(saved), inputs[last:], self.ins.outputs)
        self.region(2, [*consts, *kept, *sums], made)
        room = max(STACK_BYTES, record)
        return self._details(
            swaps=tuple(swaps), moves=(), flag=flag, saved=tuple(saved), record=max(record, 8),
            stack=(self.cell(None, room), room), back_swaps=tuple(back_swaps), **self._limit(),
        )  # fmt: skip

    def branches(self) -> dict[str, Any]:
        """All branches make their outputs in the same places; a call has one branch."""
        ins = self.ins
        assert isinstance(ins.op.kind, Control)
        is_call = ins.op.kind.form == "call"
        operands = [self.outer(v) for v in (ins.inputs if is_call else ins.inputs[1:])]
        results = [self.outer(v) for v in ins.outputs]
        for k in range(len(self.subs)):
            self.region(k, operands, results)
        if is_call:
            return self._details()
        return self._details(index=self.place(ins.inputs[0]), dtype=self.program.specs[ins.inputs[0]].dtype.str)
