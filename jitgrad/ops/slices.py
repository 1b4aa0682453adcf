"""IndexedSlices: rows of a large tensor, as gradients of look-ups are; which gradients are slices is told in sparse.py.

Slices stand where a tensor does: they are made dense when an operation wants one. Rows given several times add up.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitgrad.errors import IndexingError, JitgradError, layout
from jitgrad.graph import Graph, Tensor, apply_one
from jitgrad.opdef import Interpreted, Params, Specs, define, find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.ops.rows import change_rows
from jitgrad.ops.standing import Standing
from jitgrad.sources import operation_text, source_text, user_source
from jitgrad.spec import Shape, TensorSpec, is_compatible, shape_text

# A dense tensor of so many elements made of slices is worth a warning.
LARGE = 100_000_000
_warned: set[Any] = set()


class SlicesError(JitgradError, ValueError):
    """Slices that cannot be made dense: the shape is missing, or another dtype was asked for."""


class IndexedSlices(Standing):
    """``values[k]`` belongs to row ``indices[k]`` of a tensor of shape ``dense_shape``, which is 0 elsewhere.

    ``values`` has shape (n, *rest), ``indices`` (n,), integers; tensors of a graph, eager tensors or arrays. Without a
    ``dense_shape`` the slices cannot be made dense: ValueError. As an array of another dtype neither: ValueError. It is
    a tuple of integers, or a tensor of a graph where the shape is only known when that runs.
    """

    __slots__ = ("__weakref__", "_dense", "_is_dense", "_shape", "indices", "is_weak", "values")

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        self.values: Any = values if isinstance(values, Tensor | np.ndarray) else np.asarray(values)
        self.indices: Any = indices if isinstance(indices, Tensor | np.ndarray) else np.asarray(indices)
        self._shape: Any = _as_shape(dense_shape)
        self._check()
        self.is_weak = False
        self._dense: Any = None
        self._is_dense = False  # whether somebody wanted the dense tensor

    def _check(self) -> None:
        """SlicesError for indices that are no integers, not as many as rows, and for rows that do not fit."""
        rows, places = self.values.shape, self.indices.shape
        is_integer = np.dtype(self.indices.dtype).kind in "iu" or self.indices.shape == (0,)
        counts = (None if rows is None else rows[:1], places)
        fits = is_integer and is_compatible(*counts)
        if fits and rows is not None and self._shape is not None:
            fits = is_compatible(rows[1:], self._extents[1:]) if self._extents else not isinstance(self._shape, tuple)
        if not fits:
            raise SlicesError(
                layout("IndexedSlices need an integer index for each row of their values",
                       values=f"{np.dtype(self.values.dtype).name}{shape_text(rows)}",
                       indices=f"{np.dtype(self.indices.dtype).name}{shape_text(places)}",
                       dense_shape=self._extents or self._shape, needed=f"at {source_text(user_source())}")
            )  # fmt: skip

    @classmethod
    def of_dense(cls, values: Any, indices: Any, dense: Any) -> IndexedSlices:
        """Slices whose dense tensor is there already."""
        made = cls(values, indices, None if dense.shape is None or None in dense.shape else dense.shape)
        made._dense = dense
        return made

    @classmethod
    def of_parts(cls, values: Any, indices: Any, dense_shape: tuple[int, ...] | None) -> IndexedSlices:
        """Slices of these parts, whatever they are."""
        made = object.__new__(cls)
        made.values, made.indices, made._shape = values, indices, dense_shape
        made.is_weak, made._dense, made._is_dense = False, None, False
        return made

    @property
    def dense_shape(self) -> Any:
        """The shape of the tensor that the slices are of: a tensor where extents are not known, None where none is."""
        if self._shape is None and isinstance(self._dense, Tensor):
            from jitgrad.control.deferred import shape_of

            self._shape = shape_of(self._dense.op.inputs[0] if self._dense.op.type == "scatter_take" else self._dense)
        return self._shape

    @property
    def _extents(self) -> Shape | None:
        """The shape as far as it is known."""
        if isinstance(self._shape, Tensor):
            rank, rows = (self._shape.shape or (None,))[0], self.values.shape
            return None if rank is None else (None, *(rows[1:] if rows is not None else (None,) * (rank - 1)))
        return self._shape  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        """NumPy dtype of the values."""
        return self.values.dtype

    @property
    def shape(self) -> Any:
        """Shape of the tensor that the slices are of; None when it is not known."""
        return self._extents if self._dense is None else self._dense.shape

    @property
    def spec(self) -> Any:  # type: ignore[override]
        """Shape and dtype of the tensor that the slices are of."""
        return TensorSpec(self.shape, self.dtype)

    @property
    def ndim(self) -> int:
        """Number of dimensions of the tensor that the slices are of."""
        return len(self.values.shape)

    @property
    def size(self) -> int:
        """Number of elements of the tensor that the slices are of; ShapeError when it is unknown."""
        return self.spec.size  # type: ignore[no-any-return]

    @property
    def graph(self) -> Graph:
        """The graph of the values."""
        return self.values.graph  # type: ignore[no-any-return]

    @property
    def op(self) -> Any:
        """The operation that makes the values."""
        return self.values.op

    @property
    def name(self) -> str:
        """The name of the values."""
        return str(self.values.name)

    def stands_for_symbol(self) -> bool:
        """Whether the values are a tensor of a graph."""
        return isinstance(self.values, Tensor)

    def as_graph_element(self, graph: Graph | None = None) -> Tensor:
        """The dense tensor."""
        return self._densified()  # type: ignore[no-any-return]

    def eager_value(self) -> Any:
        """The dense tensor."""
        return self._densified()

    def numpy(self) -> Any:
        """The dense array."""
        return np.array(self._densified())

    def _densified(self) -> Any:
        if not self._is_dense:
            what = self.values.op.name if isinstance(self.values, Tensor) else "slices"
            warn_if_large(what, self.spec)
            if self._dense is None:
                self._dense = _densify(self.values, self.indices, self._checked_shape())
            self._is_dense = True
        return self._dense

    def _checked_shape(self) -> Any:
        if self.dense_shape is None:
            place = operation_text(self.values.op) if isinstance(self.values, Tensor) else repr(self.values)[:60]
            raise SlicesError(layout("slices without dense_shape cannot be made dense", values=place,
                                     hint="give IndexedSlices(values, indices, dense_shape)"))  # fmt: skip
        return self.dense_shape

    def to_scipy(self) -> Any:
        """A 2-D array of rows as a ``scipy.sparse.csr_array``, rows that are given several times added up."""
        from scipy.sparse import csr_array

        shape: tuple[int, ...] = self._checked_shape()
        if len(shape) != 2:
            raise ValueError(f"only 2-D slices make a SciPy matrix, these are of shape {shape}")
        values, rows = np.asarray(self.values), np.asarray(self.indices) % shape[0]
        columns = np.tile(np.arange(shape[1]), len(rows))
        return csr_array((values.ravel(), (np.repeat(rows, shape[1]), columns)), shape=shape)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise SlicesError(
                layout(f"slices of {self.dtype.name} cannot be made a dense array of {np.dtype(dtype).name}",
                       hint="convert their values with astype, or the dense array")
            )  # fmt: skip
        return np.array(self._densified())

    def __len__(self) -> int:
        return int(self._checked_shape()[0])

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r}, dense_shape={self.dense_shape})"


def concatenated(slices: Sequence[IndexedSlices]) -> IndexedSlices:
    """The sum of slices of one tensor: all their rows."""
    first = slices[0]
    if len(slices) == 1:
        return first
    values = np.concatenate([s.values for s in slices])
    indices = np.concatenate([s.indices for s in slices])
    return IndexedSlices(values, indices, first.dense_shape)


def _as_shape(given: Any) -> tuple[int, ...] | Tensor | None:
    """A shape as integers, or as a tensor where it is the value of one; SlicesError for anything else."""
    if given is None:
        return None
    if isinstance(given, Standing) and given.stands_for_symbol():
        given = given.as_graph_element()
    if not isinstance(given, Tensor):
        extents = np.asarray(given)
        if extents.ndim != 1 or (extents.size and (extents.dtype.kind not in "iu" or extents.min() < 0)):
            raise _no_shape(repr(given))
        return tuple(map(int, extents))
    if given.dtype.kind not in "iu" or not is_compatible(given.shape, (None,)):
        raise _no_shape(operation_text(given.op))
    return tuple(given.op.params["value"].tolist()) if given.op.type == "constant" else given


def _no_shape(got: str) -> SlicesError:
    return SlicesError(layout("dense_shape must be integers from 0 on, in one dimension", got=got,
                              needed=f"at {source_text(user_source())}"))  # fmt: skip


def _infer_zeros(specs: Specs, params: Params) -> Specs:
    (rank,) = specs[0].shape or (None,)
    return (TensorSpec(None if rank is None else (None,) * rank, params["dtype"]),)


zeros_op = define(
    "zeros_of_shape",
    infer=_infer_zeros,
    impl=lambda shape, dtype: np.broadcast_to(np.zeros((), dtype), tuple(shape)),
    kind=Interpreted("the shape of its output is a value"),
    differentiable=False,
    infers_partial=True,
)


def _like(values: Tensor, shape: Any) -> Tensor:
    """A tensor of that shape, whose values do not matter."""
    if not isinstance(shape, Tensor):
        zeros = np.broadcast_to(np.zeros((), values.dtype), shape)
        return call("constant", zeros, graph=values.graph)  # type: ignore[no-any-return]
    from jitgrad.control.deferred import whose_shape

    source = whose_shape(shape)
    return apply_one(zeros_op, shape, dtype=values.dtype) if source is None else source


def _densify(values: Any, indices: Any, shape: Any) -> Any:
    if not isinstance(values, Tensor):
        return call_eagerly(values, indices, shape[0])
    like = _like(values, shape)
    return apply_one(find("scatter_take"), like, values, as_tensor(indices, np.dtype(np.int64), values.graph), axis=0)


def call_eagerly(values: Any, indices: Any, rows: int) -> Any:
    """The segment sum of eager tensors or arrays."""
    from jitgrad.eager.tensor import asarray, run

    return run(segment_sum, (asarray(values), asarray(indices), rows), {})


def segment_sum(values: Any, indices: Any, rows: int) -> Any:
    """Rows of ``values`` added up by their ``indices``, on arrays and on tensors of a graph; negative ones count from
    the end.
    """
    if isinstance(values, Tensor):
        return _densify(values, indices, (rows, *values.shape[1:]))
    out = np.zeros((rows, *values.shape[1:]), values.dtype)
    try:
        change_rows(np.add, out, np.asarray(indices), np.asarray(values))
    except IndexError as error:
        where = f"at {source_text(user_source())}"
        raise IndexingError(layout(f"slices of {rows} rows: {error}", needed=where)) from None
    return out


def is_large(spec: TensorSpec) -> bool:
    """Whether a tensor is known to have so many elements that to make it of slices is worth a warning."""
    return spec.is_known and spec.size >= LARGE


def warn_if_large(what: str, spec: TensorSpec) -> None:
    """Warn that slices are made a dense tensor of that spec, if it is a large one, once per place of the user's."""
    place = user_source()
    if not is_large(spec) or place in _warned:
        return
    _warned.add(place)
    size = f"{spec.size:,} elements, {spec.nbytes / 1e9:.1f} GB"
    warnings.warn_explicit(f"{what} made dense at {source_text(place)}: {size}", UserWarning, *place)
