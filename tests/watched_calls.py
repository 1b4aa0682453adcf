"""A compiled function that counts the calls which reach Python, and equality to the bit; it tests nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jitgrad as jg
from jitgrad import pytree
from jitgrad.compiled import Compiled

X = np.arange(1.0, 5.0)


class Watched:
    """A compiled function that counts the calls that reach Python."""

    def __init__(self, fn: Callable[..., Any], **options: Any) -> None:
        self.f: Compiled = jg.compile(fn, **options)
        self.python = 0
        reader = self.f._calls._reader
        read = reader.read

        def counting(*args: Any) -> Any:
            self.python += 1
            return read(*args)

        reader.read = counting  # type: ignore[method-assign]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(*args, **kwargs)

    def taken(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that has come twice before, which machine code must take."""
        self(*args, **kwargs)
        self(*args, **kwargs)
        return self.third(*args, **kwargs)

    def third(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that machine code must take."""
        before = self.python
        result = self(*args, **kwargs)
        assert self.python == before, "Python took the call"
        return result

    def left(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that machine code must leave to Python."""
        before = self.python
        result = self(*args, **kwargs)
        assert self.python == before + 1, "machine code took the call"
        return result


def same(a: Any, b: Any) -> None:
    """Equal trees of equal values of equal types."""
    (a_leaves, a_tree), (b_leaves, b_tree) = pytree.flatten(a), pytree.flatten(b)
    assert a_tree == b_tree
    for x, y in zip(a_leaves, b_leaves, strict=True):
        assert type(x) is type(y)
        if isinstance(x, np.ndarray | np.generic):
            assert (x.dtype, x.shape) == (y.dtype, y.shape)
            assert x.tobytes() == y.tobytes()
        else:
            assert x == y


def total(*args: Any, **kwargs: Any) -> Any:
    """A sum of all numbers in the arguments, in a fixed order."""
    leaves = pytree.flatten((args, dict(sorted(kwargs.items()))))[0]
    return sum(2 * leaf for leaf in leaves if not isinstance(leaf, str))


def no_trace_is_left_open() -> None:
    """What each test ends with: no call left a mark for machine code."""
    from jitgrad import conditions

    assert conditions.words[conditions.OBSERVERS] == 0
    assert conditions.words[conditions.BLOCKS] == 0
