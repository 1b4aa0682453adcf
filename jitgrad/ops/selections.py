"""Selections: ``x[mask]`` where the values of the mask are not known yet; what functions make of them is not told here.

How many elements the mask chooses is known when the function runs, so they have no array of their own: a selection is a
value over all places, and the mask beside it. What enters stands behind ``where(mask, x, 1)``, numbers and arrays that
broadcast too, and what leaves behind another ``where``. Between the two each place is computed by itself. So nothing of
a place that is not chosen reaches a result, and no NaN of it a gradient, at any order: every way out of such a place
ends at one of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from jitgrad.dispatch import NumpyProtocols
from jitgrad.errors import JitgradError, LeakedTracerError, ShapeError, TracedValueError, layout
from jitgrad.graph import Tensor, graph_of
from jitgrad.keys import frozen
from jitgrad.operators import Selected, call, function, is_operand
from jitgrad.ops.common import PYTHON_SCALARS, as_tensor, build
from jitgrad.ops.indexing import MASK_HINT, axes_behind, masked_view
from jitgrad.refusals import unsupported_method
from jitgrad.sources import closed_message, operation_text, place
from jitgrad.spec import DType

_COUNT = "np.sum(mask) and x[mask].size are the number, as a traced integer"
_ONE_MASK = "index all that meet with one mask, or keep the places: np.where(mask, x, 0)"


def _refused(what: str, hint: str = MASK_HINT) -> Callable[..., Any]:
    """A method that would need to know how many elements are chosen."""

    def refuse(self: Selection, *args: Any, **kwargs: Any) -> Any:
        raise self.refusal(f"{what} of x[mask]", hint)

    return refuse


def _method(name: str) -> Callable[..., Any]:
    def method(self: Selection, *args: Any, **kwargs: Any) -> Any:
        return call("function_of_selections", name, (self, *args), kwargs)

    method.__name__ = name
    return method


class Selection(NDArrayOperatorsMixin, Selected):
    """The elements of ``places`` where ``mask`` holds, in order, along ``axis``.

    ``places`` has the mask's axes where the selection has the one that they become. ``y = x[mask]; y += 1`` gives the
    selection new places, which another object does not see: so one ``is_shared`` where NumPy has views of it, or it is
    one, and is not changed.
    """

    __slots__ = ("__weakref__", "axis", "is_shared", "mask", "places")
    __hash__ = object.__hash__

    def __init__(self, places: Tensor, mask: Tensor, axis: int) -> None:
        self.places = places
        self.mask = mask
        self.axis = axis
        self.is_shared = False

    # -- what it is like -------------------------------------------------------------------------------------------

    @property
    def after(self) -> int:
        """How many axes stand behind that of the chosen elements."""
        return self.places.ndim - self.axis - self.mask.ndim

    @property
    def block(self) -> tuple[int, ...]:
        """The mask's axes among those of the places."""
        return tuple(range(self.axis, self.axis + self.mask.ndim))

    @property
    def ndim(self) -> int:
        """Number of axes: those of the mask count as one."""
        return self.axis + 1 + self.after

    @property
    def dtype(self) -> DType:
        """NumPy dtype."""
        return self.places.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Tuple of extents; that of the chosen elements is a traced integer."""
        extents = self.places.shape
        return (*extents[: self.axis], self.count(), *extents[self.axis + self.mask.ndim :])

    @property
    def size(self) -> Any:
        """Number of elements, a traced integer."""
        others = [n for k, n in enumerate(self.places.shape) if k not in self.block]
        if None in others:
            hint = "give the shape of the array; np.count_nonzero(mask) counts the rows that are chosen"
            raise ShapeError(layout("the size of x[mask] needs an extent that is not known", needed=place(), hint=hint))
        return self.count() * math.prod(others)

    def count(self) -> Tensor:
        """How many elements are chosen: a traced integer, which gives way to dtypes as one of Python's does."""
        number = build("sum", self.mask)
        number.is_weak = True
        return number

    # -- in and out ------------------------------------------------------------------------------------------------

    @property
    def wide_mask(self) -> Tensor:
        """The mask with an axis of extent 1 for each that stands behind."""
        return axes_behind(self.mask, self.after)

    def filled(self, value: Any) -> Tensor:
        """The places, with a number where they are not chosen."""
        return build("where", self.wide_mask, self.places, np.asarray(value).astype(self.dtype)[()])

    def entered(self, value: Any) -> Any:
        """What stands beside the places for an argument that stands beside the selection.

        A tensor is put behind the mask, so that its gradient is the sum over chosen places alone. Options of a function
        (names, dtypes, None) stay as they are.
        """
        if isinstance(value, Selection):
            self.check_same(value.mask, value.after)
            return value.places
        if type(value) in PYTHON_SCALARS or isinstance(value, type | np.dtype) or not is_operand(value):
            return value
        if type(value) is np.ndarray or isinstance(value, np.generic):
            return self._aligned(value)
        x = as_tensor(value, graph=graph_of((self.mask,)))
        gated = _behind(self.mask, self._aligned(x), self.after)
        gated.is_weak = x.is_weak
        return gated

    def _aligned(self, x: Any) -> Any:
        """What broadcasts against the selection, with axes for all of the mask's."""
        at = x.ndim - self.after - 1
        if at < 0:
            return x
        if x.shape[at] != 1:
            raise self.refusal(
                f"an array of extent {x.shape[at]} where x[mask] has its chosen elements",
                "index it with the mask, too; numbers, and arrays of extent 1 there, broadcast",
            )
        more = tuple(range(at, at + self.mask.ndim - 1))
        return call("expand_dims", x, more) if isinstance(x, Tensor) else np.expand_dims(x, more)

    def check_mask(self, mask: Tensor) -> None:
        """TracedValueError unless it is the same mask."""
        if not is_same(self.mask, mask):
            raise self.refusal("a selection beside one by another mask", _ONE_MASK)

    def check_same(self, mask: Tensor, after: int) -> None:
        """TracedValueError unless it is the same mask, with the same number of axes behind."""
        self.check_mask(mask)
        if self.after != after:
            raise self.refusal(
                "broadcasting along the axis of chosen elements",
                "x[mask][:, None] adds an axis, by which both have their chosen elements along one axis",
            )

    def with_places(self, places: Tensor) -> Selection:
        """Another selection by this mask, with as many axes behind."""
        return Selection(places, self.mask, places.ndim - self.mask.ndim - self.after)

    def view(self, dtype: Any = None) -> Selection:
        """Another selection on the same memory; another dtype for it is not supported."""
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise unsupported_method("view", f" with dtype={dtype!r}")
        return self.shared(self.places, self.axis)

    def shared(self, places: Tensor, axis: int) -> Selection:
        """What NumPy gives as a view of this one."""
        seen = Selection(places, self.mask, axis)
        self.is_shared = seen.is_shared = True
        return seen

    def refusal(self, what: str, hint: str = MASK_HINT) -> JitgradError:
        """The error for what needs to know which elements, or how many, are chosen."""
        graph = self.mask.graph
        if graph.closed_by is not None:
            return LeakedTracerError(closed_message(graph, (self.mask,)))
        return TracedValueError(
            layout(
                f"{what} needs the number of chosen elements, which is not known while the function is traced",
                op=operation_text(self.mask.op.inputs[0].op),
                needed=place(),
                hint=hint,
            )
        )

    def as_graph_element(self, graph: Any = None) -> Tensor:
        """There is no tensor of a selection's elements: whoever asks for one is refused."""
        raise self.refusal("this use of x[mask]")

    # -- Python's and NumPy's ways to it ---------------------------------------------------------------------------

    __array_ufunc__ = NumpyProtocols.__array_ufunc__
    __array_function__ = NumpyProtocols.__array_function__

    __bool__ = _refused("a condition (if, while, and, or, not)", "np.any(x[mask]) and np.all(x[mask]) are traced")
    __len__, __index__ = _refused("len()", _COUNT), _refused("an index or a count", _COUNT)
    __iter__ = _refused("iteration", "use an operation on all elements at once")
    __array__ = _refused("conversion to an array")
    __float__, __int__, __complex__ = _refused("float()"), _refused("int()"), _refused("complex()")
    __setitem__ = _refused("assignment to elements", "assign to the array: x[mask] = value")

    sum, prod, mean, std, var = map(_method, ("sum", "prod", "mean", "std", "var"))
    max, min, any, all = map(_method, ("max", "min", "any", "all"))
    argmax, argmin, dot = map(_method, ("argmax", "argmin", "dot"))
    clip, round, copy, astype = map(_method, ("clip", "round", "copy", "astype"))
    conj, conjugate = _method("conjugate"), _method("conjugate")

    @property
    def T(self) -> Any:
        """The transpose: all axes reversed."""
        return call("function_of_selections", "transpose", (self,), {})

    @property
    def real(self) -> Any:
        """Real part."""
        return call("function_of_selections", "real", (self,), {})

    @property
    def imag(self) -> Any:
        """Imaginary part."""
        return call("function_of_selections", "imag", (self,), {})

    def __pow__(self, other: Any) -> Any:
        return call("function_of_selections", "operator_power", (self, other), {})

    def __getitem__(self, index: Any) -> Selection:
        """Other axes may be indexed by integers and slices, and new ones be added."""
        items = _expanded(index if isinstance(index, tuple) else (index,), self.ndim)
        counted = [k for k, item in enumerate(items or ()) if item is not None]
        at = counted[self.axis] if len(counted) == self.ndim else -1
        if items is None or at < 0 or items[at] != slice(None):
            raise self.refusal("an index", "join the masks: x[mask & other]; x[mask][:, 0] indexes the other axes")
        items[at : at + 1] = [slice(None)] * self.mask.ndim
        lead = sum(not isinstance(item, int | np.integer) for item in items[:at])
        return self.shared(build("getitem", self.places, tuple(items)), lead)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(f"a selection has no attribute {name!r}")
        raise self.refusal(f".{name} of x[mask]")

    def __repr__(self) -> str:
        return f"<Selection from {self.places.spec} by {self.mask.op.inputs[0].name!r} {self.mask.spec}>"


def _expanded(items: tuple[Any, ...], rank: int) -> list[Any] | None:
    """An index of integers and slices as one entry per axis and per new axis."""
    if not all(item is None or item is Ellipsis or isinstance(item, int | np.integer | slice) for item in items):
        return None
    full = [slice(None)] * (rank - sum(item is not None and item is not Ellipsis for item in items))
    at = next((k for k, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:at], *full, *items[at + 1 :]]


# -- making ------------------------------------------------------------------------------------------------------------


@function("selected")
def selected(x: Tensor, index: Any) -> Selection:
    """``x[..., mask, ...]`` with one traced mask beside slices and integers."""
    items = index if isinstance(index, tuple) else (index,)
    view = masked_view(x, items)
    mask = build("identity_tensor", view.mask)  # which no assignment of the user's changes
    after = view.part.ndim - view.axis - mask.ndim
    made = Selection(_behind(mask, view.part, after), mask, view.axis)
    if not mask.ndim:
        raise made.refusal("an index True or False", "np.where(condition, x, other) chooses between arrays")
    if view.axis and not _are_together(items):
        raise made.refusal("an integer apart from the mask in an index", "index twice: x[0][:, mask]")
    return made


def _are_together(items: tuple[Any, ...]) -> bool:
    """Whether integers stand next to the mask; if not, NumPy puts the axis of chosen elements in front."""
    arrays = [k for k, item in enumerate(items) if item is not Ellipsis and not isinstance(item, slice)]
    return arrays[-1] - arrays[0] == len(arrays) - 1


@function("selected_along")
def selected_along(condition: Tensor, x: Tensor, axis: int) -> Selection:
    """Slices of ``x`` along ``axis`` where the condition holds, a traced vector."""
    mask = build("astype", condition, bool)
    return selected(x, (*(slice(None),) * (axis % x.ndim), mask))


@function("selected_values")
def selected_values(chosen: Selection, mask: Tensor, after: int, dtype: DType) -> Tensor:
    """What is assigned where the mask holds, over all places, in ``y[mask] = chosen``."""
    chosen.check_same(mask, after)
    return as_tensor(chosen.places, dtype)


def _behind(mask: Tensor, x: Any, after: int) -> Tensor:
    """``x``, and 1 where the mask does not hold: a number at which functions are smooth."""
    return build("where", axes_behind(mask, after), x, np.ones((), x.dtype)[()])


# -- equal masks -------------------------------------------------------------------------------------------------------


def is_same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are made by the same operations of the same tensors; each pair is looked at once."""
    pending, seen = [(a, b)], set()
    while pending:
        first, second = (_source(x) for x in pending.pop())
        pair = (first.op, first.value_index, second.op, second.value_index)
        if pair[:2] == pair[2:] or pair in seen:
            continue
        if not _are_alike(first, second):
            return False
        seen.add(pair)
        pending += zip(first.op.inputs, second.op.inputs, strict=True)
    return True


def _source(x: Tensor) -> Tensor:
    """What a tensor stands for, in the graphs around and behind identities."""
    while True:
        source = x.graph.source_of(x.op.outputs[x.value_index])
        if source.op.type != "identity":
            return source
        x = source.op.inputs[0]


def _are_alike(a: Tensor, b: Tensor) -> bool:
    """Whether two operations give the same if their inputs are the same."""
    one, two = a.op, b.op
    if one.opdef is not two.opdef or one.opdef.stateful or len(one.inputs) != len(two.inputs):
        return False
    if (a.value_index, a.spec) != (b.value_index, b.spec) or not (one.inputs or one.type == "constant"):
        return False
    return bool(frozen(dict(one.params), _by_value) == frozen(dict(two.params), _by_value))


def _by_value(array: Any) -> Any:
    """A constant by its elements; numbers repeated by one of them, in the memory of which they lie."""
    least = array[tuple(slice(0, 1) if not step else slice(None) for step in array.strides)]
    return (array.dtype, array.shape, least.tobytes())
