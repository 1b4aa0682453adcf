"""What NumPy's functions do that is easily missed: shapes of out=, axes of numbers, values placed where a mask holds,
numbers made whole. Interpreted and compiled calls do as NumPy, or say why not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
import jitgrad.numpy as jnp
from jitgrad import operators
from jitgrad.batching_rules import rule_for
from jitgrad.graph import Graph

A = np.linspace(-2.0, 3.0, 30).reshape(5, 6)
Fn = Callable[..., Any]


def check(fn: Fn, *args: Any) -> None:
    """Values, shapes and dtypes are NumPy's."""
    expected = fn(*(np.copy(x)[()] for x in args))
    f = jg.compile(fn)
    for found in (f(*args), f(*args), f.interpret(*args)):
        for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected)), strict=True):
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_array_equal(a, b)


# -- out= ------------------------------------------------------------------------------------------------------------


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    return np.zeros(shape) if isinstance(like, np.ndarray) else jnp.zeros(shape) + like.sum() * 0


FITTING: dict[str, tuple[Fn, tuple[int, ...]]] = {
    "sum": (lambda a, out: np.sum(a, axis=0, out=out), (6,)),
    "mean of all": (lambda a, out: np.mean(a, out=out), ()),
    "max, axes kept": (lambda a, out: np.max(a, axis=0, keepdims=True, out=out), (1, 6)),
    "cumsum": (lambda a, out: np.cumsum(a, axis=1, out=out), (5, 6)),
    "accumulate": (lambda a, out: np.add.accumulate(a, axis=1, out=out), (5, 6)),
    "reduce": (lambda a, out: np.add.reduce(a, axis=1, out=out), (5,)),
    "concatenate": (lambda a, out: np.concatenate([a, a], out=out), (10, 6)),
    "take": (lambda a, out: np.take(a, [0, 1], axis=0, out=out), (2, 6)),
    "round": (lambda a, out: np.round(a, 1, out=out), (5, 6)),
    "method sum": (lambda a, out: a.sum(axis=0, out=out), (6,)),
    "method cumprod": (lambda a, out: a.cumprod(axis=0, out=out), (5, 6)),
    "method clip": (lambda a, out: a.clip(-1, 1, out=out), (5, 6)),
    "method std": (lambda a, out: a.std(axis=0, out=out), (6,)),
    "method dot": (lambda a, out: a.dot(a.T, out=out), (5, 5)),
}


@pytest.mark.parametrize("name", FITTING)
def test_out_of_that_shape(name: str) -> None:
    call, shape = FITTING[name]

    def fn(a: Any) -> Any:
        out = zeros(a, shape)
        result = call(a, out)
        assert isinstance(a, np.ndarray) or result is out
        return out

    found = jg.compile(fn)(A)
    np.testing.assert_allclose(found, fn(A), rtol=1e-14)


@pytest.mark.parametrize("name", [name for name in FITTING if name != "method clip"])
def test_out_of_another_shape_is_refused(name: str) -> None:
    call, shape = FITTING[name]
    other = (2, *shape)
    with pytest.raises(ValueError):
        call(A, np.zeros(other))
    with pytest.raises(jg.ShapeError, match=r"(?s)with out=: the result has another shape.*expected.*got.*hint"):
        jg.compile(lambda a: call(a, zeros(a, other)))(A)


@pytest.mark.parametrize(
    "call",
    [
        lambda a, out: np.add(a, 1, out=out),
        lambda a, out: np.clip(a, -1, 1, out=out),
        lambda a, out: a.clip(-1, 1, out=out),
        lambda a, out: np.modf(a, out=(out, None)),
        lambda a, out: np.divmod(a, 2.0, out=(None, out)),
        lambda a, out: np.exp(a, out=out, where=a > 0),
    ],
)
def test_functions_of_elements_fill_what_is_wider(call: Fn) -> None:
    check(lambda a: call(a, zeros(a, (2, 5, 6))), np.round(A))


# -- axes of numbers -----------------------------------------------------------------------------------------------

REDUCTIONS = ["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "cumsum", "cumprod", "ptp", "nansum"]


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, -1])
def test_numbers_have_an_axis_for_reductions(name: str, axis: int) -> None:
    check(lambda x: getattr(np, name)(x, axis=axis), np.array(1.5))
    with pytest.raises(np.exceptions.AxisError):
        jg.compile(lambda x: getattr(np, name)(x, axis=1))(1.5)


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.logical_or, np.logaddexp])
def test_numbers_are_reduced_by_ufuncs(ufunc: np.ufunc) -> None:
    check(lambda x: ufunc.reduce(x), np.array(1.5))


def test_axes_of_numbers_are_refused_as_by_numpy() -> None:
    for fn in (np.mean, np.var, np.std):
        for call in (lambda x, fn=fn: fn(x, axis=0), lambda x: np.sum(x, axis=(0,))):
            with pytest.raises(np.exceptions.AxisError):
                call(np.array(1.5))
            with pytest.raises(np.exceptions.AxisError):
                jg.compile(call)(1.5)


def test_the_gradient_of_a_number_that_is_summed() -> None:
    assert jg.grad(lambda x: np.sum(x**2, axis=0) + np.max(x, axis=-1) + np.cumsum(x, axis=0)[0])(1.5) == 5.0


# -- places ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [np.place, np.putmask])
@pytest.mark.parametrize("values", [A + 100, np.arange(30.0), [1.0, 2.0, 3.0], 7.0, np.arange(50.0)], ids=np.size)
def test_values_where_a_mask_holds(function: Fn, values: Any) -> None:
    def fn(a: Any, mask: Any) -> Any:
        out = a * 1
        function(out, mask, values)
        return out

    check(fn, A, A > 0.3)
    check(fn, A, A > 9)
    check(lambda a: fn(a, a * a > 1), A)


def test_gradients_of_placed_values() -> None:
    def loss(v: Any) -> Any:
        out = jnp.zeros(6)
        np.place(out, np.array([1, 0, 1, 1, 0, 1]), v)
        return np.sum(out * np.arange(6.0))

    assert jg.grad(loss)(np.ones(3)).tolist() == [0.0 + 5.0, 2.0, 3.0]


def test_a_mask_of_another_size_is_refused() -> None:
    for function in (np.place, np.putmask):
        message = f"{function.__name__} takes a mask of the size of the array, 30, got 6"
        with pytest.raises(jg.ShapeError, match=message):
            jg.compile(lambda a, function=function: function(a, a[0] > 0, 1.0))(A)


def test_no_values_are_placed_where_no_mask_holds() -> None:
    putmask: Fn = np.putmask
    for function, mask in ((np.place, A > 9), (np.putmask, A > 9), (np.putmask, A > 0)):
        check(lambda a, function=function, mask=mask: (b := a * 1, function(b, mask, []))[0], A)
    check(lambda a: (b := a * 1, putmask(b, a > 0, []))[0], A)
    with pytest.raises(ValueError, match="place takes one value at least where the mask has a True, got none"):
        jg.compile(lambda a: np.place(a, A > 0, []))(A)
    with pytest.raises(jg.TracedValueError, match="placing no values needs the value of"):
        jg.compile(lambda a: np.place(a, a > 0, []))(A)


@pytest.mark.parametrize(
    ("dtype", "number", "casting"),
    [("u1", 5, "same_kind"), ("i2", 5, "safe"), ("f4", 1.5, "safe"), ("f4", True, "safe"), ("c8", 2j, "safe")],
)
def test_python_numbers_are_copied_as_what_is_there(dtype: str, number: Any, casting: Any) -> None:
    def fn(x: Any, number: Any) -> Any:
        a, b = x * 1, x * 1
        np.copyto(a, number, casting=casting)
        np.copyto(b, number, casting=casting, where=np.array([True, False]))
        return a, b

    x = np.array([1, 0], dtype)
    check(lambda x: fn(x, number), x)
    for found, expected in zip(jg.compile(fn)(x, number), fn(x, number), strict=True):
        np.testing.assert_array_equal(found, expected, strict=True)


def test_python_numbers_of_another_kind_are_not_copied() -> None:
    for number, dtype in ((1.5, "float64"), (1j, "complex128")):
        with pytest.raises(jg.DTypeError, match=f"copyto: {dtype} cannot be stored as uint8"):
            jg.compile(lambda x, number=number: np.copyto(x, number))(np.zeros(2, np.uint8))


def test_a_number_that_has_no_room_is_refused_with_the_line_and_a_hint() -> None:
    f = jg.compile(lambda x: np.copyto(x, 300))
    told = r"(?s)300 out of bounds for uint8\n.*copyto\(.*at test_array_corners.py:.*hint: .*wider dtype"
    with pytest.raises(OverflowError, match=told):
        f(np.zeros(2, np.uint8))


def test_copyto_casts_as_it_is_told() -> None:
    def fn(n: Any, casting: Any) -> Any:
        out = n * 1
        np.copyto(out, np.array([1.5, 2.5]), casting=casting)
        return out

    check(lambda n: fn(n, "unsafe"), np.array([1, 2]))
    with pytest.raises(jg.DTypeError, match="copyto: float64 cannot be stored as int64 with casting='same_kind'"):
        jg.compile(lambda n: fn(n, "same_kind"))(np.array([1, 2]))


# -- whole numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [round, math.floor, math.ceil, math.trunc])
@pytest.mark.parametrize("x", [2.5, -1.75, np.float32(3.5), 3])
def test_numbers_made_whole(function: Fn, x: Any) -> None:
    if function is math.trunc and type(x) is not float:
        x = float(x)  # which NumPy's own numbers of other types do not have
    check(lambda x, row: (function(x), function(x) * row, row[function(x)]), x, np.arange(6, dtype=np.float32))


def test_digits_are_rounded() -> None:
    check(lambda x: round(x, 1), np.float64(2.345))


def test_lists_are_not_repeated_by_what_is_not_known() -> None:
    for fn in (lambda n: [0.0, 1.0] * n, lambda n: n * [0.0, 1.0], lambda n: np.zeros((1,) * n)):
        with pytest.raises(jg.TracedValueError, match=r"(?s)repeating a list needs the value of 'n:0'.*static"):
            jg.compile(fn)(3)
        found, expected = jg.compile(fn, static_argnames="n")(3), fn(3)
        np.testing.assert_array_equal(found, expected)
    assert jg.compile(lambda x: x * [1.0, 2.0])(2.5).tolist() == [2.5, 5.0]
    assert jg.compile(lambda n: n * [1, 2])(np.array([3, 4])).tolist() == [3, 8]


def test_functions_of_math_are_told_to_be_numpys() -> None:
    with pytest.raises(jg.TracedValueError, match=r"np.sin for math.sin"):
        jg.compile(lambda x: math.sin(x))(1.0)
    with pytest.raises(jg.TracedValueError, match=r"jg.fori_loop in place of a loop over range\(n\)"):
        jg.compile(lambda n: sum(range(n)))(3)
    with pytest.raises(jg.TracedValueError, match=r"x.astype\(int\) truncates"):
        jg.compile(lambda x: int(x))(1.0)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"nan": 7.0, "posinf": 8.0}])
def test_nan_to_num_in_place(options: dict[str, float]) -> None:
    def fn(a: Any) -> Any:
        b = a + 0
        c = np.nan_to_num(b, copy=False, **options)
        c[0] = 9.0
        return b, c, np.nan_to_num(a, **options)

    x = np.array([1.0, np.nan, np.inf, -np.inf])
    check(fn, x)
    check(lambda z: np.nan_to_num(z, **options), np.array([1 + 2j, complex(np.nan, 3), complex(-np.inf, np.inf)]))


def test_nan_to_num_of_a_named_array() -> None:
    def fn(a: Any) -> Any:
        b = a + 0
        return np.nan_to_num(x=a, nan=7.0), np.nan_to_num(x=b, copy=False), b

    check(fn, np.array([1.0, np.nan, np.inf]))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("options", [{}, {"posinf": np.inf}, {"nan": -0.0, "neginf": -np.inf}])
def test_nan_to_num_of_complex_parts(options: dict[str, float], dtype: type[np.complexfloating[Any, Any]]) -> None:
    parts = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf]
    z = np.array([complex(x, y) for x in parts for y in parts], dtype)
    f = jg.compile(lambda z: np.nan_to_num(z, **options))
    expected = np.nan_to_num(z, **options)
    rows = np.ravel(jg.map(lambda z: np.nan_to_num(z, **options), z.reshape(6, 6)))
    for found in (f(z), f.interpret(z), rows):
        for part in ("real", "imag"):
            a, b = getattr(found, part), getattr(expected, part)
            np.testing.assert_array_equal(a, b, strict=True)
            np.testing.assert_array_equal(np.signbit(a), np.signbit(b))


def test_complex_numbers_of_parts_are_made_for_all_examples_at_once() -> None:
    with Graph().as_default():
        x = operators.call("placeholder", np.float64, (3,))
        assert rule_for(operators.call("complex_of_parts", x, x).op) is not None


def test_gradients_of_complex_parts_that_are_replaced() -> None:
    def loss(x: Any, y: Any) -> Any:
        z = np.nan_to_num((x + 1j * y) ** 2)
        return np.sum(z.real * 3 + z.imag * 5)

    x, y = np.array([1.0, 2.0]), np.array([3.0, -1.0])
    found = jg.grad(loss, argnums=(0, 1))(x, y)
    np.testing.assert_allclose(found, (6 * x + 10 * y, -6 * y + 10 * x))
    second = jg.grad(lambda x: np.sum(jg.grad(loss)(x, y) ** 2))(x)
    np.testing.assert_allclose(second, 12 * (6 * x + 10 * y))


def test_infinite_parts_are_written_to_complex_numbers() -> None:
    def fn(z: Any) -> Any:
        z = z * 1
        z.real[0], z.imag[1] = -0.0, np.inf
        return z

    z = np.array([1 + 2j, 3 + 4j])
    found = jg.compile(fn)(z)
    np.testing.assert_array_equal(found, fn(z))
    np.testing.assert_array_equal(np.signbit(found.real), np.signbit(fn(z).real))


def test_arrays_of_tensors_are_copies() -> None:
    def fn(a: Any) -> Any:
        b = a * 1
        copy, same = jnp.array(b), jnp.asarray(b)
        copy[0], same[1] = 7.0, 8.0
        return b, copy, jnp.array(b, dtype=float, ndmin=2)

    for found, expected in zip(jg.compile(fn)(np.zeros(3)), fn(np.zeros(3)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_arrays_of_numbers_are_copies() -> None:
    def fn(a: Any, s: Any) -> Any:
        number = a[1]
        one, other = number.reshape(-1), np.atleast_1d(s)
        one *= 5
        other[0] = 7.0
        return a * 1, number, one, s, other

    for found, expected in zip(jg.compile(fn)(np.arange(3.0), 2.5), fn(np.arange(3.0), np.float64(2.5)), strict=True):
        np.testing.assert_array_equal(found, expected)


ARRAYS: dict[str, Fn] = {
    "argument": lambda x: x,
    "zeros_like": np.zeros_like,
    "ones_like": np.ones_like,
    "empty_like": np.empty_like,
    "full_like": lambda x: np.full_like(x, 3.0),
    "like a sum": lambda x: np.zeros_like(x.sum()),
    "where": lambda x: np.where(x > 0, x, 0.0),
    "select": lambda x: np.select([x > 0], [x]),
    "copy": np.copy,
    "method copy": lambda x: x.copy(),
    "astype": lambda x: x.astype(np.float32),
    "zeros": lambda x: jnp.zeros(()) if isinstance(x, jg.Tensor) else np.zeros(()),
    "array": lambda x: jnp.array(x),
    "of a number": lambda x: (x * 2.0)[...],
    "of one": lambda x: x.reshape(1).reshape(()),
}
WAYS: dict[str, Fn] = {
    "reshape": lambda a: a.reshape(1),
    "atleast_1d": np.atleast_1d,
    "atleast_2d": np.atleast_2d,
    "new axis": lambda a: a[None],
    "ellipsis": lambda a: a[...],
    "in a row": lambda a: a[...].reshape(1, 1)[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_of_one_element_are_written_to(array: str, way: str) -> None:
    def fn(x: Any) -> Any:
        a = ARRAYS[array](x)
        WAYS[way](a)[...] = 5.0
        return a * 1, x * 1

    f, expected = jg.compile(fn), fn(np.array(1.0))
    assert expected[0] == 5.0
    for found in (f(np.array(1.0)), f.interpret(np.array(1.0))):
        np.testing.assert_array_equal(found, expected)


def test_gradients_see_what_is_written_to_one_element() -> None:
    def fn(x: Any) -> Any:
        x.reshape(1)[0] = x * x
        return 3.0 * x

    assert jg.grad(fn)(np.array(2.0)) == jg.compile(jg.grad(fn))(np.array(2.0)) == 12.0
    assert jg.compile(lambda x: jg.grad(fn)(np.copy(x)))(np.array(2.0)) == 12.0


@pytest.mark.parametrize("number", [lambda x: x[1], lambda x: x[1] * 2.0, lambda x: x.sum(), lambda x: x.max()])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_are_not_written_to(number: Fn, way: str) -> None:
    def fn(x: Any) -> Any:
        n = number(x)
        WAYS[way](n)[...] = 5.0
        return n * 1, x * 1

    for found, expected in zip(jg.compile(fn)(np.arange(3.0)), fn(np.arange(3.0)), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_dtypes_of_booleans() -> None:
    for function in (np.angle, np.conj, np.conjugate):
        check(function, np.array([True, False]))


@pytest.mark.skipif(np.__version__.startswith("2.0."), reason="NumPy 2.0 asks them to be of the dtype")
@pytest.mark.parametrize("bounds", [(-2, 3), (1, 300), (-500, 2**70), (-2, None), (0, 2**64), (-(2**70), 255)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint32, np.int64, np.uint64])
def test_bounds_that_integers_cannot_pass(bounds: tuple[Any, Any], dtype: Any) -> None:
    """NumPy does not ask them to be of the dtype."""
    check(lambda x: np.clip(x, *bounds), np.arange(5, dtype=dtype))
    check(lambda x: x.clip(*bounds), np.arange(5, dtype=dtype))


@pytest.mark.parametrize("bounds", [(None, -2), (300, None)])
def test_bounds_that_leave_nothing_are_refused(bounds: tuple[Any, Any]) -> None:
    for fn in (np.clip, jg.compile(lambda x, low, high: np.clip(x, low, high), static_argnums=(1, 2))):
        with pytest.raises(OverflowError, match="out of bounds for uint8"):
            fn(np.arange(5, dtype=np.uint8), *bounds)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.float16])
def test_logaddexp_with_nothing_of_half_precision(dtype: Any) -> None:
    x = np.array([0, 1, 1], dtype)
    found = jg.compile(lambda x: np.logaddexp(x, x.dtype.type(0)))(x)
    np.testing.assert_array_equal(found, np.logaddexp(x, dtype(0)))
    assert found.dtype == np.float16
