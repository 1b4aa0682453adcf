"""Helpers for compiler tests: programs written by hand, ops without kernels, special values; no tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.opdef import Elementwise, Interpreted, OpDef, find
from jitgrad.program import Instruction, Origin, Program, verify
from jitgrad.spec import TensorSpec


def _first_spec(specs: tuple[TensorSpec, ...], params: Any) -> tuple[TensorSpec, ...]:
    return (specs[0],)


def _sum_of(*arrays: Any) -> Any:
    return np.asarray(sum(arrays[1:], start=arrays[0]))


#: A compilable op of any number of equal inputs, and ops that only the interpreter runs.
compiled = OpDef("compiled", _first_spec, _sum_of, None, Elementwise("add_n"))
opaque = OpDef("opaque", _first_spec, _sum_of, None, Interpreted("it is arbitrary Python"))
effect = OpDef("effect", _first_spec, _sum_of, None, Interpreted("it writes to the outside"), stateful=True)


class Builder:
    """Writes a program instruction by instruction; values are numbers."""

    def __init__(self) -> None:
        self.inputs: list[int] = []
        self.specs: list[TensorSpec] = []
        self.instructions: list[Instruction] = []

    def _value(self, spec: TensorSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def input(self, *shape: int, dtype: Any = np.float64) -> int:
        """A value that is fed."""
        self.inputs.append(self._value(TensorSpec(shape, np.dtype(dtype))))
        return self.inputs[-1]

    def constant(self, value: Any, scope: str | None = None) -> int:
        """A constant, as it is: splats stay splats."""
        return self.op("constant", value=np.asarray(value), scope=scope)

    def op(
        self,
        op: OpDef | str,
        *inputs: int,
        scope: str | None = None,
        after: tuple[int, ...] = (),
        **params: Any,
    ) -> int:
        """One instruction; the value that it makes, the first one when there are several."""
        opdef = find(op) if isinstance(op, str) else op
        inferred = opdef.infer(tuple(self.specs[v] for v in inputs), params)
        outputs = tuple(self._value(spec) for spec in inferred)
        origin = Origin(
            f"{opdef.name}_{len(self.instructions)}", ("model.py", len(self.instructions) + 1), scope
        )
        self.instructions.append(Instruction(opdef, inputs, outputs, params, origin, after))
        return outputs[0]

    @property
    def last(self) -> int:
        """The number of the instruction made last."""
        return len(self.instructions) - 1

    def program(self, *outputs: int) -> Program:
        """The program, verified."""
        return verify(Program(tuple(self.inputs), outputs, tuple(self.instructions), tuple(self.specs)))


def op_names(program: Program) -> list[str]:
    """The ops of a program in order."""
    return [ins.op.name for ins in program.instructions]


def special_values(dtype: Any = np.float64) -> Any:
    """Zeros of both signs, infinities, NaN, denormals, extremes and ordinary numbers."""
    info = np.finfo(dtype)
    numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.5,
        -3.75,
        np.inf,
        -np.inf,
        np.nan,
        info.max,
        -info.max,
        info.tiny,
        -info.tiny,
    ]
    return np.array([*numbers, info.smallest_subnormal, -info.smallest_subnormal, 1e-30], dtype=dtype)


def assert_equal_values(got: Any, expected: Any, ulps: int = 0) -> None:
    """Same shape, dtype, NaNs, infinities and zeros with their signs; other numbers within ``ulps``."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if got.dtype.kind != "f" or not ulps:
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_array_almost_equal_nulp(
            _without_nan(got, expected), _without_nan(expected, expected), ulps
        )
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    if got.dtype.kind == "f":
        zero = (expected == 0) & (got == 0)
        np.testing.assert_array_equal(np.signbit(got)[zero], np.signbit(expected)[zero])


def _without_nan(array: Any, mask: Any) -> Any:
    return np.where(np.isfinite(mask), array, 0)
