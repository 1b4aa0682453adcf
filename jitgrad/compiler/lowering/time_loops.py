"""Scans as one kernel: a body that is one kernel over numbers, or over equal arrays element by element, gets its loop
over the steps inside, so that the state stays in registers; any other body is run step by step.

    for i0 in columns(n0):               where the state is arrays: elements next to one another, in lanes
        first0 = init0[i0]
        state0 = replace(state0, first0)
        for t in serial(steps):
            row = subtract(last, t)      in a scan from the end
            was0 = identity(state0)
            ...                          the body, items read and stored at the row
            state0 = replace(state0, v3)
        final0[i0] = state0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from jitgrad.compiler.fusing.groups import Group
from jitgrad.compiler.loopir.nests import (
    COLUMNS,
    PARALLEL_VECTOR,
    SERIAL,
    Accumulator,
    Argument,
    Buffer,
    Check,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Store,
    Term,
    Update,
)
from jitgrad.compiler.lowering.accumulate import INT64
from jitgrad.compiler.lowering.lower import CompiledCluster, FusedScan, Lowered
from jitgrad.compiler.lowering.passes import hoist_invariants
from jitgrad.opdef import Control
from jitgrad.program import Instruction, Program
from jitgrad.records import dataclass
from jitgrad.spec import DType

_STEPS, _LAST = "steps", "last"


class _StepwiseError(Exception):
    """The body is not of the kind that can be one kernel."""


def fuse_scan(ins: Instruction, body: Program, region: CompiledCluster) -> FusedScan | None:
    """The scan as one kernel; None where its steps are run one by one."""
    assert isinstance(ins.op.kind, Control)
    if ins.op.kind.form != "scan" or len(region.lowered) != 1:
        return None
    step, item = region.plan.steps[0], region.lowered[0]
    if not isinstance(step, Group) or not isinstance(item, Lowered) or step.lead is not None or step.is_alone:
        return None
    try:
        return _Fusing(ins, body, region, item).fused()
    except _StepwiseError:
        return None


@dataclass(frozen=True)
class _Source:
    """What an output of the body is: stored by its kernel in a buffer, or an input of it, by its number."""

    buffer: str | None
    given: int


class _Fusing:
    def __init__(self, ins: Instruction, body: Program, region: CompiledCluster, item: Lowered) -> None:
        self.ins = ins
        self.body = body
        self.item = item
        self.kernel = item.kernel
        self.aliases = region.plan.aliases
        params = ins.params
        self.first, self.carried = int(params["n_consts"]), int(params["n_carry"])
        self.last = self.first + self.carried
        self.loop = self._inner_loop()
        self.is_reverse = params["reverse"]
        self.buffers: dict[str, tuple[Buffer, tuple[str, int]]] = {}
        self.widths: dict[str, int] = {}
        self.before: list[Statement] = []
        self.inside: list[Statement] = []
        self.loaded: dict[int, str] = {}
        self.behind = {b.name: v for b, v in zip(self.kernel.buffers, item.values, strict=True)}
        self.sources = [self._source(v) for v in body.outputs]

    # -- what there is ---------------------------------------------------------------------------------------------

    def _inner_loop(self) -> Loop | None:
        """The loop over the elements of the state; None for a body of numbers."""
        loops = [s for s in self.kernel.body if isinstance(s, Loop)]
        roles = {b.role for b in self.kernel.buffers}
        if len(loops) > 1 or not roles <= {"in", "out", "status"}:
            raise _StepwiseError
        if not loops:
            return None
        inner = loops[0]
        is_last = self.kernel.body[-1] is inner
        if inner.kind != PARALLEL_VECTOR or not is_last or any(isinstance(s, Loop | Update) for s in inner.body):
            raise _StepwiseError
        return inner

    @property
    def element(self) -> Index:
        """The place of a column in an array like the state."""
        return Index(()) if self.loop is None else Index((Term(self.loop.var),))

    def _source(self, v: int) -> _Source:
        root = self.aliases.get(v, v)
        if root in self.body.inputs:
            return _Source(None, self.body.inputs.index(root))
        name = next(b.name for b in self.kernel.buffers if b.role == "out" and self.behind[b.name] == root)
        return _Source(name, -1)

    def _is_state(self, given: int) -> bool:
        return self.first <= given < self.last

    def _dtype(self, given: int) -> DType:
        return self.body.specs[self.body.inputs[given]].dtype

    # -- names -----------------------------------------------------------------------------------------------------

    def _buffer(self, name: str, dtype: DType, role: str, source: tuple[str, int]) -> str:
        self.buffers[name] = (Buffer(name, dtype, role), source)
        return name

    def _at_row(self, v: int, index: Index) -> Index:
        """A place in an item of the body's value, in the array of all items."""
        spec, row = self.body.specs[v], "row" if self.is_reverse else "t"
        if spec.size == 1:
            return replace(index, terms=(*index.terms, Term(row)))
        width = f"width{len(self.widths)}"
        width = next((name for name, known in self.widths.items() if known == v), width)
        self.widths[width] = v
        return replace(index, terms=(*index.terms, Term(row, width)))

    # -- statements ------------------------------------------------------------------------------------------------

    def fused(self) -> FusedScan:
        """The kernel, and what its buffers and numbers stand for."""
        before = [s for k in range(self.carried) for s in self._opened(k)]
        stored = dict(self._steps())
        rows = list(self._rows(stored))
        updates = [self._update(k, stored) for k in range(self.carried)]
        after = [self._final(k) for k in range(self.carried)]
        row = [Let("row", INT64, "subtract", (_LAST, "t"))] if self.is_reverse else []
        was = [Let(f"was{k}", self._dtype(self.first + k), "identity", (f"state{k}",)) for k in range(self.carried)]
        steps = Loop("t", _STEPS, SERIAL, (*row, *was, *self.inside, *rows, *updates))
        whole: tuple[Statement, ...] = (*before, *self.before, steps, *after)
        if self.loop is not None:
            whole = (Loop(self.loop.var, self.loop.extent, COLUMNS, whole),)
        buffers = tuple(buffer for buffer, _ in self.buffers.values())
        ints = (*self.kernel.ints, _STEPS, _LAST, *self.widths)
        kernel = hoist_invariants(Kernel(buffers, ints, self.kernel.constants, whole))
        codes = frozenset(s.code for s in self._statements() if isinstance(s, Check))
        sources = tuple(source for _, source in self.buffers.values())
        return FusedScan(kernel, sources, self.item, codes, tuple(self.widths.values()))

    def _statements(self) -> Iterator[Statement]:
        for s in self.kernel.body:
            yield from s.body if isinstance(s, Loop) else (s,)

    def _opened(self, k: int) -> list[Statement]:
        """The state before the first step."""
        given = self.first + k
        dtype = self._dtype(given)
        if not self._has_columns(given, frozenset()):
            raise _StepwiseError
        init = self._buffer(f"init{k}", dtype, "in", ("input", given))
        return [
            Load(f"first{k}", dtype, init, self.element),
            Accumulator(f"state{k}", dtype, "replace", Literal(dtype.type(0), dtype)),
            Update(f"state{k}", dtype, "replace", f"first{k}"),
        ]

    def _has_columns(self, given: int, seen: frozenset[int]) -> bool:
        """Whether an input is read column by column, or made so; in a body of numbers, whether it is a number."""
        v = self.body.inputs[given]
        if self.loop is None:
            return self.body.specs[v].size == 1
        read = any(
            isinstance(s, Load) and self.behind[s.buffer] == v and s.index == self.element for s in self._statements()
        )
        if read or not self._is_state(given) or given in seen:
            return read
        source = self.sources[given - self.first]
        return source.buffer is not None or self._has_columns(source.given, seen | {given})

    def _steps(self) -> Iterator[tuple[str, Argument]]:
        """Puts what a step computes where it belongs; gives what it stores, by buffers of the body's kernel."""
        for s in self._statements():
            match s:
                case Load():
                    self._load(s)
                case Store(buffer, index, value, _, ()):
                    if index != self.element:
                        raise _StepwiseError
                    yield buffer, value
                case Let() | Check():
                    if isinstance(s, Check):
                        self._buffer(s.buffer, INT64, "status", ("status", 0))
                    self.inside.append(s)
                case _:
                    raise _StepwiseError

    def _load(self, s: Load) -> None:
        v = self.behind[s.buffer]
        assert v is not None
        given = self.body.inputs.index(v)
        if self._is_state(given):
            if s.index != self.element or s.bounds:
                raise _StepwiseError
            self.inside.append(Let(s.name, s.dtype, "identity", (f"was{given - self.first}",)))
            return
        self._buffer(s.buffer, s.dtype, "in", ("input", given))
        if given >= self.last:
            self.inside.append(replace(s, index=self._at_row(v, s.index)))
        elif s.bounds or {term.var for term in s.index.terms} - {term.var for term in self.element.terms}:
            self.inside.append(s)
        else:
            self.before.append(s)
        if s.index == self.element and not s.bounds:
            self.loaded[given] = s.name

    def _value(self, position: int, stored: Mapping[str, Argument]) -> Argument:
        """What an output of the body is, in the middle of a step."""
        source = self.sources[position]
        if source.buffer is not None:
            return stored[source.buffer]
        if self._is_state(source.given):
            return f"was{source.given - self.first}"
        if source.given not in self.loaded:
            v = self.body.inputs[source.given]
            if self.loop is not None:
                raise _StepwiseError
            self._load(Load(f"item{source.given}", self._dtype(source.given), self._given(source.given, v), Index(())))
        return self.loaded[source.given]

    def _given(self, given: int, v: int) -> str:
        """The buffer of an input that the body's kernel does not read."""
        name = f"given{given}"
        self.behind[name] = v
        return name

    def _rows(self, stored: Mapping[str, Argument]) -> Iterator[Statement]:
        """The stores of the items that a step makes."""
        for position in range(self.carried, len(self.body.outputs)):
            v = self.body.outputs[position]
            dtype = self.body.specs[v].dtype
            if self.loop is None and self.body.specs[v].size != 1:
                raise _StepwiseError
            value = self._value(position, stored)
            buffer = self._buffer(f"rows{position}", dtype, "out", ("output", position))
            yield Store(buffer, self._at_row(v, self.element), value, dtype)

    def _update(self, k: int, stored: Mapping[str, Argument]) -> Statement:
        return Update(f"state{k}", self._dtype(self.first + k), "replace", self._value(k, stored))

    def _final(self, k: int) -> Statement:
        dtype = self._dtype(self.first + k)
        return Store(self._buffer(f"final{k}", dtype, "out", ("output", k)), self.element, f"state{k}", dtype)
