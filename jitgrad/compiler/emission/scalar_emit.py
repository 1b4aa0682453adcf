"""Scalar ops by name: which have machine code for which dtypes, and the code."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.emission.scalar_arithmetic import COMPARISONS, emitters
from jitgrad.compiler.emission.scalar_values import Ops, Value, cast
from jitgrad.spec import DType

_PREDICATES = {
    *COMPARISONS,
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
}
_FLOAT_ONLY = {
    "divide", "reciprocal", "sqrt", "heaviside", "deg2rad", "rad2deg", "degrees", "radians", "copysign", "signbit",
    "logaddexp2",
}  # fmt: skip
_SAME_DTYPES = {
    "add", "add_n", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "clip", "heaviside", "fmod",
    "remainder", "floor_divide", "copysign", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "logaddexp2", "threefry2x32", *COMPARISONS,
}  # fmt: skip


def refusal(name: str, dtypes: Sequence[DType]) -> str | None:
    """Why a scalar op has no machine code for arguments of these dtypes; None when it has."""
    for dtype in dtypes:
        if dtype.kind not in "fiub" or dtype.char in "eg":
            return f"no kernels for {dtype.name}"
    if name.startswith("iota") or name == "cast":
        return None
    if name in vecmath.NAMES:
        return None if dtypes[0].kind == "f" else f"{name} of {dtypes[0].name} has no kernel"
    if name not in emitters:
        return f"{name} has no kernel"
    if name in _SAME_DTYPES and len({*dtypes}) > 1:
        return f"{name} of {' and '.join(d.name for d in dtypes)} has no kernel"
    if name in _FLOAT_ONLY and dtypes[0].kind != "f":
        return f"{name} of {dtypes[0].name} has no kernel"
    return None


def emit_op(
    builder: ir.IRBuilder, name: str, args: Sequence[Value], dtypes: Sequence[DType], out: DType, lanes: int
) -> Value:
    """Emit a scalar op; all arguments have ``lanes`` lanes (0: scalars) and the given dtypes."""
    if name == "cast":
        return cast(builder, args[0], dtypes[0], out, lanes)
    if name in vecmath.NAMES:
        return vecmath.emit(builder, name, args)
    result = emitters[name](Ops(builder, dtypes[-1] if name == "where" else dtypes[0], lanes), *args)
    natural = np.dtype(bool) if name in _PREDICATES else (dtypes[-1] if name == "where" else dtypes[0])
    return result if natural == out else cast(builder, result, natural, out, lanes)
