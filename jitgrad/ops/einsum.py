"""einsum as matrix products of two operands at a time; it defines no op of its own."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import ShapeError
from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, as_tensors, build, common_dtype, refuse_options, told_shape
from jitgrad.ops.contraction import contract

Term = tuple[Tensor, str]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@function("einsum")
def einsum(
    *operands: Any, out: Any = None, dtype: Any = None, optimize: Any = True, **options: Any
) -> Tensor:
    """As numpy.einsum, in both of its forms, with ellipses, repeated labels and implicit output.

    The order is that of numpy.einsum_path; each pair becomes one matrix product, or a product where nothing
    is summed. ShapeError for labels with different extents.
    """
    refuse_options("einsum", out=out)
    subscripts, values = _arguments(operands)
    wanted = common_dtype(*values) if dtype is None else np.dtype(dtype)
    tensors = [as_tensor(x, wanted) for x in as_tensors(*values)]
    inputs, output = _parsed(subscripts, tensors)
    terms = [_simple(x, labels) for x, labels in zip(tensors, inputs, strict=True)]
    _check_extents(terms)
    for pair in _path(terms, output):
        chosen = [terms.pop(k) for k in sorted(pair, reverse=True)][::-1]
        rest = output + "".join(labels for _, labels in terms)
        while len(chosen) > 1:
            later = rest + "".join(labels for _, labels in chosen[2:])
            chosen[:2] = [_pair(*_in_order(chosen[0], chosen[1], output), later)]
        terms.append(_summed(chosen[0], rest))
    return _arranged(terms[0], output)


# -- subscripts ----------------------------------------------------------------------------------------------


def _arguments(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Subscripts as a string, and the operands; from either form of the call."""
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(operands[1:])
    terms = [_letters(sublist) for sublist in operands[1::2]]
    values = list(operands[0 : 2 * len(terms) : 2])
    output = "->" + _letters(operands[-1]) if len(operands) % 2 else ""
    return ",".join(terms) + output, values


def _letters(sublist: Sequence[Any]) -> str:
    return "".join("..." if k is Ellipsis else _LETTERS[k] for k in sublist)


def _parsed(subscripts: str, tensors: Sequence[Tensor]) -> tuple[list[str], str]:
    """Labels of each operand and of the output, ellipses replaced by labels that are not in use."""
    left, arrow, output = subscripts.partition("->")
    if not re.fullmatch(r"(?:[A-Za-z,]|\.{3})*", left + output):
        raise ValueError(f"einsum subscripts {subscripts!r} are not made of letters")
    inputs = left.split(",")
    if len(inputs) != len(tensors):
        raise ValueError(f"einsum subscripts {subscripts!r} name {len(inputs)} operands, got {len(tensors)}")
    ranks = [x.ndim - len(labels.replace("...", "")) for x, labels in zip(tensors, inputs, strict=True)]
    free = [c for c in _LETTERS if c not in subscripts]
    hidden = max((rank for rank, labels in zip(ranks, inputs, strict=True) if "..." in labels), default=0)
    dots = "".join(free[:hidden])
    for x, labels, rank in zip(tensors, inputs, ranks, strict=True):
        if rank < 0 or (rank > 0 and "..." not in labels):
            raise ShapeError(f"einsum subscripts {labels!r} do not fit an operand of {x.ndim} dimensions")
    named = [labels.replace("...", dots[hidden - rank :]) for labels, rank in zip(inputs, ranks, strict=True)]
    if not arrow:
        counts = Counter("".join(inputs).replace(".", ""))
        return named, dots + "".join(sorted(c for c, n in counts.items() if n == 1))
    result = output.replace("...", dots)
    if any(n > 1 for n in Counter(result).values()) or not set(result) <= set("".join(named)):
        raise ValueError(f"einsum output {output!r} must name labels of the inputs, each once")
    return named, result


def _check_extents(terms: Sequence[Term]) -> None:
    extents: dict[str, int] = {}
    for x, labels in terms:
        for c, n in zip(labels, x.spec.known_shape, strict=True):
            if extents.setdefault(c, n) not in (1, n) and n != 1:
                raise ShapeError(f"einsum label {c!r} has extents {extents[c]} and {n}")
            extents[c] = n if extents[c] == 1 else extents[c]


def _path(terms: Sequence[Term], output: str) -> list[tuple[int, ...]]:
    """Which operands are contracted in each step; results go to the end of the list."""
    if len(terms) < 3:
        return [tuple(range(len(terms)))]
    subscripts = ",".join(labels for _, labels in terms) + "->" + output
    arrays = [np.broadcast_to(np.empty(()), told_shape(x)) for x, _ in terms]
    return list(np.einsum_path(subscripts, *arrays, optimize="greedy")[0][1:])


# -- terms ---------------------------------------------------------------------------------------------------


def _simple(x: Tensor, labels: str) -> Term:
    """Repeated labels replaced by diagonals."""
    for c in dict.fromkeys(labels):
        while labels.count(c) > 1:
            first = labels.index(c)
            second = labels.index(c, first + 1)
            x = build("diagonal", x, 0, first, second)
            labels = labels[:first] + labels[first + 1 : second] + labels[second + 1 :] + c
    return x, labels


def _summed(term: Term, kept: str) -> Term:
    """Summed over the labels that nothing needs any more."""
    x, labels = term
    gone = tuple(k for k, c in enumerate(labels) if c not in kept)
    if not gone:
        return term
    return build("sum", x, axis=gone, dtype=x.dtype), "".join(c for c in labels if c in kept)


def _in_order(left: Term, right: Term, output: str) -> tuple[Term, Term]:
    """The two terms, the one that the output's last label comes from behind: a product's last axis is the second's.

    What reads the result in the output's order then reads neighbours.
    """
    is_last = output[-1:] in set(left[1]) - set(right[1])
    return (right, left) if is_last else (left, right)


def _pair(left: Term, right: Term, later: str) -> Term:
    """The product of two terms, summed over the labels that only they have."""
    x, a = _summed(_narrowed(left, right), later + right[1])
    y, b = _summed(_narrowed(right, left), later + a)
    shared = [c for c in a if c in b]
    batch, summed = [c for c in shared if c in later], [c for c in shared if c not in later]
    free_a, free_b = [c for c in a if c not in b], [c for c in b if c not in a]
    labels = "".join((*batch, *free_a, *free_b))
    if not summed or not (free_a or free_b) or x.dtype.kind == "b":
        together = "".join((*labels, *summed))
        return _product((x, a), (y, b), _as_they_lie(a, b, together) if summed else together, later)
    axes_x = ([a.index(c) for c in batch], [a.index(c) for c in free_a], [a.index(c) for c in summed])
    axes_y = ([b.index(c) for c in batch], [b.index(c) for c in free_b], [b.index(c) for c in summed])
    return contract(x, y, axes_x, axes_y), labels


def _narrowed(term: Term, other: Term) -> Term:
    """Axes of extent 1 dropped where the other term has the label with its full extent."""
    x, labels = term
    extents = dict(zip(other[1], other[0].spec.known_shape, strict=True))
    gone = tuple(k for k, c in enumerate(labels) if x.shape[k] == 1 and extents.get(c, 1) != 1)
    if not gone:
        return term
    return build("squeeze", x, gone), "".join(c for k, c in enumerate(labels) if k not in gone)


def _as_they_lie(a: str, b: str, labels: str) -> str:
    """The labels in the order of an operand that has all of them: a sum over its first axis reads rows, not columns."""
    return next((own for own in (a, b) if len(own) == len(labels)), labels)


def _product(left: Term, right: Term, labels: str, later: str) -> Term:
    x, y = (_aligned(term, labels) for term in (left, right))
    return _summed((build("multiply", x, y), labels), later)


def _aligned(term: Term, labels: str) -> Tensor:
    """The term's axes in the order of ``labels``, with extent 1 for those that it does not have."""
    x = _arranged(term, "".join(c for c in labels if c in term[1]))
    missing = tuple(k for k, c in enumerate(labels) if c not in term[1])
    return build("expand_dims", x, missing) if missing else x


def _arranged(term: Term, labels: str) -> Tensor:
    """The term's axes in the order of ``labels``."""
    x, have = term
    order = tuple(map(have.index, labels))
    return x if order == tuple(range(len(have))) else build("transpose", x, order)


@function("einsum_path")
def einsum_path(*operands: Any, optimize: Any = "greedy", **options: Any) -> Any:
    """As numpy.einsum_path, from the shapes of the operands."""
    subscripts, values = _arguments(operands)
    shapes = [x.spec.known_shape for x in as_tensors(*values)]
    return np.einsum_path(subscripts, *(np.broadcast_to(np.empty(()), s) for s in shapes), optimize=optimize)


__all__ = ["einsum", "einsum_path"]
