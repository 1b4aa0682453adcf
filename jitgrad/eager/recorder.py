"""The record of a thread: which tapes are open, and what each keeps of an operation; it derives no rule itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from jitgrad.eager.keys import leaf_key
from jitgrad.eagerness import Watcher, local


class Rule(Protocol):
    """The gradient rule of a call, with what it needs to keep."""

    def places(self, leaves: int) -> Sequence[int]:
        """What the rule will need, as positions in (*leaves, *results)."""

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Sequence[Any]:
        """One cotangent, or None, per leaf, for one or None per result."""


# A recorded call: its rule, the numbers of its arguments (None where nothing is to be passed) and of its results, and
# what is kept. A plain tuple, which is made in a fifth of the time of a named one.
Entry = tuple[Rule, tuple[int | None, ...], tuple[int | None, ...], tuple[Any, ...]]


# (function, keys of its arguments) → the rule, what it keeps of (*arguments, result), and the key of the result.
_flat_rules: dict[Any, tuple[Rule, Callable[[Any], tuple[Any, ...]], Any]] = {}
MOST_RULES = 4096


def record_one(fn: Any, x: Any, out: Any) -> None:
    """``record`` for a call of one tensor that gives one tensor."""
    number = x.number
    for tape in local.tapes:
        if number in tape.watched:
            key = (fn, x.key or leaf_key(x))
            rule, pick, out.key = _flat_rules.get(key) or _new_flat_rule(key, fn, (x,), out)
            if out.key[0].kind in "fc":
                tape.entries.append((rule, (number,), (out.number,), pick((x, out))))
                tape.watched.add(out.number)


def record_pair(fn: Any, x: Any, y: Any, out: Any) -> None:
    """``record`` for a call of two arrays or numbers, one of them a tensor, that gives one tensor."""
    a, b = getattr(x, "number", None), getattr(y, "number", None)
    for tape in local.tapes:
        watched = tape.watched
        if a in watched or b in watched:
            key = (fn, _key_of(x), _key_of(y))
            rule, pick, out.key = _flat_rules.get(key) or _new_flat_rule(key, fn, (x, y), out)
            if out.key[0].kind in "fc":
                kept = pick((x, y, out)) if type(x) is type(y) else unchanging(pick((x, y, out)))
                tape.entries.append((rule, (a, b), (out.number,), kept))
                watched.add(out.number)


def unchanging(values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, plain arrays copied: their owner may change them before a gradient reads them."""
    return tuple([x.copy() if type(x) is np.ndarray and x.flags.writeable else x for x in values])


def record_flat(fn: Any, args: tuple[Any, ...], out: Any) -> None:
    """``record`` for a call of arrays and numbers that gives one tensor."""
    if len(args) == 1 and hasattr(args[0], "number"):
        record_one(fn, args[0], out)
    elif len(args) == 2:
        record_pair(fn, *args, out)
    else:
        record(fn, args, {}, (out,))


def _key_of(x: Any) -> Any:
    key = getattr(x, "key", None)
    return leaf_key(x) if key is None else key


def _new_flat_rule(key: Any, fn: Any, args: tuple[Any, ...], out: Any) -> Any:
    from jitgrad.eager.calls import rule_of

    if len(_flat_rules) >= MOST_RULES:
        _flat_rules.clear()
    rule = rule_of(fn, args, {}, args, (out,))
    found = _flat_rules[key] = (rule, _picker(rule.places(len(args))), leaf_key(out))
    return found


def _picker(places: Sequence[int]) -> Callable[[Any], tuple[Any, ...]]:
    if not places:
        return lambda values: ()
    if len(places) == 1:
        (place,) = places
        return lambda values: (values[place],)
    return itemgetter(*places)


def record(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], outs: tuple[Any, ...]) -> None:
    """Tell the tapes of a call with these results, if one of them watches an argument."""
    from jitgrad.eager.calls import leaves_of, rule_of

    leaves = leaves_of(args, kwargs)
    numbers = tuple([getattr(x, "number", None) for x in leaves])
    telling = [tape for tape in local.tapes if not tape.watched.isdisjoint(numbers)]
    if telling:
        rule = rule_of(fn, args, kwargs, leaves, outs)
        values = (*leaves, *outs)
        keep(telling, rule, numbers, outs, unchanging([values[k] for k in rule.places(len(leaves))]))


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
    number: int | None = getattr(x, "number", None)
    return number if number is not None and x.dtype.kind in "fc" else None
