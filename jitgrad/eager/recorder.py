"""The record of a thread: which tapes are open, and what each keeps of an operation; it derives no rule itself.

A rule is found by what a call depends on: its function, the dtypes and shapes of its tensors, the values of its other
arguments. Calls of one or two operands look in a table of their function, which takes a third of a microsecond; others
in one table for all, by a key that takes their arguments apart without pytrees; the rest by structure and leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from jitgrad.eager.keys import leaf_key, quick_key
from jitgrad.eagerness import Watcher, local, number_of


class Rule(Protocol):
    """The gradient rule of a call, with what it needs to keep."""

    def places(self, leaves: int) -> Sequence[int]:
        """What the rule will need, as positions in (*leaves, *results)."""

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """One cotangent, or None, per leaf, for one or None per result."""


class OwnRules:
    """Base of functions that are made at run time: they keep the rules of their calls, which end with them."""

    __slots__ = ("rules",)

    def __init__(self) -> None:
        self.rules: dict[Any, Any] = {}


# A recorded call: its rule, the numbers of its arguments (None where nothing is to be passed) and of its results, and
# what is kept. A plain tuple, which is made in a fifth of the time of a named one.
Entry = tuple[Rule, tuple[int | None, ...], tuple[int | None, ...], tuple[Any, ...]]

# What is known of calls of a function, by the keys of its arguments: the rule (None where the result carries no
# gradient), what picks out of (*arguments, result) what is kept (None: nothing is), and the key of the result.
Picker = Callable[[Any], tuple[Any, ...]]
Known = tuple[Rule | None, Picker | None, Any]
Table = dict[Any, Known]
tables: dict[Any, Table] = defaultdict(dict)
MOST_RULES = 4096


def record_one(fn: Any, table: Table, x: Any, out: Any) -> None:
    """``record`` for a call of one tensor that gives one tensor."""
    number = x.number
    for tape in local.tapes:
        if number in tape.watched:
            rule, pick, out.key = table.get(x.key) or _learn(x.key, fn, table, (x,), out)
            if rule is not None:
                tape.entries.append((rule, (number,), (out.number,), pick((x, out)) if pick else ()))
                tape.watched.add(out.number)


def record_pair(fn: Any, table: Table, x: Any, y: Any, out: Any) -> None:
    """``record`` for a call of two arrays or numbers, one of them a tensor, that gives one tensor."""
    kind, other = type(x), type(y)
    if kind is other:
        a, b, key = x.number, y.number, (x.key, y.key)
    elif other is float:
        a, b, key = x.number, None, (x.key, float)
    elif kind is float:
        a, b, key = None, y.number, (float, y.key)
    else:
        a, b, key = number_of(x), number_of(y), (leaf_key(x), leaf_key(y))
    for tape in local.tapes:
        watched = tape.watched
        if a in watched or b in watched:
            rule, pick, out.key = table.get(key) or _learn(key, fn, table, (x, y), out)
            if rule is not None:
                kept = pick((x, y, out)) if pick else ()
                if kind is np.ndarray or other is np.ndarray:
                    kept = unchanging(kept)
                tape.entries.append((rule, (a, b), (out.number,), kept))
                watched.add(out.number)


def unchanging(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, plain arrays copied: their owner may change them before a gradient reads them."""
    return tuple([x.copy() if type(x) is np.ndarray and x.flags.writeable else x for x in values])


def _learn(key: Any, fn: Any, table: Table, args: tuple[Any, ...], out: Any) -> Known:
    from jitgrad.eager.calls import rule_of

    if len(table) >= MOST_RULES:
        table.clear()
    rule = rule_of(fn, args, {}, args, (out,)) if out.dtype.kind in "fc" else None
    pick = None if rule is None else _picker(rule.places(len(args)))
    found = table[key] = (rule, pick, out.key)
    return found


def _picker(places: Sequence[int]) -> Picker | None:
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places) if places else None


# -- any call ------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """How to enter a call whose arguments are leaves: the rule, and where the numbers of its leaves and what it keeps
    stand in (*arguments, *results); None for a leaf that is no argument itself.
    """

    rule: Rule
    numbers_at: tuple[int | None, ...]
    kept_at: tuple[int, ...]


_recipes: dict[Any, Recipe] = {}


def record(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outs: tuple[Any, ...]) -> None:
    """Tell the tapes of a call with these results, if one of them watches an argument."""
    from jitgrad.eager.calls import leaves_of, rule_of

    values = (*args, *kwargs.values())
    key = None if isinstance(fn, OwnRules) else quick_key(fn, args, kwargs)
    leaves = values if key is not None else leaves_of(args, kwargs)
    numbers = tuple(map(number_of, leaves))
    telling = [tape for tape in local.tapes if not tape.watched.isdisjoint(numbers)]
    if not telling:
        return
    if key is None:
        rule = rule_of(fn, args, kwargs, leaves, outs)
        both = (*leaves, *outs)
        keep(telling, rule, numbers, outs, unchanging([both[k] for k in rule.places(len(leaves))]))
        return
    recipe = _recipes.get(key) or _learn_recipe(key, fn, args, kwargs, outs)
    both = (*values, *outs)
    kept = unchanging([both[k] for k in recipe.kept_at])
    keep(telling, recipe.rule, tuple([None if k is None else numbers[k] for k in recipe.numbers_at]), outs, kept)


def _learn_recipe(key: Any, fn: Any, args: Any, kwargs: dict[str, Any], outs: tuple[Any, ...]) -> Recipe:
    from jitgrad.eager.calls import numbered_leaves, rule_of

    if len(_recipes) >= MOST_RULES:
        _recipes.clear()
    leaves, at = numbered_leaves(args, kwargs)
    rule = rule_of(fn, args, kwargs, leaves, outs)
    first_out = len(args) + len(kwargs)
    kept_at = [at[k] if k < len(leaves) else first_out + k - len(leaves) for k in rule.places(len(leaves))]
    found = _recipes[key] = Recipe(rule, tuple([at.get(k) for k in range(len(leaves))]), tuple(kept_at))
    return found


def keep(
    tapes: Sequence[Watcher], rule: Rule, numbers: tuple[int | None, ...], outs: Sequence[Any], kept: tuple[Any, ...]
) -> None:
    """Enter a call with its rule on tapes; results that can carry a gradient are watched from then on."""
    carrying = tuple([_carrier(x) for x in outs])
    found = [n for n in carrying if n is not None]
    if not found:
        return
    entry: Entry = (rule, numbers, carrying, kept)
    for tape in tapes:
        tape.entries.append(entry)
        tape.watched.update(found)


def _carrier(x: Any) -> int | None:
    number = number_of(x)
    return number if number is not None and x.dtype.kind in "fc" else None
