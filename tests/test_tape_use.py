"""The use of a tape beside gradients: what it refuses, resets, failures, Variables that are watched by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

X = np.array([1.0, 2.0, 3.0])


def test_nothing_is_neither_a_target_nor_watched() -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        with pytest.raises(TypeError, match="a tape watches tensors, got NoneType"):
            tape.watch(None)
        tape.watch(x)
        y = x * x
    with pytest.raises(TypeError, match="a target must be a tensor, got NoneType"):
        tape.gradient(None, x)
    np.testing.assert_array_equal(tape.gradient(y, x), 2 * X)


def test_a_tape_that_was_reset_records_again() -> None:
    x = jg.asarray(X)
    with jg.GradientTape() as tape:
        tape.watch(x)
        tape.gradient(x * x, x)
        tape.reset()
        tape.watch(x)
        y = x * x * x
        with tape.stop_recording():
            tape.reset()
            hidden = x * x
        tape.watch(x)
        z = hidden * x
    np.testing.assert_array_equal(tape.gradient(z, x), X * X)
    assert tape.gradient is not None and y.shape == (3,)
    tape.reset()
    x * x
    assert not tape.entries


def test_a_gradient_that_fails_does_not_spend_the_tape() -> None:
    x, fails = jg.asarray(X), [True]

    @jg.custom_gradient
    def square(x: Any) -> Any:
        def rule(dy: Any) -> Any:
            if fails[0]:
                raise OSError("once")
            return dy * 2.0 * x

        return x * x, rule

    with jg.GradientTape() as tape:
        tape.watch(x)
        y = square(x)
        with pytest.raises(OSError, match="once"):
            tape.gradient(y, x)
        z = y * 3.0
    with pytest.raises(OSError, match="once"):
        tape.jacobian(z, x)
    fails[0] = False
    np.testing.assert_array_equal(tape.gradient(z, x), 6 * X)
    with pytest.raises(RuntimeError, match="persistent=True"):
        tape.gradient(z, x)


def test_a_variable_that_is_watched_by_hand_in_a_compiled_call() -> None:
    v, u = jg.Variable(2.0, trainable=False), jg.Variable(5.0, trainable=False)
    f = jg.compile(lambda x: v * v * u * x)
    for watched, expected in (((), (None, None)), ((v,), (60.0, None)), ((u,), (None, 12.0)), ((v, u), (60.0, 12.0))):
        with jg.GradientTape() as tape:
            tape.watch(list(watched))
            y = f(jg.asarray(3.0))
        assert tuple(None if g is None else float(g) for g in tape.gradient(y, [v, u])) == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("given", [1, 1.0, np.float32(1), 1 + 2j])
def test_rules_give_gradients_of_the_dtype_of_their_arguments(dtype: Any, given: Any) -> None:
    @jg.custom_gradient
    def fn(x: Any) -> Any:
        return x * 2, lambda dy: np.full(3, given)

    x = jg.asarray(X, dtype)
    with jg.GradientTape() as tape:
        tape.watch(x)
        y = np.sum(fn(x)).real
    g = tape.gradient(y, x)
    assert g.dtype == dtype
    np.testing.assert_array_equal(g, np.full(3, given if dtype is np.complex128 else np.real(given)))


def test_jacobians_of_what_is_not_watched_are_none_as_gradients_are() -> None:
    x, u = jg.asarray(X), jg.asarray(X)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x * u
    assert tape.gradient(y, u) is None and tape.jacobian(y, u) is None and tape.batch_jacobian(y, u) is None


def test_tapes_of_tasks_that_interleave() -> None:
    v = jg.Variable(np.array([3.0, 4.0]))

    async def task(k: float, pauses: tuple[int, int]) -> Any:
        x = jg.asarray([1.0, 2.0])
        with jg.GradientTape() as tape:
            tape.watch(x)
            for _ in range(pauses[0]):
                await asyncio.sleep(0)
            y = np.sum(x * x * v * k)
            for _ in range(pauses[1]):
                await asyncio.sleep(0)
        return tape.gradient(y, [x, v])

    async def both() -> Any:
        return await asyncio.gather(task(1.0, (1, 3)), task(2.0, (2, 1)), task(5.0, (0, 5)))

    for k, (gx, gv) in zip((1.0, 2.0, 5.0), asyncio.run(both()), strict=True):
        assert np.array_equal(gx, np.array([6.0, 16.0]) * k)
        assert np.array_equal(gv, np.array([1.0, 4.0]) * k)


def test_what_fills_an_array_of_numpy_is_a_constant_and_a_stack_is_not() -> None:
    x = jg.asarray([1.0, 2.0])
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        filled = np.zeros(2)
        filled[0] = x[0]
        lacking, whole = np.sum(filled * x), np.sum(np.stack([x[0], 0.0 * x[1]]) * x)
    assert np.asarray(tape.gradient(lacking, x)).tolist() == [1.0, 0.0]
    assert np.asarray(tape.gradient(whole, x)).tolist() == [2.0, 0.0]
