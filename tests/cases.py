"""The table of cases: one row or more per op, from which test_ops.py makes its checks. No checks are here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from jitgrad.spec import TensorSpec, type_names

Array = npt.NDArray[Any]
_by_short_name = {short: np.dtype(name) for name, short in type_names.items()}


@dataclass(frozen=True)
class Domain:
    """Where the values of an input lie: an interval, or these values themselves; ``distinct`` keeps them
    apart.

    Distinct values lie on a grid in random order, so that extremes and ties are not near.
    """

    lo: float = -2.0
    hi: float = 2.0
    distinct: bool = False
    values: tuple[Any, ...] | None = None

    def sample(self, spec: TensorSpec, rng: np.random.Generator) -> Any:
        """An array of that spec."""
        shape, size = spec.known_shape, spec.size
        if self.values is not None:
            values = np.asarray(self.values)
            return np.resize(
                (values.astype(np.int64) if spec.dtype.kind in "iu" else values).astype(spec.dtype), shape
            )
        if spec.dtype.kind == "b":
            return rng.random(shape) < 0.5
        if spec.dtype.kind in "iu":
            info = np.iinfo(spec.dtype)
            lo, hi = max(math.ceil(self.lo), int(info.min)), min(math.floor(self.hi), int(info.max))
            return rng.integers(lo, hi, shape, endpoint=True, dtype=spec.dtype)
        if self.distinct:
            drawn = rng.permutation(np.linspace(self.lo, self.hi, size)).reshape(shape)
        else:
            drawn = rng.uniform(self.lo, self.hi, shape)
        if spec.dtype.kind == "c":
            return (drawn + 1j * rng.uniform(self.lo, self.hi, shape)).astype(spec.dtype)
        return drawn.astype(spec.dtype)


@dataclass(frozen=True)
class OpCase:
    """One op on inputs of these specs.

    ``domain`` is one for all inputs, or one per input; inside it the op is smooth. ``dtypes`` are further
    dtypes which the float64 inputs are checked in (shape, dtype, compiled code; not gradients). ``order`` is
    the highest order of derivative that is checked. ``edges``: compiled code is also compared on NaN,
    infinities, zeros, denormals; ``ulps``: by how much it may differ, for an elementwise op, and ``zeros``:
    whether with the same signs of zeros.
    """

    op: str
    specs: tuple[TensorSpec, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    domain: Domain | tuple[Domain, ...] = Domain()
    dtypes: tuple[str, ...] = ("f32",)
    order: int = 2
    edges: bool = True
    rtol: float = 1e-6
    ulps: float = 4
    zeros: bool = True

    def __str__(self) -> str:
        params = ",".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.op}({' '.join(map(str, self.specs))}{' ' + params if params else ''})"

    def in_dtype(self, dtype: np.dtype[Any]) -> tuple[TensorSpec, ...]:
        """The specs with ``dtype`` in place of float64."""
        return tuple(TensorSpec(s.shape, dtype if s.dtype == np.float64 else s.dtype) for s in self.specs)

    def variants(self) -> list[tuple[TensorSpec, ...]]:
        """The specs as they stand, then in each further dtype."""
        return [self.specs, *(self.in_dtype(_by_short_name[name]) for name in self.dtypes)]

    def sample(self, specs: Sequence[TensorSpec], seed: int = 0) -> list[Array]:
        """Arrays of these specs from the domain."""
        rng = np.random.default_rng(seed)
        domains = self.domain if isinstance(self.domain, tuple) else (self.domain,) * len(specs)
        return [domain.sample(spec, rng) for domain, spec in zip(domains, specs, strict=True)]


def parse_specs(text: str) -> tuple[TensorSpec, ...]:
    """``"f64[2,3] i64[]"`` as specs."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", text)
    return tuple(
        TensorSpec(tuple(map(int, filter(None, dims.split(",")))), _by_short_name[name])
        for name, dims in found
    )


def case(
    op: str, specs: str, domain: Any = None, *, dtypes: str = "f32", order: int = 2, **options: Any
) -> OpCase:
    """A row: specs as text, the domain as a Domain, a (lo, hi) pair or a list of them; other keywords are
    params.
    """
    fields = {name: options.pop(name) for name in ("edges", "rtol", "ulps", "zeros") if name in options}
    return OpCase(op, parse_specs(specs), options, _domain(domain), tuple(dtypes.split()), order, **fields)


def _domain(given: Any) -> Any:
    if given is None:
        return Domain()
    if isinstance(given, list):
        return tuple(map(_domain, given))
    return given if isinstance(given, Domain) else Domain(*given)


floats = "f32"
numbers = "f32 i64 i32 u8"
everything = "f32 i64 i32 u8 bool"
integers = "i64 i32 i8 u8 u64 bool"

positive, unit, angle = (0.3, 3.0), (-0.9, 0.9), (-1.2, 1.2)
apart = Domain(-2, 2, distinct=True)
split = [Domain(values=(0.5, -1.5, 2.0, -0.25)), Domain(values=(-0.5, 1.0, 2.5, -1.75))]
quotients = [Domain(values=(2.5, -2.5, 7.1, -0.3)), Domain(values=(0.7, 1.1, -3, -2))]
around = [Domain(values=(-1.5, 0.3, 1.6, 0.1)), (-1, -0.5), (0.5, 1)]
bitwise = ("bitwise_and", "bitwise_or", "bitwise_xor")


def unary(names: str, domain: Any = None, dtypes: str = numbers, **options: Any) -> list[OpCase]:
    """A row per name for functions of one array."""
    return [case(name, "f64[2,3]", domain, dtypes=dtypes, **options) for name in names.split()]


def binary(names: str, domain: Any = None, dtypes: str = numbers, **options: Any) -> list[OpCase]:
    """A row per name for functions of two arrays."""
    return [case(name, "f64[4] f64[4]", domain, dtypes=dtypes, **options) for name in names.split()]


cases: list[OpCase] = [
    # arithmetic
    *binary("add multiply", dtypes=everything),
    *binary("subtract"),
    *binary("divide", [(-2, 2), positive], dtypes=floats),
    *binary("floor_divide remainder fmod", quotients),
    *binary("power float_power", [positive, (-2, 3)], dtypes=floats),
    case("power", "i64[4] i64[4]", [(-3, 3), (0, 4)], dtypes=""),
    *unary("negative positive square reciprocal", (0.5, 2)),
    *unary("sqrt cbrt", positive),
    # exponentials and logarithms
    *unary("exp exp2 expm1"),
    *unary("log log2 log10 log1p", positive),
    *binary("logaddexp logaddexp2"),
    # trigonometric and hyperbolic
    *unary("sin cos tan arctan sinh cosh tanh arcsinh deg2rad radians rad2deg degrees", angle),
    *unary("arcsin arccos arctanh", unit),
    *unary("arccosh", (1.2, 3)),
    *binary("arctan2 hypot", [positive, (-2, 2)]),
    # extremes, signs, rounding
    *binary("maximum minimum", split, dtypes=everything),
    *binary("fmax fmin", split, zeros=False),
    *binary("copysign", split),
    *binary("heaviside", [split[0], (0, 1)]),
    *unary("absolute fabs", Domain(values=(0.5, -1.5, 2, -0.25, 1, -1))),
    *unary("floor ceil trunc rint sign signbit", Domain(values=(0.4, -1.6, 2.2, -0.25, 1.1, -1.3))),
    # comparison, logic, bits
    *binary("equal not_equal less less_equal greater greater_equal", split, dtypes=everything),
    *binary("logical_and logical_or logical_xor", split, dtypes=everything),
    *unary("logical_not isnan isinf isfinite", dtypes=everything),
    *(case(name, "i64[6] i64[6]", dtypes="") for name in bitwise),
    *(case(name, "u8[6] u8[6]", dtypes="") for name in (*bitwise, "add", "multiply")),
    *(case(name, "bool[6] bool[6]", dtypes="") for name in bitwise),
    *(case("invert", f"{dtype}[6]", dtypes="") for dtype in ("i64", "u8", "bool")),
    *(case(name, "i64[6] i64[6]", [(-9, 9), (0, 5)], dtypes="") for name in ("left_shift", "right_shift")),
    *(case(name, "i64[6] i64[6]", (1, 60), dtypes="") for name in ("gcd", "lcm")),
    case("bitwise_count", "u8[6]", (0, 255), dtypes=""),
    # without a native form
    *binary("nextafter", order=0, dtypes=floats),
    *unary("spacing", order=0, dtypes=floats),
    case("ldexp", "f64[3] i32[3]"),
    *unary("frexp modf", Domain(values=(0.4, -1.6, 2.2, -0.3, 1.1, -1.3)), dtypes=floats),
    # choosing and converting
    case("where", "bool[4] f64[4] f64[4]", dtypes=everything),
    case("clip", "f64[4] f64[4] f64[4]", around, zeros=False),
    case("add_n", "f64[3] f64[3] f64[3]", dtypes=numbers),
    case("astype", "f64[4]", dtypes=everything, dtype=np.dtype(np.float64)),
    *(
        case("astype", "f64[4]", dtypes=everything, dtype=np.dtype(name), order=0)
        for name in ("float32", "int64", "int32", "bool")
    ),
    case("identity", "f64[4]", dtypes=everything),
    case("stop_gradient", "f64[4]", dtypes=everything, order=0),
    *unary("real imag conjugate", dtypes="f32 c64 c128"),
    *(case("fft", "c128[3,4]", dtypes="c64", axis=-k, inverse=bool(k - 1)) for k in (1, 2)),
    *(case("rfft", "f64[3,4]", dtypes="f32", axis=-2, divided=divided) for divided in (False, True)),
    case("rfft", "f64[2,4]", dtypes="f32", axis=-1, divided=False),
    *(case("irfft", "c128[3,4]", dtypes="c64", n=n, axis=-1, divided=n == 6) for n in (6, 7)),
    case("irfft", "c128[3,2]", dtypes="c64", n=5, axis=-2, divided=False),
    *(case("pairs_fft", "f64[3,5,2]", order=0, inverse=inverse) for inverse in (False, True)),
    *(case("pairs_rfft", f"f64[3,{n}]", order=0, divided=n == 6) for n in (1, 6, 7)),
    *(case("pairs_irfft", "f64[3,4,2]", order=0, shape=(3, n), divided=n == 6) for n in (6, 7)),
    # special functions
    *unary("sigmoid log_sigmoid softplus erf erfc erfcx ndtr log_ndtr", (0.2, 2), dtypes=floats),
    *unary("normal_excess", (-9, -0.2), dtypes=floats),
    *unary("i0 i1 i0e i1e j0 j1", (0.2, 2), dtypes=floats),
    *unary("relu", Domain(values=(0.5, -1.5, 2, -0.25, 1, -1)), dtypes=floats),
    *unary("logit", (0.1, 0.9), dtypes=floats),
    *unary("erfinv", unit, dtypes=floats),
    *unary("erfcinv", (0.2, 1.8), dtypes=floats),
    *unary("ndtri", (0.1, 0.9), dtypes=floats),
    # SciPy's gammaln is 6 ulp off near its zeros at negative numbers.
    *unary("gammaln", (0.6, 4), dtypes=floats, ulps=16),
    *unary("digamma gamma polygamma1", (0.6, 4), dtypes=floats),
    case("polygamma", "f64[3]", (0.8, 4), n=2),
    *binary("xlogy xlog1py rel_entr kl_div", positive, dtypes=floats),
    *unary("entr", positive, dtypes=floats),
    # reductions
    *(
        case(name, "f64[2,3,4]", apart, dtypes=everything, axis=axis, keepdims=keepdims)
        for name in ("sum", "prod", "max", "min", "any", "all")
        for axis, keepdims in (((0, 1, 2), False), ((1,), True), ((0, 2), False), ((), False))
    ),
    *(
        case(name, "f64[3,4]", apart, dtypes=everything, axis=axis, keepdims=keepdims)
        for name in ("argmax", "argmin")
        for axis, keepdims in ((None, False), (1, False), (0, True))
    ),
    *(case("cumsum", "f64[3,4]", dtypes=everything, axis=axis) for axis in (0, 1)),
    *(case("cumprod", "f64[3,4]", dtypes=everything, axis=axis) for axis in (0, 1)),
    *(case(name, "f64[3,4]", apart, dtypes=everything, axis=axis) for name in ("cummax", "cummin") for axis in (0, 1)),
    *(case("logcumsumexp", "f64[3,4]", axis=axis) for axis in (0, 1)),
    case("slide", "f64[9] f64[4]", dtypes=everything),
    *(case("linear_recurrence", "f64[3,4] f64[3,4]", dtypes=everything, axis=axis) for axis in (0, 1)),
    case("iota", "", dtypes="", order=0, shape=(3, 4), axis=1, dtype=np.dtype(np.uint64)),
    case("random_bits", "u64[3,4] u64[3,4]", (0, 2**62), dtypes="", order=0),
    case("size_along", "f64[3,4]", dtypes=everything, order=0, axis=(1,), dtype=np.dtype(np.float64)),
]  # fmt: skip
