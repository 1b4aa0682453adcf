"""What np.nonzero gives of a traced mask: positions that nobody knows, good for an index, in which they stand for the
mask; nothing is computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.constant_values import constant_value
from jitgrad.errors import JitgradError
from jitgrad.graph import Tensor
from jitgrad.operators import function
from jitgrad.ops.common import as_tensor, build
from jitgrad.refusals import traced_value_error

_HINT = (
    "x[np.nonzero(mask)] is x[mask], read and assigned to; np.count_nonzero(mask) is their number, np.argmax(mask) the "
    "first; for all else keep the places: np.where(mask, x, other)"
)


class ChosenPositions:
    """Positions along one axis of a traced mask, where it holds."""

    __slots__ = ("axis", "mask", "name")

    def __init__(self, mask: Tensor, axis: int, name: str) -> None:
        self.mask, self.axis, self.name = mask, axis, name

    def refusal(self) -> JitgradError:
        """The error for any use but in an index."""
        what = f"this use of {self.name}, whose length depends on values,"
        return traced_value_error(self.mask, what, _HINT)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise self.refusal()

    __hash__ = object.__hash__
    __eq__ = __ne__ = _refuse
    as_graph_element = __array__ = __array_ufunc__ = __array_function__ = _refuse
    __len__ = __iter__ = __getitem__ = __index__ = __bool__ = __int__ = __float__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __mod__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(f"positions by np.{self.name} have no attribute {name!r}")
        raise self.refusal()

    def __repr__(self) -> str:
        return f"<{self.name} of {self.mask.spec}>"


def with_masks(index: Any) -> Any:
    """The index with a mask for all positions of one that stand together, axis by axis; itself where there are none."""
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, ChosenPositions) for item in items):
        return index
    found: list[Any] = []
    pending = list(items)
    while pending:
        item = pending[0]
        if not isinstance(item, ChosenPositions):
            found.append(pending.pop(0))
            continue
        rank = item.mask.ndim
        run, pending = pending[:rank], pending[rank:]
        axes = [x.axis for x in run if isinstance(x, ChosenPositions) and x.mask is item.mask]
        if axes != list(range(rank)):
            raise item.refusal()
        found.append(item.mask)
    return tuple(found)


@function("nonzero")
def nonzero(a: Any) -> Any:
    """As numpy.nonzero where constants decide the values; of other traced arrays with axes, to be used as an index."""
    x = as_tensor(a)
    known = constant_value(x)
    return _positions("np.nonzero", x) if known is None else np.nonzero(known)


@function("flatnonzero")
def flatnonzero(a: Any) -> Any:
    """As numpy.flatnonzero where constants decide the values; of other traced arrays, to be used as an index."""
    x = build("ravel", a)
    known = constant_value(x)
    return _positions("np.flatnonzero", x)[0] if known is None else np.flatnonzero(known)


def _positions(name: str, x: Tensor) -> tuple[ChosenPositions, ...]:
    if not x.ndim:
        raise ValueError(f"{name} of an array without axes: x[None] adds one")
    mask = build("identity_tensor", build("astype", x, bool))  # which no assignment of the user's changes
    return tuple([ChosenPositions(mask, axis, name) for axis in range(x.ndim)])
