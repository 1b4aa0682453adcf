"""Programs that differ from one that was compiled in extents and numbers only: their plans skip all stages, are those
that the stages would make, and serve nowhere else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn
from jitgrad.compiler import reuse, stages
from jitgrad.compiler.freezing import alike, keeping
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.compiler.machine.cache import kernel_cache
from tests.test_other_extents import functions

Fn = Callable[..., Any]


@pytest.fixture
def simplified(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The programs that went through the stages, with nothing known before and nothing on disk."""
    programs: list[Any] = []
    simplify = stages._simplified

    def noted(program: Any) -> Any:
        programs.append(program)
        return simplify(program)

    monkeypatch.setattr(stages, "_simplified", noted)
    _forget()
    with jg.config(cache=False, verify=False):
        yield programs
    _forget()


def _forget() -> None:
    reuse._known.clear()
    alike.forget_templates()


def _normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def _loss(w: Any, b: Any, x: Any, y: Any) -> Any:
    z = np.tanh(x @ w + b)
    z = z - np.max(z, axis=1, keepdims=True)
    return np.mean(np.log(np.sum(np.exp(z), axis=1)) - np.sum(z * y, axis=1)) + 1e-3 * np.sum(w * w) / w.size


def _step(w: Any, b: Any, x: Any, y: Any) -> Any:
    value, (gw, gb) = jg.value_and_grad(_loss, (0, 1))(w, b, x, y)
    return value, w - 0.1 * gw, b - 0.1 * gb


def _arguments(batch: int, features: int = 80, width: int = 70) -> list[Any]:
    return [_normal(features, width), _normal(width), _normal(batch, features), _normal(batch, width)]


def _hessian_times(x: Any, v: Any) -> Any:
    return jg.hvp(lambda x: np.mean(np.sin(x) ** 3), (x,), (v,))


def _normalized(x: Any, g: Any, b: Any) -> Any:
    mean = np.mean(x, axis=-1, keepdims=True)
    return np.sum(np.sin((x - mean) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5) * g + b)) / len(x)


def _network(w: Any, x: Any) -> Any:
    return np.mean(nn.max_pool2d(nn.relu(nn.conv2d(x, w, padding="same")), 2) ** 2)


def _densities(a: Any, x: Any) -> Any:
    covariance = a @ a.swapaxes(-1, -2) + np.eye(4)
    solved = np.linalg.solve(covariance, x[..., None])[..., 0]
    return np.mean(np.sum(x * solved, axis=-1) + np.linalg.slogdet(covariance)[1])


def _late_sums(x: Any, w: Any) -> Any:
    """Many values that are made first and summed up last: large ones run in another order."""
    made = [np.tanh(x @ (w * k)) for k in range(1, 6)]
    return tuple(np.sum(m @ w.T, axis=0) for m in made)


WHOLE: dict[str, tuple[Fn, Callable[..., list[Any]], list[tuple[int, ...]]]] = {
    "classifier": (jg.value_and_grad(_loss, (0, 1)), _arguments, [(100,), (200,), (333, 90, 75), (1024, 128, 512)]),
    "training step": (_step, _arguments, [(100,), (200,), (333, 90, 75)]),
    "second order": (_hessian_times, lambda n: [_normal(n, 3), _normal(n, 3) ** 2], [(100,), (256,), (1000,)]),
    "layer norm": (
        jg.value_and_grad(_normalized, (0, 1, 2)), lambda n, d: [_normal(n, d), _normal(d), _normal(d)],
        [(100, 200), (128, 96), (300, 1000)],
    ),
    "convolution": (
        jg.value_and_grad(_network, (0, 1)), lambda n: [_normal(4, 3, 3, 3), _normal(n, 3, 8, 8)], [(70,), (100,)],
    ),
    "small matrices": (
        jg.value_and_grad(_densities, (0, 1)), lambda n: [_normal(n, 4, 4), _normal(n, 4)], [(100,), (200,), (1000,)],
    ),
    "columns": (
        jg.grad(lambda x: np.sum(np.sin(np.concatenate([x, x[:, 2:5] * 2.5, np.flip(x, 1)], axis=1)))),
        lambda n: [_normal(n, 8)], [(100,), (200,)],
    ),
    "flattened": (
        jg.grad(lambda x: np.sum(np.tanh(x.reshape(-1, 5)) * x.reshape(-1, 5)[:1])), lambda n: [_normal(n, 20)],
        [(100,), (200,)],
    ),
    "numbers of the caller": (
        lambda x: np.mean(x * (2.5 / len(x))) / (len(x) + 0.5), lambda n: [_normal(n)], [(100,), (200,), (128,)],
    ),
    "late sums": (
        _late_sums, lambda n, d: [_normal(n, d), 0.1 * _normal(d, d)], [(113, 87), (974, 87), (148, 184), (1500, 200)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_plans_are_those_of_the_stages(name: str) -> None:
    """With ``verify``, each plan is compared with the one that the stages make."""
    fn, make, sizes = WHOLE[name]
    with jg.config(cache=False, verify=True):
        _forget()
        f = jg.compile(fn)
        for size in sizes:
            f(*make(*size))


def test_the_order_of_steps_is_that_of_the_sizes() -> None:
    """Beside plans that serve for other extents, steps run as they would in a plan made for these."""
    orders = []
    with jg.config(cache=False, verify=False):
        _forget()
        f = jg.compile(_late_sums)
        for n, d in ((113, 87), (974, 87), (148, 184)):
            args = [_normal(n, d), 0.1 * _normal(d, d)]
            f(*args)
            [(stage, arrays)] = f.stages(*args)
            [cluster] = stage.executable(arrays).bound.steps
            orders.append(cluster.names)
    assert len(set(orders)) == len(orders)


def _leaves(result: Any) -> list[Any]:
    return [leaf for item in result for leaf in _leaves(item)] if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", WHOLE)
def test_further_shapes_skip_the_stages(name: str, simplified: list[Any]) -> None:
    fn, make, sizes = WHOLE[name]
    f = jg.compile(fn)
    for size in sizes:
        args = make(*size)
        for a, b in zip(_leaves(f(*args)), _leaves(f.interpret(*args)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    assert len(simplified) == 1


@pytest.mark.parametrize("name", functions)
def test_other_extents_give_the_same_bits(name: str, simplified: list[Any]) -> None:
    fn, make = functions[name]
    f = jg.compile(fn)
    f(*make(100))
    for n in (200, 1000, 1025):
        args, before = make(n), len(simplified)
        results = _leaves(f(*args))
        assert len(simplified) == before
        templates = alike._known.copy()
        _forget()
        expected = _leaves(jg.compile(fn)(*args))
        assert [np.asarray(a).tobytes() for a in results] == [np.asarray(b).tobytes() for b in expected]
        _forget()
        alike._known.update(templates)


COUNTED: dict[str, Fn] = {
    "a sum of one number": jg.grad(lambda x: np.sum(nn.log_softmax(x) * 0.25)),
    "one that is a number of the source": lambda x: np.sum(x * 0.0 + 1.5) + 100.0 * x[:3].sum() + np.sum(x * 0.0 + 1.0),
    "a sum of a column": lambda x: np.sum(np.broadcast_to(x[:2, None] * 2.5, (2, *x.shape)), axis=1) + 100.0,
    "one that is one": lambda x: np.sum(np.broadcast_to(x[:2, None] * 0.01, (2, *x.shape)), axis=1),
}


@pytest.mark.parametrize("name", COUNTED)
def test_numbers_that_rules_make_of_extents_are_those_of_the_call(name: str, simplified: list[Any]) -> None:
    f = jg.compile(COUNTED[name])
    for n in (100, 200, 300):
        x = _normal(n)
        np.testing.assert_allclose(f(x), f.interpret(x), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((100, 200), (200, 200)),  # extents that become equal
        ((200, 200), (100, 200)),  # and that do no longer
        ((100, 200), (100, PLAIN_EXACT)),
        ((100, 200), (1, 200)),
        ((100, 200), (0, 200)),
        ((100, 3), (100, 4)),
    ],
)
def test_what_is_structure_goes_through_the_stages(
    first: tuple[int, ...], second: tuple[int, ...], simplified: list[Any]
) -> None:
    f = jg.compile(lambda x: np.sum(np.sin(x) * 2.5, axis=1) + np.sum(x * x))
    for shape in (first, second):
        x = _normal(*shape)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(f(x), np.sum(np.sin(x) * 2.5, axis=1) + np.sum(x * x))
    assert len(simplified) == 2


@pytest.mark.parametrize(
    ("number", "count"),
    [(7.5, 1), (2.5, 1), (1.0, 2), (0.0, 2), (2.0, 2), (-3.5, 2), (0.25, 2), (2.0**20, 1), (np.inf, 2)],
)
def test_numbers_that_rules_know_are_structure(number: float, count: int, simplified: list[Any]) -> None:
    x = _normal(100) + 10
    for c in (2.5, number):
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(jg.compile(lambda x, c=c: (x * 3.25) ** c / c)(x), (x * 3.25) ** c / c)
    assert len(simplified) == count


def test_numbers_that_are_equal_stay_equal(simplified: list[Any]) -> None:
    x = _normal(100)
    for a, b in ((2.5, 3.5), (4.5, 4.5), (3.5, 2.5)):
        np.testing.assert_allclose(jg.compile(lambda x, a=a, b=b: np.sin(x) * a + x * b)(x), np.sin(x) * a + x * b)
    assert len(simplified) == 2


def test_arrays_of_constants_are_those_of_the_call(simplified: list[Any]) -> None:
    x = _normal(100, 80)
    for seed in range(3):
        c = np.random.default_rng(seed).standard_normal(80)
        np.testing.assert_allclose(jg.compile(lambda x, c=c: np.sin(x) * c)(x), np.sin(x) * c)
        np.testing.assert_allclose(jg.compile(lambda x, c=c: np.sin(x) * np.exp(c))(x), np.sin(x) * np.exp(c))
    assert len(simplified) <= 4  # elements that are computed with, of three arrays, and one program of which none is


def test_relations_between_extents_are_checked(simplified: list[Any]) -> None:
    """The extent of a reshaped value equals another one in the first program, by chance."""
    f = jg.compile(lambda x, y: np.sum(np.sin(x).reshape(-1) * 1.5) + np.sum(np.tanh(y)))
    for m, n, k in ((100, 200, 20000), (100, 300, 30000), (100, 400, 20000), (200, 150, 70)):
        x, y = _normal(m, n), _normal(k)
        np.testing.assert_allclose(f(x, y), np.sum(np.sin(x) * 1.5) + np.sum(np.tanh(y)), rtol=1e-9)


def test_plans_for_other_extents_are_kept_on_disk(tmp_path: Any) -> None:
    _forget()
    with jg.config(cache=True, cache_dir=str(tmp_path), verify=False):
        f = jg.compile(lambda x: np.sum(np.sin(x) * 1.75))
        f(_normal(100))
        f(_normal(200))
        keeping.keep_now()
        assert [entry.is_plan for entry in kernel_cache().entries()].count(True) == 4  # two plans, two calls
        _forget()
        jg.compile(lambda x: np.sum(np.sin(x) * 1.75))(_normal(200))
        assert not alike._known  # found on disk, where the stages are not needed


def test_plans_are_kept_in_the_folder_of_the_call(tmp_path: Any) -> None:
    """Whatever the settings of the thread that writes are, and where no code was loaded from there."""
    _forget()
    for folder, n in (("a", 100), ("b", 200)):
        with jg.config(cache=True, cache_dir=str(tmp_path / folder), verify=False):
            jg.compile(lambda x: np.sum(np.sin(x) * 1.375))(_normal(n))
            writer = threading.Thread(target=keeping.keep_now)
            writer.start()
            writer.join()
            assert [entry.is_plan for entry in kernel_cache().entries()].count(True) == 2  # a plan, a call


def test_interpreted_steps_without_params(simplified: list[Any]) -> None:
    results = []
    with jg.config(verify=True):
        for _ in range(2):  # the same program of other operations
            graph = jg.Graph()
            with graph.as_default():
                y = np.sum(np.sin(jg.random_uniform((80, 3), seed=1)) * 2.5)
            results.append(jg.Session(graph).run(y))
    np.testing.assert_allclose(results[0], results[1])
    assert len(simplified) == 2


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: np.pad(x, (5, 5))[206:208] * 2.5,
        lambda x: np.concatenate([x, np.sin(x[:10])])[202:205] * 2.5,
        lambda x: np.concatenate([np.sin(x[:3]), x, np.cos(x[:9])])[205:208] * 2.5,
        lambda x: x[::-1][3:6] * 2.5,
        lambda x: np.sin(x[150:160]) * x[:10],
    ],
)
def test_a_constant_place_may_fall_on_something_else(fn: Fn, simplified: list[Any]) -> None:
    f = jg.compile(fn)
    for n in (200, 300, 1000):
        x = _normal(n)
        np.testing.assert_allclose(f(x), fn(x))
