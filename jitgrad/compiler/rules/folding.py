"""Rules that compute with constants: what does not grow is computed, splats stay splats."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.compiler.constants import Array, constant_value, is_splat, splat, splat_number
from jitgrad.compiler.rewriter import Rewriter, Rule
from jitgrad.opdef import Elementwise, Library, Reindex, View
from jitgrad.program import Instruction


def fold_splats(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """f(splat(a), splat(b)) = splat(f(a, b)); moved(splat(a)) = splat(a) where every element is read."""
    numbers = []
    for v in ins.inputs:
        number = _number(rw, v)
        if number is None:
            return None
        numbers.append(number)
    if not ins.inputs or len(ins.outputs) != 1:
        return None
    kind, spec = ins.op.kind, rw.specs[ins.outputs[0]]
    match kind:
        case View():
            return rw.constant(ins, splat(numbers[0], spec.known_shape, spec.dtype))
        case Reindex(maps) if len(ins.inputs) == 1:
            ((index_map,),) = maps((rw.specs[ins.inputs[0]],), ins.params)
            if index_map is not None and not index_map.guards:
                return rw.constant(ins, splat(numbers[0], spec.known_shape, spec.dtype))
        case Elementwise():
            scalars = [np.asarray(number, rw.dtype(v)) for number, v in zip(numbers, ins.inputs, strict=True)]
            number = _computed(ins, scalars)
            if number is not None and number.shape == () and number.dtype == spec.dtype:
                return rw.constant(ins, splat(number, spec.known_shape, spec.dtype))
    return None


def _number(rw: Rewriter, v: int) -> Any:
    """The number that a constant is everywhere; None for other values."""
    if v in rw.numbers:
        return rw.numbers[v]
    maker = rw.maker(v) if rw.dtype(v).kind == "c" else None
    array = constant_value(maker) if maker is not None else None
    return splat_number(array) if array is not None and is_splat(array) else None


def fold_dense(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """f(constants) is a constant, when it has no more elements than they have.

    The rule compares shapes and knows no limit in numbers: another extent must not make another kernel.
    """
    constants = rw.constants
    for v in ins.inputs:
        if v not in constants:
            return None
    if not ins.inputs or len(ins.outputs) != 1 or isinstance(ins.op.kind, Library):
        return None
    spec = rw.specs[ins.outputs[0]]
    if spec.size > sum(rw.specs[v].size for v in ins.inputs if v not in rw.numbers):
        return None
    array = _computed(ins, [constants[v] for v in ins.inputs])
    if array is None or array.shape != spec.shape or array.dtype != spec.dtype:
        return None
    array = array.copy()
    array.flags.writeable = False
    return rw.constant(ins, array)


def _computed(ins: Instruction, arrays: list[Array]) -> Array | None:
    """What the interpreter would compute; None when the op raises, as it then will when it runs."""
    try:
        result: Any = ins.op.impl(*arrays, **ins.params)
    except (ArithmeticError, ValueError, TypeError, IndexError):
        return None
    return np.asarray(result)


RULES: tuple[Rule, ...] = (fold_splats, fold_dense)
