"""Tracing: a Python function called on tensors in place of its arrays, its operations kept as a graph; it
runs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from jitgrad import hints, pytree
from jitgrad.collecting import collection_paused
from jitgrad.eagerness import number_of
from jitgrad.errors import (
    DTypeError,
    JitgradError,
    ReadOnlyError,
    TracedValueError,
    UnsupportedOpError,
    extended,
    layout,
)
from jitgrad.following import Follower
from jitgrad.graph import Graph, Operation, Tensor, default_graph, innermost
from jitgrad.keys import frozen
from jitgrad.ops.creation import identity, placeholder
from jitgrad.ops.state import assign_op, scatter_op
from jitgrad.records import dataclass
from jitgrad.sources import function_name, raised_at, source_text
from jitgrad.spec import DType, TensorSpec, native

# A leaf as the cache of traces sees it: (dtype, shape) of an array, the type of a Python number, or a Static.
LeafKey = Any
weak_types: dict[type, DType] = {kind: np.asarray(kind()).dtype for kind in (bool, int, float, complex)}


class Trace(Graph):
    """A graph into which the call of a function is traced."""

    is_trace = True
    assigns_in_place = True

    def __init__(self) -> None:
        super().__init__()
        self.uses = {}
        self.seed = default_graph().seed


def is_tracing() -> bool:
    """Whether a function is being traced here."""
    return default_graph().is_trace


@dataclass(frozen=True, slots=True)
class Static:
    """A leaf that is no array: part of the structure, compared by type and value through its stand-in."""

    value: Any = field(compare=False)
    key: Any


def read_leaf(leaf: Any, keeps_numbers: bool = False) -> tuple[LeafKey, Any]:
    """The key of a leaf and its array, C-contiguous and of native byte order; None in place of a static
    leaf's array.

    Python numbers are static with ``keeps_numbers``. DTypeError for arrays of objects, text and dates,
    for unhashable objects too.
    """
    kind = type(leaf)
    if kind is not np.ndarray:
        if kind in weak_types:
            if keeps_numbers:
                return static(leaf), None
            return kind, _weak_array(leaf)
        if not _is_arraylike(leaf):
            return _checked_static(leaf), None
        leaf = _as_array(leaf)
    if leaf.dtype.kind not in "fiubc":
        raise DTypeError(
            layout(f"arrays of dtype {leaf.dtype} cannot be traced", hint="convert it with astype")
        )
    leaf = native(leaf)
    if not leaf.flags.c_contiguous:
        leaf = np.array(leaf, order="C")
    return (leaf.dtype, leaf.shape), leaf


def specs_of_leaves(leaves: Sequence[LeafKey]) -> list[TensorSpec]:
    """Those of the leaves that are arrays or numbers."""
    keys = [key for key in leaves if not isinstance(key, Static)]
    return [TensorSpec(key[1], key[0]) if type(key) is tuple else TensorSpec((), weak_types[key]) for key in keys]


def _weak_array(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype != weak_types[type(value)]:
        raise DTypeError(f"the integer {value} does not fit in int64")
    return array


def is_dynamic_leaf(leaf: Any) -> bool:
    """Whether a leaf is a number, an array or a tensor, and no part of the structure."""
    is_traced = isinstance(leaf, Tensor) or hasattr(leaf, "as_graph_element")
    return is_traced or type(leaf) in weak_types or _is_arraylike(leaf)


def _is_arraylike(leaf: Any) -> bool:
    if isinstance(leaf, str | bytes | type | np.dtype) or callable(leaf):
        return False
    return (
        hasattr(leaf, "__array__")
        or hasattr(leaf, "__array_interface__")
        or isinstance(leaf, memoryview | bytearray)
    )


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, np.ma.MaskedArray):
        raise DTypeError(
            layout("masked arrays cannot be traced", hint="pass .data and .mask, and use np.where")
        )
    return np.asarray(leaf)


def static(leaf: Any) -> Static:
    """A leaf as a part of the structure."""
    return Static(leaf, frozen(leaf))


def _checked_static(leaf: Any) -> Static:
    try:
        hash(leaf)
    except TypeError:
        raise DTypeError(
            layout(
                f"{leaf!r} of type {type(leaf).__name__} is neither an array nor hashable",
                hint="pass arrays in lists, tuples, dicts or dataclasses, and make other arguments hashable",
            )
        ) from None
    return static(leaf)


# -- results -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Results:
    """How a function's results are put together: per leaf, the number of an output, or a fixed value."""

    structure: Any
    slots: tuple[int | None, ...]
    fixed: tuple[Any, ...]
    is_bare: bool

    def build(self, arrays: Sequence[Any]) -> Any:
        """The results for the arrays of the outputs; 0-d arrays become NumPy scalars, fixed arrays are
        copied.
        """
        return self.put([array if array.ndim else array[()] for array in arrays])

    @functools.cached_property
    def _takes_all(self) -> bool:
        """Whether the leaves are the outputs in order."""
        return self.slots == tuple(range(len(self.slots)))

    def put(self, values: Sequence[Any]) -> Any:
        """The results for values of the outputs, as they are."""
        if self.is_bare:
            return values[0]
        if self._takes_all:
            return pytree.unflatten(self.structure, values)
        leaves = [
            _copied(value) if slot is None else values[slot] for slot, value in zip(self.slots, self.fixed, strict=True)
        ]
        return pytree.unflatten(self.structure, leaves)


def _copied(value: Any) -> Any:
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


def _collect(result: Any, graph: Graph) -> tuple[tuple[Tensor, ...], Results]:
    leaves, structure = pytree.flatten(result)
    outputs: list[Tensor] = []
    slots: list[int | None] = []
    is_bare = len(leaves) == 1 and leaves[0] is result
    for leaf in map(traced_result, leaves):
        is_traced = isinstance(leaf, Tensor) or hasattr(leaf, "as_graph_element")
        if not is_traced and _hides_values(leaf):
            raise _hidden_output(result, len(slots))
        slots.append(len(outputs) if is_traced else None)
        if is_traced:
            tensor = graph.as_graph_element(leaf)
            assert isinstance(tensor, Tensor)
            outputs.append(tensor)
    fixed = tuple(_copied(leaf) if slot is None else None for leaf, slot in zip(leaves, slots, strict=True))
    return tuple(outputs), Results(structure, tuple(slots), fixed, is_bare and len(outputs) == 1)


def traced_result(leaf: Any) -> Any:
    """A result as the trace has it: that of a tensor with a value stands for it, so that tapes see it pass."""
    return leaf if number_of(leaf) is None else identity(leaf)


def _hides_values(leaf: Any) -> bool:
    """Whether a result is no container and may hold traced values all the same: an iterator, a set, objects."""
    if isinstance(leaf, set | frozenset):
        return any(isinstance(item, Tensor) for item in leaf)
    if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
        return any(isinstance(item, Tensor) for item in leaf.ravel().tolist())
    return isinstance(leaf, Iterator)


def _hidden_output(result: Any, number: int) -> DTypeError:
    leaf, path = pytree.flatten(result)[0][number], pytree.paths(result)[number]
    return DTypeError(
        layout(f"the result{path and ' ' + path} is of type {type(leaf).__name__}, whose items cannot be returned",
               hint="return a list, a tuple, a dict or a dataclass of arrays: list(...) of a generator")
    )  # fmt: skip


# -- tracing -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Traced:
    """What a traced call was: the placeholders of its arrays, the tensors it returned and their structure,
    and the operations that run even where no result needs them: assignments to Variables.
    """

    inputs: tuple[Operation, ...]
    outputs: tuple[Tensor, ...]
    results: Results
    effects: tuple[Operation, ...]
    follower: Follower

    @property
    def feeds(self) -> tuple[Tensor, ...]:
        """The tensors that stand for the arrays."""
        return tuple(op.outputs[0] for op in self.inputs)


Scope = Callable[[], contextlib.AbstractContextManager[None]]


def trace(
    fn: Callable[..., Any],
    structure: Any,
    keys: Sequence[LeafKey],
    names: Sequence[str],
    rebuild: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    scope: Scope = contextlib.nullcontext,
    model: Follower | None = None,
) -> Traced:
    """Call ``fn`` on placeholders of the given leaves, beside an earlier trace of it, the ``model``, if there is one.

    ``structure`` is that of (args, kwargs), to which ``rebuild`` adds the static arguments. Once the call has
    ended the graph is closed: a tensor that got away raises LeakedTracerError when it is used.
    """
    graph = Trace()
    follower = graph.follower = Follower(graph, model)
    with graph.as_default():
        leaves = [_stand_in(key, name) for key, name in zip(keys, names, strict=True)]
        inputs = tuple(leaf.op for leaf in leaves if isinstance(leaf, Tensor))
        args, kwargs = given = pytree.unflatten(structure, leaves)
        if rebuild is not None:
            args, kwargs = rebuild(args, kwargs)
        try:
            with scope(), collection_paused():
                result = fn(*args, **kwargs)
            outputs, results = _collect(result, graph)
        except JitgradError as error:
            _locate(error)
            raise
        except (TypeError, ValueError) as error:
            _explain_numpys_refusal(error, graph)
            raise
        finally:
            graph.closed_by = describe(fn)
    follower.finish()
    effects = () if follower.is_whole else tuple(op for op in graph.operations if op.opdef in (assign_op, scatter_op))
    if not outputs and not effects:
        _refuse_writes(fn, given, leaves, inputs)
    return Traced(inputs, outputs, results, effects, follower)


def _refuse_writes(fn: Callable[..., Any], given: Any, leaves: Sequence[Any], inputs: Sequence[Operation]) -> None:
    """UnsupportedOpError for a function that writes to an argument and returns nothing: a call would do nothing."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    written = [f" {op.name!r}" for x, op in zip(tensors, inputs, strict=True) if x.op is not op or _has_pieces(x)]
    present = pytree.flatten(given)[0]
    if not written and len(present) == len(leaves) and all(map(operator.is_, present, leaves)):
        return
    raise UnsupportedOpError(
        layout(
            f"{describe(fn)} returns nothing, and writes to its argument{''.join(written[:1])}, of which the caller "
            "sees nothing: a compiled function works on copies",
            hint="return the array, and assign it where the function is called: x = f(x), or x[...] = f(x)",
        )
    )


def _has_pieces(x: Tensor) -> bool:
    """Whether parts were assigned that are not put together yet."""
    return x._view is not None and x._view.pieces is not None


def _locate(error: JitgradError) -> None:
    """Add the user's line to the message of an error, where it is not there yet."""
    source = raised_at(error)
    if source is not None and error.args and source_text(source) not in str(error):
        error.args = (extended(str(error.args[0]), needed=f"at {source_text(source)}"), *error.args[1:])


# What NumPy says when it is given a traced value where it needs a number, and what to do then.
_refusals = {
    "setting an array element with a sequence": hints.FILLED,
    "expected a sequence of integers or a single integer": "make the argument static (static_argnames)",
}


def _explain_numpys_refusal(error: Exception, graph: Trace) -> None:
    """Raise in place of NumPy's error one that says what to do, where that is known."""
    where = f"at {source_text(raised_at(error))}"
    if str(error) == "assignment destination is read-only" and graph.constant_values:
        raise ReadOnlyError(layout(str(error), needed=where, hint=hints.KNOWN_ARRAY)) from error
    for text, hint in _refusals.items():
        if text in str(error):
            message = "NumPy needs the value of a traced tensor, which is not known while the function is traced"
            raise TracedValueError(layout(message, numpy=error, needed=where, hint=hint)) from error


def _stand_in(key: LeafKey, name: str) -> Any:
    if isinstance(key, Static):
        return key.value
    if isinstance(key, type):
        x = placeholder(weak_types[key], (), name=name)
        x.is_weak = True
        return x
    dtype, shape = key
    return placeholder(dtype, shape, name=name)


def describe(fn: Callable[..., Any]) -> str:
    """``loss at train.py:12``, of the function itself where it is wrapped."""
    inner = fn
    while hasattr(inner, "__wrapped__"):
        inner = inner.__wrapped__
    code = getattr(inner, "__code__", None)
    where = f" at {os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""
    return f"{function_name(fn)}{where}"


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the positional parameters, as far as they can be told."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def collects_names(fn: Callable[..., Any], is_transform: bool = False) -> bool:
    """Whether a function takes any names, and may go through them in the order in which a call gives them; of a
    wrapper that is a transform, which hands them on, whether the function inside does.
    """
    try:
        parameters = inspect.signature(fn, follow_wrapped=is_transform).parameters
    except (TypeError, ValueError):
        return True
    return any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def leaf_names(parameters: Sequence[str], args: Any, kwargs: Any) -> list[str]:
    """Per leaf of (args, kwargs), the expression that names it: ``x``, ``params['w'][0]``."""
    names = []
    for path in pytree.paths((args, kwargs)):
        is_positional, rest = path.startswith("[0]"), path[3:]
        end = rest.index("]", 2)
        head, tail = rest[1:end], rest[end + 1 :]
        if is_positional:
            index = int(head)
            head = parameters[index] if index < len(parameters) else f"args[{index}]"
        names.append(head.strip("'\"") + tail)
    return names


def as_name(path: str) -> str:
    """A path as the name of a placeholder: ``params['w'][0]`` becomes ``params_w_0``."""
    words = "".join([c if c.isalnum() or c == "_" else " " for c in path]).split()
    return "_".join(words).strip("_") or "x"


def detach(tree: Any) -> Any:
    """The tree with an identity of each tensor and a constant of each array, so that no assignment reaches
    the caller.
    """
    return pytree.tree_map(_detached, tree)


def _detached(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return same(leaf)
    return identity(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiubc" else leaf


def same(x: Tensor) -> Tensor:
    """An identity of ``x``, as weak as it is."""
    y = identity(x)
    y.is_weak = x.is_weak
    return y


def graph_in(tree: Any) -> Graph | None:
    """The graph of the first tensor in a tree, or of the function being traced; None when there is
    neither.
    """
    for leaf in pytree.flatten(tree)[0]:
        if isinstance(leaf, Tensor):
            return innermost(leaf.graph)
    return default_graph() if is_tracing() else None
