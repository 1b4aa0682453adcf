"""Session: runs parts of a graph for fetches and feeds; which arrays come back is decided here, how they
are made is not.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree, recording
from jitgrad.errors import DTypeError, IndexingError, JitgradError, ShapeError, layout
from jitgrad.forking import renew_when_forked
from jitgrad.graph import Graph, Operation, Tensor, default_graph
from jitgrad.ops.slices import IndexedSlices
from jitgrad.records import dataclass
from jitgrad.run_stages import Stage
from jitgrad.running import Runner
from jitgrad.sources import operation_text
from jitgrad.spec import is_compatible, shape_text
from jitgrad.streams import Streams


class FeedError(JitgradError, ValueError):
    """A placeholder that is needed was not fed, or something was fed that cannot be."""


class ClosedSessionError(JitgradError, RuntimeError):
    """A session was used after it had been closed."""


@dataclass(frozen=True, eq=False)
class _Fetched:
    """Where each fetch finds its array; None for an operation, which is run and gives None."""

    structure: Any
    slots: tuple[int | None, ...]


class Session:
    """Runs a graph, the default one if none is given. Random numbers begin with the session, and go on from run to run.

    Inside a ``with`` statement its graph is the default one, and ``tensor.eval()`` runs in it; at the end it is closed.
    """

    def __init__(self, graph: Graph | None = None) -> None:
        if not isinstance(graph, Graph | None):
            raise TypeError(f"a Session runs a Graph, got {graph!r}")
        self.graph = default_graph() if graph is None else graph
        self._is_closed = False
        self._entered: dict[int, list[contextlib.ExitStack]] = {}  # by threads
        self._streams = Streams()
        self._runners: dict[Any, tuple[Runner, _Fetched]] = {}
        self._lock = threading.Lock()
        renew_when_forked(self)

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> Any:
        """Values of ``fetches``, in their structure: arrays for tensors, None for operations.

        Fetches are tensors, operations, Variables, their names ("op", "op:0"), nested in lists, tuples and
        dicts. ``feed_dict`` gives values to placeholders or to any other tensor; to IndexedSlices it gives
        IndexedSlices, or a pair of values and indices. FeedError names a
        placeholder that is needed and not fed; ShapeError, DTypeError for a value that does not fit.
        """
        leaves, structure = pytree.flatten(fetches)
        if any(isinstance(leaf, IndexedSlices) for leaf in leaves):
            return self._run_slices(leaves, structure, feed_dict)
        with recording.span("call", "session"):
            runner, arrays, fetched = self._prepared(fetches, feed_dict)
            values = runner.run(arrays)
            found = [None if slot is None else _result(values[slot]) for slot in fetched.slots]
            return pytree.unflatten(fetched.structure, found)

    def _run_slices(self, leaves: list[Any], structure: Any, feed_dict: Mapping[Any, Any] | None) -> Any:
        """A run where slices are fetched: their values and indices are, and what they are dense is not made."""
        parts = [_parts(x) if isinstance(x, IndexedSlices) else x for x in leaves]
        found = [
            _slices(x, *value) if isinstance(x, IndexedSlices) else value
            for x, value in zip(leaves, self.run(parts, feed_dict), strict=True)
        ]
        return pytree.unflatten(structure, found)

    def stages(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> list[tuple[Stage, list[Any]]]:
        """The programs that a run of these fetches is made of, each with its arrays, for tools that measure."""
        runner, arrays = self.prepared(fetches, feed_dict)
        return runner.stages(arrays)

    def prepared(self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None) -> tuple[Runner, list[Any]]:
        """What runs these fetches, and its arrays, for tools that measure."""
        return self._prepared(fetches, feed_dict)[:2]

    def _prepared(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None
    ) -> tuple[Runner, list[Any], _Fetched]:
        self._refuse_closed()
        if not isinstance(feed_dict, Mapping | None):
            raise TypeError(
                layout(f"feed_dict must be a dict of values by tensors, got {feed_dict!r}",
                       hint="session.run(fetches, {x: value}); several fetches are a list")
            )  # fmt: skip
        with self.graph.control_dependencies(None):
            feeds = {self._tensor(key): value for key, value in _members((feed_dict or {}).items())}
        arrays = [_fed_array(t, value) for t, value in feeds.items()]
        runner, fetched = self._runner(fetches, tuple(feeds))
        return runner, arrays, fetched

    def close(self) -> None:
        """Forget the programs that were made, and run no more: ClosedSessionError."""
        self._is_closed = True
        self._runners.clear()

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise ClosedSessionError(layout("this session is closed", hint="make another: jg.Session()"))

    def __enter__(self) -> Session:
        self._refuse_closed()
        with contextlib.ExitStack() as stack:
            stack.callback(_entered.reset, _entered.set(self))
            stack.enter_context(self.graph.as_default())
            self._entered.setdefault(threading.get_ident(), []).append(stack.pop_all())
        return self

    def __exit__(self, *exc: object) -> None:
        self._entered[threading.get_ident()].pop().close()
        self.close()

    def _tensor(self, key: Any) -> Tensor:
        element = self.graph.as_graph_element(key)
        if isinstance(element, Operation):
            if len(element.outputs) != 1:
                raise FeedError(
                    f"operation {element.name!r} has {len(element.outputs)} outputs: feed one of its tensors"
                )
            return element.outputs[0]
        return element

    def _runner(self, fetches: Any, feeds: tuple[Tensor, ...]) -> tuple[Runner, _Fetched]:
        leaves, structure = pytree.flatten(fetches)
        with self.graph.as_default(), self.graph.control_dependencies(None):
            elements = [self.graph.as_graph_element(leaf) for leaf in leaves]
        key = (structure, tuple(pytree.key_orders(fetches)), tuple(elements), feeds)
        with self._lock:
            if key not in self._runners:
                self._runners[key] = self._make_runner(structure, elements, feeds)
            return self._runners[key]

    def _make_runner(
        self, structure: Any, elements: Sequence[Tensor | Operation], feeds: tuple[Tensor, ...]
    ) -> tuple[Runner, _Fetched]:
        tensors = list(dict.fromkeys(element for element in elements if isinstance(element, Tensor)))
        place = {t: number for number, t in enumerate(tensors)}
        targets = [element for element in elements if isinstance(element, Operation)]
        runner = Runner(tensors, feeds, targets, "session", self._streams)
        _refuse_unfed(runner)
        slots = tuple(place[e] if isinstance(e, Tensor) else None for e in elements)
        return runner, _Fetched(structure, slots)


_entered: contextvars.ContextVar[Session | None] = contextvars.ContextVar("jitgrad_session", default=None)


def session_for(graph: Graph) -> Session:
    """The innermost session that was entered, if it runs this graph, else a new one."""
    session = _entered.get()
    return Session(graph) if session is None or session.graph is not graph else session


def _parts(slices: IndexedSlices) -> tuple[Any, ...]:
    """What is fetched for slices; their shape too, where only a run tells it."""
    shape = slices.dense_shape
    return (slices.values, slices.indices, shape) if isinstance(shape, Tensor) else (slices.values, slices.indices)


def _slices(slices: IndexedSlices, values: Any, indices: Any, shape: Any = None) -> IndexedSlices:
    """What was fetched as slices; IndexingError for a position that no row has."""
    found = IndexedSlices(values, indices, slices.dense_shape if shape is None else shape)
    rows = found.dense_shape and found.dense_shape[0]
    if rows is not None and indices.size and not (-rows <= indices.min() and indices.max() < rows):
        raise IndexingError(
            layout(f"{slices.name!r}: a position is out of bounds for {rows} rows", op=operation_text(slices.op),
                   positions=operation_text(slices.indices.op) if isinstance(slices.indices, Tensor) else None)
        )  # fmt: skip
    return found


def _members(feeds: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """The feeds, those of slices taken apart; an array fed for slices is fed for the dense tensor."""
    for key, value in feeds:
        if isinstance(key, IndexedSlices) and isinstance(value, IndexedSlices | tuple):
            values, indices = (value.values, value.indices) if isinstance(value, IndexedSlices) else value[:2]
            yield from ((key.values, values), (key.indices, indices))
        else:
            yield key, value


def _result(array: Any) -> Any:
    return array[()] if isinstance(array, np.ndarray) and array.ndim == 0 else array


def _fed_array(t: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor):
        raise FeedError(
            layout(f"{t.name!r} is fed with a tensor", hint="feed the array that session.run gives for it")
        )
    if value is None:
        raise FeedError(layout(f"{t.name!r} is fed with None", op=operation_text(t.op), hint="feed it an array"))
    array = np.asarray(value)
    if array.dtype != t.dtype:
        array = _converted(array, t, isinstance(value, np.ndarray | np.generic))
    if not is_compatible(array.shape, t.shape):
        raise ShapeError(
            layout(
                f"the value fed for {t.name!r} does not fit",
                op=operation_text(t.op),
                expected=shape_text(t.spec.shape),
                got=shape_text(array.shape),
            )
        )
    return np.asarray(array, order="C")


def _converted(array: Any, t: Tensor, is_typed: bool) -> Any:
    """The array in the dtype of ``t``. Python's numbers have no size: whole ones fit where their value does."""
    is_whole = array.dtype.kind in "biu" and t.dtype.kind in "biu"
    if array.size == 0 or array.dtype.kind == "O" or np.can_cast(array.dtype, t.dtype, "same_kind"):
        can_fit = True
    else:
        can_fit = is_whole and not is_typed
    try:
        found = array.astype(t.dtype) if can_fit else None
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None or (is_whole and not np.array_equal(found, array)):
        got = f"{array.dtype.name} {array}" if array.ndim == 0 else array.dtype.name
        raise DTypeError(layout(f"the value fed for {t.name!r} does not fit", expected=t.spec, got=got))
    return found


def _refuse_unfed(runner: Runner) -> None:
    for op in runner.operations:
        if op.type == "placeholder":
            raise FeedError(
                layout(
                    f"placeholder {op.name!r} must be fed",
                    op=operation_text(op),
                    needed=f"to compute {', '.join(repr(t.name) for t in runner.fetches[:3])}"
                    if runner.fetches
                    else None,
                    hint=f"add it to feed_dict: session.run(fetches, {{{op.name}: value}})",
                )
            )
