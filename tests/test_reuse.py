"""Plans made for other extents: they are those that the stages would make, and serve where they may, not elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler import reuse, stages
from jitgrad.compiler.freezing import alike
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.compiler.reuse import pattern_of
from jitgrad.compiler.simplify import simplify
from tests.test_other_extents import functions

Fn = Callable[..., Any]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that went through all stages, with nothing known before and nothing on disk."""
    programs: list[Any] = []
    compile_simplified = stages._compile_simplified

    def noted(program: Any) -> Any:
        programs.append(program)
        return compile_simplified(program)

    monkeypatch.setattr(stages, "_compile_simplified", noted)
    monkeypatch.setattr(reuse, "_known", type(reuse._known)())
    alike.forget_templates()
    with jg.config(cache=False, verify=False):
        yield programs


def _bits(results: Any) -> list[bytes]:
    results = results if isinstance(results, tuple) else (results,)
    return [np.asarray(r).tobytes() for result in results for r in (result if isinstance(result, tuple) else (result,))]


def _anew(f: Fn, args: list[Any]) -> list[bytes]:
    reuse._known.clear()
    alike.forget_templates()
    return _bits(jg.compile(f)(*args))


@pytest.mark.parametrize("name", functions)
def test_reused_plans_give_the_same_bits(name: str, made: list[Any]) -> None:
    fn, make = functions[name]
    f = jg.compile(fn)
    f(*make(100))
    for n in (200, 1000, 1025):
        args, before = make(n), len(made)
        result = f(*args)
        assert len(made) == before
        assert _bits(result) == _anew(fn, args)


def _mlp(w: Any, v: Any, x: Any, y: Any) -> Any:
    return np.mean((np.tanh(x @ w) @ v - y) ** 2)


def _mlp_arguments(batch: int) -> list[Any]:
    rng = np.random.default_rng(batch)
    return [rng.standard_normal(shape) for shape in ((20, 72), (72, 5), (batch, 20), (batch, 5))]


def test_a_further_batch_size_skips_the_stages(made: list[Any]) -> None:
    step = jg.value_and_grad(_mlp, (0, 1))
    f = jg.compile(step)
    for batch in (100, 200, 128, 1000):
        args = _mlp_arguments(batch)
        value, gradients = f(*args)
        expected, wanted = f.interpret(*args)
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        for a, b in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert len(made) == 1


def test_a_batch_size_equal_to_a_width_has_a_plan_of_its_own(made: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(_mlp, (0, 1)))
    for batch in (100, 72, 200):
        f(*_mlp_arguments(batch))
    assert len(made) == 2


@pytest.mark.parametrize("n", [0, 1, 2, PLAIN_EXACT])
def test_small_extents_have_plans_of_their_own(n: int, made: list[Any]) -> None:
    f = jg.compile(lambda x: np.sum(np.sin(x) * 2.5, axis=1))
    f(np.ones((100, 3)))
    np.testing.assert_allclose(f(np.ones((n, 3))), np.sum(np.sin(np.ones((n, 3))) * 2.5, axis=1))
    assert len(made) == 2


def test_numbers_are_those_of_the_call(made: list[Any]) -> None:
    """The n of a mean, its reciprocal, numbers of the caller, and those that simplification makes of them."""
    for n, scale in ((100, 3.5), (200, 7.25), (300, -0.125)):
        x = np.random.default_rng(n).standard_normal((n, 3))

        def f(x: Any, scale: float = scale) -> Any:
            return np.mean(x * scale * x, axis=0) / (x.shape[0] * scale) + np.var(x)

        np.testing.assert_allclose(jg.compile(f)(x), f(x), rtol=1e-12)
    assert len(made) == 1


def test_numbers_in_kernels_are_part_of_the_pattern(made: list[Any]) -> None:
    x = np.random.default_rng(0).standard_normal(100)
    for scale in (3.5, 1.0, -1.0, 0.0, float("nan"), 7.5):
        np.testing.assert_allclose(jg.compile(lambda x, c=scale: np.sin(x) * c)(x), np.sin(x) * scale, rtol=1e-12)
    assert len(made) == 5  # 3.5 and 7.5 are alike


def _pattern(fn: Fn, *args: Any) -> bytes | None:
    [(stage, _)] = jg.compile(fn).stages(*args)
    return pattern_of(simplify(stage.program([t.spec for t in stage.feeds])))


@pytest.mark.quick
def test_patterns() -> None:
    def f(x: Any, y: Any) -> Any:
        return np.sum(np.tanh(x) * y, axis=0)

    def pattern(m: int, n: int, dtype: Any = np.float64) -> bytes | None:
        return _pattern(f, np.ones((m, n), dtype), np.ones((m, n)))

    assert pattern(100, 200) == pattern(300, 101)
    assert pattern(100, 200) != pattern(100, 100)
    assert pattern(100, 200) != pattern(100, PLAIN_EXACT)
    assert pattern(100, 20) == pattern(100, 21) and pattern(100, 7) != pattern(100, 8)
    assert pattern(100, 200) != pattern(100, 200, np.float32)
    assert pattern(100, 1) != pattern(100, 0)


def test_values_that_nothing_uses_are_part_of_the_pattern() -> None:
    """Partial results are numbered from the number of values on: a plan must not take them for values."""
    f = jg.compile(lambda x: np.sum(np.sin(x)) * 2.5)
    [(stage, _)] = f.stages(np.ones(100))
    program = stage.program([t.spec for t in stage.feeds])
    assert pattern_of(program) != pattern_of(replace(program, specs=(*program.specs, program.specs[0])))
