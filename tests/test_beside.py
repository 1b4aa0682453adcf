"""Plans beside others: a new shape of a function that is followed has the plan that the stages would make for it, and
gives the same bits; nothing of its gradients and its program is made before somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import jitgrad as jg
from jitgrad import compiler, following, run_stages, running
from jitgrad.compiler import reuse, stages
from jitgrad.compiler.freezing import alike, keeping
from jitgrad.compiler.freezing import plans as plans_module
from jitgrad.compiler.freezing.blueprints import is_bound_alike
from tests.test_alike import WHOLE, _leaves

Fn = Callable[..., Any]
NOT_FOLLOWED = ("small matrices",)  # operations of gradients with large numbers in their params
SHAPES = ((113, 87), (274, 87), (148, 184), (90, 201), (1500, 300), (70, 70), (113, 64), (201, 90), (1, 87), (0, 87))

SMALL_SHAPES = ((40, 87), (23, 87), (12, 50), (9, 300), (64, 33), (33, 33), (31, 65), (33, 64), (11, 8), (40, 9))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Nothing known before and nothing on disk."""
    _forget()
    with jg.config(cache=False, verify=False):
        yield
    _forget()


def _forget() -> None:
    reuse._known.clear()
    alike.forget_templates()


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the executables that might be made beside others were."""
    made: list[bool] = []
    executable_beside = run_stages.executable_beside

    def noted(*args: Any) -> Any:
        found = executable_beside(*args)
        made.append(found is not None)
        return found

    monkeypatch.setattr(run_stages, "executable_beside", noted)
    return made


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The frozen programs that were bound, and those of which a formula gave what is bound."""
    found: list[Any] = []
    bind_frozen, frozen_beside = compiler.bind_frozen, compiler.frozen_beside

    def noted_beside(*args: Any) -> Any:
        taken = frozen_beside(*args)
        if taken.bound is not None:
            found.append(taken.frozen())
        return taken

    def noted(source: Any, frozen: Any, addresses: Any) -> Any:
        found.append(frozen)
        return bind_frozen(source, frozen, addresses)

    monkeypatch.setattr(compiler, "bind_frozen", noted)
    monkeypatch.setattr(compiler, "frozen_beside", noted_beside)
    return found


def _bits(result: Any) -> Any:
    if isinstance(result, tuple):
        return [_bits(item) for item in result]
    return np.asarray(result).shape, np.asarray(result).tobytes()


# -- random functions --------------------------------------------------------------------------------------------------


def _move(kind: int, number: float, x: Any, y: Any, w: Any, v: Any) -> Any:
    """One operation of a random function, on matrices as wide as ``w``."""
    moves: tuple[Callable[[], Any], ...] = (
        lambda: np.tanh(x), lambda: np.exp(-x * x), lambda: x * y, lambda: x - y * number, lambda: np.maximum(x, y),
        lambda: x @ w, lambda: x @ w.T, lambda: x + v, lambda: x / (1.5 + np.sum(y * y, axis=1, keepdims=True)),
        lambda: x * np.max(y, axis=1, keepdims=True), lambda: (x @ y.T) @ y * 0.01,
        lambda: np.where(y > number - 2.0, x, 0.5 * y), lambda: x * (number * 1.37),
        lambda: np.sqrt(x * x + number) * x, lambda: x * v.reshape(1, -1),
        lambda: x * np.sum(np.sin(y)) / y.size, lambda: x / np.std(y + 0.1), lambda: x - np.mean(y, axis=0),
        lambda: np.cumsum(y, axis=1) * 0.1 + x, lambda: np.flip(x, 1) * y,
    )  # fmt: skip
    return moves[kind % len(moves)]()


_PLAIN = 15  # the moves whose numbers do not follow from extents


def _random_loss(seed: int) -> Fn:
    """A function that makes the same operations for all shapes; with odd seeds, no number depends on these."""
    choices = np.random.default_rng(seed).integers(0, 1 << 30, size=(int(8 + seed % 7), 4)).tolist()

    def loss(x: Any, w: Any, v: Any) -> Any:
        pool = [x, x * 0.5]
        for kind, first, second, number in choices:
            kind = kind % _PLAIN if seed % 2 else kind
            pool.append(_move(kind, 0.25 + number % 17 / 8, pool[first % len(pool)], pool[second % len(pool)], w, v))
        return np.sum(pool[-1] * pool[-2]) + np.sum(pool[-3] ** 2) * 1e-3

    return loss


def _arguments(n: int, d: int) -> list[Any]:
    rng = np.random.default_rng((n, d))
    return [rng.standard_normal((n, d)), 0.1 * rng.standard_normal((d, d)), rng.standard_normal(d)]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shapes", [SHAPES, SMALL_SHAPES], ids=["large", "small"])
@pytest.mark.filterwarnings("ignore")
def test_random_functions_have_the_plans_of_the_stages(
    seed: int, shapes: Sequence[tuple[int, int]], beside: list[bool], plans: list[Any]
) -> None:
    step = jg.value_and_grad(_random_loss(seed), (0, 1, 2))
    f = jg.compile(step)
    own = []
    for shape in shapes:
        result = f(*_arguments(*shape))
        own.append((repr(plans[-1]), _bits(result)))
    assert seed % 2 == 0 or sum(beside) >= 2
    for shape, (plan, bits) in zip(shapes, own, strict=True):
        _forget()
        assert _bits(jg.compile(step)(*_arguments(*shape))) == bits
        assert repr(plans[-1]) == plan


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.filterwarnings("ignore")
def test_random_functions_are_verified(seed: int, beside: list[bool]) -> None:
    f = jg.compile(jg.value_and_grad(_random_loss(seed), (0, 1, 2)))
    with jg.config(verify=True):
        for shape in SHAPES:
            f(*_arguments(*shape))
    assert seed % 2 == 0 or any(beside)


@pytest.mark.parametrize("name", list(WHOLE))
def test_further_shapes_have_the_plans_of_the_stages(name: str, beside: list[bool], plans: list[Any]) -> None:
    fn, make, sizes = WHOLE[name]
    f = jg.compile(fn)
    own = []
    for size in sizes:
        result = f(*make(*size))
        own.append((repr(plans[-1]), _bits(result)))
    assert beside == [True] * (len(sizes) - 1 if name not in NOT_FOLLOWED else 0)
    for size, (plan, bits) in zip(sizes, own, strict=True):
        _forget()
        assert _bits(jg.compile(fn)(*make(*size))) == bits
        assert repr(plans[-1]) == plan


def _slid(kind: int, x: Any, y: Any) -> Any:
    """One operation of a random function that takes arrays apart and puts them together, along any extent."""
    moves: tuple[Callable[[], Any], ...] = (
        lambda: np.concatenate([x[1:], y[:1]]), lambda: x - np.roll(y, 1, axis=0), lambda: x[::-1] * y,
        lambda: np.concatenate([x[:, :5], y[:, 5:]], 1), lambda: np.stack([x, y])[1] * x, lambda: x[:, ::-1] + y,
        lambda: x + np.sum(x[1:] * y[:-1], axis=0), lambda: x * np.mean(y[:, 3:] - y[:, :-3]), lambda: x + y[-1],
        lambda: np.pad(x, ((2, 0), (0, 1)))[1:-1, :-1] * y, lambda: np.concatenate([x[::2], y[1::2]]),
        lambda: np.concatenate([x, y])[len(x) :] + x, lambda: x + np.concatenate([x[-3:], y[:-3]]), lambda: np.tanh(x),
        lambda: np.concatenate([x[:1], (x[2:] - 2 * x[1:-1] + x[:-2]) * 0.5, y[-1:]]), lambda: x * y[:, :1],
        lambda: x * np.sum(x.reshape(-1)[1:] * y.reshape(-1)[:-1]) * 1e-3, lambda: x - np.mean(y, 0),
        lambda: np.concatenate([x, y, x, y])[len(x) : 2 * len(x)], lambda: np.split(x, [70])[0].sum() * y * 0.01,
    )  # fmt: skip
    return moves[kind % len(moves)]()


def _sliding_loss(seed: int) -> Fn:
    choices = np.random.default_rng(seed).integers(0, 1 << 30, size=(2 + seed % 4, 3)).tolist()

    def loss(x: Any, w: Any, v: Any) -> Any:
        pool = [x, x * 0.5 + (x @ w + v) * 0.1]
        for kind, first, second in choices:
            pool.append(_slid(kind, pool[first % len(pool)], pool[second % len(pool)]))
        return np.sum(pool[1] * pool[-1]) + np.sum(pool[-1] * pool[-2])

    return loss


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.filterwarnings("ignore")
def test_offsets_are_those_of_the_stages(seed: int, plans: list[Any]) -> None:
    """Of slices, pads and concatenations along extents that vary: the same plans and bits as made anew."""
    step = jg.value_and_grad(_sliding_loss(seed), (0, 1, 2))
    f = jg.compile(step)
    own = []
    rows = (113, 274, 148, 90, 1500, 87, 88, 86, 71, 997, 66, 65, 5, 131, 301)
    for n in rows:
        result = f(*_arguments(n, 87))
        own.append((repr(plans[-1]), _bits(result)))
    for n, (plan, bits) in zip(rows, own, strict=True):
        _forget()
        assert _bits(jg.compile(step)(*_arguments(n, 87))) == bits
        assert repr(plans[-1]) == plan


def test_sums_of_extents_that_are_others_by_accident() -> None:
    """Parts of joined arrays begin where no array ends; that the model has others of these extents says nothing."""

    def loss(parts: Any, u: Any, v: Any) -> Any:
        return np.sum(np.concatenate(parts) ** 3) + np.sum(np.sin(u)) * np.sum(v * v)

    f = jg.compile(jg.value_and_grad(loss, (0, 1, 2)))
    for *sizes, m, n in ((110, 90, 100, 70, 200, 300), (120, 95, 100, 70, 210, 310), (130, 99, 100, 70, 205, 305)):
        arrays = [np.linspace(1.0, 2.0, size) for size in (*sizes, m, n)]
        _, (parts, _, _) = f(arrays[:4], *arrays[4:])
        for part, x in zip(parts, arrays, strict=False):
            np.testing.assert_allclose(part, 3 * x**2, rtol=1e-12)


@pytest.mark.parametrize("other", [330, 331, 332, 333])
def test_ends_of_steps_that_are_extents_by_accident(other: int) -> None:
    """Each third of 333 elements is put back in 331; that the model has an array as long says nothing."""

    def loss(x: Any, y: Any) -> Any:
        return np.sum(x[1::3] ** 2) + np.sum(y**2)

    f = jg.compile(jg.grad(loss))
    for n, m in ((333, other), (333, 184), (300, 507), (90, 200)):
        x = np.linspace(1.0, 2.0, n)
        expected = np.zeros(n)
        expected[1::3] = 2 * x[1::3]
        np.testing.assert_array_equal(f(x, np.ones(m)), expected)


# -- what is not made --------------------------------------------------------------------------------------------------


def _loss(x: Any, w: Any) -> Any:
    return np.mean(np.tanh(x @ w) ** 2) + 1e-3 * np.sum(w * w)


def _noting(made: list[str], name: str, makes: Fn) -> Fn:
    def noted(*args: Any) -> Any:
        made.append(name)
        return makes(*args)

    return noted


def test_gradients_and_programs_are_made_when_somebody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for kind, name in ((following.Follower, "_copies"), (following.Follower, "program_like"), (stages, "make_plan")):

        monkeypatch.setattr(kind, name, _noting(made, name, getattr(kind, name)))
    f = jg.compile(jg.value_and_grad(_loss, (0, 1)))
    for n in (100, 200, 300):
        for _ in range(4):
            f(np.ones((n, 80)), np.ones((80, 90)))
    assert made == ["make_plan"]
    text = f.explain(np.ones((300, 80)), np.ones((80, 90))).text
    assert "matmul" in text and made == ["make_plan", "program_like", "_copies"]


def test_a_promised_operation_is_like_all_others() -> None:
    """What is made of gradients that nobody has looked at yet, and what looks at them from inside."""

    def step(x: Any, w: Any) -> Any:
        value, (gx, gw) = jg.value_and_grad(_loss, (0, 1))(x, w)
        moved = w - 0.1 * gw
        if isinstance(gx, jg.Tensor) and x.shape[0] == 300:
            assert len(gx.op.inputs) > 0 and gx.op.original_op is not None and gx.op.params is not None
            assert [c.name for c in gw.consumers()] == [gw.consumers()[0].name]
            assert all(op is not None for op in gx.graph.operations)
            with pytest.raises(AttributeError):
                gx.op.nothing  # noqa: B018
        return value, gx, moved, jg.grad(lambda w: np.sum(np.sin(gw * w)))(w)

    f = jg.compile(step)
    for n in (100, 200, 300, 400):
        x, w = np.random.default_rng(n).standard_normal((n, 80)), np.full((80, 90), 0.01)
        for a, b in zip(f(x, w), f.interpret(x, w), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_numbers_of_the_call(beside: list[bool]) -> None:
    """Numbers that follow from extents outside of the program are those of the shape."""

    def loss(x: Any) -> Any:
        return np.sum(np.sin(x * 2.5) / (x.shape[0] + 0.5)) * (3.0 / x.shape[0])

    f = jg.compile(jg.value_and_grad(loss))
    for n in (100, 200, 300, 77):
        x = np.linspace(0.1, 1.0, n)
        np.testing.assert_allclose(f(x)[0], loss(x), rtol=1e-12)
        np.testing.assert_allclose(f(x)[1], f.interpret(x)[1], rtol=1e-12)
    assert all(beside) and len(beside) == 3


@pytest.mark.parametrize("numbers", [(2.5, 1.0), (2.5, -2.5), (0.0, -0.0), (3.5, float("nan")), (3.5, 2.0)])
def test_numbers_that_rules_know_go_through_the_stages(numbers: tuple[float, float], beside: list[bool]) -> None:
    f = jg.compile(lambda x: np.sin(x) * numbers[x.shape[0] == 200])
    for n in (100, 200):
        x = np.linspace(-1.0, 1.0, n)
        np.testing.assert_array_equal(np.signbit(f(x)), np.signbit(np.sin(x) * numbers[n == 200]))
        np.testing.assert_allclose(f(x), np.sin(x) * numbers[n == 200], rtol=1e-12)
    assert not any(beside)


def test_arrays_of_constants_are_those_of_the_call(beside: list[bool]) -> None:
    arrays = {n: np.random.default_rng(n).standard_normal(90) for n in (100, 200, 300)}
    f = jg.compile(lambda x: np.sin(x) * arrays[x.shape[0]])
    for n, array in arrays.items():
        x = np.ones((n, 90))
        np.testing.assert_allclose(f(x), np.sin(x) * array)
    assert not any(beside)


_factors = [1.0]


def _inconstant_loss(w: Any, x: Any) -> Any:
    return _loss(w, x) * _factors[0]


@pytest.mark.parametrize(("loss", "expected"), [(_loss, [True, True]), (_inconstant_loss, [True, True, True])])
def test_a_plan_from_disk_can_be_followed(
    loss: Any, expected: list[bool], tmp_path: Any, beside: list[bool]
) -> None:
    """In a further process the first plan is found on disk, without a trace where the function is constant: there the
    second one is followed.
    """
    with jg.config(cache=True, cache_dir=str(tmp_path)):
        for run in range(2):
            _forget()
            f = jg.compile(jg.value_and_grad(loss, (0, 1)))
            beside.clear()
            for n in (100, 200, 300, 400) if run else (100,):
                f(np.ones((n, 80)), np.ones((80, 90)))
            keeping.keep_now()
        assert beside == expected


def test_shapes_follow_what_came_from_disk_once_the_stages_are_loaded(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a further process that has foreseen calls, each with a plan from disk, a new shape is planned by the stages,
    and those after it follow: no program of theirs is made.
    """
    made: list[Any] = []
    make_executable = run_stages.make_executable

    def noted(program: Any) -> Any:
        made.append(program)
        return make_executable(program)

    monkeypatch.setattr(run_stages, "make_executable", noted)
    known, new = (100, 200, 300, 400, 500, 600), (700, 800, 900, 1000)
    with jg.config(cache=True, cache_dir=str(tmp_path)):
        for run in range(2):
            _forget()
            f = jg.compile(jg.value_and_grad(_loss, (0, 1)))
            monkeypatch.setattr("jitgrad.executable.has_stages", lambda run=run: run == 0)
            for n in known:
                f(np.ones((n, 80)), np.ones((80, 90)))
            keeping.keep_now()
        made.clear()
        f(np.ones((650, 80)), np.ones((80, 90)))
        assert len(made) == 1
        monkeypatch.setattr("jitgrad.executable.has_stages", lambda: True)
        for n in new:
            x, w = np.linspace(0.0, 1.0, n * 80).reshape(n, 80), np.full((80, 90), 0.01)
            for ours, meant in zip(_leaves(f(x, w)), _leaves(f.interpret(x, w)), strict=True):
                np.testing.assert_allclose(ours, meant, rtol=1e-9)
        assert len(made) == 1


FORMULAS = [name for name in WHOLE if name not in (*NOT_FOLLOWED, "convolution")]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The numbers of what was bound by a formula, each compared with what binds the plan that is frozen."""
    found: list[Any] = []
    frozen_beside, foretold_by = compiler.frozen_beside, running.Runner.foretold_by

    def compare(bound: Any, frozen: Any) -> None:
        family, numbers = bound
        addresses = dict.fromkeys(family.kernels, 0)
        made = plans_module.bind_numbers(family, numbers, addresses)
        assert (made.nvalues, made.outputs) == frozen[:2] and len(made.steps) == len(frozen[2:])
        for step, like in zip(made.steps, frozen[2:], strict=True):
            assert is_bound_alike(step, like, addresses)
        found.append(numbers)

    def compared_beside(*args: Any) -> Any:
        taken = frozen_beside(*args)
        if taken.bound is not None:
            compare(taken.bound, taken.frozen())
        return taken

    def compared_foretold(self: Any, trace: Any, bound: Any, specs: Any) -> Any:
        runner = foretold_by(self, trace, bound, specs)
        compare(bound, runner._only.beside.plan())
        return runner

    monkeypatch.setattr(compiler, "frozen_beside", compared_beside)
    monkeypatch.setattr(running.Runner, "foretold_by", compared_foretold)
    return found


@pytest.mark.parametrize("name", FORMULAS)
def test_steps_by_formulas_are_those_that_are_bound(name: str, compared: list[Any]) -> None:
    """Also where sizes change in what order steps run, and how they are cut; with numbers that follow from extents."""
    fn, make, sizes = WHOLE[name]
    f = jg.compile(fn)
    for k in (1, 1.5, 2, 2.5, 3, 3.25, 1.25, 9, 1.75):
        for size in sizes[:2]:
            args = make(*[n if n <= 64 else int(n * k) for n in size])
            results = _leaves(f(*args))
            for a, b in zip(results, _leaves(f.interpret(*args)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    assert len(compared) >= 4 and len({repr(numbers) for numbers in compared}) >= 4


def test_steps_by_formulas_where_sizes_cross_what_they_are_compared_with(compared: list[Any]) -> None:
    """Tiles and chunks of products, temporaries in outputs, and what lies on what in the arena: there and back."""

    def loss(w: Any, v: Any, x: Any, y: Any) -> Any:
        hidden = np.tanh(x @ w)
        return np.sum((hidden @ w.T @ v - y) ** 2) + np.sum((x.T @ hidden) ** 2) * 1e-3

    rng = np.random.default_rng(0)
    w, v = 0.1 * rng.standard_normal((300, 96)), rng.standard_normal(300)
    f = jg.compile(jg.value_and_grad(loss, (0, 1)))
    rows = [65, 70, 90, 130, 260, 514, 1030, 2100, 1029, 511, 255, 129, 91, 71, 66, 128, 256, 512, 1024, 513, 95, 97]
    for n in rows:
        x, y = rng.standard_normal((n, 300)), rng.standard_normal(n)
        value, gradients = f(w, v, x, y)
        expected, wanted = f.interpret(w, v, x, y)
        np.testing.assert_allclose(value, expected, rtol=1e-9)
        for a, b in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-7)
    assert len(compared) >= 8


def test_a_formula_serves_products_however_they_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into how many tiles, and how large ones, is part of it. What is not: which temporaries are larger than others, as
    memory for packing is than x. Of such orders there are eight or nine here, and one more with 16 shapes between.
    """
    made: list[str] = []
    monkeypatch.setattr(compiler, "bind_frozen", _noting(made, "frozen", compiler.bind_frozen))
    f = jg.compile(jg.value_and_grad(lambda w, x: np.sum(np.tanh(x @ w) @ w.T), (0, 1)))
    rows = [*range(80, 80 + 37 * 16, 37), *range(91, 91 + 37 * 16, 37)]
    for n in rows:
        f(np.full((200, 200), 0.01, np.float32), np.ones((n, 200), np.float32))
    assert 1 <= len(made) <= len(rows) // 3


def test_extents_of_one_none_and_few_between_others(compared: list[Any]) -> None:
    f = jg.compile(jg.value_and_grad(_loss, (0, 1)))
    for n in (100, 200, 300, 1, 0, 2, 64, 65, 400, 80, 90, 63, 70, 310, 0, 1, 333, 72):
        x, w = np.random.default_rng(n).standard_normal((n, 80)), np.full((80, 90), 0.01)
        with np.errstate(all="ignore"):
            results, wanted = f(x, w), f.interpret(x, w)
        for a, b in zip(_leaves(results), _leaves(wanted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert len(compared) >= 4


def test_scratch_is_for_the_threads_that_there_are(compared: list[Any]) -> None:
    """A formula is left alone where memory has to be planned for more threads than it was noted for."""
    f = jg.compile(jg.value_and_grad(_loss, (0, 1)))
    threads = jg.get_num_threads()
    try:
        for n in (100, 200, 300, 400, 500, 600):
            jg.set_num_threads(2 if n < 500 else 16)
            x, w = np.ones((n, 80)), np.full((80, 90), 0.01)
            np.testing.assert_allclose(f(x, w)[0], _loss(x, w))
            [(stage, arrays)] = f.stages(x, w)
            assert stage.executable(arrays).bound.steps[0].workers >= jg.get_num_threads()
    finally:
        jg.set_num_threads(threads)
    assert compared
