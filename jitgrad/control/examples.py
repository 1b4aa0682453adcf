"""Examples of shapes: what a function makes of tensors whose shapes are partly known, told by what it makes of some
shapes that they may have; it knows no graphs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jitgrad.errors import GradientError, ShapeError, layout
from jitgrad.opdef import Specs
from jitgrad.records import dataclass
from jitgrad.sources import place
from jitgrad.spec import Shape, TensorSpec, is_compatible

# Extents that are tried for unknown ones: two with many divisors, and small ones, at which ``x[:5]`` tells itself from
# five elements.
_EXTENTS = (12, 60, 2, 1, 0)
_EXTENTS_OF_RANKS = (12, 1)  # where several ranks are tried with them
_OTHER = 24  # tried for one of them alone, where the others have that of an example that works
_FURTHER = (3, 4, 5, 7, 840, 10_080)  # where none of these fits
_EACH = (12, 1, 2, 3, 4, 5, 60)  # where inputs must differ
_RANKS = (2, 1, 3, 4, 0)
_LARGEST = 10**7  # elements of a tensor in an example
_MOST_OPEN = 3  # inputs of which each may get a rank and extents of its own


@dataclass(frozen=True)
class Found:
    """What a function makes of inputs of the specs ``example``: outputs of these specs, and ``key``, all else that its
    results consist of. ``is_dynamic``: the shapes of the outputs depend on values.
    """

    example: Specs
    outputs: Specs
    key: Any
    is_dynamic: bool


def explored(
    name: str,
    tried: Callable[[Specs], Found],
    specs: Specs,
    inputs: Sequence[Any],
    shapes: Sequence[tuple[int, ...]] = (),
    is_enough: bool = False,
) -> Found:
    """One example that works, with what all of them have in common as ``outputs``; the first one ``is_enough`` where
    outputs do not matter. ``shapes`` are those of arrays beside the inputs.

    ShapeError where no example works, and where the results are another number of them for other shapes.
    """
    found: dict[Specs, Found] = {}
    refused: list[Exception] = []

    def works(example: Specs) -> bool:
        if example not in found and all(spec.size <= _LARGEST for spec in example):
            try:
                found[example] = tried(example)
            except GradientError:
                raise
            except Exception as error:
                refused.append(error)
        return example in found

    for group in _groups(specs, shapes):
        for example in group:
            if works(example) and is_enough:
                return found[example]
        if found:
            break
    if not found:
        raise _refusal(name, refused[0], inputs)
    first = next(iter(found.values()))
    for example in _varied(specs, next(iter(found))):
        works(example)
    if any(other.key != first.key for other in found.values()):
        raise ShapeError(
            layout(f"{name}: how many results it has depends on shapes that are not known", needed=place(),
                   inputs=_listed(inputs), hint="give the placeholder a shape, as far as it is known")
        )  # fmt: skip
    outputs = _common([other.outputs for other in found.values()], is_told=len(found) > 1)
    return Found(first.example, outputs, first.key, any(other.is_dynamic for other in found.values()))


def _refusal(name: str, refused: Exception, inputs: Sequence[Any]) -> Exception:
    if not isinstance(refused, ShapeError | ValueError | IndexError):
        return refused
    reason = str(refused).partition("\n")[0]
    return ShapeError(
        layout(f"{name}: no shape was found that it takes: {reason}", needed=place(), inputs=_listed(inputs),
               hint="give the placeholder a shape, as far as it is known")
    )  # fmt: skip


def _listed(inputs: Sequence[Any]) -> str:
    return ", ".join(f"{x.op.name}: {x.spec}" for x in inputs)


def _groups(specs: Specs, shapes: Sequence[tuple[int, ...]]) -> Iterator[Iterator[Specs]]:
    """Examples in groups: where a group has one that works, the next ones are not needed."""
    known = [n for spec in specs for n in spec.shape or () if n is not None]
    known = sorted({n for n in (*known, *itertools.chain(*shapes)) if n > 1} - {*_EXTENTS})
    is_rankless = any(spec.shape is None for spec in specs)
    ranks, extents = (_RANKS, _EXTENTS_OF_RANKS) if is_rankless else (_RANKS[:1], _EXTENTS)
    yield (_filled(specs, (rank,), (n,)) for rank in ranks for n in (*extents, *known))
    yield (_filled(specs, (rank,), (n,)) for rank in ranks for n in (*_EXTENTS, *_FURTHER))
    yield from (_after(specs, shape) for shape in shapes)
    if sum(not spec.is_known for spec in specs) <= _MOST_OPEN:
        yield (_filled(specs, each, (n,)) for each in _choices(specs, ranks) for n in (*_EACH[:3], *known))
        yield (_filled(specs, ranks[:1], each) for each in _choices(specs, (*_EACH, *known)))


def _choices(specs: Specs, values: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """A value for each spec, in every combination for those that are not known."""
    return itertools.product(*[values[:1] if spec.is_known else values for spec in specs])


def _filled(specs: Specs, ranks: Sequence[int], extents: Sequence[int]) -> Specs:
    """The specs with these ranks and extents where they are not known; one stands for all."""
    filled = []
    for spec, rank, n in zip(specs, itertools.cycle(ranks), itertools.cycle(extents), strict=False):
        shape: Shape = (None,) * rank if spec.shape is None else spec.shape
        filled.append(TensorSpec(tuple([n if m is None else m for m in shape]), spec.dtype))
    return tuple(filled)


def _after(specs: Specs, shape: tuple[int, ...]) -> Iterator[Specs]:
    """Examples that begin with the shape of an array beside the inputs."""
    for extra in range(3):
        whole = (*shape, *(12,) * extra)
        if all(spec.shape is None or is_compatible(spec.shape, whole) for spec in specs if not spec.is_known):
            yield tuple([spec if spec.is_known else TensorSpec(whole, spec.dtype) for spec in specs])


def _varied(specs: Specs, example: Specs) -> Iterator[Specs]:
    """The example with other extents in one input, or in one axis of one input, or with another rank of one."""
    for k, (spec, one) in enumerate(zip(specs, example, strict=True)):
        extents = one.known_shape
        open_axes = [a for a in range(len(extents)) if spec.shape is None or spec.shape[a] is None]
        shapes = [
            tuple([_OTHER if a in axes else n for a, n in enumerate(extents)])
            for axes in dict.fromkeys((tuple(open_axes), *((a,) for a in open_axes)))
        ]
        if spec.shape is None:
            shapes += [extents[1:], extents[:-1], (*extents, _OTHER), (_OTHER, *extents)]
        yield from ((*example[:k], TensorSpec(shape, one.dtype), *example[k + 1 :]) for shape in shapes)


def _common(outputs: Sequence[Specs], is_told: bool) -> Specs:
    """What all examples agree about; of a single one nothing but ranks is believed."""
    agreed = []
    for column in zip(*outputs, strict=True):
        shape = functools.reduce(_agreement, [spec.shape for spec in column])
        agreed.append(TensorSpec(shape if is_told or shape is None else (None,) * len(shape), column[0].dtype))
    return tuple(agreed)


def _agreement(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple([m if m == n else None for m, n in zip(a, b, strict=True)])
