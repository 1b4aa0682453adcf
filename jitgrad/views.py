"""Views: tensors that share their memory in NumPy (``row = x[0]``, ``x.T``), kept equal when one is written to.

A graph holds values and no memory, so a view is a tensor that remembers of which tensor it is a view (its base)
and the operations that take it from there. Writing to a view gives the base, the base of that, and so on up to
the array itself, new values in which the view's elements are replaced. All others that share the memory leave the
graph, in which other tensors take their places, and come back when they are next used: where one of the writes
since then has touched them they are taken from their bases anew. Nothing is added to the graph as long as nothing
is written. Which tensors share memory, which elements two of them have in common,
and which are read-only is asked of NumPy: the operations are made on an array of the same shape, whose elements
are never looked at. Every array is taken to be in C order, as a compiled function gets its arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jitgrad.errors import ReadOnlyError, layout
from jitgrad.graph import Operation, Tensor, apply, innermost
from jitgrad.operators import call, function
from jitgrad.pieces import Part, Pieces, part_of
from jitgrad.rebinding import enter, leave, outside_error, rebind
from jitgrad.sources import operation_text, source_text, user_source

# NumPy's functions whose results are views of an argument. The others give memory of their own: a copy.
view_makers = frozenset((
    "transpose", "permute_dims", "swapaxes", "matrix_transpose", "linalg.matrix_transpose", "moveaxis",
    "rollaxis", "reshape", "ravel", "expand_dims", "squeeze", "atleast_1d", "atleast_2d", "atleast_3d",
    "flip", "flipud", "fliplr", "rot90", "real", "imag", "diagonal", "linalg.diagonal", "diag",
    "broadcast_to", "broadcast_arrays", "split", "array_split", "hsplit", "vsplit", "dsplit", "unstack", "flat",
    "view",
))  # fmt: skip
# Those that make arrays of rank 0 too. The others, indexing and what leads to one element give numbers.
_array_makers = frozenset((
    "zeros_like", "ones_like", "empty_like", "full_like", "copy", "where", "select", "piecewise", "array",
    "zeros", "ones", "empty", "full",
))  # fmt: skip
_bijections = frozenset(("transpose", "reshape", "merge_axes", "expand_dims", "squeeze", "flip", "identity"))
_gathers = frozenset(("take", "index"))
_windows = frozenset(("getslice", "split", *_gathers))
_longest_path = 8  # operations of one function of NumPy, from its argument to its result
_overlap_work = 1000  # effort of the exact answer; beyond it two views count as overlapping

Step = tuple[Operation, int]  # an operation of one input of interest, the first, and the number of its output


class Memory:
    """What the views of one array share: the places written so far, None for a place that is not known, and the
    views that stand in the graph with their present values.
    """

    __slots__ = ("fresh", "writes")

    def __init__(self) -> None:
        self.writes: list[Any] = []
        self.fresh: list[Tensor] = []

    def wrote(self, place: Any, kept: list[Tensor]) -> None:
        """Enter a write; all views but those in ``kept`` have to be renewed before they are used again."""
        self.writes.append(place)
        for x in self.fresh:
            if all(x is not t for t in kept):
                leave(x)
        self.fresh = [x for x in kept if view_of(x).base is not None]
        for x in kept:
            view_of(x).seen = len(self.writes)


class View:
    """How a tensor is taken from its base, and how many of the memory's writes its value contains.

    ``base`` is None for the array itself, whose value is always the latest.
    """

    __slots__ = ("_place", "base", "memory", "pieces", "seen", "spec", "steps")

    def __init__(self, x: Tensor, base: Tensor | None, steps: tuple[Step, ...]) -> None:
        self.memory: Memory = Memory() if base is None else view_of(base).memory
        self.base = base
        self.steps = steps
        self.seen = len(self.memory.writes)
        self.spec = x.spec
        self.pieces: Pieces | None = None  # of the array itself, where it is not put together yet
        self._place: Any = ()

    @property
    def place(self) -> Any:
        """The NumPy array that shares memory with those of the other views as the views do; None where the
        shape is not known. Positions that are not known are taken to be 0.
        """
        if isinstance(self._place, tuple):
            self._place = self._find_place()
        return self._place

    def _find_place(self) -> Any:
        if self.base is None:
            complex_or_not = self.spec.dtype if self.spec.dtype.kind == "c" else np.uint8
            return np.empty(self.spec.known_shape, complex_or_not) if self.spec.is_known else None
        place = view_of(self.base).place
        for op, number in self.steps:
            if place is None or not all(t.spec.is_known for t in op.inputs):
                return None
            place = _moved(op, number, place)
        return place

    def forget_place(self) -> None:
        """Let the view count as one that may be anywhere in the memory."""
        self._place = None

    @property
    def reach(self) -> Any:
        """The place, if it is known which one it is; else None."""
        view = self
        while view.base is not None:
            if any(op.type in _gathers for op, _ in view.steps):
                return None
            view = view_of(view.base)
        return self.place

    @property
    def is_writable(self) -> bool:
        """Whether NumPy lets one write to the view: not to diagonals and broadcast arrays."""
        if self.base is None:
            return True
        if self.place is not None:
            return bool(self.place.flags.writeable)
        known = all(op.type in _bijections | _windows for op, _ in self.steps)
        return known and view_of(self.base).is_writable

    def has_value(self, x: Tensor, new: Tensor) -> None:
        """Let ``x``, whose view this is, have the value ``new``, which contains all writes so far."""
        rebind(x, new)
        self.pieces = None
        self.seen = len(self.memory.writes)

    def put_together(self, x: Tensor) -> None:
        """Let ``x``, the array itself, have the value that its pieces are parts of."""
        pieces, self.pieces = self.pieces, None
        if pieces is not None:
            graph = x.op.graph
            with graph.as_default(), graph.made_at(pieces.here):
                enter(x, pieces.whole())

    def renew(self, x: Tensor) -> None:
        """Let ``x``, whose view this is, have its present value."""
        if self.pieces is not None:
            self.put_together(x)
        missed = self.memory.writes[self.seen :]
        if not missed:
            return
        assert self.base is not None
        is_touched = any(_overlap(self.reach, written) for written in missed)
        enter(x, _taken(self.base, self.steps) if is_touched else x.op.outputs[x.value_index])
        self.seen = len(self.memory.writes)
        self.memory.fresh.append(x)


def view_of(x: Tensor) -> View:
    """The view that ``x`` is; from now on of an array of its own where it was none."""
    if x._view is None:
        x._view = View(x, None, ())
    return x._view


def _moved(op: Operation, number: int, place: Any) -> Any:
    if op.type in _gathers:
        axis = op.params["axis"] if op.type == "take" else op.params["axes"][0]
        return place[(*(slice(None),) * axis, *(0 for _ in op.inputs[1:]), ...)]
    if op.type == "getslice":
        return place[(*_index(op, number), ...)]
    taken = op.opdef.impl(place, *(np.empty(t.spec.known_shape) for t in op.inputs[1:]), **op.params)
    return taken[number] if isinstance(taken, tuple) else taken


def _overlap(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return True
    try:
        return bool(np.shares_memory(a, b, max_work=_overlap_work))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _taken(base: Tensor, steps: tuple[Step, ...]) -> Tensor:
    out = base
    for op, number in steps:
        outputs = apply(op.opdef, out, *op.inputs[1:], **op.params)
        out = outputs[number] if isinstance(outputs, tuple) else outputs
    return out


# -- making views --------------------------------------------------------------------------------------------


@function("as_users_see")
def as_users_see(name: str, out: Any, args: tuple[Any, ...]) -> Any:
    """The result of the function of that name called with ``args``, as the user gets it.

    Tied to the argument of which NumPy would give a view, or a tensor of its own: never an argument itself.
    """
    if isinstance(out, list | tuple):
        items = [as_users_see(name, item, args) for item in out]
        return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
    if not isinstance(out, Tensor):
        return out
    if name in view_makers:
        for x in _flat(args):
            if x is not out:
                _tie(out, x, name)
    elif any(x is out for x in _flat(args)) or (out._view is not None and out._view.base is not None):
        out = _own(out)
    if out.spec.shape == () and (name in _array_makers or (name == "astype" and any(map(_has_memory, _flat(args))))):
        view_of(out)
    return out


def _has_memory(x: Tensor) -> bool:
    """Whether ``x`` is an array in NumPy, and no number. Of rank 0 that are what a maker of arrays has made, to which
    a view is given then, and arguments that are no Python numbers: NumPy's are not told from arrays. A transform
    hands on identities of what it is given.
    """
    if x.spec.shape != () or x._view is not None:
        return True
    if x.op.type == "identity":
        return _has_memory(x.op.inputs[0])
    return x.op.type == "placeholder" and not x.is_weak


def _flat(args: tuple[Any, ...]) -> list[Tensor]:
    return [x for x in args if isinstance(x, Tensor)]


def _own(x: Tensor) -> Tensor:
    own: Tensor = call("identity_tensor", x)
    own.is_weak = x.is_weak
    return own


@function("item_as_users_see")
def item_as_users_see(out: Any, x: Tensor, index: Any) -> Any:
    """``out = x[index]``, tied to ``x`` unless it is a scalar or chosen by an array of positions or by a mask."""
    if not isinstance(out, Tensor) or (out._view is not None and out._view.base is x):
        return out
    items = index if isinstance(index, tuple) else (index,)
    is_scalar = out.spec.shape == () and not any(item is Ellipsis for item in items)
    if not is_scalar and not any(isinstance(item, np.ndarray) for item in items):
        _tie(out, x)
        if out.spec.shape == ():  # of numbers it is a copy, but an array
            view_of(out)
    return out


def _tie(out: Tensor, base: Tensor, name: str = "getitem") -> None:
    if not _has_memory(base):
        return
    if base.op.graph is not out.op.graph:  # that of a body, which reads ``base`` from around
        base = out.op.graph.captured(base)
    steps = _path(out, base)
    if steps is None:
        return
    view = View(out, base, steps)
    if view_of(base).base is not None and any(op.type == "reshape" for op, _ in steps):
        if name == "flat":
            view.forget_place()
        elif not _is_shared(view, contiguous=name == "ravel"):
            return
    out._view = view
    view.memory.fresh.append(out)


def _is_shared(view: View, contiguous: bool) -> bool:
    """Whether NumPy gives another shape of a view without copying: for ``ravel`` only if it stays contiguous."""
    assert view.base is not None
    if view.place is None or (contiguous and not view.place.flags.c_contiguous):
        return False
    return _overlap(view.place, view_of(view.base).place)


def _path(out: Tensor, base: Tensor) -> tuple[Step, ...] | None:
    """The operations that lead from ``base`` to ``out``; None where elements are not only moved."""
    steps: list[Step] = []
    t = out
    while t is not base:
        if len(steps) == _longest_path or not t.op.inputs or t.op.id < base.op.id:
            return None
        if t.op.type in _gathers and any(position.spec.shape != () for position in t.op.inputs[1:]):
            return None
        steps.append((t.op, t.value_index))
        t = t.op.inputs[0]
    return tuple(reversed(steps))


# -- writing -------------------------------------------------------------------------------------------------


def _array_of(x: Tensor) -> Tensor:
    """The array that a tensor is a view of, or a view of a view; the tensor itself where it is none."""
    while x._view is not None and x._view.base is not None:
        x = x._view.base
    return x


def write(x: Tensor, new: Tensor) -> None:
    """Let the object ``x`` have the value ``new``, and all that share its memory the elements that they share.

    ``new`` is as ``rebind`` wants it. ReadOnlyError for views that NumPy does not let one write to.
    """
    if x._view is None:
        return rebind(x, new)
    view = x._view
    check_writable(x)
    if x.op.graph.is_captured(array := _array_of(x)):
        raise outside_error(array)
    place, chain = view.reach, [x]
    view.has_value(x, new)
    while view.base is not None:
        base = view.base
        if (part := _part_to(view)) is not None and part.is_numbered and can_lay(base, x):
            _lay(base, part, x)
            chain.append(base)
            break
        whole = _whole(base, view.steps, x)
        x, view = base, view_of(base)
        view.has_value(x, whole)
        chain.append(x)
    view.memory.wrote(place, chain)
    return None


def check_writable(x: Tensor) -> None:
    """ReadOnlyError where NumPy would raise its ValueError."""
    if x._view is not None and not x._view.is_writable:
        raise ReadOnlyError(
            layout(
                "assignment destination is read-only",
                op=operation_text(x.op),
                needed=f"at {source_text(user_source())}",
                hint="a diagonal or a broadcast array is a read-only view: assign to a copy, or to the array itself",
            )
        )


def _whole(base: Tensor, steps: tuple[Step, ...], part: Tensor) -> Tensor:
    """``base`` in which the elements at which the steps arrive are those of ``part``."""
    if not steps:
        return part
    (op, number), rest = steps[0], steps[1:]
    inner = _whole(_taken(base, steps[:1]), rest, part) if rest else part
    return _replaced(base, op, number, inner)


def _replaced(x: Tensor, op: Operation, number: int, part: Tensor) -> Tensor:
    if op.type in _bijections:
        assert op.opdef.vjp is not None
        moved: Tensor = op.opdef.vjp(part, None, x, **op.params)
        return _own(moved) if moved is part else moved
    if op.type in ("real", "imag"):
        real, imag = (part, call("imag", x)) if op.type == "real" else (call("real", x), part)
        return call("complex_of_parts", real, imag)  # type: ignore[no-any-return]
    new: Tensor = call("assigned", x, _index(op, number), part)
    return _own(new) if new is x or new is part else new


def _index(op: Operation, number: int) -> tuple[Any, ...]:
    """The index with which the operation reads from its first input."""
    if op.type == "getslice":
        bounds = zip(op.params["start"], op.params["stop"], op.params["step"], strict=True)
        drop = op.params["drop"]
        return tuple(start if axis in drop else slice(start, stop, step)
                     for axis, (start, stop, step) in enumerate(bounds))  # fmt: skip
    if op.type == "split":
        edges = (0, *op.params["at"], None)
        return (*(slice(None),) * op.params["axis"], slice(edges[number], edges[number + 1]))
    first = op.params["axis"] if op.type == "take" else op.params["axes"][0]
    return (*(slice(None),) * first, *op.inputs[1:])


def is_written(x: Tensor, index: Any, value: Any) -> bool:
    """Whether ``value`` is the present view ``x[index]``, so that assigning it changes nothing.

    Python ends ``x[index] += y`` with such an assignment.
    """
    view = value._view if isinstance(value, Tensor) else None
    if view is None or view.base is not x or view.seen != len(view.memory.writes) or view.reach is None:
        return False
    items = index if isinstance(index, tuple) else (index,)
    if not all(item is None or item is Ellipsis or isinstance(item, int | slice | np.integer) for item in items):
        return False
    same = view_of(x).place[items if any(item is Ellipsis for item in items) else (*items, ...)]
    return all(getattr(view.place, key) == getattr(same, key) for key in ("shape", "strides")) and (
        view.place.ctypes.data == same.ctypes.data
    )


# -- pieces --------------------------------------------------------------------------------------------------


def can_lay(x: Tensor, value: Tensor) -> bool:
    """Whether a part of ``x`` may become ``value`` without the whole: of an array itself, in the trace that made it."""
    graph = x.op.graph
    is_whole = x._view is None or x._view.base is None
    return is_whole and graph.is_trace and innermost(graph) is graph is value.op.graph and not graph.is_captured(x)


def lay_piece(x: Tensor, part: Part, value: Tensor) -> None:
    """Let a part of the array ``x``, for which ``can_lay`` holds, become ``value``, which has its shape and dtype."""
    view = view_of(x)
    _lay(x, part, value)
    view.memory.wrote(None if view.place is None else view.place[(*part.entries, ...)], [x])


def _lay(x: Tensor, part: Part, value: Tensor) -> None:
    view, graph = view_of(x), x.op.graph
    if value._view is not None:
        value._view.renew(value)  # a view of ``x``, perhaps
    pieces = view.pieces
    if pieces is not None and not pieces.takes(part):
        view.put_together(x)
    if view.pieces is None:
        graph.is_written = True
        leave(x)
        view.pieces = Pieces(x.op.outputs[x.value_index], part.bounds)
    view.pieces.put(part, value)


def read_piece(x: Tensor, part: Part, is_array: bool) -> Tensor | None:
    """A part of an array in pieces: a view, or a number unless it ``is_array``; None where the whole is wanted."""
    view = x._view
    if view is None or view.pieces is None or innermost(x.op.graph) is not x.op.graph:
        return None
    held = view.pieces.read(part)
    if held is None:
        return None
    out: Tensor = call("getitem", *held)
    if is_array or out.spec.shape != ():
        tie_to(x, out, call("getitem", view.pieces.before, part.entries))
    return out


def tie_to(x: Tensor, out: Tensor, taken: Tensor) -> None:
    """Let ``out`` be a view of ``x``, found in another way than ``taken``, the same part of ``x`` or of one like it."""
    if x.op.graph is not out.op.graph:  # that of a body, which reads ``x`` from around
        x = out.op.graph.captured(x)
    view = out._view = View(out, x, ((taken.op, taken.value_index),))
    view.memory.fresh.append(out)


def _part_to(view: View) -> Part | None:
    """The part of its base that a view is, where it is one."""
    if len(view.steps) != 1 or view.steps[0][0].type != "getslice" or view.base is None:
        return None
    op = view.steps[0][0]
    bounds = zip(op.params["start"], op.params["stop"], op.params["step"], strict=True)
    return part_of(view.base.spec.shape, [slice(*bound) for bound in bounds], op.params["drop"])
