"""Checks for users' functions and ops: gradients against numerical ones, compiled against interpreted.

Nothing in the package depends on it. It needs SciPy 1.15 or newer (``scipy.differentiate``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jitgrad import pytree
from jitgrad.gradients import Options, gradients
from jitgrad.graph import Graph, Tensor
from jitgrad.interpreter import interpret
from jitgrad.operators import call
from jitgrad.program import Program, slice_graph
from jitgrad.records import dataclass
from jitgrad.spec import is_inexact, spec_of

Array = npt.NDArray[Any]
Build = Callable[[Sequence[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True)
class Derivative:
    """A directional derivative twice: ours, and a numerical one with an estimate of its error."""

    order: int
    ours: float
    numerical: float
    error: float
    scale: float

    def is_close(self, rtol: float) -> bool:
        """Whether they differ by no more than ten errors and ``rtol`` of the scale, the sum of all
        magnitudes.
        """
        return abs(self.ours - self.numerical) <= 10 * self.error + rtol * self.scale

    def is_sharp(self) -> bool:
        """Whether the numerical derivative is good enough to tell a right gradient from a wrong one."""
        return self.error <= 1e-6 * max(self.scale, 1e-3)


def check_gradients(
    fn: Callable[..., Any], *args: Any, order: int = 2, rtol: float = 1e-6, seed: int = 0
) -> None:
    """Compare the gradients of ``fn`` at ``args`` with numerical derivatives, up to the given order of
    derivative.

    ``args`` are pytrees of arrays; those of float and complex dtypes are differentiated, in double precision. The
    outputs are weighted at random and added up, of complex ones the real part, and the derivative is taken along a
    random direction; the second order differentiates the gradient, likewise weighted. AssertionError that says which
    order differs, by how much.
    """
    leaves, structure = pytree.flatten(args)
    arrays = [_in_double(np.asarray(leaf)) for leaf in leaves]

    def build(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        outputs = pytree.flatten(fn(*pytree.unflatten(structure, list(tensors))))[0]
        return [out for out in outputs if isinstance(out, Tensor)]

    check_derivatives(directional_derivatives(build, arrays, order, np.random.default_rng(seed)), rtol)


def check_derivatives(derivatives: Sequence[Derivative], rtol: float = 1e-6) -> None:
    """AssertionError for the first pair that differs, or whose numerical derivative is too rough to tell."""
    for found in derivatives:
        values = f"ours {found.ours!r}, numerical {found.numerical!r}, its error {found.error:.2g}"
        shown = f"order {found.order}: {values}"
        if not found.is_close(rtol):
            raise AssertionError(f"the gradient is wrong at {shown}")
        if not found.is_sharp():
            raise AssertionError(f"the numerical derivative is too rough at {shown}: choose a smoother point")


def directional_derivatives(
    build: Build, arrays: Sequence[Array], order: int, rng: np.random.Generator, step: float = 0.05
) -> list[Derivative]:
    """Derivatives along random directions of the outputs of ``build`` (tensors in, tensors out), weighted at
    random.

    Order k differentiates the k-1st gradient, weighted at random, along a direction. ``step`` is the first
    step of the numerical derivative, whose directions have components in [-1, 1].
    """
    graph = Graph()
    with graph.as_default():
        inputs = [call("placeholder", array.dtype, array.shape) for array in arrays]
        outputs = build(inputs)
        target = _weighted_sum(outputs, rng)
        found = []
        for level in range(1, order + 1):
            direction = [_direction(array, rng) for array in arrays]
            grads = gradients(target, inputs, None, Options(f"order{level}"))
            found.append(_compare(level, target, inputs, grads, arrays, direction, step))
            target = _weighted_sum([g for g in grads if g is not None] or [target * 0.0], rng)
    return found


def _in_double(array: Array) -> Array:
    return array.astype({"f": np.float64, "c": np.complex128}.get(array.dtype.kind, array.dtype))


def _direction(array: Array, rng: np.random.Generator) -> Array:
    if not is_inexact(array.dtype):
        return np.zeros(array.shape, array.dtype)
    return _drawn(-1, 1, array.shape, array.dtype, rng)


def _drawn(lo: float, hi: float, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Array:
    drawn = rng.uniform(lo, hi, shape)
    return np.asarray(drawn + 1j * rng.uniform(lo, hi, shape) if dtype.kind == "c" else drawn, dtype)


def _weighted_sum(tensors: Sequence[Tensor], rng: np.random.Generator) -> Tensor:
    weighted = [t * _drawn(0.5, 1.5, t.spec.known_shape, t.dtype, rng) for t in tensors if is_inexact(t.dtype)]
    terms = [call("sum", call("real", t)) for t in weighted]
    return call("add_n", terms or [call("constant", 0.0)])  # type: ignore[no-any-return]


def _compare(
    level: int,
    target: Tensor,
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    arrays: Sequence[Array],
    direction: Sequence[Array],
    step: float,
) -> Derivative:
    specs = {x: spec_of(array) for x, array in zip(inputs, arrays, strict=True)}
    value = slice_graph([target], specs)
    slopes = interpret(slice_graph([g for g in grads if g is not None], specs), arrays)
    along = [v for v, g in zip(direction, grads, strict=True) if g is not None]
    terms = [np.sum(slope * v).real for slope, v in zip(slopes, along, strict=True)]
    scale = sum(float(np.sum(np.abs(slope * v))) for slope, v in zip(slopes, along, strict=True))
    numerical, error = _numerical(value, arrays, direction, step)
    return Derivative(level, float(sum(terms)), numerical, error, scale)


def _numerical(
    value: Program, arrays: Sequence[Array], direction: Sequence[Array], step: float
) -> tuple[float, float]:
    """The derivative of a scalar program along a direction, and an estimate of its error.

    SciPy estimates it from the difference of two estimates, which is nothing where the values at all points are the
    same. But values are rounded, so no slope below a unit in their last place per step can be told.
    """
    from scipy.differentiate import derivative

    def at(t: float) -> float:
        moved = [a + t * v if is_inexact(a.dtype) else a for a, v in zip(arrays, direction, strict=True)]
        return float(interpret(value, moved)[0])

    found = derivative(np.vectorize(at), 0.0, initial_step=step, maxiter=6)
    return float(found.df), max(float(found.error), float(np.spacing(abs(at(0.0)))) / step)


def assert_same_results(fn: Callable[..., Any], *args: Any, rtol: float | None = None, **kwargs: Any) -> None:
    """Run ``fn`` compiled and interpreted on the same arguments and compare the results: structures, dtypes,
    values.

    ``rtol`` is relative to the largest finite magnitude of each result; by default 32 times the dtype's
    rounding error. NaN equals NaN. AssertionError that names the first result that differs.
    """
    from jitgrad.transforms import compile as compile_function

    compiled = compile_function(fn)
    ours, structure = pytree.flatten(compiled(*args, **kwargs))
    expected, expected_structure = pytree.flatten(compiled.interpret(*args, **kwargs))
    if structure != expected_structure:
        raise AssertionError(f"compiled gives {structure}, interpreted {expected_structure}")
    for number, (a, b) in enumerate(zip(ours, expected, strict=True)):
        assert_close(np.asarray(a), np.asarray(b), rtol, f"result {number}")


def assert_close(ours: Array, expected: Array, rtol: float | None = None, what: str = "the result") -> None:
    """Equal dtypes and shapes, equal integers, floats equal to rounding (see assert_same_results);
    AssertionError otherwise.
    """
    if ours.dtype != expected.dtype or ours.shape != expected.shape:
        raise AssertionError(f"{what}: {spec_of(ours)}, expected {spec_of(expected)}")
    if expected.dtype.kind not in "fc":
        np.testing.assert_array_equal(ours, expected, err_msg=what)
        return
    rtol = 32 * float(np.finfo(expected.dtype).eps) if rtol is None else rtol
    finite = np.abs(expected[np.isfinite(expected)])
    atol = rtol * float(finite.max(initial=0.0))
    np.testing.assert_allclose(ours, expected, rtol=rtol, atol=atol, equal_nan=True, err_msg=what)
