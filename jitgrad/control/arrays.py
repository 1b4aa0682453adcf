"""TensorArray: a list of tensors of one shape, written and read by number, as a value; and the op that reads it safely.

It is a container of two arrays, ``values`` and ``written``, so loops, branches and functions carry it, and gradients go
through the values. What shape its elements have is known from the first write; until then there are no values.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.eagerness import is_eager
from jitgrad.errors import DTypeError, IndexingError, ShapeError, UnsupportedOpError, layout, unwritten_error
from jitgrad.graph import Graph, Tensor, apply_one, default_graph, in_graph
from jitgrad.opdef import Gather, define, find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.gathering import scatter_take_op, zeros_like_shape
from jitgrad.ops.standing import Standing
from jitgrad.sources import place
from jitgrad.spec import is_compatible, shape_text
from jitgrad.trace import graph_in


def _read(values: Any, index: Any, axis: int, number: int | None = None) -> Any:
    outside = np.asarray(index)[(np.asarray(index) < -len(values)) | (np.asarray(index) >= len(values))]
    if outside.size:
        raise unwritten_error(int(outside.flat[0]) - len(values))
    return np.take(values, index, axis)


# Positions of elements that are not written are moved behind the end by those who add this operation; ``number`` is
# that of the element, where it is known beforehand.
read_element_op = define(
    "read_element",
    infer=find("take").infer,
    impl=_read,
    vjp=lambda g, out, values, index, *, axis, number=None: (
        apply_one(scatter_take_op, zeros_like_shape(values), g, index, axis=axis),
        None,
    ),
    kind=Gather("take"),
)


class TensorArray:
    """``size`` elements of one dtype and shape. Nothing changes in place: what writes gives a new array.

    The shape of an element is ``element_shape``, or that of the first one written. An element may be written again and
    read any number of times: gradients add up. ``size`` None waits for ``unstack``, ``split`` or ``scatter``.
    """

    __slots__ = ("dtype", "values", "written")

    def __init__(self, dtype: Any, size: int | None = None, *, element_shape: Sequence[int] | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.written: Any = None if size is None else np.zeros(operator.index(size), bool)
        self.values: Any = None
        if element_shape is not None:
            if size is None:
                raise ValueError("a TensorArray with an element_shape needs its size")
            self.values = np.zeros((operator.index(size), *element_shape), self.dtype)

    @classmethod
    def of_parts(cls, dtype: Any, values: Any, written: Any) -> TensorArray:
        """An array of these parts, whatever they are."""
        made = object.__new__(cls)
        made.dtype, made.values, made.written = dtype, values, written
        return made

    # -- what it is ------------------------------------------------------------------------------------------------

    def size(self) -> Any:
        """The number of elements; None where it is not known."""
        return None if self.written is None else self.written.shape[0]

    def __len__(self) -> int:
        return operator.index(self._known_size())

    @property
    def element_shape(self) -> Any:
        """The shape of an element; None where nothing has been written."""
        return None if self.values is None else self.values.shape[1:]

    def __repr__(self) -> str:
        return f"<TensorArray of {self.size()} elements {self.dtype.name}{shape_text(self.element_shape)}>"

    def _known_size(self) -> Any:
        if self.written is None:
            raise ShapeError(layout("a TensorArray has no size yet", needed=place(),
                                    hint="give it to TensorArray(dtype, size)"))  # fmt: skip
        return self.size()

    # -- writing ---------------------------------------------------------------------------------------------------

    def write(self, index: Any, value: Any) -> TensorArray:
        """The array with ``value`` as its element ``index``. ShapeError, DTypeError for one that does not fit,
        IndexingError for a number out of range.
        """
        n = self._known_size()
        value, values = self._fitting(value, 0)
        values = np.zeros((n, *value.shape), self.dtype) if values is None else values
        place = _checked_position(index, n)
        return TensorArray.of_parts(
            self.dtype, _put(values, place, value), _put(self.written, place, np.True_)
        )

    def scatter(self, indices: Any, value: Any) -> TensorArray:
        """The array with ``value[k]`` as its element ``indices[k]``, for each k."""
        value = self._converted(value)
        numbers = np.asarray(indices) if not isinstance(indices, Tensor) else indices
        if numbers.ndim != 1 or not value.ndim or numbers.shape[0] != value.shape[0]:
            raise ShapeError(layout("scatter takes one number for each element", needed=place(),
                                    expected=f"{shape_text(value.shape[:1])} numbers", got=shape_text(numbers.shape)))
        array = self
        if self.written is None:
            if isinstance(numbers, Tensor):
                self._known_size()
            array = TensorArray(self.dtype, int(np.max(numbers, initial=-1)) + 1)
        for k in range(value.shape[0]):
            array = array.write(numbers[k], value[k])
        return array

    def unstack(self, value: Any) -> TensorArray:
        """The array with ``value[k]`` as its element k, all of them."""
        value, _ = self._fitting(value, 1)
        if self.written is not None and not is_compatible(value.shape[:1], (self.size(),)):
            raise ShapeError(layout("unstack takes as many elements as the array has", needed=place(),
                                    expected=self.size(), got=shape_text(value.shape)))  # fmt: skip
        return TensorArray.of_parts(self.dtype, value, _true_for_each(value))

    def split(self, value: Any, lengths: Any) -> TensorArray:
        """``value`` cut along its first axis: elements of ``lengths`` rows each, an integer or a list of equal ones."""
        value = self._converted(value)
        given = np.asarray(lengths)
        rows = int(given.flat[0]) if given.size else 0
        if np.any(given != rows):
            raise UnsupportedOpError(layout(f"split into lengths {given.tolist()}: the elements of a TensorArray are "
                                            "of one shape", needed=place(), hint="pad them to one length"))
        count = given.size if given.ndim else value.shape[0] // max(rows, 1)
        if rows * count != value.shape[0]:
            raise ShapeError(layout("split takes all rows", needed=place(), expected=value.shape[0], got=rows * count))
        return self.unstack(np.reshape(value, (count, rows, *value.shape[1:])))

    def _converted(self, value: Any) -> Any:
        """The value as an array or a tensor of the dtype; Python numbers take it."""
        array: Any
        if isinstance(value, list | tuple) and (graph_in(value) is not None or is_eager(value)):
            array = np.stack(value)
        elif isinstance(value, Standing):
            array = as_tensor(value) if value.stands_for_symbol() else value.eager_value()
        elif isinstance(value, Tensor) or is_eager(value):
            array = value
        else:
            array = np.asarray(value, None if isinstance(value, np.ndarray | np.generic) else self.dtype)
        if array.dtype != self.dtype and not getattr(array, "is_weak", False):
            raise DTypeError(layout(f"a TensorArray of {self.dtype.name} got {array.dtype.name}", needed=place(),
                                    hint="convert it with astype"))  # fmt: skip
        array = as_tensor(array) if in_graph() else array
        return array if array.dtype == self.dtype else array.astype(self.dtype)

    def _fitting(self, value: Any, skipped: int) -> tuple[Any, Any]:
        """The value, checked to have the shape of an element behind its first ``skipped`` axes; and the values."""
        value = self._converted(value)
        if value.ndim < skipped or not is_compatible(value.shape[skipped:], self.element_shape):
            raise ShapeError(layout("the elements of a TensorArray are of one shape", needed=place(),
                                    expected=shape_text(self.element_shape), got=shape_text(value.shape[skipped:])))
        return value, self.values

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, index: Any) -> Any:
        """Element ``index``. UnwrittenError, when it runs, for one that has not been written."""
        return self._taken(_checked_position(index, self._known_size()))

    def gather(self, indices: Any) -> Any:
        """The elements of these numbers, stacked along a new first axis."""
        return self._taken(_checked_position(indices, self._known_size()))

    def stack(self) -> Any:
        """All elements, stacked along a new first axis. UnwrittenError where one has not been written."""
        if self.values is not None and _is_full(self.written):
            return self.values
        return self._taken(np.arange(self._known_size()))

    def concat(self) -> Any:
        """All elements, joined along their first axis."""
        whole = self.stack()
        if len(whole.shape) < 2:
            raise ShapeError(layout("concat joins elements that have an axis", needed=place(), hint="use stack()"))
        return np.reshape(whole, (-1, *whole.shape[2:]))

    def _taken(self, index: Any) -> Any:
        if self.values is None:
            raise unwritten_error(int(np.ravel(index)[0]) if not isinstance(index, Tensor) else None, place())
        if _is_full(self.written):
            return np.take(self.values, index, axis=0)
        graph = _graph_of(self.values, self.written, index)
        if graph is None:
            numbers = np.asarray(index)
            missing = numbers[~np.asarray(self.written)[numbers]]
            if missing.size:
                raise unwritten_error(int(missing.flat[0]), place())
            return np.take(self.values, numbers, axis=0)
        values, written, positions = (as_tensor(x, graph=graph) for x in (self.values, self.written, index))
        behind = call("where", call("take", written, positions, 0), positions, call("add", positions, self.size()))
        number = int(index) if isinstance(index, np.ndarray) and index.ndim == 0 else None
        return apply_one(read_element_op, values, behind, axis=0, number=number)


pytree.declare(
    TensorArray,
    lambda array: ((array.values, array.written), array.dtype, ("values", "written")),
    lambda dtype, parts: TensorArray.of_parts(dtype, *parts),
)


# -- parts -------------------------------------------------------------------------------------------------------------


def _graph_of(*parts: Any) -> Graph | None:
    """The graph to build in; None where there are only values."""
    symbols = [x for x in parts if isinstance(x, Tensor)]
    return graph_in(symbols) or (default_graph() if in_graph() or symbols else None)


def _is_full(written: Any) -> bool:
    """Whether it is known beforehand that all elements are written."""
    if isinstance(written, Tensor):
        made = written.graph.source_of(written).op
        made = made.inputs[0].op if made.type == "broadcast_like" else made
        return made.type == "constant" and bool(np.all(made.params["value"]))
    return bool(np.all(np.asarray(written)))


def _true_for_each(values: Any) -> Any:
    """A True for each element along the first axis."""
    if values.shape[0] is not None:
        return np.ones(values.shape[0], bool)
    return np.ones_like(np.sum(values, axis=tuple(range(1, values.ndim))), dtype=bool)


def _checked_position(index: Any, n: Any) -> Any:
    """The number, or the numbers, of elements, counted from 0. IndexingError for one out of range, at run time where it
    is only known then.
    """
    if isinstance(index, Tensor) or hasattr(index, "as_graph_element"):
        return call("take", np.arange(n), as_tensor(index), 0) if n is not None else as_tensor(index)
    positions = np.asarray(index)
    if positions.dtype.kind not in "iu" and positions.size:
        raise IndexingError(layout(f"elements are read and written by integers, got {positions.dtype.name}",
                                   needed=place()))  # fmt: skip
    if n is None:
        return positions
    outside = positions[(positions < -n) | (positions >= n)]
    if outside.size:
        raise IndexingError(layout(f"element {outside.flat[0]} of a TensorArray of {n} elements", needed=place()))
    return np.where(positions < 0, positions + n, positions).astype(np.int64)


def _put(values: Any, place: Any, value: Any) -> Any:
    """``values`` with ``value`` at the number ``place``, which is in range."""
    graph = _graph_of(values, place, value)
    if graph is not None:
        wide = as_tensor(values, graph=graph)
        index = (place,) if isinstance(place, Tensor) else (int(place),)
        return call("assigned", wide, index, as_tensor(value, graph=graph))
    if is_eager([values, value]):
        shape = (-1, *(1,) * (len(values.shape) - 1))
        return np.where((np.arange(values.shape[0]) == place).reshape(shape), value, values)
    changed = np.array(values)
    changed[place] = value
    return changed


# -- arrays whose elements are not known yet ---------------------------------------------------------------------------


def _wholes(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a tree, arrays among them, and its structure."""
    return pytree.flatten_up_to_class(tree, TensorArray)


def _is_empty(leaf: Any) -> bool:
    return isinstance(leaf, TensorArray) and leaf.values is None


def has_empty(tree: Any) -> bool:
    """Whether nothing has been written to an array in the tree."""
    return any(map(_is_empty, _wholes(tree)[0]))


def filled_like(tree: Any, others: Sequence[Any]) -> Any:
    """The tree with room in those arrays of it that are empty, where one of the others has a written one there."""
    leaves, structure = _wholes(tree)
    if not any(map(_is_empty, leaves)):
        return tree
    for other in others:
        found, same = _wholes(other)
        if same == structure:
            leaves = [_with_room(x, y) if _is_empty(x) else x for x, y in zip(leaves, found, strict=True)]
    return pytree.unflatten(structure, leaves)


def _with_room(empty: TensorArray, like: Any) -> TensorArray:
    shape = like.element_shape if isinstance(like, TensorArray) else None
    if shape is None or None in shape:
        return empty
    n = empty.size() if empty.size() is not None else like.size()
    written = np.zeros(n, bool) if empty.written is None else empty.written
    return TensorArray.of_parts(empty.dtype, np.zeros((n, *shape), empty.dtype), written)
