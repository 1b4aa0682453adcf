"""The record of a thread: which tapes are open, and what each keeps of an operation; it derives no rule itself.

A rule is found by what a call depends on: its function, the dtypes and shapes of its tensors, the values of its other
arguments. Calls of one or two operands look in a table of their function, which takes a third of a microsecond; others
in one table for all, by a key that takes their arguments apart without pytrees; the rest by structure and leaves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from jitgrad.compiler.eager_code.layout import ENTRY_HEAD, INPUTS_OF, MOST_RULES, OUT, OUTPUTS_OF, RULE, X, Y
from jitgrad.eager.keys import leaf_key, options_key, quick_key
from jitgrad.eager.linear import linear
from jitgrad.eagerness import Watcher, local, number_of
from jitgrad.records import NamedTuple


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


Entry = tuple[Any, ...]
"""A recorded call: (rule, number of inputs, number of outputs, *inputs, *outputs, *kept). Inputs and outputs are the
numbers of tensors, None where nothing is to be passed; kept is what the rule will read. One flat tuple, since every
object more costs a tape of ten thousand small calls its memory and the garbage collector its time.
"""


class Parts(NamedTuple):
    """An entry taken apart."""

    rule: Rule
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    kept: tuple[Any, ...]


def parts(entry: Entry) -> Parts:
    """What an entry is made of."""
    inputs_end = ENTRY_HEAD + entry[INPUTS_OF]
    outputs_end = inputs_end + entry[OUTPUTS_OF]
    return Parts(entry[RULE], entry[ENTRY_HEAD:inputs_end], entry[inputs_end:outputs_end], entry[outputs_end:])


def leading_to(entries: Sequence[Entry], numbers: Iterable[int]) -> tuple[list[Entry], set[int]]:
    """The entries that tensors of these numbers come of, from the last to the first, and the numbers of all that they
    come of.
    """
    reached, used = set(numbers), []
    for entry in entries[::-1]:
        _, inputs, outputs, _ = parts(entry)
        if any(n in reached for n in outputs):
            used.append(entry)
            reached.update(n for n in inputs if n is not None)
    return used, reached


# What is known of calls of a function of one operand by its key: the rule (None where the result carries no gradient),
# which of x (1), y (2) and the result (4) the rule reads, and the key of the result. Of two operands: by the key of
# the first, then by that of the second.
Known = tuple[Rule | None, int, Any]
Table = dict[Any, Any]
tables: dict[Any, Table] = defaultdict(dict)


def record_one(fn: Any, table: Table, x: Any, out: Any) -> None:
    """``record`` for a call of one tensor that gives one tensor."""
    number = x.number
    for tape in local.tapes:
        if number in tape.watched:
            rule, reads, out.key = table.get(x.key) or _learn(table, x.key, fn, (x,), out)
            if rule is not None:
                kept = (x, out)[not reads & X : 1 + bool(reads & OUT)]
                tape.entries.append((rule, 1, 1, number, out.number, *kept))
                tape.watched.add(out.number)


def record_pair(fn: Any, table: Table, x: Any, y: Any, out: Any) -> None:
    """``record`` for a call of two arrays or numbers, one of them a tensor, that gives one tensor."""
    a, b = number_of(x), number_of(y)
    for tape in local.tapes:
        watched = tape.watched
        if a in watched or b in watched:
            key, other = operand_key(x), operand_key(y)
            inner = table.get(key)
            if inner is None:
                inner = _room(table)[key] = {}
            rule, reads, out.key = inner.get(other) or _learn(inner, other, fn, (x, y), out)
            if rule is not None:
                kept = unchanging([v for bit, v in ((X, x), (Y, y), (OUT, out)) if reads & bit])
                tape.entries.append((rule, 2, 1, a, b, out.number, *kept))
                watched.add(out.number)


def operand_key(x: Any) -> Any:
    """What a rule depends on in an operand: as ``leaf_key``, but an integer stands for itself."""
    return x if type(x) is int else leaf_key(x)


def unchanging(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, plain arrays copied: their owner may change them before a gradient reads them."""
    return tuple([x.copy() if type(x) is np.ndarray and x.flags.writeable else x for x in values])


def _learn(table: Table, key: Any, fn: Any, args: tuple[Any, ...], out: Any) -> Known:
    from jitgrad.eager.calls import rule_of

    rule = rule_of(fn, args, {}, args, (out,), may_fix=False) if out.dtype.kind in "fc" else None
    places = () if rule is None else rule.places(len(args))
    bits = (X, OUT) if len(args) == 1 else (X, Y, OUT)
    assert list(places) == sorted(places)  # the order in which they are kept
    found = _room(table)[key] = (rule, sum(bits[k] for k in places), out.key)
    return found


def _room(table: Table) -> Table:
    """The table, emptied if it is full."""
    if len(table) >= MOST_RULES:
        table.clear()
    return table


# -- any call ------------------------------------------------------------------------------------------------


class Recipe(NamedTuple):
    """How to enter a call whose arguments are leaves: the rule, and where the numbers of its leaves and what it keeps
    stand in (*arguments, *results); None for a leaf that is no argument itself.
    """

    rule: Rule
    numbers_at: tuple[int | None, ...]
    kept_at: tuple[int, ...]


_recipes: dict[Any, Recipe] = {}
by_value: set[Any] = set()
"""Functions whose rules depend on the values of Python floats among their arguments: the order of a norm."""


def record(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outs: tuple[Any, ...]) -> None:
    """Tell the tapes of a call with these results, if one of them watches an argument."""
    from jitgrad.eager.calls import leaves_of, rule_of

    transposed = linear.get(fn)
    if transposed is not None and options_key(args, kwargs) is not None:
        _record_linear(transposed, args, kwargs, outs)
        return
    values = (*args, *kwargs.values())
    key = None if isinstance(fn, OwnRules) or fn in by_value else quick_key(fn, args, kwargs)
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


def _record_linear(rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], outs: Sequence[Any]) -> None:
    number = number_of(args[0])
    telling = [tape for tape in local.tapes if number in tape.watched]
    keep(telling, rule, (number,), outs, (args[1:], kwargs))


def _learn_recipe(key: Any, fn: Any, args: Any, kwargs: dict[str, Any], outs: tuple[Any, ...]) -> Recipe:
    from jitgrad.eager.calls import numbered_leaves, rule_of

    if len(_recipes) >= MOST_RULES:
        _recipes.clear()
    leaves, at = numbered_leaves(args, kwargs)
    rule = rule_of(fn, args, kwargs, leaves, outs)
    first_out = len(args) + len(kwargs)
    kept_at = [at[k] if k < len(leaves) else first_out + k - len(leaves) for k in rule.places(len(leaves))]
    found = Recipe(rule, tuple([at.get(k) for k in range(len(leaves))]), tuple(kept_at))
    if fn not in by_value:
        _recipes[key] = found
    return found


def keep(
    tapes: Sequence[Watcher], rule: Rule, numbers: tuple[int | None, ...], outs: Sequence[Any], kept: tuple[Any, ...]
) -> None:
    """Enter a call with its rule on tapes; results that can carry a gradient are watched from then on."""
    carrying = tuple([_carrier(x) for x in outs])
    found = [n for n in carrying if n is not None]
    if not found:
        return
    entry: Entry = (rule, len(numbers), len(carrying), *numbers, *carrying, *kept)
    for tape in tapes:
        tape.entries.append(entry)
        tape.watched.update(found)


def _carrier(x: Any) -> int | None:
    number = number_of(x)
    return number if number is not None and x.dtype.kind in "fc" else None
