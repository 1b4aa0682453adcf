"""Programs taken apart and put together: inputs and outputs chosen, values named anew; nothing is computed here.

What an input of a body is, is said by a token: the number that it always is, or any hashable name. Inputs with the same
token are the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jitgrad.compiler.constants import splat
from jitgrad.opdef import Control, find
from jitgrad.program import Instruction, Origin, Program, sub_programs
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec

Values = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Number:
    """The token of an input that is this number everywhere, whatever its shape."""

    number: Any


Token = Hashable


def has_state(ins: Instruction) -> bool:
    """Whether an instruction, or one in a program that it runs, keeps state outside."""
    return ins.op.stateful or (isinstance(ins.op.kind, Control) and any(map(_keeps_state, sub_programs(ins))))


def _keeps_state(program: Program) -> bool:
    found = program._cache.get("keeps_state")
    if found is None:
        found = program._cache["keeps_state"] = any(map(has_state, program.instructions))
    return bool(found)


def is_free(program: Program) -> bool:
    """Whether nothing in a program has a place in the order to keep."""
    found = program._cache.get("is_free")
    if found is None:
        found = program._cache["is_free"] = all(
            not ins.after and not ins.op.stateful and all(map(is_free, sub_programs(ins)))
            for ins in program.instructions
        )
    return bool(found)


def edited(
    program: Program, inputs: Iterable[int], outputs: Iterable[int], before: Sequence[Instruction] = ()
) -> Program:
    """A free program with other inputs and outputs, and instructions in front; without what is not needed."""
    outputs = tuple(outputs)
    wanted = set(outputs)
    kept: list[Instruction] = []
    for ins in reversed((*before, *program.instructions)):
        if not wanted.isdisjoint(ins.outputs):
            wanted.update(ins.inputs)
            kept.append(ins)
    return replace(program, inputs=tuple(inputs), outputs=outputs, instructions=tuple(kept[::-1]), _cache={})


def rebound(
    program: Program,
    tokens: Sequence[Token | Number],
    order: Sequence[Token],
    spec_of: Callable[[Token], TensorSpec],
    origin: Origin,
) -> Program:
    """A free program whose inputs have these tokens, as one with an input for each of ``order``.

    What has the same token is read from one input, and what is a number is made in the program.
    """
    first: dict[Token, int] = {}
    before: list[Instruction] = []
    for v, token in zip(program.inputs, tokens, strict=True):
        if isinstance(token, Number):
            before.append(_literal(v, token.number, program.specs[v], origin))
        elif first.setdefault(token, v) != v:
            before.append(Instruction(find("identity"), (first[token],), (v,), {}, origin))
    specs = list(program.specs)
    for token in order:
        if token not in first:
            first[token] = len(specs)
            specs.append(spec_of(token))
    program = replace(program, specs=tuple(specs), _cache={})
    return edited(program, [first[token] for token in order], program.outputs, before)


def _literal(v: int, number: Any, spec: TensorSpec, origin: Origin) -> Instruction:
    return Instruction(find("constant"), (), (v,), {"value": splat(number, spec.known_shape, spec.dtype)}, origin)


def joined(first: Program, second: Program, linked: Mapping[int, int] | None = None) -> Program:
    """Both programs as one: the inputs of both, and the outputs of both; ``linked`` inputs of the second are values of
    the first.
    """
    by, links = len(first.specs), linked or {}

    def moved(values: Sequence[int]) -> Values:
        return tuple([links[v] if v in links else v + by for v in values])

    instructions = (replace(i, inputs=moved(i.inputs), outputs=moved(i.outputs)) for i in second.instructions)
    return Program(
        (*first.inputs, *moved([v for v in second.inputs if v not in links])),
        (*first.outputs, *moved(second.outputs)),
        (*first.instructions, *instructions), (*first.specs, *second.specs), first.name,
    )  # fmt: skip


def compacted(program: Program) -> Program:
    """The program with its values numbered in order, its inputs first; itself when they are."""
    order = [*program.inputs, *(v for ins in program.instructions for v in ins.outputs)]
    if order == list(range(len(program.specs))):
        return program
    number = {v: k for k, v in enumerate(order)}

    def renamed(values: Values) -> Values:
        return tuple([number[v] for v in values])

    instructions = (replace(i, inputs=renamed(i.inputs), outputs=renamed(i.outputs)) for i in program.instructions)
    return Program(
        renamed(program.inputs), renamed(program.outputs), tuple(instructions),
        tuple([program.specs[v] for v in order]), program.name,
    )  # fmt: skip


def memory_of(specs: Iterable[TensorSpec]) -> int:
    """Bytes of some values."""
    return sum(spec.nbytes for spec in specs)
