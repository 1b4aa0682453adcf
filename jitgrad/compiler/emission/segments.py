"""Emission of vector loops in segments: parts of a row between neighbouring bounds, where each comparison has one
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.lanes import LaneEmitter
from jitgrad.compiler.emission.registers import BOOL, COMPARISONS, INT64, VectorLoop
from jitgrad.compiler.loopir.nests import Argument, Check, Keep, Let, Load, Loop, Statement, Store, Update, arguments

MOST_POINTS = 16


class SegmentEmitter(LaneEmitter):
    """Emits loops over segments, and asks what holds in all of one."""

    def _turning_points(self, loop: Loop, start: ir.Value, wide: int) -> list[ir.Value]:
        """Where comparisons of a loop's variable change their answer; none where that is not known before the loop.

        One element in which a number is equal would cut a row in three: for it alone there are ``wide`` lanes around
        it, counted from the start or the first line, of which each is asked, so that all else are whole vectors.
        """
        b, wide_lanes = self.builder, ir.Constant(INT64, wide)
        points: dict[tuple[str, str], ir.Value] = {}
        for op, limit in _comparisons(loop):
            register = self.registers.get(limit) if isinstance(limit, str) else None
            if register is None or register.lanes:
                return []
            points["at", str(limit)] = register.value
            if self._asks_lanes(loop):
                ahead = b.and_(b.sub(register.value, start), ir.Constant(INT64, -wide))
                points["at", str(limit)] = b.add(start, ahead)
                points["behind", str(limit)] = b.add(points["at", str(limit)], wide_lanes)
            elif op == "equal":
                points["behind", str(limit)] = b.add(register.value, ir.Constant(INT64, 1))
        return list(points.values()) if len(points) <= MOST_POINTS else []

    def _asks_lanes(self, loop: Loop) -> bool:
        """Whether a loop only asks whether its variable equals numbers, and is cut for nothing else."""
        return asks_equal(loop) and not self._reads_ring(loop)

    def _has_equal(self, loop: Loop, first: ir.Value, end: ir.Value) -> ir.Value:
        """Whether the variable of such a loop equals one of the numbers within a segment."""
        b = self.builder
        found: ir.Value = ir.Constant(BOOL, 0)
        for _, limit in _comparisons(loop):
            value = self.registers[str(limit)].value
            found = b.or_(found, b.and_(b.icmp_signed("<=", first, value), b.icmp_signed("<", value, end)))
        return found

    def _segments(
        self,
        start: ir.Value,
        stop: ir.Value,
        points: Sequence[ir.Value],
        part: Callable[[ir.Value, ir.Value, ir.Value], None],
    ) -> None:
        """``part(first, end, first)`` for each segment between neighbouring points, in order.

        What lies outside an array, or belongs to another one, is then asked once per segment, and not for every lane:
        the gradient of a five-point stencil on 2048x2048 floats takes 1.2 ms in place of 1.64.
        """
        b = self.builder
        place = self.entry.alloca(INT64)
        b.store(start, place)
        head, body, exit_ = (self.function.append_basic_block(n) for n in ("segment", "within", "behind"))
        b.branch(head)
        b.position_at_end(head)
        first = b.load(place, typ=INT64)
        b.cbranch(b.icmp_signed("<", first, stop), body, exit_)
        b.position_at_end(body)
        end = stop
        for point in points:
            is_next = b.and_(b.icmp_signed("<", first, point), b.icmp_signed("<", point, end))
            end = b.select(is_next, point, end)
        part(first, end, first)
        b.store(end, place)
        b.branch(head)
        b.position_at_end(exit_)

    def _reads_ring(self, loop: Loop) -> bool:
        return any(isinstance(s, Load) and self.buffers[s.buffer][1].role == "ring" for s in loop.body)

    def _settle_sums(self, loop: Loop) -> None:
        """In front of a loop, accumulators that it reads and does not update become values."""
        updated = {s.acc for s in loop.body if isinstance(s, Update)}
        read = dict.fromkeys([str(a) for s in loop.body for a in arguments(s) if a in self.accumulators])
        for name in read:
            if name not in updated:
                self.registers[name] = self._register(name)

    def _spread_invariants(self, loop: Loop, segment: ir.Value | None) -> None:
        """In front of a loop, what is the same for all of its lanes is computed and put in all lanes of a register,
        where the builder finds it again: left to LLVM, both happen in each turn of most loops.
        """
        outside = dict(self.registers)
        self.vector = VectorLoop(loop.var, self.lanes, ir.Constant(INT64, 0), None, segment=segment)
        self.registers.pop(loop.var, None)
        for s in loop.body:
            is_compared = isinstance(s, Let) and s.op in COMPARISONS and s.args[0] == loop.var
            if isinstance(s, Let) and self._is_settled(loop, s.op, s.args) and (segment is not None or not is_compared):
                self.registers[s.name] = self._let(s.dtype, s.op, s.args)
                continue
            for name in dict.fromkeys([a for a in arguments(s) if a in self.registers]) if not is_compared else ():
                self._argument(name, self.register_lanes)
        self.vector, self.registers = None, outside

    def _where_all_hold(self, loop: Loop, segment: ir.Value) -> tuple[ir.Value, Loop]:
        """Whether all bounds and choices of a loop hold in a whole segment, and the loop without them.

        Most of a grid is no border: there the loop is loads and arithmetic, with no branch. The border, where masked
        lanes do all, is a few vectors: the gradient of a five-point stencil on 512x512 floats takes 0.9 of the time.
        """
        outside = dict(self.registers)
        self.vector = VectorLoop(loop.var, self.lanes, segment, None, segment=segment)
        self.registers.pop(loop.var, None)
        tests: list[ir.Value] = []
        body = [self._settled(loop, s, tests) for s in loop.body]
        self.vector, self.registers = None, outside
        holds: ir.Value = ir.Constant(BOOL, 1)
        for test in tests:
            holds = self.builder.and_(holds, test)
        return holds, replace(loop, body=_without_unread(body))

    def _settled(self, loop: Loop, s: Statement, tests: list[ir.Value]) -> Statement:
        """The statement where what it asks for is true, which ``tests`` then tell; itself if it asks each lane."""
        match s:
            case Load(bounds=bounds) if bounds and all(
                self._is_settled(loop, op, (b.var, limit)) for b in bounds for op, limit in _limits(b.lo, b.hi)
            ):
                inside = self._inside(bounds)
                assert inside is not None
                tests.append(inside.value)
                return replace(s, bounds=())
            case Let(name, dtype, op, args) if dtype.kind == "b" and self._is_settled(loop, op, args):
                self.registers[name] = self._let(dtype, op, args)
            case Let(op="where", args=(str(condition), chosen, _)) if self._is_settled(loop, "where", (condition,)):
                tests.append(self.registers[condition].value)
                return replace(s, op="identity", args=(chosen,))
        return s

    def _is_settled(self, loop: Loop, op: str, args: Sequence[Argument]) -> bool:
        """Whether an op on these has one result for all lanes of a segment."""
        rest = args[1:] if op in COMPARISONS and args[0] == loop.var else args
        names = [a for a in rest if isinstance(a, str)]
        return all(name in self.registers and not self.registers[name].lanes for name in names)


def compares(loop: Loop) -> bool:
    """Whether the body asks where its variable stands; only at turning points may such a loop be cut."""
    return any(True for _ in _comparisons(loop))


def asks_equal(loop: Loop) -> bool:
    """Whether the body asks of its variable nothing but whether it equals numbers; it may be cut anywhere."""
    return {op for op, _ in _comparisons(loop)} == {"equal"}


def _limits(lo: str | None, hi: str | None) -> Iterator[tuple[str, str]]:
    yield from ((op, limit) for op, limit in (("greater_equal", lo), ("less", hi)) if limit is not None)


def _without_unread(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The statements without truth values that nothing reads."""
    read: set[Argument] = set()
    kept: list[Statement] = []
    for s in reversed(body):
        if isinstance(s, Let) and s.dtype.kind == "b" and s.name not in read:
            continue
        kept.append(s)
        read.update(arguments(s))
    return tuple(reversed(kept))


def _comparisons(loop: Loop) -> Iterator[tuple[str, Argument]]:
    """The comparisons of a loop's variable in its body, with what it is compared to."""
    for statement in loop.body:
        if isinstance(statement, Let) and statement.op in COMPARISONS and statement.args[0] == loop.var:
            yield statement.op, statement.args[1]
        elif isinstance(statement, Load | Store | Keep | Check):
            for bound in statement.bounds:
                if bound.var == loop.var:
                    yield from _limits(bound.lo, bound.hi)
