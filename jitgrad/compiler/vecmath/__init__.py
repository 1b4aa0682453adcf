"""Vector mathematics in LLVM IR, by NumPy's and SciPy's names; it knows no loops and no arrays.

`emit` writes one function as straight-line instructions at the builder's place, for a scalar or a vector alike, or a
call of it where the module shares what is long.
The largest errors are in docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.vecmath import (
    error_functions,
    exponential,
    gamma_functions,
    hyperbolic,
    inverse_trigonometric,
    logarithmic,
    powers,
    trigonometric,
)
from jitgrad.compiler.vecmath.lanes import Lanes, Real
from jitgrad.compiler.vecmath.shared import call_by_registers

_FUNCTIONS: dict[str, Callable[..., Real]] = {
    "exp": exponential.exp,
    "exp2": exponential.exp2,
    "expm1": exponential.expm1,
    "sigmoid": exponential.sigmoid,
    "softplus": exponential.softplus,
    "log_sigmoid": exponential.log_sigmoid,
    "logaddexp": exponential.logaddexp,
    "log": logarithmic.log,
    "log2": logarithmic.log2,
    "log10": logarithmic.log10,
    "log1p": logarithmic.log1p,
    "power": powers.power,
    "cbrt": powers.cbrt,
    "hypot": powers.hypot,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "arcsin": inverse_trigonometric.arcsin,
    "arccos": inverse_trigonometric.arccos,
    "arctan": inverse_trigonometric.arctan,
    "arctan2": inverse_trigonometric.arctan2,
    "sinh": hyperbolic.sinh,
    "cosh": hyperbolic.cosh,
    "arcsinh": hyperbolic.arcsinh,
    "arccosh": hyperbolic.arccosh,
    "arctanh": hyperbolic.arctanh,
    "erf": error_functions.erf,
    "erfc": error_functions.erfc,
    "erfinv": error_functions.erfinv,
    "gammaln": gamma_functions.gammaln,
    "digamma": gamma_functions.digamma,
    "polygamma1": gamma_functions.polygamma1,
    "tanh": hyperbolic.tanh,
}

NAMES: frozenset[str] = frozenset(_FUNCTIONS)
ARITY: dict[str, int] = {name: 2 if name in {"power", "arctan2", "hypot", "logaddexp"} else 1 for name in _FUNCTIONS}


def emit(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value]) -> ir.Value:
    """Emit the function `name` of the arguments, which all have one type: float, double or a vector of either.

    The result has that type. The builder is left after the last instruction, perhaps in another basic block. A name
    that is not in NAMES is a KeyError.
    """
    if builder.module.shared_bytes:
        return call_by_registers(builder, f"jitgrad.{name}", args, partial(_written, name))
    return _written(name, builder, args)


def _written(name: str, builder: ir.IRBuilder, args: Sequence[ir.Value]) -> ir.Value:
    lanes = Lanes(builder, args[0].type)
    return _FUNCTIONS[name](*(Real(lanes, value) for value in args)).value
