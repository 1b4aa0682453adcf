"""Results as arrays of their own: writable, C-contiguous, and sharing memory with nothing else; which can be handed out
as they are, and which are copied.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

import numpy as np

from jitgrad.interpreter import interpret
from jitgrad.program import Program


def interpret_fresh(program: Program, arrays: Sequence[Any]) -> list[Any]:
    """The outputs of a program, interpreted."""
    return separate(interpret(program, arrays), arrays)


def run_listed(run: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any]) -> list[Any]:
    """The same by one function, whose 0-d results may stay NumPy's scalars."""
    return separate(run(arrays), arrays, keeps_numbers=True)


def separate(
    results: list[Any], inputs: Iterable[Any], known: Container[int] = (), keeps_numbers: bool = False
) -> list[Any]:
    """The same list with such arrays, which share memory neither with one another nor with the inputs, nor with what
    else refers to them. ``known`` are the positions of those that are so by themselves; with ``keeps_numbers`` NumPy's
    numbers stay what they are.

    An array that only the list refers to is not copied; weak references to it are not seen. 100,000 complex numbers
    made by NumPy's Fourier transform took 3.7 ms with the copy and 2.2 without (Zen 4): what is freed and asked for
    again costs page faults.
    """
    if keeps_numbers and len(results) == 1 and (isinstance(results[0], np.generic) or _is_the_lists(results, 0)):
        return results
    taken = set(map(id, inputs))
    for position in range(len(results)):
        if keeps_numbers and isinstance(results[position], np.generic):
            continue
        if id(results[position]) in taken or not (position in known or _is_the_lists(results, position)):
            results[position] = np.array(results[position], order="C")
        taken.add(id(results[position]))
    return results


def _is_the_lists(results: Sequence[Any], position: int) -> bool:
    """Whether a result can be handed out as it is: nobody but the list refers to it, no view either."""
    return _is_whole(results[position]) and _references(results, position) == _OWN_REFERENCES


def _is_whole(array: Any) -> bool:
    if type(array) is not np.ndarray:
        return False
    flags = array.flags  # which refer to the array
    return bool(flags.owndata and flags.c_contiguous and flags.writeable)


def _references(results: Sequence[Any], position: int) -> int:
    return sys.getrefcount(results[position])


_OWN_REFERENCES = _references([np.empty(0)], 0)
"""Of an array that only a list refers to."""
