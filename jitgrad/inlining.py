"""Inlining: calls of graph functions in a program become their bodies, or calls of a region of its own; it compiles
nothing.

A body's instructions take the place of the call, run after what the call waits for, and are compiled in the scope of
the call: inside a function, operations have no scope. Their names begin with that of the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jitgrad.opdef import Control, find
from jitgrad.program import Instruction, Origin, Program, sub_programs
from jitgrad.spec import TensorSpec


def inlined(program: Program) -> Program:
    """The program without calls of functions; the same object where there are none.

    A function that says ``noinline`` is the body of the op ``call`` instead.
    """
    if not any(map(_is_function, program.instructions)):
        return program
    return _Inliner(program).program()


def _is_function(ins: Instruction) -> bool:
    return isinstance(ins.op.kind, Control) and ins.op.kind.form == "function"


class _Inliner:
    """The new instructions, what stands for each value, and the numbers that each old instruction has become."""

    def __init__(self, program: Program) -> None:
        self.source = program
        self.specs: list[TensorSpec] = list(program.specs)
        self.instructions: list[Instruction] = []
        self.renamed: dict[int, int] = {}
        self.places: list[tuple[int, ...]] = []

    def program(self) -> Program:
        for ins in self.source.instructions:
            inputs = tuple([self.renamed.get(v, v) for v in ins.inputs])
            after = tuple(dict.fromkeys([n for before in ins.after for n in self.places[before]]))
            ins = replace(ins, inputs=inputs, after=after)
            if _is_function(ins) and not ins.params["noinline"]:
                self.places.append(self._enter_body(ins) or after)
            else:
                self.places.append((len(self.instructions),))
                self.instructions.append(_as_call(ins) if _is_function(ins) else ins)
        outputs = tuple([self.renamed.get(v, v) for v in self.source.outputs])
        return replace(
            self.source, instructions=tuple(self.instructions), outputs=outputs, specs=tuple(self.specs), _cache={}
        )

    def _enter_body(self, call: Instruction) -> tuple[int, ...]:
        body: Program = call.params["body"]
        number = dict(zip(body.inputs, call.inputs, strict=True))
        first = len(self.instructions)
        for ins in body.instructions:
            for v in ins.outputs:
                number[v] = len(self.specs)
                self.specs.append(body.specs[v])
            inside = replace(
                _within(ins, call.origin),
                inputs=tuple([number[v] for v in ins.inputs]),
                outputs=tuple([number[v] for v in ins.outputs]),
                after=(*call.after, *[first + n for n in ins.after]),
            )
            self.instructions.append(inside)
        self.renamed |= {v: number[w] for v, w in zip(call.outputs, body.outputs, strict=True)}
        return tuple(range(first, len(self.instructions)))


def _as_call(ins: Instruction) -> Instruction:
    return replace(ins, op=find("call"), params={"body": _moved(ins.params["body"], ins.origin)})


def _within(ins: Instruction, call: Origin) -> Instruction:
    """An instruction of a body as one of the program that calls it; the bodies in it are moved as well."""
    own = ins.origin
    has_own = own.scope is not None or own.is_refused
    scope, is_refused = (own.scope, own.is_refused) if has_own else (call.scope, call.is_refused)
    origin = Origin(f"{call.name}/{own.name}", own.source, scope, own.is_gradient or call.is_gradient, is_refused)
    params = _moved_params(ins.params, call) if sub_programs(ins) else ins.params
    return replace(ins, params=params, origin=origin)


def _moved_params(params: Mapping[str, Any], call: Origin) -> dict[str, Any]:
    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return _moved(value, call) if isinstance(value, Program) else value

    return {key: moved(value) for key, value in params.items()}


def _moved(program: Program, call: Origin) -> Program:
    return program.with_instructions([_within(ins, call) for ins in program.instructions])
