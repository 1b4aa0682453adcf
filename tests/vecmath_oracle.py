"""What the tests of vector mathematics need: compiled functions, sample arguments, and exact values from mpmath."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import mpmath
import numpy as np
import scipy.special

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.machine import native
from jitgrad.compiler.machine.compilation import has_avx512

_ELEMENT = {np.float32: ir.FloatType(), np.float64: ir.DoubleType()}
_I64 = ir.IntType(64)


@dataclass(frozen=True)
class Function:
    """One function: its limit of error in ulp, where its arguments are dense, and points it is delicate around."""

    name: str
    limit: float = 2.0
    low: float = -4.0
    high: float = 4.0
    domain: tuple[float, float] = (-np.inf, np.inf)
    around: tuple[float, ...] = (0.0, 1.0, -1.0)


FUNCTIONS = (
    Function("exp", low=-750, high=712),
    Function("exp2", low=-1080, high=1026),
    Function("expm1", low=-40, high=712),
    Function("log", low=0, domain=(0, np.inf)),
    Function("log2", low=0, domain=(0, np.inf)),
    Function("log10", low=0, domain=(0, np.inf)),
    Function("log1p", low=-1, domain=(-1, np.inf)),
    Function("cbrt"),
    Function("sin", low=-3e8, high=3e8, around=(0.0, np.pi / 2, np.pi, 355.0, 6381956970095103.0 * 2.0**797)),
    Function("cos", low=-3e8, high=3e8, around=(0.0, np.pi / 2, np.pi, 355.0, 6381956970095103.0 * 2.0**797)),
    Function("tan", low=-3e8, high=3e8, around=(0.0, np.pi / 2, np.pi, 355.0, 6381956970095103.0 * 2.0**797)),
    Function("arcsin", low=-1, high=1, domain=(-1, 1), around=(0.0, 1.0, -1.0, 0.5)),
    Function("arccos", low=-1, high=1, domain=(-1, 1), around=(0.0, 1.0, -1.0, 0.5)),
    Function("arctan"),
    Function("sinh", low=-712, high=712),
    Function("cosh", low=-712, high=712),
    Function("tanh", low=-20, high=20, around=(0.0, 0.5625, 1.0)),
    Function("arcsinh"),
    Function("arccosh", low=1, domain=(1, np.inf), around=(1.0, 2.0)),
    Function("arctanh", low=-1, high=1, domain=(-1, 1), around=(0.0, 1.0, -1.0, 0.5)),
    Function("arctan2"),
    Function("hypot"),
    Function("power", limit=4.0),
    Function("logaddexp", low=-700, high=700),
    Function("erf", low=-6, high=6),
    Function("erfc", low=-6, high=28),
    Function("erfinv", low=-1, high=1, domain=(-1, 1), around=(0.0, 1.0, -1.0, 0.995)),
    Function("gammaln", 4.0, -20, 20, domain=(-500, np.inf), around=(0.0, 1.0, 2.0, 1.4142, 8.0, -1.0, -2.457)),
    Function(
        "digamma", limit=4.0, low=-20, high=20, domain=(-500, np.inf), around=(0.0, 1.0, 1.4616, 4.0, -1.0, -0.504)
    ),
    Function("polygamma1", limit=4.0, low=-20, high=20, domain=(-500, np.inf), around=(0.0, 1.0, 4.0, -1.0)),
    Function("sigmoid", low=-750, high=50),
    Function("softplus", low=-750, high=712),
    Function("log_sigmoid", low=-712, high=750),
)


@cache
def compiled(
    name: str, dtype: type, lanes: int, shared_bytes: int = 0, avx512: bool | None = None
) -> Callable[..., np.ndarray]:
    """A loop that applies the function to arrays of the dtype, that many lanes at a time; 0 is the scalar form.

    ``shared_bytes``: by calls for so many bytes, compiled quickly; ``avx512``: with its instructions or
    without, None for what this machine has.
    """
    title = f"vecmath_{name}_{np.dtype(dtype).name}_{lanes}_{shared_bytes}_{avx512}"
    module = ir.Module(title, shared_bytes=shared_bytes, has_avx512=has_avx512() if avx512 is None else avx512)
    arity, step = vecmath.ARITY[name], max(lanes, 1)
    _write_loop(module, title, name, _ELEMENT[dtype], lanes)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (arity + 1))
    entry = signature(native.compile_module(str(module), [title], quickly=shared_bytes > 0)[title])

    def apply(*args: np.ndarray) -> np.ndarray:
        count = args[0].size
        padded = [np.resize(np.asarray(arg, dtype), -(-count // step) * step) for arg in args]
        out = np.empty_like(padded[0])
        entry(out.size, *(array.ctypes.data for array in (*padded, out)))
        return out[:count]

    return apply


def _write_loop(module: ir.Module, title: str, name: str, element: ir.Type, lanes: int) -> None:
    pointers = [ir.PointerType()] * (vecmath.ARITY[name] + 1)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64, *pointers]), title)
    builder = ir.IRBuilder(function.append_basic_block())
    chunk = ir.VectorType(element, lanes) if lanes else element
    alignment = 4 if isinstance(element, ir.FloatType) else 8
    entry, loop, done = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(_I64)
    index.add_incoming(_I64(0), entry)
    places = [builder.gep(arg, [index], element) for arg in function.args[1:]]
    values = [builder.load(place, chunk, alignment) for place in places[:-1]]
    builder.store(vecmath.emit(builder, name, values), places[-1], alignment)
    following = builder.add(index, _I64(max(lanes, 1)))
    index.add_incoming(following, builder.block)
    builder.cbranch(builder.icmp_signed("<", following, function.args[0]), loop, done)
    builder.position_at_end(done)
    builder.ret_void()


def samples(function: Function, dtype: type, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """About `count` tuples of finite arguments: uniform, of every exponent, and close to the delicate points."""
    if function.name == "power":
        return _samples_of_power(dtype, count, rng)
    args = tuple(_samples_of_one(function, dtype, count, rng) for _ in range(vecmath.ARITY[function.name]))
    if function.name in {"hypot", "arctan2"}:
        with np.errstate(all="ignore"):
            near = (args[0] * np.exp2(rng.uniform(-30, 30, args[0].size))).astype(dtype)
        return args[0], np.where(np.isfinite(near) & (rng.random(near.size) < 0.5), near, args[1])
    return args


def _samples_of_one(function: Function, dtype: type, count: int, rng: np.random.Generator) -> np.ndarray:
    part = count // 4
    info = np.finfo(dtype)
    sign = rng.choice([-1.0, 1.0], part)
    tiny, huge = np.log2(float(info.smallest_subnormal)), float(info.maxexp)
    scattered = np.exp2(rng.uniform(tiny, huge, part)) * sign
    moderate = np.exp2(rng.uniform(-30, 12, part)) * sign
    near = rng.choice(function.around, part) + np.exp2(rng.uniform(-50, -1, part)) * sign
    bound = 1.0 if dtype is np.float64 else 0.14
    scale = bound if max(abs(function.low), abs(function.high)) > 100 else 1.0
    uniform = rng.uniform(function.low * scale, function.high * scale, count - 3 * part)
    with np.errstate(all="ignore"):
        x = np.concatenate([uniform, scattered, moderate, near]).astype(dtype)
    x = np.where(np.isfinite(x), x, dtype(0.5))
    low, high = function.domain
    x = np.where((x < low) & (-x >= low), -x, x)
    is_pole = (low == -500) & (x <= 0) & (x == np.rint(x))
    inside = (x >= low) & (x <= high) & ~is_pole
    return np.where(inside, x, rng.uniform(max(low, -2.0), min(high, 2.0), x.size)).astype(dtype)


def _samples_of_power(dtype: type, count: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Bases of every size with exponents such that the results have every size; and small integer exponents."""
    info = np.finfo(dtype)
    tiny, huge = np.log2(float(info.smallest_subnormal)), float(info.maxexp)
    part = count // 3
    base = np.concatenate(
        [np.exp2(rng.uniform(tiny, huge, part)), 1 + rng.normal(size=part) * 2.0 ** rng.uniform(-25, -2, part)]
    ).astype(dtype)
    base = np.where((base > 0) & (base != 1) & np.isfinite(base), base, dtype(0.5))
    exponent = (rng.uniform(tiny - 2, huge + 1, base.size) / np.log2(base.astype(np.float64))).astype(dtype)
    return (
        np.concatenate([base, rng.uniform(-10, 10, part).astype(dtype)]),
        np.concatenate([exponent, rng.integers(-9, 10, part).astype(dtype)]),
    )


_EXACT: dict[str, Callable[..., mpmath.mpf]] = {
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log2": lambda x: mpmath.log(x, 2),
    "power": lambda x, y: mpmath.power(x, y),
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arcsinh": mpmath.asinh,
    "arccosh": mpmath.acosh,
    "arctanh": mpmath.atanh,
    "arctan2": mpmath.atan2,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "logaddexp": lambda x, y: max(x, y) + mpmath.log1p(mpmath.exp(-abs(x - y))),
    "erfc": lambda x: mpmath.erfc(min(max(x, -100), 100)),
    "gammaln": lambda x: mpmath.log(abs(mpmath.gamma(x))) if abs(x) < 40 else mpmath.re(mpmath.loggamma(x)),
    "digamma": mpmath.digamma,
    "polygamma1": lambda x: mpmath.psi(1, x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "log_sigmoid": lambda x: -mpmath.log1p(mpmath.exp(-x)),
}


def exact(name: str, args: tuple[np.ndarray, ...], precision: int = 180) -> list[mpmath.mpf]:
    """The function of each tuple of arguments, to 100 bits or more."""
    function = _EXACT.get(name) or getattr(mpmath, name)
    with mpmath.workprec(precision):
        return [function(*(mpmath.mpf(float(part)) for part in point)) for point in zip(*args, strict=True)]


def errors_against_mpmath(name: str, args: tuple[np.ndarray, ...]) -> np.ndarray:
    """The errors of the float64 function in ulp."""
    got = compiled(name, np.float64, 8)(*args)
    want = exact(name, args)
    with mpmath.workprec(180):
        rounded = np.array([float(value) for value in want])
        difference = np.array(
            [float(value - mpmath.mpf(float(g))) if np.isfinite(g) else 0.0 for value, g in zip(want, got, strict=True)]
        )
    return _in_ulp(name, args, got, rounded, difference, np.float64)


def errors_against_float64(name: str, args: tuple[np.ndarray, ...]) -> np.ndarray:
    """The errors of the float32 function in ulp, taking the float64 function, tested on its own, as exact."""
    got = compiled(name, np.float32, 16)(*args).astype(np.float64)
    want = compiled(name, np.float64, 8)(*args)
    with np.errstate(invalid="ignore"):
        difference = np.where(np.isfinite(got), want - got, 0.0)
    return _in_ulp(name, args, got, want, difference, np.float32)


def _in_ulp(
    name: str,
    args: tuple[np.ndarray, ...],
    got: np.ndarray,
    want: np.ndarray,
    difference: np.ndarray,
    dtype: type,
) -> np.ndarray:
    """|difference| in units of the last place; infinite where one side is NaN or overflows and the other does not."""
    largest = float(np.finfo(dtype).max)
    overflows = np.abs(want) > largest
    wrong = (np.isnan(got) != np.isnan(want)) | (np.isinf(got) & (np.abs(want) < largest * (1 - 1e-6)))
    wrong |= overflows & (np.abs(got) < largest)
    unit = ulp(np.where(np.isfinite(want), _size(name, args, want), 1.0), dtype)
    with np.errstate(invalid="ignore"):
        counted = np.where(overflows | np.isinf(got) | np.isnan(want), 0.0, np.abs(difference) / unit)
    return np.where(wrong, np.inf, counted)


def _size(name: str, args: tuple[np.ndarray, ...], want: np.ndarray) -> np.ndarray:
    """The number whose last place is the unit: the result, but where the definition cancels, the largest term of it."""
    x = args[0].astype(np.float64)
    size = np.abs(want)
    with np.errstate(all="ignore"):
        if name == "logaddexp":
            larger = np.maximum(x, args[1])
            return np.maximum(size, np.maximum(np.abs(larger), np.abs(want - larger)))
        if name == "gammaln":
            terms = np.nan_to_num(scipy.special.gammaln(np.abs(x)), posinf=1.0)
            largest = np.maximum(np.maximum(np.abs(terms), np.abs(want + terms)), 1.0)
            return np.where(x < 0, np.maximum(size, largest), size)
        if name == "digamma":
            terms = scipy.special.digamma(1.0 - x)
            return np.where(x < 0, np.maximum(size, np.maximum(np.abs(terms), np.abs(want - terms))), size)
    return size


def ulp(value: np.ndarray, dtype: type) -> np.ndarray:
    """The distance of neighbouring numbers of the dtype at |value|, in float64."""
    info = np.finfo(dtype)
    _, exponent = np.frexp(np.abs(value))
    return np.ldexp(1.0, np.maximum(exponent - info.nmant - 1, info.minexp - info.nmant))
