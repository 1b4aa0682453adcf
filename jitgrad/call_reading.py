"""Calls of a function, read: their arrays, what their traces are found by and made from, how they were written, and
what one has that another had not. It traces and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.errors import layout
from jitgrad.graph import Tensor
from jitgrad.keys import frozen
from jitgrad.records import NamedTuple
from jitgrad.seen import Fixed, Seen
from jitgrad.sources import function_name, source_text, user_source
from jitgrad.spec import TensorSpec
from jitgrad.statics import Arguments, Options, Statics
from jitgrad.trace import LeafKey, Static, as_name, leaf_names, read_leaf


class Call(NamedTuple):
    """A call: its place in the cache of traces, its arrays, and what tracing it needs."""

    key: tuple[Any, ...]
    arrays: list[Any]
    structure: Any
    leaves: tuple[LeafKey, ...]
    statics: Statics


class CallReader:
    """Reads the calls of one function."""

    def __init__(self, fn: Callable[..., Any], options: Options, is_transform: bool) -> None:
        self.arguments = Arguments(fn, options, is_transform)
        self._name = function_name(fn)
        self._keeps_numbers = options.keeps_numbers

    def read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call with these arguments; None when a traced value is among them."""
        statics: Statics = {}
        if self.arguments.any_static:
            args, kwargs = self.arguments.bind(args, kwargs)
            statics = self.arguments.statics(self._name, args, kwargs)
            args, kwargs = self.arguments.without_statics(args, kwargs)
        leaves, structure = pytree.flatten((args, kwargs))
        keys: list[LeafKey] = []
        arrays: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                return None
            try:
                key, array = read_leaf(leaf, self._keeps_numbers)
            except TypeError as error:
                raise self._refusal(error, args, kwargs, len(keys)) from None
            keys.append(key)
            if array is not None:
                arrays.append(array)
        signature = tuple(keys)
        values = tuple([(where, frozen(value)) for where, value in statics.items()])
        orders = pytree.call_orders(args, kwargs, self.arguments.collects_names)
        return Call((structure, signature, orders, values), arrays, structure, signature, statics)

    def _refusal(self, error: TypeError, args: Any, kwargs: Any, number: int) -> TypeError:
        """The error of an argument that cannot be traced, with its name and the user's line."""
        name = leaf_names(self.arguments.parameters, args, kwargs)[number]
        what, *hints = str(error).split("\n")
        text = layout(f"argument {name} of {self._name}: {what}", needed=f"at {source_text(user_source())}")
        return type(error)("\n".join([text, *hints]))

    def leaf_names(self, call: Call) -> list[str]:
        """Per leaf of a call the expression that names it."""
        return leaf_names(self.arguments.parameters, *_numbered(call))

    def names(self, call: Call) -> list[str]:
        """The same as names of operations."""
        return [as_name(name) for name in self.leaf_names(call)]

    def written(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen:
        """A call as it was written, with numbers for its leaves and its static arguments as they are."""
        positional, named = _numbered(call)
        if not self.arguments.any_static:
            return Seen(positional, named, call.leaves)
        places = self.arguments.places(len(args), tuple(kwargs))

        def written(where: int | str, value: Any) -> Any:
            place = places[where]
            if self.arguments.is_static(place):
                return Fixed(value)
            return positional[place] if isinstance(place, int) else named[place]

        return Seen(
            tuple([written(i, x) for i, x in enumerate(args)]),
            {name: written(name, x) for name, x in kwargs.items()},
            call.leaves,
        )

    def difference(self, old: Call, new: Call) -> str:
        """What a call has that another had not, at most three things; empty where both have one trace."""
        if old.structure != new.structure:
            return "the structure of the arguments changed"
        if old.key[2] != new.key[2]:
            return "the order of keys, or of names, changed"
        texts = zip(map(_key_text, old.leaves), map(_key_text, new.leaves), strict=True)
        changes = [
            f"argument {name} changed from {a} to {b}"
            for name, (a, b) in zip(self.leaf_names(new), texts, strict=True)
            if a != b
        ]
        changes += [
            f"static argument {self.arguments.argument_name(where)} changed from {old.statics[where]!r} to {value!r}"
            for where, value in new.statics.items()
            if where in old.statics and frozen(old.statics[where]) != frozen(value)
        ]
        return ", ".join(changes[:3])


def restoring(statics: Statics) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Puts static arguments back into a call's arguments."""

    def rebuild(args: Any, kwargs: Any) -> tuple[Any, Any]:
        args = tuple(statics.get(i, x) for i, x in enumerate(args))
        return args, kwargs | {name: value for name, value in statics.items() if isinstance(name, str)}

    return rebuild


def key_of_arrays(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Dtypes and shapes of arguments that are plain arrays in order, as traced calls take them; None for others."""
    key: list[Any] = []
    for array in args:
        if type(array) is not np.ndarray or not array.flags.c_contiguous:
            return None
        key += (array.dtype, array.shape)
    return tuple(key)


def _numbered(call: Call) -> Any:
    """The trees of a call's arguments, with the number of each leaf in its place."""
    return pytree.unflatten(call.structure, range(len(call.leaves)))


def _key_text(key: LeafKey) -> str:
    if isinstance(key, Static):
        return repr(key.value)
    return key.__name__ if isinstance(key, type) else str(TensorSpec(key[1], key[0]))
