"""Views of eager tensors: what NumPy gives, in memory that is shared, kept as long as it is needed and no longer."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jitgrad as jg

pytestmark = pytest.mark.usefixtures("machine_code_or_python")

BOX = np.arange(24.0).reshape(2, 3, 4)


def described(x: Any) -> Any:
    """What can be compared of an array."""
    array = np.asarray(x)
    elements = np.squeeze(array).tobytes()  # NumPy 2.0 copies up to 32 dimensions
    return array.dtype, array.shape, array.strides, elements


class _Two:
    def __index__(self) -> int:
        return 2


def indices(rank: int, rng: random.Random) -> Iterator[Any]:
    """Indices of integers, slices, None and ..., some of which fit."""
    parts: list[Any] = [0, 1, -1, 2, -3, 9, 1 << 70, None, ..., slice(None), slice(1, None), slice(None, None, -1)]
    parts += [slice(5, 1), slice(-9, 9, 2), slice(_Two(), None), slice(None, None, 0), slice(0, 1 << 70), slice(2, 2)]
    yield from parts
    yield ()
    for _ in range(150):
        yield tuple(rng.choice(parts) for _ in range(rng.randrange(1, rank + 3)))
    yield (None,) * 40


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.complex128])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_items_are_those_of_numpy(rank: int, dtype: Any) -> None:
    rng = random.Random(rank)
    whole = BOX.astype(dtype)
    for source in (whole, whole[..., ::-1], whole.T):
        array = source[(0,) * (3 - rank)]
        x = jg.asarray(array)
        view: Any = x.T.T if rank else x
        for index in indices(rank, rng):
            try:
                expected = np.asarray(x._plain[index])
            except (IndexError, ValueError) as error:
                with pytest.raises(type(error), match=str(error).split("[")[0].split("(")[0]):
                    view[index]
                continue
            found = view[index]
            assert type(found) is jg.EagerTensor and not found.flags.writeable
            assert described(found) == described(expected), str(index)
            assert described(found._plain) == described(expected)


@pytest.mark.parametrize(
    "shape",
    [(24,), (4, 6), (6, -1), (-1,), (2, 1, 12), (-1, -1), (5, 5), (0,), (-2, 12), (1 << 70,), (24, 1 << 62), (),
     (-1, 5)],
)  # fmt: skip
def test_reshapes_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    for array in (BOX, BOX.T, BOX[:, ::2], BOX[:0], BOX.astype(np.float32)):
        x = jg.asarray(array)
        for call in (lambda v: v.reshape(shape), lambda v: v.reshape(*shape), lambda v: v.reshape(list(shape))):
            for _ in range(2):
                try:
                    expected = call(x._plain)
                except (ValueError, TypeError, OverflowError) as error:
                    with pytest.raises(type(error)):
                        call(x)
                else:
                    assert described(call(x)) == described(expected)


def test_other_orders_are_those_of_numpy() -> None:
    for array in (BOX, BOX.T, BOX[0, 0], BOX[:, :0], np.array(2.0)):
        x = jg.asarray(array)
        for _ in range(2):
            assert described(x.T) == described(x._plain.T)
            assert described(x.transpose()) == described(x._plain.transpose())
            assert described(x.ravel()) == described(x._plain.ravel())
            for axes in itertools.permutations(range(-x.ndim, 0)):
                assert described(x.transpose(axes)) == described(x._plain.transpose(axes))
                assert described(x.transpose(*axes)) == described(x._plain.transpose(*axes))
            for a, b in itertools.product(range(-x.ndim, x.ndim), repeat=2):
                assert described(x.swapaxes(a, b)) == described(x._plain.swapaxes(a, b))
            for wrong in ((0,) * x.ndim + (0,), (0, 0, 1), (9, 0, 1), (1 << 70, 0, 1), ((0, 1), 2)):
                with pytest.raises((ValueError, TypeError, OverflowError)):
                    x.transpose(*wrong)
            for wrong in ((9, 0), (0, -9), (1 << 70, 0), (0,)):
                with pytest.raises((ValueError, TypeError, OverflowError)):
                    x.swapaxes(*wrong)


def test_gradients_of_views() -> None:
    x = jg.asarray(BOX)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x[1].reshape(4, 3).T[1:, ::2].ravel()[3] * x[0, 1, None, 2] * x.transpose()[-1, -1, -1]
        y = y * x[..., 1][0, 0]
    expected = np.zeros_like(BOX)
    a, b, c, d = (BOX[at] for at in ((1, 2, 3), (0, 1, 2), (1, 2, 3), (0, 0, 1)))
    place = np.unravel_index(int(BOX[1].reshape(4, 3).T[1:, ::2].ravel()[3] - 12), (3, 4))
    a = BOX[1][place]
    expected[(1, *place)] += b * c * d
    expected[0, 1, 2] += a * c * d
    expected[1, 2, 3] += a * b * d
    expected[0, 0, 1] += a * b * c
    np.testing.assert_allclose(tape.gradient(y, x)[()], expected)


def test_a_view_shares_memory_and_its_array_is_made_when_asked_for() -> None:
    x = jg.asarray(BOX)
    for view in (x[1], x[:, 1:], x.reshape(6, 4), x.T, x.ravel(), x[1][2:], x.T[None]):
        assert np.shares_memory(view, x) and np.shares_memory(view._plain, x._plain)
        assert view._plain is view._plain and type(view._plain) is np.ndarray and not view._plain.flags.writeable
        assert view.key == (view.dtype, view.shape)
        np.testing.assert_array_equal(view * 2.0, np.asarray(view) * 2.0)


def test_a_number_keeps_no_array_alive() -> None:
    for dtype in (np.float64, np.float32):
        array = np.arange(1000.0, dtype=dtype)
        x = jg.asarray(array)
        number, pair = x[7], x.reshape(10, 100)[2, 3]
        gone = weakref.ref(x._plain)
        del x
        assert gone() is None and number == 7.0 and float(pair) == 203.0
        assert (number * 2.0).numpy() == 14.0 and number.numpy() == 7.0 and np.asarray(number).shape == ()


def test_a_view_keeps_the_array_alive_and_no_more() -> None:
    x = jg.asarray(np.arange(1000.0))
    y = x.reshape(10, 100)[2][:50].T
    gone = weakref.ref(x._plain)
    del x
    assert gone() is not None and y[3] == 203.0
    del y
    assert gone() is None


def test_tensors_that_numpy_makes_by_itself() -> None:
    """They may lie in memory that changes: views of them are taken from a copy."""
    array = np.arange(6.0)
    x = array.view(jg.EagerTensor)
    view = x[1:3]
    array[:] = 0.0
    assert view.tolist() == [1.0, 2.0]
    assert np.asarray(x.reshape(2, 3)).shape == (2, 3)


def test_a_tape_that_forgets() -> None:
    x, other = jg.asarray(BOX), jg.asarray(BOX)
    with jg.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = x[0]
        tape.reset()
        for value in (x, y):
            value[1], value * 2.0, value.reshape(-1)
        assert not tape.entries and not tape.watched
        tape.watch(other)
        x[0], other[0]
        assert len(tape.entries) == 1
    with jg.GradientTape() as second:
        other[0], y[0]
        assert not second.entries
        second.watch(y)
        z = y[0]
        z * 2.0, other[0]
        assert len(second.entries) == 2


def test_references_are_given_back() -> None:
    x = jg.asarray(BOX)

    def use() -> None:
        with jg.GradientTape() as tape:
            tape.watch(x)
            for y in (x[0], x[0, 1, 2], x[:, 1], x.T, x.ravel(), x.reshape(-1, 2), x[0, 0, 0] * 2.0):
                y[...], y * 1.0
            for bad in (lambda: x[9], lambda: x.reshape(5, 5), lambda: x[0, 0, 0, 0]):
                with pytest.raises((IndexError, ValueError)):
                    bad()

    use()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        use()
    gc.collect()
    assert len(gc.get_objects()) - before < 40  # it may be less: tests before this one leave some
