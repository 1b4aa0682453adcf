"""Rewriter: a program under construction, whose instructions are simplified as they enter; it has no rules.

Instructions enter in order. Each is rewritten by the rules of its op until none applies, then merged with
an equal one if there is one, else appended. A rule sees what its inputs have become, so one sweep does
nearly all: only rules that ask how often a value is read can fire for the first time in a second one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat, splat_number
from jitgrad.compiler.identity import instruction_key
from jitgrad.opdef import OpDef, find
from jitgrad.program import Instruction, Origin, Program
from jitgrad.spec import DType, TensorSpec

# A rule gives the value that stands for the instruction's, or one for each of its outputs, or an instruction with the
# same outputs, or None.
Result = int | tuple[int, ...] | Instruction | None
Rule = Callable[["Rewriter", Instruction], Result]

_MANY = 2
_REWRITES = 30


class Constants(dict[int, Array]):
    """Constants by their values. ``looked``: the elements of one that is not a splat may have been read, so that the
    program that results is right for these elements only.
    """

    looked = False

    def __getitem__(self, v: int) -> Array:
        array = super().__getitem__(v)
        self.looked = self.looked or not is_splat(array)
        return array


class Rewriter:
    """The instructions so far, what made each value, and the constants among them.

    ``numbers`` holds the number of each splat constant of a real dtype, as a Python number. ``fired``
    counts rules. ``is_open`` says that a rule was held up by a value that is read more than once, perhaps
    by dead code. ``simplify`` gives a program that an instruction runs simplified, and whether elements of its
    constants were read.
    """

    def __init__(
        self,
        program: Program,
        rules: Callable[[OpDef], Sequence[Rule]],
        simplify: Callable[[Program], tuple[Program, bool]],
    ) -> None:
        self.specs: list[TensorSpec] = list(program.specs)
        self.instructions: list[Instruction] = []
        self.constants = Constants()
        self.numbers: dict[int, Any] = {}
        self.renamed: dict[int, int] = {}
        self.fired: Counter[str] = Counter()
        self.is_open = False
        self._rules = rules
        self._simplify = simplify
        self._made: dict[int, Instruction] = {}
        self._known: dict[Any, tuple[int, ...]] = {}
        self._reads = _count_reads(program)
        self._program = program

    # -- what rules ask --------------------------------------------------------------------------------------

    def producer(self, v: int, name: str) -> Instruction | None:
        """The instruction that makes ``v``, if it is of that op."""
        ins = self._made.get(v)
        return ins if ins is not None and ins.op.name == name else None

    def maker(self, v: int) -> Instruction | None:
        """The instruction that makes ``v``; None for inputs, and where the order of running matters."""
        return self._made.get(v)

    def instructions_of(self, name: str) -> list[Instruction]:
        """All instructions of an op that entered or will, unless they have a place in the order of running."""
        return [ins for ins in self._program.instructions if ins.op.name == name and not ins.after]

    def new_inputs(self, ins: Instruction) -> tuple[int, ...]:
        """What the inputs of an instruction have become so far."""
        return tuple([self.renamed.get(v, v) for v in ins.inputs])

    def is_read_once(self, v: int) -> bool:
        """Whether the instruction at hand is the only reader; False for values made in this sweep."""
        if v < len(self._reads) and self._reads[v] < _MANY:
            return True
        self.is_open = True
        return False

    def shape(self, v: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.specs[v].shape  # type: ignore[return-value]

    def dtype(self, v: int) -> DType:
        """The dtype of a value."""
        return self.specs[v].dtype

    # -- what rules answer -----------------------------------------------------------------------------------

    def same(self, ins: Instruction, v: int) -> int | None:
        """``v`` in place of the instruction's value, when shape and dtype agree."""
        return v if self.specs[v] == self.specs[ins.outputs[0]] else None

    def replace(self, ins: Instruction, name: str, *inputs: int, **params: Any) -> Instruction:
        """Another op that makes the same value."""
        return Instruction(find(name), inputs, ins.outputs, params, ins.origin)

    def constant(self, ins: Instruction, array: Array) -> Instruction:
        """A constant that makes the same value."""
        return self.replace(ins, "constant", value=array)

    def emit(self, origin: Origin, name: str, *inputs: int, **params: Any) -> int:
        """A new instruction before the one at hand, simplified; gives its value."""
        return self.emit_op(origin, find(name), inputs, params)

    def emit_op(self, origin: Origin, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]) -> int:
        """As `emit`, for an op at hand."""
        (spec,) = op.infer(tuple(self.specs[v] for v in inputs), params)
        v = len(self.specs)
        self.specs.append(spec)
        self.add(Instruction(op, inputs, (v,), params, origin))
        return self.renamed.get(v, v)

    def emit_all(
        self, origin: Origin, op: OpDef, inputs: tuple[int, ...], params: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """As `emit_op`, for an op of any number of outputs."""
        specs = op.infer(tuple(self.specs[v] for v in inputs), params)
        first = len(self.specs)
        self.specs += specs
        outputs = tuple(range(first, len(self.specs)))
        self.add(Instruction(op, inputs, outputs, params, origin))
        return tuple([self.renamed.get(v, v) for v in outputs])

    def inline(self, program: Program, inputs: Sequence[int]) -> tuple[int, ...]:
        """The instructions of a program, given these inputs, before the one at hand; gives the outputs."""
        names = dict(zip(program.inputs, inputs, strict=True))
        for ins in program.instructions:
            made = self.emit_all(ins.origin, ins.op, tuple([names[v] for v in ins.inputs]), ins.params)
            names.update(zip(ins.outputs, made, strict=True))
        return tuple([names[v] for v in program.outputs])

    def simplified(self, program: Program) -> Program:
        """A program that an instruction runs, simplified."""
        program, looked = self._simplify(program)
        self.constants.looked = self.constants.looked or looked
        return program

    def emit_splat(self, origin: Origin, number: Any, spec: TensorSpec) -> int:
        """A constant of one number."""
        return self.emit(origin, "constant", value=splat(number, spec.known_shape, spec.dtype))

    # -- adding ----------------------------------------------------------------------------------------------

    def renew(self, ins: Instruction) -> Instruction:
        """The instruction, reading what its inputs have become."""
        renamed = self.renamed
        if not renamed or renamed.keys().isdisjoint(ins.inputs):
            return ins
        return Instruction(ins.op, self.new_inputs(ins), ins.outputs, ins.params, ins.origin, ins.after)

    def keep(self, ins: Instruction) -> None:
        """Append an instruction as it is, unseen by rules."""
        self.instructions.append(ins)

    def add(self, ins: Instruction) -> None:
        """Simplify an instruction, and append it unless another value stands for its own."""
        for _ in range(_REWRITES):
            result = self._rewritten(ins)
            if result is None:
                break
            if isinstance(result, int):
                self.renamed[ins.outputs[0]] = result
                return
            if isinstance(result, tuple):
                self.renamed.update(zip(ins.outputs, result, strict=True))
                return
            ins = result
        key = instruction_key(ins)
        known = self._known.get(key)
        if known is not None:
            self.fired["common_subexpression"] += 1
            self.renamed.update(zip(ins.outputs, known, strict=True))
            return
        self._known[key] = ins.outputs
        self._append(ins)

    def _rewritten(self, ins: Instruction) -> Result:
        for rule in self._rules(ins.op):
            result = rule(self, ins)
            if result is not None:
                self.fired[rule.__name__] += 1
                return result
        return None

    def _append(self, ins: Instruction) -> None:
        self.instructions.append(ins)
        for v in ins.outputs:
            self._made[v] = ins
        if not ins.inputs:
            value = constant_value(ins)
            if value is not None:
                self._enter_constant(ins.outputs[0], value)

    def _enter_constant(self, v: int, value: Array) -> None:
        self.constants[v] = value
        if value.dtype.kind in "biuf" and is_splat(value):
            self.numbers[v] = splat_number(value).item()


def _count_reads(program: Program) -> list[int]:
    """How often each value is read, the caller included, counted up to two or a little more."""
    reads = [0] * len(program.specs)
    for ins in program.instructions:
        for v in ins.inputs:
            reads[v] += 1
    for v in program.outputs:
        reads[v] += 1
    return reads


def errors_ignored() -> np.errstate:
    """NumPy's floating-point warnings off, as in the interpreter."""
    return np.errstate(all="ignore")
