"""Random numbers: known answers, distributions, seeds, streams; the same compiled, interpreted and cut in clusters."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from scipy import stats

import jitgrad as jg
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


def test_a_gradient_through_a_draw_in_a_loop_is_refused() -> None:
    def f(x: Any) -> Any:
        return jg.fori_loop(0, 3, lambda i, c: c * jg.random_uniform(()), x)

    assert 0 < f(2.0) < 2
    with pytest.raises(jg.GradientError, match="draws within a loop") as refused:
        jg.grad(f)(2.0)
    assert "test_random.py" in str(refused.value)


def test_another_shape_compiles_nothing() -> None:
    f = jg.compile(lambda x: np.sum(np.tanh(x) * (jg.random_uniform(x.shape) < 0.5), axis=1))
    f(np.zeros((30, 40)))
    before = f.cache_info()
    f(np.zeros((31, 50)))
    after = f.cache_info()
    assert (after.traces, after.compiles, after.disk_hits) == (2, before.compiles, before.disk_hits)
