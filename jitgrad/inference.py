"""Inference: the specs of an op's outputs, as far as those of its inputs are known; it knows no graph."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from jitgrad.errors import ShapeError
from jitgrad.opdef import PURE_KINDS, OpDef, Specs
from jitgrad.spec import Shape, TensorSpec

# Unknown extents are replaced by each of two large extents that have all small divisors, so that sizes divide as they
# may when the program runs, and by 0, where that is possible: output extents that differ between the inferences
# depend on the unknown ones (``x[:5]`` of an unknown extent is not 5), the others do not.
_probes = (12_252_240, 24_504_480)
_MAX_RANKLESS = 3  # inputs for which all combinations of ranks are tried


def infer_specs(opdef: OpDef, specs: Specs, params: Mapping[str, Any]) -> Specs:
    """Output specs of an op, as far as the input specs tell."""
    if opdef.infers_partial or all(map(_is_known, specs)):
        return _asked_once(opdef, specs, params) if type(opdef.kind) in PURE_KINDS else opdef.infer(specs, params)
    try:
        found = [_probe(opdef, specs, params, extent) for extent in _probes]
    except ShapeError as refused:
        return _with_known_extents(opdef, specs, params, refused)
    with contextlib.suppress(ShapeError):
        found.append(_probe(opdef, specs, params, 0))
    return tuple(
        TensorSpec(functools.reduce(_agreement, [spec.shape for spec in outs]), outs[0].dtype)
        for outs in zip(*found, strict=True)
    )


def _with_known_extents(opdef: OpDef, specs: Specs, params: Mapping[str, Any], refused: ShapeError) -> Specs:
    """Output specs of an op whose unknown extents must equal known ones; what equals them stays unknown."""
    known = {n for spec in specs for n in spec.shape or () if n is not None and n > 1}
    for extent in sorted(known):
        with contextlib.suppress(ShapeError):
            outs = _probe(opdef, specs, params, extent)
            return tuple(
                TensorSpec(spec.shape and tuple(None if n == extent else n for n in spec.shape), spec.dtype)
                for spec in outs
            )
    text = str(refused)
    for extent in _probes:
        text = text.replace(str(extent), "?")
    raise ShapeError(text)


def _asked_once(opdef: OpDef, specs: Specs, params: Mapping[str, Any]) -> Specs:
    given = tuple(params.items())
    if not any(isinstance(value, FunctionType) for _, value in given):  # what it closes over is not to be kept
        with contextlib.suppress(TypeError):  # of params that cannot be hashed
            return _known_answer(opdef, specs, given)
    return opdef.infer(specs, params)


@functools.lru_cache(maxsize=4096)
def _known_answer(opdef: OpDef, specs: Specs, params: tuple[tuple[str, Any], ...]) -> Specs:
    return opdef.infer(specs, dict(params))


_is_known = operator.attrgetter("is_known")


def _probe(opdef: OpDef, specs: Specs, params: Mapping[str, Any], extent: int) -> Specs:
    error: ShapeError | None = None
    count = sum(spec.shape is None for spec in specs)
    if not count:
        return opdef.infer(tuple(_fill(spec, extent, 0) for spec in specs), params)
    for ranks in _ranks(count):
        each = iter(ranks)
        filled = tuple(_fill(spec, extent, next(each) if spec.shape is None else 0) for spec in specs)
        try:
            return tuple(TensorSpec(None, spec.dtype) for spec in opdef.infer(filled, params))
        except ShapeError as refused:
            error = error or refused
    assert error is not None
    raise error


def _ranks(count: int) -> Iterator[tuple[int, ...]]:
    """Ranks that ``count`` inputs may have: all the same, then all sorts."""
    yield from ((rank,) * count for rank in range(5))
    if 1 < count <= _MAX_RANKLESS:
        yield from itertools.product(range(5), repeat=count)


def _fill(spec: TensorSpec, extent: int, rank: int) -> TensorSpec:
    shape = (extent,) * rank if spec.shape is None else tuple(extent if n is None else n for n in spec.shape)
    return TensorSpec(shape, spec.dtype)


def _agreement(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(m if m == n else None for m, n in zip(a, b, strict=True))
