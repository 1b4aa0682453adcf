"""Vector mathematics: errors in ulp, special values, scalar against vector form, symmetry, order."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from vecmath_oracle import FUNCTIONS, Function, compiled, errors_against_float64, errors_against_mpmath, samples

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.machine.compilation import has_avx512
from jitgrad.compiler.vecmath.lanes import joined, part_of

_POINTS = {"digamma": 1500, "polygamma1": 1500, "gammaln": 2000, "erfinv": 1500}
_DTYPES = [np.float32, np.float64]
_NUMPY: dict[str, Callable[..., np.ndarray]] = {
    **{name: getattr(np, name) for name in vecmath.NAMES if hasattr(np, name)},
    **{name: getattr(scipy.special, name) for name in ("erf", "erfc", "erfinv", "gammaln", "digamma")},
    "polygamma1": lambda x: scipy.special.polygamma(1, x),
    "sigmoid": scipy.special.expit,
    "softplus": lambda x: np.logaddexp(0, x),
    "log_sigmoid": scipy.special.log_expit,
}
_functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
_dtypes = pytest.mark.parametrize("dtype", _DTYPES, ids=["float32", "float64"])


def test_every_function_is_tested() -> None:
    assert {function.name for function in FUNCTIONS} == vecmath.NAMES == set(vecmath.ARITY)


@_functions
def test_float64_errors_are_within_the_limit(function: Function) -> None:
    points = _POINTS.get(function.name, 3000)
    args = samples(function, np.float64, points, np.random.default_rng(2))
    errors = errors_against_mpmath(function.name, args)
    assert errors.max() <= function.limit, _at(errors, args)


@_functions
def test_float32_errors_are_within_the_limit(function: Function) -> None:
    args = samples(function, np.float32, 300_000, np.random.default_rng(3))
    errors = errors_against_float64(function.name, args)
    assert errors.max() <= function.limit, _at(errors, args)


def _at(errors: np.ndarray, args: tuple[np.ndarray, ...]) -> str:
    return f"{errors.max()} ulp at {[float(arg[errors.argmax()]) for arg in args]}"


@_dtypes
@_functions
@pytest.mark.parametrize("registers", [0, 1, 4])
def test_calls_give_the_same_bits_as_what_is_written_out(function: Function, dtype: type, registers: int) -> None:
    args = samples(function, dtype, 2000, np.random.default_rng(5))
    lanes = registers * 32 // np.dtype(dtype).itemsize
    called = compiled(function.name, dtype, lanes, shared_bytes=32)(*args)
    assert called.tobytes() == compiled(function.name, dtype, lanes)(*args).tobytes()


@pytest.mark.skipif(not has_avx512(), reason="the processor has no such instruction")
@_dtypes
@pytest.mark.parametrize("name", ["exp", "exp2", "power", "erfc", "sigmoid", "softplus", "logaddexp"])
def test_one_instruction_scales_as_two_factors_do(name: str, dtype: type) -> None:
    (function,) = (function for function in FUNCTIONS if function.name == name)
    args = samples(function, dtype, 20_000, np.random.default_rng(9))
    edges = np.array([-np.inf, np.inf, np.nan, -104.5, -88.0, 88.8, -745.2, -708.5, 709.9, 1023.9, -1074.5], dtype)
    args = tuple(np.concatenate([arg, edges]) for arg in args)
    for lanes in (16, 64):
        with_instruction, without = (compiled(name, dtype, lanes, avx512=avx512)(*args) for avx512 in (True, False))
        assert np.array_equal(with_instruction, without, equal_nan=True)


@pytest.mark.parametrize("avx512", [False, has_avx512()])
def test_tanh_of_float32_holds_its_limit_in_either_way_and_ends_in_one(avx512: bool) -> None:
    tanh = compiled("tanh", np.float32, 16, avx512=avx512)
    size = np.exp2(np.linspace(-30, 4, 1_000_000)).astype(np.float32)
    exact = np.tanh(size.astype(np.float64))
    assert np.max(np.abs(tanh(size) - exact) / 2.0 ** (np.frexp(exact)[1] - 24)) <= (1 if avx512 else 2)
    ends = np.array([9.1, 9.125, 9.2, 20, 3e38, np.inf], np.float32)
    assert tanh(ends).tolist() == [1.0] * 6
    assert np.isnan(tanh(np.array([np.nan], np.float32)))


@_dtypes
@_functions
def test_special_values_are_those_of_numpy_and_scipy(function: Function, dtype: type) -> None:
    info = np.finfo(dtype)
    sizes = [0, 1, 2, 3, 0.5, 1.5, 1e30, info.max, info.tiny, info.smallest_subnormal, np.inf]
    values = np.array([*sizes, *(-float(size) for size in sizes), np.nan], dtype)
    args = tuple(np.array(list(itertools.product(values, repeat=vecmath.ARITY[function.name])), dtype).T)
    got = compiled(function.name, dtype, 8)(*args)
    with np.errstate(all="ignore"):
        want = _NUMPY[function.name](*(arg.astype(np.float64) for arg in args)).astype(dtype)
        # SciPy overflows next to 0, where log|gamma(x)| is -log|x|.
        if function.name == "gammaln":
            want = np.where((args[0] != 0) & (np.abs(args[0]) < 1e-30), -np.log(np.abs(args[0])), want)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    exceptional = np.isinf(want) | (want == 0) | np.isinf(got) | (got == 0)
    assert np.array_equal(got[exceptional], want[exceptional])
    assert np.array_equal(np.signbit(got[exceptional]), np.signbit(want[exceptional]))


@_dtypes
@_functions
def test_scalar_and_vector_forms_agree_bit_for_bit(function: Function, dtype: type) -> None:
    args = samples(function, dtype, 500, np.random.default_rng(4))
    narrow, wide = compiled(function.name, dtype, 0)(*args), compiled(function.name, dtype, 16)(*args)
    assert narrow.tobytes() == wide.tobytes()


@_dtypes
@pytest.mark.parametrize(
    "name", ["sin", "tan", "arcsin", "arctan", "sinh", "tanh", "arcsinh", "arctanh", "cbrt", "erf", "erfinv"]
)
def test_odd_functions_are_odd(name: str, dtype: type) -> None:
    function = next(function for function in FUNCTIONS if function.name == name)
    (x,) = samples(function, dtype, 2000, np.random.default_rng(5))
    apply = compiled(name, dtype, 8)
    assert (-apply(x)).tobytes() == apply(-x).tobytes()


@_dtypes
@pytest.mark.parametrize("name", ["cos", "cosh"])
def test_even_functions_are_even(name: str, dtype: type) -> None:
    x = np.random.default_rng(6).uniform(-80, 80, 2000).astype(dtype)
    apply = compiled(name, dtype, 8)
    assert apply(x).tobytes() == apply(-x).tobytes()


@_dtypes
@pytest.mark.parametrize("name", ["sin", "cos", "tanh", "erf", "sigmoid"])
def test_bounded_functions_stay_within_their_bounds(name: str, dtype: type) -> None:
    x = np.random.default_rng(7).uniform(-40, 40, 200_000).astype(dtype)
    assert np.abs(compiled(name, dtype, 8)(x)).max() <= 1


@_dtypes
@pytest.mark.parametrize("name", ["exp", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "arctan", "cbrt", "sinh"])
def test_growing_functions_grow_but_for_rounding(name: str, dtype: type) -> None:
    x = np.sort(np.random.default_rng(8).uniform(0.0, 20, 200_000).astype(dtype))
    y = compiled(name, dtype, 8)(x)
    assert (y[1:] - y[:-1] >= -2 * np.spacing(np.abs(y[1:]))).all()


@_dtypes
def test_exact_results_are_exact(dtype: type) -> None:
    integers = np.arange(-120, 121).astype(dtype)
    powers = np.exp2(integers.astype(np.float64)).astype(dtype)
    assert np.array_equal(compiled("exp2", dtype, 8)(integers), powers)
    assert np.array_equal(compiled("log2", dtype, 8)(powers), integers)
    assert np.array_equal(compiled("log10", dtype, 8)(dtype(10) ** np.arange(11, dtype=dtype)), np.arange(11))
    assert np.array_equal(compiled("cbrt", dtype, 8)(np.arange(50, dtype=dtype) ** 3), np.arange(50))
    assert np.array_equal(compiled("power", dtype, 8)(integers, np.full_like(integers, 2)), integers**2)
    assert compiled("cos", dtype, 8)(np.zeros(8, dtype)).tolist() == [1.0] * 8


def test_large_arguments_in_one_lane_leave_the_others_alone() -> None:
    x = np.linspace(-3, 3, 64)
    mixed = x.copy()
    mixed[::7] = 1e22
    usual, result = compiled("sin", np.float64, 8)(x), compiled("sin", np.float64, 8)(mixed)
    unchanged = mixed == x
    assert np.array_equal(usual[unchanged], result[unchanged])
    assert result[0] == pytest.approx(-0.8522008497671888, rel=1e-15)


def test_documented_table_names_every_function() -> None:
    text = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text()
    assert set(re.findall(r"^\| (\w+) \| [24] \| ", text, re.M)) == vecmath.NAMES


def test_a_gradient_shares_the_exponential_of_erfc_which_divides_once() -> None:
    erfc, both = _instructions("erfc"), _instructions("erfc", "gauss")
    assert sum(" fdiv " in line for line in erfc) == 1
    assert len(both) - len(erfc) == 4  # the last two steps of the polynomial, and the power of two as two factors


@pytest.mark.quick
def test_parts_of_vectors_side_by_side_are_not_taken_out_again() -> None:
    lanes = ir.VectorType(ir.DoubleType(), 4)
    function = ir.Function(ir.Module("parts", True), ir.FunctionType(lanes, [lanes] * 4), "f")
    builder = ir.IRBuilder(function.append_basic_block())
    whole = joined(builder, function.args)
    written = len(builder.block.lines)
    assert part_of(builder, whole, 8, 4) is function.args[2]
    assert part_of(builder, whole, 8, 8).parts == tuple(function.args[2:])
    assert len(builder.block.lines) == written
    half = part_of(builder, whole, 2, 2)
    assert half.type.count == 2 and len(builder.block.lines) == written + 1


def _instructions(*names: str) -> list[str]:
    """What is written of erfc(x) and exp(-x*x) for eight lanes of float64."""
    eight = ir.VectorType(ir.DoubleType(), 8)
    function = ir.Function(ir.Module("shared"), ir.FunctionType(eight, [eight]), "shared")
    builder, (x,) = ir.IRBuilder(function.append_basic_block()), function.args
    for name in names:
        vecmath.emit(builder, *("erfc", [x]) if name == "erfc" else ("exp", [builder.fneg(builder.fmul(x, x))]))
    return [line for line in function.definition().split("\n") if " = " in line and "bitcast" not in line]
