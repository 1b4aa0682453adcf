"""Foreseen traces: a function whose code is constant and asks for no extent is not called for each shape, and gives
what it would give; any other is called.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import nn, pytree
from jitgrad.errors import CompileError
from jitgrad.extent_formulas import Count
from jitgrad.following import Follower
from jitgrad.foreseeing import Foreseer
from jitgrad.gradient_rules import registered_rules
from jitgrad.models import max_models
from jitgrad.operators import call, functions

Fn = Callable[..., Any]
SIZES = (100, 200, 300, 400, 500)
rate, rates, table = 0.5, [0.5], {"rate": 0.5}
weights = np.linspace(0.1, 1.0, 5)


@pytest.fixture
def foreseen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The shapes of the first array of the calls that were foreseen."""
    found: list[Any] = []
    trace = Foreseer.trace

    def noted(self: Foreseer, leaves: Any) -> Any:
        made = trace(self, leaves)
        found.extend([leaves[0][1]] if made is not None else [])
        return made

    monkeypatch.setattr(Foreseer, "trace", noted)
    with jg.config(verify=False, cache=False):  # from a plan on disk no other follows: it would take a call more
        yield found


def _vector(n: int) -> Any:
    return np.random.default_rng(n).uniform(0.5, 1.5, n)


def _check(f: Any, *args: Any) -> None:
    """Equal to the same function without memory of other shapes, and to the interpreter."""
    results = pytree.flatten(f(*args))[0]
    for others in (f.interpret(*args), jg.compile(f.fn)(*args)):
        for a, b in zip(results, pytree.flatten(others)[0], strict=True):
            assert np.shape(a) == np.shape(b)
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def _helped(x: Any, power: int = 3) -> Any:
    return x**power


def _layers(x: Any) -> Any:
    layers = [lambda y: np.tanh(y) * rate, _helped]
    for layer in layers:
        x = layer(x)
    return sum(np.sum(part * k) for k, part in enumerate([x, x * 2.0])) + len(layers)


def _named(x: Any, *, half: Any = lambda x: x * 0.5, power: int = 2) -> Any:
    return np.sum(half(x) ** power)


def _deviation(x: Any) -> Any:
    return np.mean(x) + np.var(x, ddof=1) + np.std(x, ddof=2)


CONSTANT: dict[str, Fn] = {
    "sum": lambda x: np.sum(np.sin(x) ** 2),
    "mean": lambda x: np.mean(x * x),
    "deviation": _deviation,
    "softmax": lambda x: np.sum(nn.log_softmax(x) * 0.25) + math.pi,
    "functions": _layers,
    "named defaults": _named,
    "parts of functions": (lambda half: lambda x: np.sum(half(x)))(partial(_helped, power=2)),
    "matrix": lambda x: np.mean(x[:, None] * x, axis=0).sum(),
    "method": lambda x: x.astype(np.float64).reshape(-1).dot(x),
    "neighbours": lambda x: np.sum((x[1:] - x[:-1]) ** 2),
    "rolled": lambda x: np.sum(np.roll(x, 2) * x) + np.sum(np.concatenate([x[1:], x]) ** 2) + x[-1],
}


@pytest.mark.parametrize("name", CONSTANT)
def test_constant_functions_are_not_called_again(name: str, foreseen: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(CONSTANT[name]))
    for n in SIZES:
        _check(f, _vector(n))
    assert foreseen == [(n,) for n in SIZES[3:]]


@pytest.mark.parametrize("name", CONSTANT)
def test_special_extents(name: str, foreseen: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(CONSTANT[name]))
    with np.errstate(all="ignore"):
        for n in (*SIZES, 64, 65, 3, 1, 2, 70, 10_000, 103, 67, 20, 9, 8):
            _check(f, _vector(n))
    small = set() if name in ("neighbours", "rolled") else {(64,), (20,)}
    assert set(foreseen) >= {(70,), (10_000,), (103,)} | small
    assert not ({(8,), (3,), (1,), (2,)} | ({(64,), (20,), (9,)} if not small else set())) & set(foreseen)


CUT: dict[str, Fn] = {
    "inner ones": lambda x: np.mean(x[2:-3]) + np.sum((x[1:] - x[:-1]) ** 2),
    "first ones": lambda x: np.sum(x[:120] ** 2),
    "last ones": lambda x: np.sum(x[-120:] ** 2) + x[-60],
    "from the middle on": lambda x: np.sum(np.sin(x[150:])) + np.sum(x),
    "in parts": lambda x: sum(np.sum(part**k) for k, part in enumerate(np.split(x, [70, 150]))),
    "rolled far": lambda x: np.sum(np.roll(x, 250) * x),
    "thirds": lambda x: np.sum(np.array_split(x, 3)[1] ** 2),
    "each second one": lambda x: np.sum(x[::2] ** 2) + np.sum(x[1::2]),
}


@pytest.mark.parametrize("name", CUT)
def test_places_that_some_extents_do_not_reach(name: str, foreseen: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(CUT[name]))
    for n in (400, 301, 502, 303, 260, 240, 160, 151, 150, 149, 121, 120, 119, 100, 99, 71, 70, 69, 66, 65, 1000, 1001):
        _check(f, _vector(n))


def test_extents_that_stay(foreseen: list[Any]) -> None:
    """A function that knows the width of its weights is foreseen for these; others are called."""

    def loss(w: Any, x: Any) -> Any:
        z = x @ w
        return np.sum(np.tanh(z[:, :70]) * z[:, 70:]) + np.mean(x[:, :80]) + np.sum(x[1:, :80] * x[:-1, 30:])

    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    rng = np.random.default_rng(0)
    for n in (200, 300, 400, 500, 141, 142, 111, 140, 600, 110, 109, 100, 90, 95, 85, 80, 75, 99, 700):
        _check(f, rng.normal(size=(110, 140)), rng.normal(size=(n, 110)))
    assert {(110, 140)} == set(foreseen) and len(foreseen) >= 3


def test_extents_that_stay_no_longer(foreseen: list[Any]) -> None:
    def loss(w: Any, x: Any) -> Any:
        return np.sum((x @ w)[:, :70] ** 2) + np.mean(x[:, 66:])

    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    rng = np.random.default_rng(0)
    shapes = [(100 + n, 110, 140) for n in (100, 200, 300, 400)] + [(200 + n, 120, 150) for n in (100, 200, 300, 400)]
    for n, k, m in [*shapes, *shapes[:2], (901, 130, 160), (902, 90, 71), (903, 67, 70)]:
        _check(f, rng.normal(size=(k, m)), rng.normal(size=(n, k)))
    assert len(foreseen) >= 1


def test_extents_of_reshaped_arrays(foreseen: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.sin(x.reshape(-1)[3:]) * x.reshape(-1)[:-3])))
    for n, m in ((100, 80), (200, 80), (300, 90), (400, 100), (500, 132), (82, 80), (67, 66), (1000, 4), (97, 76)):
        _check(f, np.random.default_rng(n).normal(size=(n, m)))
    assert {(400, 100), (500, 132)} <= set(foreseen)


def test_extents_that_slices_make_equal(foreseen: list[Any]) -> None:
    """One row less than columns, where the model has other numbers of both, is another pattern."""
    f = jg.compile(jg.value_and_grad(lambda x: np.mean((x[1:] - x[:-1]) ** 2, axis=0).sum()))
    for n, m in ((200, 90), (300, 80), (400, 85), (500, 90), (91, 90), (92, 90), (90, 89), (100, 99), (66, 65)):
        _check(f, np.random.default_rng(n).normal(size=(n, m)))
    assert (500, 90) in foreseen and not {(91, 90), (90, 89), (100, 99)} & set(foreseen)


def test_nothing_is_foreseen_of_empty_arrays(foreseen: list[Any]) -> None:
    f = jg.compile(lambda x: np.sum(x * 2.0))
    for n in (*SIZES, 0):
        assert f(np.ones(n)) == 2.0 * n
    assert (0,) not in foreseen


def test_extents_that_correspond(foreseen: list[Any]) -> None:
    def loss(x: Any, w: Any, b: Any) -> Any:
        return np.mean((x @ w + b) ** 2) + 0.01 * np.mean(w, axis=0).sum()

    f = jg.compile(jg.value_and_grad(loss, (0, 1, 2)))
    rng = np.random.default_rng(0)
    for n, k, m in [(100, 70, 80), (200, 70, 80), (300, 70, 90), (180, 90, 100), (220, 110, 130), (220, 220, 230)]:
        _check(f, rng.normal(size=(n, k)), rng.normal(size=(k, m)), rng.normal(size=m))
    assert foreseen == [(180, 90), (220, 110)]  # equal extents are another pattern


def test_another_order_of_extents_is_tried_too(foreseen: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(lambda x, w: np.mean(np.tanh(x @ w))))
    shapes = [(100 + 10 * k, 90) for k in range(5)] + [(80 - k, 90) for k in range(5)]
    for n, k in shapes:
        _check(f, np.ones((n, k)), np.ones((k, 95)))
    assert foreseen == [shapes[3], shapes[4], *shapes[7:]]


def _both(x: Any, y: Any) -> Any:
    return np.linalg.qr(np.concatenate([x, y]))[1]


CHOOSING: dict[str, tuple[Fn, list[tuple[tuple[int, ...], ...]]]] = {
    "qr of joined rows": (_both, [((70 + k, 200), (80 + k, 200)) for k in range(4)] + [((170, 200), (180, 200))]),
    "einsum": (
        lambda a, b, c: np.einsum("ij,jk,kl->il", a, b, c),
        [((70 + k, 80 + k), (80 + k, 200 + k), (200 + k, 300 + k)) for k in range(4)]
        + [((300, 200), (200, 80), (80, 70)), ((70, 100), (100, 600), (600, 700))],
    ),
    "qr": (lambda x: np.linalg.qr(x)[1], [((100 + k, 200 + k),) for k in range(4)] + [((300, 150),)]),
}


@pytest.mark.parametrize("name", CHOOSING)
def test_choices_by_extents_are_made_for_each_shape(name: str) -> None:
    fn, calls = CHOOSING[name]
    rng = np.random.default_rng(0)
    for verify in (False, True):
        f = jg.compile(lambda *args: fn(*args))
        g = jg.compile(jg.value_and_grad(lambda *args: np.sum(np.sin(fn(*args)))))
        with jg.config(verify=verify):
            for shapes in calls:
                arrays = [rng.normal(0, 0.1, shape) for shape in shapes]
                _check(f, *arrays)
                if not verify:
                    _check(g, *arrays)
                assert jg.compile(f.fn).explain(*arrays).program == f.explain(*arrays).program


def test_numbers_are_counts_of_extents() -> None:
    f = jg.compile(lambda x: np.mean(x) + np.var(x, axis=(0, 2), ddof=1).sum())
    rng = np.random.default_rng(0)
    with jg.config(verify=False):
        for n in SIZES:
            _check(f, rng.normal(size=(n, 3, n + 11)))


def _doubled_rows(x: Any) -> Any:
    total = 0.0
    for row in x.reshape(-1, 4):
        total = total + row[0] * 2
    return total


def _counted(x: Any) -> Any:
    count = 0.0
    for _ in range(len(x)):
        count += 0.5
    return np.sum(x) * count


ASKING: dict[str, Fn] = {
    "a branch on the shape": lambda x: np.sum(x) if x.shape[0] != 400 else np.sum(x * x),
    "a product with the shape": lambda x: np.sum(x) / x.shape[0],
    "a function of the shape": lambda x: np.sum(x) * (x.shape[0] % 7),
    "the size": lambda x: np.sum(x) * (1.5 if x.size == 500 else 2.5),
    "bytes": lambda x: np.sum(x) * x.nbytes,
    "len": lambda x: np.sum(x) * (1.5 if len(x) == 400 else 2.5),
    "range of len": _counted,
    "rows": _doubled_rows,
    "first and others": lambda x: [first := x[:2], [*first]][1][0] + np.sum(x),
    "a range": lambda x: np.sum(x * np.arange(x.shape[0])),
    "NumPy's shape": lambda x: np.sum(x) * np.shape(x)[0],
    "NumPy's size": lambda x: np.sum(x) * np.size(x),
    "text": lambda x: np.sum(x) * len(f"{x}" * x.ndim),
    "an attribute by name": lambda x: np.sum(x) * getattr(x, "size"),  # noqa: B009
    "what has the shape": lambda x: np.sum(x) * getattr(x, "spec", x).size,
}


@pytest.mark.parametrize("name", ASKING)
def test_functions_that_ask_for_extents_are_called(name: str, foreseen: list[Any]) -> None:
    fn = ASKING[name]
    f = jg.compile(fn)
    for n in SIZES:
        x = _vector(n)
        result = f(x)
        assert name == "text" or np.allclose(result, fn(x), rtol=1e-10)
    assert not foreseen


class _Scaled:
    def __init__(self) -> None:
        self.rate = 0.5

    def __call__(self, x: Any) -> Any:
        return np.sum(x) * self.rate


def _remembering() -> Fn:
    calls = 0

    def loss(x: Any) -> Any:
        nonlocal calls
        calls += 1
        return np.sum(x) * calls

    return loss


INCONSTANT: dict[str, Fn] = {
    "a list": lambda x: np.sum(x) * rates[0],
    "a dict": lambda x: np.sum(x) * table["rate"],
    "an array": lambda x: np.sum(x) * weights[0],
    "time": lambda x: np.sum(x) * (time.time() > 0),
    "random numbers": lambda x: np.sum(x) * np.random.default_rng(0).random(),
    "old random numbers": lambda x: np.sum(x) * (np.random.rand() < 2),
    "an object": _Scaled(),
    "a variable of the function around": _remembering(),
    "a default that changes": lambda x, scale=rates: np.sum(x) * scale[0],
    "a named default that changes": lambda x, *, scale=rates: np.sum(x) * scale[0],
    "printing": lambda x: print(end="") or np.sum(x),
    "the environment": lambda x: np.sum(x) * len(globals()),
}


@pytest.mark.filterwarnings("ignore:.*draws from numpy.random:UserWarning")
@pytest.mark.parametrize("name", INCONSTANT)
def test_inconstant_functions_are_called(name: str, foreseen: list[Any]) -> None:
    f = jg.compile(lambda x: INCONSTANT[name](x)) if name == "an object" else jg.compile(INCONSTANT[name])
    for n in SIZES:
        f(np.ones(n))
    assert not foreseen


def _emptied() -> tuple[Fn, Fn]:
    scale = 2.0

    def loss(x: Any) -> Any:
        return np.sum(x) if x.ndim == 1 else np.sum(x) * scale

    def empty() -> None:
        nonlocal scale
        del scale

    return loss, empty


def test_an_emptied_closure_is_seen(foreseen: list[Any]) -> None:
    loss, empty = _emptied()
    f = jg.compile(loss)
    for n in SIZES:
        assert f(np.ones(n)) == n
        if n == 400:
            empty()
    assert foreseen == [(400,)]


def _scaled(x: Any, scale: float = 1.0, **others: float) -> Any:
    return np.sum(x) * scale * sum(others.values(), 1.0)


def _keyword(part: Any) -> None:
    part.keywords["other"] = 2.0


def _argument(part: Any) -> None:
    part.__setstate__((lambda x: 3.0 * np.sum(x), (), {}, {}))


@pytest.mark.parametrize("change", [_keyword, _argument])
def test_parts_of_functions_that_change_are_seen(change: Fn, foreseen: list[Any]) -> None:
    part = partial(_scaled, scale=1.0)
    f = jg.compile(lambda x: part(x))
    values = []
    for n in SIZES:
        if n == 500:
            change(part)
        values.append(f(np.ones(n)) / n)
    assert values == [1.0] * 4 + [3.0] and foreseen == [(400,)]


class _Part(partial[Any]):
    pass


class _Float(np.float64):
    pass


record = np.zeros(1, [("a", float)])[0]
part_of, own_float = _Part(_helped), _Float(2.0)


def _caught(x: Any) -> Any:
    try:
        return x[2_000_000] * np.sum(x)
    except IndexError:
        return np.sum(x) * 2


NOT_READ: dict[str, Fn] = {
    "a record": lambda x: np.sum(x) * float(record["a"]),
    "a class of numbers": lambda x: np.sum(x) * own_float,
    "a class of parts": lambda x: np.sum(part_of(x)),
    "errors": _caught,
    "the path of einsum": lambda x: np.sum(x) * len(str(np.einsum_path("i,i->", x, x))),
}


@pytest.mark.parametrize("name", NOT_READ)
def test_what_may_change_unseen_is_not_foreseen(name: str, foreseen: list[Any]) -> None:
    f = jg.compile(NOT_READ[name])
    for n in SIZES:
        f(np.ones(n))
    assert not foreseen


def test_a_name_that_changes_is_seen(foreseen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = jg.compile(lambda x: np.sum(x) * rate)
    values = []
    for n in (100, 200, 300, 400, 500, 600, 700):
        if n == 500:
            monkeypatch.setitem(globals(), "rate", 2.0)
        values.append(f(np.ones(n)) / n)
    assert values == [0.5] * 4 + [2.0] * 3 and foreseen == [(400,)]


def test_a_function_that_changes_is_seen(foreseen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = jg.compile(lambda x: np.sum(_helped(x)))
    values = []
    for n in (100, 200, 300, 400, 500, 600, 700):
        if n == 500:
            monkeypatch.setattr(_helped, "__defaults__", (2,))
        if n == 600:
            monkeypatch.setattr(_helped, "__code__", (lambda x, power=1: 5.0 * x).__code__)
        values.append(f(np.full(n, 2.0)) / n)
    assert values == [8.0] * 4 + [4.0] + [10.0] * 2 and foreseen == [(400,)]


def test_a_named_default_that_changes_is_seen(foreseen: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = jg.compile(lambda x: _named(x))
    values = []
    for n in (100, 200, 300, 400, 500, 600, 700):
        if n == 500:
            monkeypatch.setitem(_named.__kwdefaults__, "power", 3)
        values.append(f(np.full(n, 4.0)) / n)
    assert values == [4.0] * 4 + [8.0] * 3 and foreseen == [(400,)]


def test_a_closure_that_changes_is_seen(foreseen: list[Any]) -> None:
    scale = 0.5

    def loss(x: Any) -> Any:
        return np.sum(x) * scale

    f = jg.compile(jg.value_and_grad(loss))
    values = []
    for n in (100, 200, 300, 400, 500, 600, 700):
        if n == 500:
            scale = 2.0
        values.append(f(np.ones(n))[0] / n)
    assert values == [0.5] * 4 + [2.0] * 3 and foreseen == [(400,)]


def test_a_setting_that_changes_is_seen(foreseen: list[Any]) -> None:
    f = jg.compile(lambda x: np.sum(x))
    for n in SIZES:
        with jg.config(cache=False):
            f(np.ones(n))
    assert not foreseen


def test_static_arguments_are_part_of_what_is_foreseen(foreseen: list[Any]) -> None:
    f = jg.compile(lambda x, way: np.sum(way(x)), static_argnums=1)
    for n in SIZES:
        x = _vector(n)
        np.testing.assert_allclose(f(x, np.sin), np.sum(np.sin(x)))
        np.testing.assert_allclose(f(x, np.cos), np.sum(np.cos(x)))
        np.testing.assert_allclose(f(x, _Scaled()), np.sum(x) * 0.5)
    assert foreseen == [(n,) for n in SIZES[3:] for _ in range(2)]


def test_containers_and_weak_numbers(foreseen: list[Any]) -> None:
    def loss(layers: Any, scale: Any) -> Any:
        return sum(np.mean(layer["w"] * scale) for layer in layers) + scale

    f = jg.compile(loss)
    for n in SIZES:
        _check(f, [{"w": _vector(n)}, {"w": _vector(n) * 2}], 0.5)
    assert foreseen == [(n,) for n in SIZES[3:]]


def test_what_is_foreseen_can_be_looked_at() -> None:
    """With the line that calls, not the line of the first call."""
    f, g = (jg.compile(jg.value_and_grad(_deviation)) for _ in range(2))
    x = _vector(SIZES[-1])
    with jg.config(verify=False):
        for n in SIZES[:-1]:
            f(_vector(n))
        for h in (f, g):
            h(x)
        programs = [h.explain(x).program for h in (f, g)]
    assert programs[0] == programs[1]


def test_verification_finds_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    f = jg.compile(lambda x: np.mean(x))
    with jg.config(verify=True):
        for n in SIZES[:3]:
            f(np.ones(n))
        monkeypatch.setattr(Count, "value", lambda self, extents, dtype: np.asarray(7.5, dtype))
        with pytest.raises(CompileError, match="copied gradient"):
            f(np.ones(400))


def test_verification_finds_another_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(x: Any) -> Any:
        n, _ = x.spec.known_shape
        return call("linalg.solve", x.T @ x, x.T) if 1000 < n < 100_000 else call("linalg.solve", x @ x.T, x).T

    monkeypatch.setitem(functions, "linalg.pinv", silent)
    f = jg.compile(lambda x: np.linalg.pinv(x))
    rng = np.random.default_rng(0)
    with jg.config(verify=True, cache=False):
        for n in SIZES[:3]:
            f(rng.normal(size=(n, 70)))
        with pytest.raises(CompileError, match="copied gradient"):
            f(rng.normal(size=(2000, 70)))


def test_a_foreseen_trace_is_made_when_somebody_looks(foreseen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A call makes none of its operations; who asks for inputs or outputs, and `explain`, find all of them."""
    made: list[int] = []
    copies = Follower._copies

    def noted(self: Follower, *args: Any) -> Any:
        operations = copies(self, *args)
        made.append(len(operations))
        return operations

    monkeypatch.setattr(Follower, "_copies", noted)
    f = jg.compile(_layers)
    for n in SIZES:
        f(_vector(n))
    assert len(foreseen) == 2 and not made
    for n in SIZES[-2:]:
        made.clear()
        runner, _ = f.prepared(_vector(n))
        assert len(runner.feeds) == len(runner.fetches) == 1 and not made
        assert (runner.feeds[0].spec.known_shape, runner.fetches[0].spec.known_shape) == ((n,), ())
        assert runner.feeds[0].graph is runner.fetches[0].graph and len(made) == 1
        assert "tanh" in f.explain(_vector(n)).text
        _check(f, _vector(n))


def _bits(result: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in pytree.flatten(result)[0]]


NUMBERED: dict[str, Fn] = {
    "mean": lambda x, w: np.mean(np.tanh(x @ w) ** 2),
    "two means": lambda x, w: np.mean(x @ w) + np.mean(w * w, axis=0).sum() * 0.5,
    "logistic": lambda x, w: np.mean(np.logaddexp(0.0, x @ w)) + 1e-4 * np.sum(w * w),
}


@pytest.mark.parametrize("name", NUMBERED)
def test_foreseen_calls_are_bound_by_extents_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bits of a function that knows no other shape; widths that stay the same for long vary in the end."""
    related: list[Any] = []
    relate = Follower.relate

    def noted(self: Follower, *args: Any) -> None:
        related.append(args)
        relate(self, *args)

    monkeypatch.setattr(Follower, "relate", noted)
    f, rng = jg.compile(jg.value_and_grad(NUMBERED[name], (0, 1))), np.random.default_rng(0)
    widths = [(90, 70)] * 7 + [(90, 80), (85, 70), (86, 72), (87, 71), (90, 70), (89, 66)]
    with jg.config(verify=False, cache=False):
        for k, (d, m) in enumerate(widths):
            n = 100 + 3 * k
            x, w = rng.standard_normal((n, d)), rng.standard_normal((d, m))
            related.clear()
            found = f(x, w)
            assert not related or k not in (4, 5, 6, 11)
            assert _bits(found) == _bits(jg.compile(f.fn)(x, w))


@pytest.mark.parametrize("order", [0, 1])
def test_extents_that_no_array_has_are_not_foretold(order: int) -> None:
    """Those of a reshaped array: a formula that begins with them is found, and cannot be used."""
    fn: Fn = lambda x, w: np.mean(np.tanh((x @ w).reshape(-1)))  # noqa: E731
    f, rng = jg.compile(jg.value_and_grad(fn, (0, 1)) if order else fn), np.random.default_rng(0)
    with jg.config(verify=False, cache=False):
        for k in range(6):
            x, w = rng.standard_normal((100 + 10 * k, 70 + k)), rng.standard_normal((70 + k, 80 + k))
            assert _bits(f(x, w)) == _bits(jg.compile(f.fn)(x, w))


def test_rules_of_the_users_end_what_is_foreseen(foreseen: list[Any]) -> None:
    """Also where a formula has bound the calls before."""
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.tanh(x))))
    for n in SIZES:
        f(np.ones(n))
    jg.register_gradient("tanh")(lambda op, g: g * 7.0)
    try:
        for n in (600, 700):
            assert f(np.ones(n))[1].tolist() == [7.0] * n
    finally:
        registered_rules.pop("tanh")
    assert foreseen == [(n,) for n in SIZES[3:]]


def test_small_batches_do_not_push_out_what_others_follow(foreseen: list[Any]) -> None:
    """Each batch of up to eight rows has a trace of its own; so many are kept that others follow, the latest ones."""
    f = jg.compile(jg.value_and_grad(lambda x: np.sum(np.tanh(x) ** 2)))
    for n in SIZES[:4]:
        _check(f, _vector(n))
    for n in range(max_models):
        _check(f, _vector(n))
        _check(f, _vector(SIZES[-1] + 100 + n))
    assert len(foreseen) == 1 + max_models
