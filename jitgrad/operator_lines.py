"""Instructions as Python's operators have them, for listings: of NumPy's scalars they take a tenth of a ufunc's time.

An operator stands for an op only where both give the same bits, whatever the values: powers do not (NumPy has others
for arrays than for scalars), nor do maxima of floats. Truths are bools alone, of which ``and`` gives back one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.opdef import Elementwise, Gather
from jitgrad.program import Instruction
from jitgrad.records import NamedTuple
from jitgrad.spec import TensorSpec

_PAIRS: dict[Any, str] = {
    np.add: "{0} + {1}", np.subtract: "{0} - {1}", np.multiply: "{0} * {1}", np.divide: "{0} / {1}",
    np.equal: "{0} == {1}", np.not_equal: "{0} != {1}", np.less: "{0} < {1}", np.less_equal: "{0} <= {1}",
    np.greater: "{0} > {1}", np.greater_equal: "{0} >= {1}",
}  # fmt: skip
"""Of arrays of floats, and of all numbers that are no truths."""

_EXTREMES: dict[Any, str] = {np.maximum: "{0} if {0} > {1} else {1}", np.minimum: "{0} if {0} < {1} else {1}"}
_FLOATS: dict[Any, str] = {np.square: "{0} * {0}", np.negative: "-{0}", np.absolute: "abs({0})"}
_TRUTHS: dict[Any, str] = {np.logical_and: "{0} and {1}", np.logical_or: "{0} or {1}", np.logical_not: "{0} ^ True"}
_INTEGERS = {**_PAIRS, **_EXTREMES}
_NUMBERS = {"i": {**_INTEGERS, np.negative: "-{0}"}, "u": _INTEGERS, "f": {**_PAIRS, **_FLOATS}, "b": _TRUTHS}
"""Of numbers, by their kind."""


class Expression(NamedTuple):
    """``template`` names its inputs by their places. One of numbers alone raises nothing, and may stand elsewhere."""

    template: str
    is_of_numbers: bool

    def uses(self, k: int) -> int:
        """How often it reads an input."""
        return self.template.count(f"{{{k}}}")


def expression(ins: Instruction, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Expression | None:
    """What an instruction is in operators; None where they have nothing for it."""
    is_of_numbers = all(spec.rank == 0 for spec in inputs)
    if not inputs or len(outputs) != 1:
        return None
    if isinstance(ins.op.kind, Elementwise):
        template = _number(ins, inputs, outputs[0]) if is_of_numbers else _arrays(ins, inputs)
    else:
        template = _element(ins, inputs)
    return None if template is None else Expression(template, is_of_numbers)


def _number(ins: Instruction, inputs: Sequence[TensorSpec], out: TensorSpec) -> str | None:
    if ins.op.kind == Elementwise("where"):
        return "{1} if {0} else {2}" if inputs[1] == inputs[2] else None
    if ins.op.kind == Elementwise("cast"):  # to others, numbers may be rounded twice or raise an error
        return "float64({0})" if out.dtype == np.float64 and inputs[0].dtype.kind in "iuf" else None
    return _NUMBERS.get(_common_kind(inputs), {}).get(ins.op.impl) if not ins.params else None


def _arrays(ins: Instruction, inputs: Sequence[TensorSpec]) -> str | None:
    return _PAIRS.get(ins.op.impl) if _common_kind(inputs) == "f" and not ins.params else None


def _common_kind(specs: Sequence[TensorSpec]) -> str:
    """The kind of a dtype that all have; "" where they have several."""
    first = specs[0].dtype
    return first.kind if all(spec.dtype == first for spec in specs) else ""


def _element(ins: Instruction, inputs: Sequence[TensorSpec]) -> str | None:
    """An element of an array, by one number for each of its axes."""
    x, *index = inputs
    if ins.op.name == "getslice" and x.rank == 1 and ins.params["drop"]:
        return f"{{0}}[{ins.params['start'][0]}]"
    if ins.op.kind not in (Gather("take"), Gather("index")) or len(index) != x.rank or any(i.rank != 0 for i in index):
        return None
    return f"{{0}}[{', '.join([f'{{{k}}}' for k in range(1, len(inputs))])}]"
