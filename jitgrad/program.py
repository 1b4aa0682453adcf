"""Program: a slice of a graph for given fetches, with all shapes known; frozen, verified and printable.

    program     ::= "program" NAME "(" input ("," input)* ")" "{" instruction* "return" value ("," value)* "}"
    input       ::= value ":" spec
    instruction ::= value ("," value)* "=" OP "(" argument ("," argument)* ")" ":" spec ("," spec)*
                    "# " SOURCE [" @" SCOPE] program*
    argument    ::= value | PARAM "=" WORD
    value       ::= "%" NUMBER
    spec        ::= DTYPE "[" extent ("," extent)* "]"
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from jitgrad.advice import advised
from jitgrad.errors import CompileError, ShapeError, layout
from jitgrad.graph import Operation, Tensor
from jitgrad.opdef import Control, Fill, Interpreted, OpDef, find
from jitgrad.records import dataclass
from jitgrad.scopes import cluster_scope, is_refused
from jitgrad.sources import Source, operation_text, param_text, source_text
from jitgrad.spec import TensorSpec

# A larger group stays an instruction of its own, so that many that wait for many take no edge for each pair.
MAX_GROUPED = 16


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an instruction comes from: the operation's name, the user's line, the scope that compiles it (None:
    no one), whether it was made for a gradient, and whether the user said that it is not to be compiled.
    """

    name: str
    source: Source | None
    scope: str | None
    is_gradient: bool = False
    is_refused: bool = False

    def __str__(self) -> str:
        return source_text(self.source) + (f" @{self.scope}" if self.scope is not None else "")


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """An op applied to values; ``after`` are the numbers of instructions that must run before."""

    op: OpDef
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: Mapping[str, Any]
    origin: Origin
    after: tuple[int, ...] = ()

    @property
    def is_gradient(self) -> bool:
        """Whether it was made for a gradient: for the rule of an op, or for a sum of gradients."""
        return self.origin.is_gradient


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """Instructions in an order in which they can run; values are numbers that index ``specs``.

    The params of control ops hold the programs of their bodies.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    specs: tuple[TensorSpec, ...]
    name: str = "main"
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def producers(self) -> dict[int, int]:
        """Value number → number of the instruction that makes it."""
        found = self._cache.get("producers")
        if found is None:
            found = {v: number for number, ins in enumerate(self.instructions) for v in ins.outputs}
            self._cache["producers"] = found
        return found

    def uses(self) -> dict[int, list[int]]:
        """Value number → numbers of the instructions that read it, in order."""
        found = self._cache.get("uses")
        if found is None:
            found = {}
            for number, ins in enumerate(self.instructions):
                for v in dict.fromkeys(ins.inputs):
                    found.setdefault(v, []).append(number)
            self._cache["uses"] = found
        return found

    def with_instructions(self, instructions: Iterable[Instruction]) -> Program:
        """The same program with other instructions."""
        return replace(self, instructions=tuple(instructions), _cache={})

    @property
    def text(self) -> str:
        """The program in the grammar above."""
        return "\n".join(_lines(self)) + "\n"

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<{self.name}>"


def sub_programs(ins: Instruction) -> list[Program]:
    """The programs that an instruction runs: bodies and branches, in the order of its params."""
    if not isinstance(ins.op.kind, Control):
        return []
    values = [item for value in ins.params.values() for item in (value if isinstance(value, tuple) else (value,))]
    return [value for value in values if isinstance(value, Program)]


def _lines(program: Program) -> Iterable[str]:
    inputs = ", ".join(f"%{v}: {program.specs[v]}" for v in program.inputs)
    yield f"program {program.name}({inputs}) {{"
    for ins in program.instructions:
        yield "  " + instruction_text(program, ins)
        for sub in sub_programs(ins):
            yield from ("    " + line for line in _lines(sub))
    yield f"  return {', '.join(f'%{v}' for v in program.outputs)}"
    yield "}"


def instruction_text(program: Program, ins: Instruction) -> str:
    """One instruction, as printed in ``Program.text``."""
    arguments = [f"%{v}" for v in ins.inputs] + [f"{key}={param_text(value)}" for key, value in ins.params.items()]
    specs = ", ".join(str(program.specs[v]) for v in ins.outputs)
    left = ", ".join(f"%{v}" for v in ins.outputs)
    line = f"{left} = {ins.op.name}({', '.join(arguments)}) : {specs}"
    return f"{line:<60}  # {ins.origin}"


def verify(program: Program, stage: str = "program") -> Program:
    """The program itself, when it is well formed; CompileError with the stage and the line otherwise.

    Checked: each value made once and before its use, all shapes known, the specs those that inference gives.
    """
    made = set(program.inputs)
    if len(made) != len(program.inputs):
        raise CompileError(f"{stage}: an input is listed twice in\n{program.text}")
    for number, ins in enumerate(program.instructions):
        missing = [v for v in ins.inputs if v not in made]
        twice = [v for v in ins.outputs if v in made]
        late = [n for n in ins.after if n >= number]
        specs = tuple(program.specs[v] for v in ins.outputs)
        inferred = ins.op.infer(tuple(program.specs[v] for v in ins.inputs), ins.params)
        if missing or twice or late or specs != inferred:
            raise CompileError(
                layout(
                    f"{stage}: malformed instruction {number}",
                    line=instruction_text(program, ins),
                    undefined=missing or None,
                    redefined=twice or None,
                    order=late or None,
                    inferred=", ".join(map(str, inferred)) if specs != inferred else None,
                )
            )
        for sub in sub_programs(ins):
            verify(sub, f"{stage}, in {ins.op.name}")
        made.update(ins.outputs)
    undefined = [v for v in program.outputs if v not in made]
    if undefined:
        raise CompileError(f"{stage}: outputs {undefined} are never made in\n{program.text}")
    return program


def slice_graph(
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, TensorSpec],
    targets: Sequence[Operation] = (),
    name: str = "main",
    done: Collection[Operation] = (),
) -> Program:
    """The program that computes ``fetches`` (and runs ``targets``) from ``feeds``, in the order of the graph.

    Operations in ``done`` have run before: nothing waits for them. Feeds become the inputs, in the given order.
    ShapeError when a shape is not known even with the feeds; ValueError naming an unfed placeholder is the
    caller's to raise.
    """
    needed = needed_operations(fetches, targets, feeds, done)
    specs: list[TensorSpec] = list(feeds.values())
    number: dict[Tensor, int] = {t: v for v, t in enumerate(feeds)}
    waits: dict[Operation, tuple[int, ...]] = {}  # what runs before what waits for an operation
    instructions: list[Instruction] = []
    for op in needed:
        after = _after(op, waits) if op.control_inputs else ()
        if op.opdef.name == "no_op" and len(after) <= MAX_GROUPED:  # what waits for a group waits for its members
            waits[op] = after
            continue
        origin = Origin(op.name, op.source, cluster_scope(op._attrs), op.is_gradient, is_refused(op._attrs))
        if op.opdef.expand is not None:
            given = [number[x] for x in op.inputs]
            number.setdefault(op.outputs[0], _expanded(op, given, origin, after, instructions, specs))
            waits[op] = (len(instructions) - 1,)
            continue
        inputs = tuple([number[x] for x in op.inputs])
        outputs = tuple(range(len(specs), len(specs) + len(op.outputs)))
        specs += _known_specs(op, specs, inputs)
        for v, t in zip(outputs, op.outputs, strict=True):
            number.setdefault(t, v)  # a fed output keeps its fed value
        waits[op] = (len(instructions),) if op.inputs or op.opdef.kind != Fill("constant") else after
        params, kind = op.params, op.opdef.kind
        if isinstance(kind, Control):
            params = kind.specialise(tuple([specs[v] for v in inputs]), params)
        instructions.append(Instruction(op.opdef, inputs, outputs, params, origin, after))
    return Program(
        tuple(range(len(feeds))), tuple(number[t] for t in fetches), tuple(instructions), tuple(specs), name
    )


def _after(op: Operation, waits: Mapping[Operation, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for c in op.control_inputs for n in waits.get(c, ())))


def _expanded(
    op: Operation, inputs: Sequence[int], origin: Origin, after: tuple[int, ...], instructions: list[Instruction],
    specs: list[TensorSpec],
) -> int:  # fmt: skip
    """The value of an operation that is made of other instructions, which are appended; the first one waits."""

    def emit(name: str, *inputs: int, **params: Any) -> int:
        part = find(name)
        (spec,) = part.infer(tuple([specs[v] for v in inputs]), params)
        waits = after if len(instructions) == first else ()
        instructions.append(Instruction(part, inputs, (len(specs),), params, origin, waits))
        specs.append(spec)
        return len(specs) - 1

    first = len(instructions)
    assert op.opdef.expand is not None
    return op.opdef.expand(emit, inputs, op.params)


def needed_operations(
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Collection[Tensor],
    done: Collection[Operation] = (),
) -> list[Operation]:
    """The operations that computing ``fetches`` and running ``targets`` from ``feeds`` takes, in the order of
    the graph.
    """
    fed = set(feeds)
    pending = [t.op for t in fetches if t not in fed] + list(targets)
    seen: set[Operation] = set()
    while pending:
        op = pending.pop()
        if op in seen:
            continue
        seen.add(op)
        pending += [x.op for x in op.inputs if x not in fed]
        if op.control_inputs:
            pending += [c for c in op.control_inputs if c not in done and not is_fed(c, fed)]
    return sorted(seen, key=operator.attrgetter("id"))


def is_fed(op: Operation, fed: Collection[Tensor]) -> bool:
    """Whether all that the operation makes is fed, so that nobody needs to wait for it."""
    return bool(op.outputs) and all(t in fed for t in op.outputs)




def is_dynamic(op: Operation) -> bool:
    """Whether shapes stay unknown until it runs, however much is known of the inputs: its own, or in a body of it."""
    kind = op.opdef.kind
    if isinstance(kind, Control):
        return op.params.get("shapes") is not None or any(_bodies_of(op, "is_dynamic"))
    if not isinstance(kind, Interpreted) or all(t.spec.is_known for t in op.outputs):
        return False
    try:
        specs = op.opdef.infer(tuple(_some_spec(x.spec) for x in op.inputs), op.params)
    except ShapeError:
        return False
    return not all(spec.is_known for spec in specs)


def _bodies_of(op: Operation, what: str) -> Iterable[bool]:
    """What is said of each body of a control operation."""
    for value in op.params.values():
        for item in value if isinstance(value, tuple) else (value,):
            yield getattr(item, what, False)


def _some_spec(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(tuple(1 if n is None else n for n in spec.shape or ()), spec.dtype)


_has_known_spec = operator.attrgetter("spec.is_known")


def _known_specs(op: Operation, made: Sequence[TensorSpec], inputs: tuple[int, ...]) -> Sequence[TensorSpec]:
    if all(map(_has_known_spec, op.outputs)) and all(map(_has_known_spec, op.inputs)):
        return [t.spec for t in op.outputs]
    try:
        specs = op.opdef.infer(tuple([made[v] for v in inputs]), op.params)
    except ShapeError as error:
        if "\n" in str(error):  # of a body, with the operation there
            raise
        raise ShapeError(advised(layout(f"op {op.type!r}: {error}", op=operation_text(op)))) from None
    unknown = [spec for spec in specs if not spec.is_known]
    if unknown:
        raise ShapeError(layout(f"the shape of {op.name!r} is not known when it runs", op=operation_text(op)))
    return specs
