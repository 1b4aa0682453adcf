"""Random numbers: known answers, distributions, seeds, streams; the same compiled, interpreted and cut in clusters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import jitgrad as jg
from jitgrad import pytree
from jitgrad.nonfinite import NonFiniteError
from jitgrad.program import slice_graph
from jitgrad.streams import Streams, stream_key
from jitgrad.threefry import threefry2x32

quick = pytest.mark.quick


@quick
@pytest.mark.parametrize(
    ("counter", "key", "bits"),
    [
        (0, 0, 0x99BA4EFE6B200159),
        (2**64 - 1, 2**64 - 1, 0xBB002BE71CB996FC),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x483DF7A0C4923A9C),
    ],
)
def test_known_answers(counter: int, key: int, bits: int) -> None:
    """Those of the authors' Random123, for 20 rounds."""
    assert int(threefry2x32(np.uint64(counter), np.uint64(key))) == bits


@quick
def test_keys_differ() -> None:
    seeds = [(g, s, n) for g in (None, 1, -1) for s in (None, 0, 1, -1) for n in range(3)]
    keys = {stream_key(*seed) for seed in seeds}
    assert len(keys) == 3 * (3 + 3)  # an operation's own seed hides its number


def draws(graph_seed: int | None = 3, **kinds: Any) -> list[Any]:
    jg.set_random_seed(graph_seed)
    shape = kinds.pop("shape", (40, 1003))
    return [jg.random_uniform(shape, -1, 3, **kinds), jg.random_normal(shape, 2, 0.5, **kinds)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("compiled", [True, False])
def test_distributions(dtype: Any, compiled: bool) -> None:
    with jg.Graph().as_default(), jg.jit_scope(compiled):
        u, z = jg.Session().run(draws(dtype=dtype, shape=(200, 1000)))
    assert u.dtype == z.dtype == dtype
    assert u.min() >= -1 and u.max() <= 3
    for sample, distribution in ((u, stats.uniform(-1, 4)), (z, stats.norm(2, 0.5))):
        flat = sample.ravel().astype(float)
        assert stats.kstest(flat, distribution.cdf).pvalue > 1e-3
        for moment, expected in zip((flat.mean(), flat.var()), distribution.stats("mv"), strict=True):
            assert abs(moment - expected) < 5 * np.sqrt(1.0 / flat.size)
        assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 5 / np.sqrt(flat.size)
    assert abs(stats.skew(z.ravel())) < 0.03 and abs(stats.kurtosis(z.ravel())) < 0.06


@quick
def test_a_draw_is_one_stateful_operation() -> None:
    with jg.Graph().as_default() as graph:
        jg.random_uniform((2, 3), name="noise")
        jg.random_normal(4, dtype="float32")
        assert [op.type for op in graph.operations] == ["random_uniform", "random_normal"]
        assert all(op.opdef.stateful for op in graph.operations)
        assert graph.operations[0].name == "noise"
        assert [op.outputs[0].shape for op in graph.operations] == [(2, 3), (4,)]


def values(scope: str) -> tuple[list[Any], list[Any]]:
    """Two runs of one graph, with parts of it in scopes of their own."""
    with jg.Graph().as_default():
        with jg.jit_scope(scope != "none"):
            u, z = draws()
            x = u * z
        with jg.jit_scope(scope == "two"):
            total = np.sum(np.exp(-x), axis=1)
        with jg.jit_scope(scope != "none"):
            more = total + jg.random_uniform((40,))
        session = jg.Session()
        return session.run([u, z, total, more]), session.run([u, z, total, more])


def test_same_numbers_in_one_piece_in_several_and_interpreted() -> None:
    runs = [values(scope) for scope in ("none", "one", "two")]
    for other in runs[1:]:
        for ours, theirs in zip(other, runs[0], strict=True):
            np.testing.assert_array_equal(ours[0], theirs[0])
            for a, b in zip(ours[1:], theirs[1:], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)


@quick
def test_streams_of_a_session() -> None:
    with jg.Graph().as_default():
        u, z = draws(shape=(5,))
        first, other = jg.Session(), jg.Session()
        a, b = first.run([u, z]), first.run([u, z])
        assert not np.any(a[0] == b[0]) and not np.any(a[1] == b[1])
        again = other.run(z), other.run(z)
        np.testing.assert_array_equal(again[0], a[1])
        np.testing.assert_array_equal(again[1], b[1])
        np.testing.assert_array_equal(other.run(u), a[0])  # which no run has drawn from


@quick
def test_seeds() -> None:
    def numbers(graph_seed: int | None, seeds: list[int | None]) -> list[Any]:
        with jg.Graph().as_default():
            if graph_seed is not None:
                jg.set_random_seed(graph_seed)
            found: list[Any] = jg.Session().run([jg.random_uniform((3,), seed=seed) for seed in seeds])
            return found

    same, other = numbers(1, [5, 5]), numbers(2, [5, 5])
    np.testing.assert_array_equal(*same)
    assert not np.any(same[0] == other[0])
    plain, again, seeded = numbers(None, [None, None]), numbers(None, [None, None]), numbers(0, [None, None])
    np.testing.assert_array_equal(plain, again)
    np.testing.assert_array_equal(plain, seeded)
    assert not np.any(plain[0] == plain[1])


@quick
def test_draws_are_neither_merged_nor_folded() -> None:
    with jg.Graph().as_default():
        pair = [jg.random_uniform((4,), seed=1), jg.random_uniform((4,), seed=1)]
        program = slice_graph(pair, {})
        assert sum(ins.op.name == "random_position" for ins in program.instructions) == 2
        a, b = jg.Session().run(pair)
        np.testing.assert_array_equal(a, b)  # streams of one key, each read from its beginning


def test_a_draw_is_part_of_a_kernel() -> None:
    def noisy(x: Any) -> Any:
        return np.sum(np.tanh(x + jg.random_normal(x.shape, 0, 0.1)))

    explanation = jg.compile(noisy).explain(np.zeros((30, 40)))
    assert explanation.kernels.count("threefry2x32") == 1
    assert explanation.clusters.count("cluster") == 1


def test_compiled_functions_draw_anew_with_each_call() -> None:
    def noise(x: Any) -> Any:
        return x + jg.random_normal(x.shape)

    with jg.Graph().as_default():
        jg.set_random_seed(11)
        f, g = jg.compile(noise), jg.compile(noise)
        x = np.zeros(6)
        ours, theirs = [f(x) for _ in range(5)], [g.interpret(x) for _ in range(5)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    assert len({a.tobytes() for a in ours}) == 5
    assert not np.any(f(np.zeros(3)) == ours[0][:3])  # another trace, the same streams


@quick
def test_streams_are_forgotten_in_the_end() -> None:
    streams = Streams()
    for key in range(1, streams.most + 5):
        streams.take(key, 0, 2)
        assert streams.take(0, 0, 1) == key - 1
    assert len(streams.positions()) == streams.most
    assert streams.take(1, 0, 1) == 0


@quick
def test_eager_draws() -> None:
    jg.set_random_seed(5)
    a, b = jg.random_uniform((3,)), jg.random_uniform((3,))
    seeded = jg.random_normal((2,), seed=9), jg.random_normal((2,), seed=9)
    jg.set_random_seed(5)
    np.testing.assert_array_equal(jg.random_uniform((3,)).numpy(), a.numpy())
    np.testing.assert_array_equal(jg.random_normal((2,), seed=9).numpy(), seeded[0].numpy())
    assert not np.any(a.numpy() == b.numpy()) and not np.any(seeded[0].numpy() == seeded[1].numpy())
    jg.set_random_seed(None)


def test_large_eager_draws_go_on_with_the_same_numbers() -> None:
    jg.set_random_seed(5)
    large = jg.random_uniform((200, 100), 0, 2).numpy()
    jg.set_random_seed(5)
    small = [jg.random_uniform((100, 100), 0, 2).numpy() for _ in range(2)]
    np.testing.assert_array_equal(large, np.concatenate(small))
    jg.set_random_seed(None)


@quick
def test_gradients_reach_the_parameters() -> None:
    with jg.Graph().as_default():
        mean, stddev = jg.placeholder(np.float64, (3,)), jg.placeholder(np.float64)
        z = jg.random_normal((2, 3), mean, stddev)
        u = jg.random_uniform((3,), mean, mean + 1.0)
        got = jg.Session().run(
            [z, u, *jg.gradients(z, [mean, stddev]), *jg.gradients(u, mean)], {mean: [1.0, 2.0, 3.0], stddev: 2.0}
        )
        assert np.all((got[1] >= [1, 2, 3]) & (got[1] <= [2, 3, 4]))
        np.testing.assert_array_equal(got[2], [2.0, 2.0, 2.0])
        np.testing.assert_allclose(got[3], np.sum((got[0] - [1, 2, 3]) / 2))
        np.testing.assert_allclose(got[4], np.ones(3))
        plain = jg.random_uniform((3,))
        assert jg.gradients(np.sum(plain * mean), [plain, mean])[0] is not None


@quick
def test_reparameterised_gradient_of_a_function() -> None:
    def f(scale: Any) -> Any:
        return np.sum(jg.random_normal((4,), 1.0, scale, dtype=np.float32))

    value, slope = jg.value_and_grad(f)(np.float32(2.0))
    np.testing.assert_allclose(value, 4 + 2 * slope, rtol=1e-6)
    assert value.dtype == np.float32


@quick
def test_a_run_that_looks_for_nan_reads_the_same_numbers() -> None:
    with jg.Graph().as_default(), jg.config(debug_nans=True):
        u = jg.random_uniform((4,))
        bad = np.log(u - 2.0)
        session = jg.Session()
        with pytest.raises(NonFiniteError):
            session.run(bad)
        after = session.run(u)
        fresh = jg.Session()
        fresh.run(u)
        np.testing.assert_array_equal(after, fresh.run(u))


SHAPE, DTYPE, TYPE = jg.ShapeError, jg.DTypeError, TypeError
BAD: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
    (SHAPE, "need a known shape, got None", (None,), {}),
    (SHAPE, r"need a known shape, got \(2, None\)", ((2, None),), {}),
    (SHAPE, r"no negative extent, got \(-1,\)", ((-1,),), {}),
    (TYPE, r"a shape is made of integers, got \(3.0,\)", ((3.0,),), {}),
    (TYPE, "a shape is made of integers, got 'ab'", ("ab",), {}),
    (TYPE, "a seed is an integer or None, got 1.5", ((2,),), {"seed": 1.5}),
    (TYPE, "a seed is an integer or None, got 'a'", ((2,),), {"seed": "a"}),
    (DTYPE, r"got float16(?s:.*)convert with .astype", ((2,),), {"dtype": np.float16}),
    (DTYPE, r"got int32(?s:.*)random_uniform\(shape, 0, n\).astype", ((2,),), {"dtype": np.int32}),
    (DTYPE, r"got complex128(?s:.*)two arrays", ((2,),), {"dtype": complex}),
    (SHAPE, r"does not broadcast(?s:.*)expected: +\[3\](?s:.*)got: +\[2,3\]", ((3,), np.ones((2, 3))), {}),
    (SHAPE, r"does not broadcast(?s:.*)got: +\[4\]", ((3,), 0.0, np.ones(4)), {}),
    (SHAPE, r"does not broadcast(?s:.*)expected: +\[\]", ((), np.ones(1)), {}),
    (DTYPE, "is complex128, and numbers are real", ((2,), np.ones(2, complex)), {}),
]


@quick
@pytest.mark.parametrize(("error", "text", "args", "kwargs"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("draw", [jg.random_uniform, jg.random_normal])
def test_bad_arguments(draw: Any, error: Any, text: str, args: Any, kwargs: Any) -> None:
    """The same in a graph and outside, with the function and the user's line."""
    for place in (contextlib.nullcontext(), jg.Graph().as_default()):
        with place, pytest.raises(error, match=text) as raised:
            draw(*args, **kwargs)
        assert str(raised.value).startswith(draw.__name__) and "at test_random.py:" in str(raised.value)


@quick
def test_bounds_of_unknown_extents_and_bad_seeds_of_graphs() -> None:
    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (None,))
        assert jg.random_uniform((3,), x, 2.0).shape == (3,)
        with pytest.raises(jg.ShapeError, match="does not broadcast"):
            jg.random_uniform((), x, 2.0)
    with pytest.raises(TypeError, match=r"set_random_seed: a seed is an integer or None, got 1.5(?s:.*)test_random.py"):
        jg.set_random_seed(1.5)  # type: ignore[arg-type]


def test_calls_on_tapes_read_the_streams_of_the_function() -> None:
    """The same numbers in the same order, with a tape or without."""
    plain, taped = (jg.compile(lambda x: np.sum(np.tanh(x * jg.random_uniform((3,))))) for _ in range(2))
    x = np.array([0.5, 1.0, 2.0])
    expected, found = [plain(x) for _ in range(4)], []
    for k in range(4):
        with jg.GradientTape() as tape:
            given = jg.asarray(x)
            tape.watch(given)
            found.append(taped(given if k % 2 else x))
    np.testing.assert_array_equal(np.asarray(found, float), expected)


def test_second_derivatives_on_tapes_draw_nothing_again() -> None:
    def f(x: Any) -> Any:
        u = jg.random_uniform((3,))
        return np.sum(np.tanh(2.0 * x * u)), u

    compiled, x = jg.compile(f), jg.asarray([0.5, 1.0, 2.0])
    compiled(x)  # so that the stream is not at its beginning
    with jg.GradientTape() as outer:
        outer.watch(x)
        with jg.GradientTape() as inner:
            inner.watch(x)
            value, u = compiled(x)
        (slope,) = inner.gradient(value, [x])
    (curvature,) = outer.gradient(slope, [x])
    u, t = u.numpy(), np.tanh(2 * x.numpy() * u.numpy())
    np.testing.assert_allclose(slope.numpy(), (1 - t * t) * 2 * u, rtol=1e-12)
    np.testing.assert_allclose(curvature.numpy(), -2 * t * (1 - t * t) * 4 * u * u, rtol=1e-12)


@quick
@pytest.mark.parametrize("shape", [(), (0,), (1, 1), (3, 0)])
@pytest.mark.parametrize("compiled", [True, False])
def test_small_shapes(shape: tuple[int, ...], compiled: bool) -> None:
    with jg.Graph().as_default(), jg.jit_scope(compiled):
        a, b = jg.Session().run([jg.random_uniform(shape), jg.random_normal(shape)])
        assert np.shape(a) == np.shape(b) == shape


@pytest.mark.parametrize("compiled", [False, True])
def test_each_step_of_a_loop_draws_anew(compiled: bool) -> None:
    def f(x: Any) -> Any:
        return jg.scan(lambda c, _: (c + jg.random_normal(()), jg.random_uniform((2,))), x, None, length=3)

    (total, rows), (other, _) = [(jg.compile(f) if compiled else f)(np.float64(0)) for _ in range(2)]
    assert len(np.unique(rows)) == 6
    assert compiled or total != other


Fn = Callable[[Any], Any]


def noisy_fori(x: Any) -> Any:
    return jg.fori_loop(0, 3, lambda i, c: c * (1 + jg.random_uniform((3,))), x)


def noisy_scan(x: Any) -> Any:
    def step(c: Any, t: Any) -> Any:
        return np.sin(c * x) + jg.random_normal((3,)), np.sum(c * t * jg.random_uniform((2, 3)))

    return jg.scan(step, np.ones(3), x, reverse=True)


def noisy_while(x: Any) -> Any:
    goes_on = lambda s: np.sum(s) < 40 * (1 + jg.random_uniform(()))  # noqa: E731
    return jg.while_loop(goes_on, lambda s: s * (1 + jg.random_uniform((3,), 0.0, x)), x)


def noisy_branch(x: Any) -> Any:
    return jg.cond(x[0] > 0, lambda: x * jg.random_normal((3,)), lambda: x)


def noisy_checkpoint(x: Any) -> Any:
    f = jg.checkpoint(lambda x: x * jg.random_normal((3,)))
    return jg.scan(lambda c, _: (np.tanh(c) + f(x), None), x, None, 5, checkpoint_every=2)[0]


def noisy_nest(x: Any) -> Any:
    def inner(i: Any, s: Any) -> Any:
        return np.tanh(s) + jg.cond(i > 1, lambda: jg.random_normal((3,)) * x, lambda: s)

    return jg.scan(lambda c, _: (jg.fori_loop(0, 3, inner, c), jg.random_uniform((2,))), x, None, 4)


BODIES = [noisy_fori, noisy_scan, noisy_while, noisy_branch, noisy_checkpoint, noisy_nest]


@pytest.mark.parametrize("fn", BODIES, ids=lambda fn: fn.__name__)
def test_gradients_through_draws_in_bodies(fn: Fn) -> None:
    """Compiled, interpreted, with its gradient and alone: the same numbers, which each call draws anew. The gradient
    and the Hessian are those of a function with these numbers.
    """

    def total(x: Any) -> Any:
        return sum(np.sum(np.sin(t)) for t in pytree.flatten(fn(x))[0])

    x = np.array([0.3, 0.5, 0.7])
    ours, theirs, both = jg.compile(total), jg.compile(total), jg.compile(jg.value_and_grad(total))
    runs = [(ours(x), theirs.interpret(x), both(x)[0]) for _ in range(3)]
    np.testing.assert_allclose(runs, [[first] * 3 for first, _, _ in runs], rtol=1e-11)
    assert len({first for first, _, _ in runs}) == 3
    first = lambda x: jg.compile(total).interpret(x)  # noqa: E731  # a function begins its streams
    slopes = [(first(x + d) - first(x - d)) / 2e-6 for d in 1e-6 * np.eye(3)]
    found = jg.compile(jg.grad(total))(x)
    np.testing.assert_allclose(found, slopes, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(jg.compile(jg.grad(total)).interpret(x), found, rtol=1e-9, atol=1e-11)
    curvature = jg.compile(jg.hessian(total))(x)
    np.testing.assert_allclose(curvature, jg.compile(jg.jacfwd(jg.grad(total)))(x), rtol=1e-8, atol=1e-9)


def test_loops_with_draws_are_compiled_whole() -> None:
    explanation = jg.compile(jg.value_and_grad(lambda x: np.sum(noisy_fori(x)))).explain(np.ones(3))
    assert explanation.clusters.count("\ncluster ") == 1 and explanation.clusters.count("interpreted") == 1


@quick
def test_draws_in_bodies_are_functions_of_seed_and_step() -> None:
    """Longer loops begin with the same numbers, other draws and other bodies have others, and so does each run."""

    def rows(steps: int, seed: int | None = None) -> Any:
        return jg.scan(lambda c, _: (c, jg.random_uniform((2,), seed=seed)), 0.0, None, steps)[1]

    with jg.Graph().as_default():
        jg.set_random_seed(4)
        long, short, seeded, again = rows(6), rows(3), rows(6, seed=8), rows(3, seed=8)
        session = jg.Session()
        first, second = (session.run([long, short, seeded, again]) for _ in range(2))
        for made in (first, second):
            assert len(np.unique(np.concatenate([made[0], made[1], made[2]]))) == 30
            np.testing.assert_array_equal(made[2][:3], made[3])
        assert not np.any(first[0] == second[0])
        np.testing.assert_array_equal(jg.Session().run(long), first[0])


def test_draws_of_bodies_are_spread_evenly() -> None:
    def step(c: Any, _: Any) -> Any:
        return c, (jg.random_uniform((7,)), jg.random_normal((7,)))

    u, z = jg.compile(lambda x: jg.scan(step, x, None, 20_000)[1])(0.0)
    for sample, distribution in ((u, stats.uniform), (z, stats.norm)):
        assert stats.kstest(sample.ravel(), distribution.cdf).pvalue > 1e-3
        flat = sample.ravel()
        assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 5 / np.sqrt(flat.size)
        assert abs(np.corrcoef(sample[1:, 0], sample[:-1, 0])[0, 1]) < 5 / np.sqrt(len(sample))


def test_functions_that_draw_in_bodies() -> None:
    @jg.function
    def noisy(a: Any) -> Any:
        return a * (1 + jg.random_uniform((3,)))

    with jg.Graph().as_default():
        x = jg.placeholder(np.float64, (3,))
        y = jg.fori_loop(0, 2, lambda i, s: noisy(s), x)
        z = noisy(x)
        run = jg.Session().run([y, *jg.gradients(np.sum(y), x), z, *jg.gradients(np.sum(z), x)], {x: [1.0, 2.0, 3.0]})
        np.testing.assert_allclose(run[0], run[1] * [1, 2, 3])
        np.testing.assert_allclose(run[2], run[3] * [1, 2, 3])


def test_another_shape_compiles_nothing() -> None:
    f = jg.compile(lambda x: np.sum(np.tanh(x) * (jg.random_uniform(x.shape) < 0.5), axis=1))
    f(np.zeros((30, 40)))
    before = f.cache_info()
    f(np.zeros((31, 50)))
    after = f.cache_info()
    assert (after.traces, after.compiles, after.disk_hits) == (2, before.compiles, before.disk_hits)
