"""Rules for ops that move elements: they vanish, compose, become reshapes, or wait; none computes."""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.constants import splat
from jitgrad.compiler.fusing.accesses import MOST_LEAVES
from jitgrad.compiler.rewriter import Rewriter
from jitgrad.opdef import Reduce, Shaped, View
from jitgrad.program import Instruction
from jitgrad.spec import normalize_axes, reduced_shape


def same_shape(rw: Rewriter, ins: Instruction) -> int | None:
    """reshape(x, shape of x) = x, broadcast(x, shape of x) = x"""
    return rw.same(ins, ins.inputs[0])


# -- reshape -------------------------------------------------------------------------------------------------


def _reshape(rw: Rewriter, ins: Instruction, x: int) -> int | Instruction:
    """``x`` in the shape of the instruction's value."""
    shape = rw.shape(ins.outputs[0])
    return x if rw.shape(x) == shape else rw.replace(ins, "reshape", x, shape=shape)


def view_of_view(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """reshape(reshape(x)) = reshape(x)"""
    inner = rw.maker(ins.inputs[0])
    return (
        _reshape(rw, ins, inner.inputs[0]) if inner is not None and isinstance(inner.op.kind, View) else None
    )


def view_as_reshape(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """Every view is a reshape to a known shape"""
    shape = rw.shape(ins.outputs[0])
    if ins.op.name == "reshape" and ins.params["shape"] == shape:
        return None
    return rw.replace(ins, "reshape", ins.inputs[0], shape=shape)


def view_of_reduction(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """reshape(sum(x, keepdims)) = sum(x, not keepdims), when the shape says so"""
    inner = rw.maker(ins.inputs[0])
    if inner is None or not isinstance(inner.op.kind, Reduce) or not rw.is_read_once(ins.inputs[0]):
        return None
    x, keepdims = inner.inputs[0], not inner.params["keepdims"]
    axes = normalize_axes(inner.params["axis"], len(rw.shape(x)))
    if reduced_shape(rw.shape(x), axes, keepdims) != rw.shape(ins.outputs[0]):
        return None
    return rw.replace(ins, inner.op.name, x, **{**inner.params, "keepdims": keepdims})


def units_only(rw: Rewriter, ins: Instruction) -> int | Instruction:
    """Adding and dropping axes of extent 1 is a reshape"""
    return _reshape(rw, ins, ins.inputs[0])


# -- broadcasting --------------------------------------------------------------------------------------------


def broadcast_of_broadcast(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """broadcast(broadcast(x)) = broadcast(x)"""
    inner = rw.producer(ins.inputs[0], "broadcast_to")
    return None if inner is None else rw.replace(ins, "broadcast_to", inner.inputs[0], **ins.params)


def broadcast_adds_units(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """A broadcast that repeats nothing is a reshape"""
    x, out = rw.specs[ins.inputs[0]], rw.specs[ins.outputs[0]]
    return _reshape(rw, ins, ins.inputs[0]) if x.size == out.size else None


def broadcast_of_units(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """broadcast(reshape(x)) = broadcast(x), when the reshape only adds or drops leading axes of extent 1"""
    inner = rw.producer(ins.inputs[0], "reshape")
    if inner is None:
        return None
    x, out = inner.inputs[0], rw.shape(ins.outputs[0])
    if len(rw.shape(x)) > len(out) or _without_leading_units(rw.shape(x)) != _without_leading_units(
        rw.shape(ins.inputs[0])
    ):
        return None
    return rw.replace(ins, "broadcast_to", x, **ins.params)


def _without_leading_units(shape: tuple[int, ...]) -> tuple[int, ...]:
    start = next((axis for axis, n in enumerate(shape) if n != 1), len(shape))
    return shape[start:]


def broadcast_after_computing(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """f(broadcast(x), broadcast(y), c) = broadcast(f(x, y, c)), when x and y have the same smaller shape"""
    shape: tuple[int, ...] | None = None
    for v in ins.inputs:
        if v in rw.numbers:
            continue
        inner = rw.producer(v, "broadcast_to")
        if inner is None or (shape is not None and rw.shape(inner.inputs[0]) != shape):
            return None
        shape = rw.shape(inner.inputs[0])
    if shape is None or len(ins.outputs) != 1:
        return None
    small = tuple(_before_broadcast(rw, ins, v, shape) for v in ins.inputs)
    out = rw.emit_op(ins.origin, ins.op, small, ins.params)
    return rw.replace(ins, "broadcast_to", out, shape=rw.shape(ins.outputs[0]))


def _before_broadcast(rw: Rewriter, ins: Instruction, v: int, shape: tuple[int, ...]) -> int:
    inner = rw.producer(v, "broadcast_to")
    if inner is not None:
        return inner.inputs[0]
    return _number_in(rw, ins, v, shape)


def _number_in(rw: Rewriter, ins: Instruction, v: int, shape: tuple[int, ...]) -> int:
    return rw.emit(ins.origin, "constant", value=splat(rw.numbers[v], shape, rw.dtype(v)))


def copies_after_computing(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """f(reshape(broadcast(x)), c) = reshape(broadcast(f(x, c))): what np.tile copies is computed once"""
    copied = {v: copies_of(rw, v) for v in ins.inputs if v not in rw.numbers}
    shapes = {(rw.shape(of.inputs[0]), rw.shape(of.outputs[0])) if of is not None else None for of in copied.values()}
    both = shapes.pop() if len(shapes) == 1 else None
    if both is None or len(ins.outputs) != 1:
        return None
    sources = {v: of.inputs[0] for v, of in copied.items() if of is not None}
    small = tuple([sources[v] if v in sources else _number_in(rw, ins, v, both[0]) for v in ins.inputs])
    out = rw.emit_op(ins.origin, ins.op, small, ins.params)
    copies = rw.emit(ins.origin, "broadcast_to", out, shape=both[1])
    return rw.replace(ins, "reshape", copies, shape=rw.shape(ins.outputs[0]))


def copies_of(rw: Rewriter, v: int) -> Instruction | None:
    """The broadcast of which ``v`` is a reshape."""
    view = rw.producer(v, "reshape")
    return rw.producer(view.inputs[0], "broadcast_to") if view is not None else None


def view_after_computing(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """f(reshape(x), reshape(y), c) = reshape(f(x, y, c)), when x and y have the same shape and are read nowhere else"""
    views = [v for v in ins.inputs if v not in rw.numbers]
    inner = [rw.producer(v, "reshape") for v in views]
    shapes = {rw.shape(maker.inputs[0]) if maker is not None else None for maker in inner}
    shape = next(iter(shapes), None)
    if len(set(views)) < 2 or len(shapes) != 1 or shape is None or not all(map(rw.is_read_once, views)):
        return None
    if _without_units(shape) == _without_units(rw.shape(ins.outputs[0])) or len(ins.outputs) != 1:
        return None  # such a reshape is part of an index
    before = tuple([_before_view(rw, ins, v, shape) for v in ins.inputs])
    out = rw.emit_op(ins.origin, ins.op, before, ins.params)
    return rw.replace(ins, "reshape", out, shape=rw.shape(ins.outputs[0]))


def _before_view(rw: Rewriter, ins: Instruction, v: int, shape: tuple[int, ...]) -> int:
    inner = rw.producer(v, "reshape")
    if v not in rw.numbers and inner is not None:
        return inner.inputs[0]
    return _number_in(rw, ins, v, shape)


def _without_units(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


# -- transposes and other orders -----------------------------------------------------------------------------


def same_order(rw: Rewriter, ins: Instruction) -> int | None:
    """transpose(x, axes in order) = x"""
    axes = ins.params["axes"]
    return ins.inputs[0] if list(axes) == list(range(len(axes))) else None


def transpose_of_transpose(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    inner = rw.producer(ins.inputs[0], "transpose")
    if inner is None:
        return None
    p, q = inner.params["axes"], ins.params["axes"]
    return rw.replace(ins, "transpose", inner.inputs[0], axes=tuple(p[axis] for axis in q))


def transpose_moves_units(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """A transpose that moves only axes of extent 1 is a reshape"""
    shape = rw.shape(ins.inputs[0])
    moved = [axis for axis in ins.params["axes"] if shape[axis] != 1]
    return _reshape(rw, ins, ins.inputs[0]) if moved == sorted(moved) else None


def flip_nothing(rw: Rewriter, ins: Instruction) -> int | None:
    """flip(x, no axes of more than one element) = x"""
    return ins.inputs[0] if all(rw.shape(ins.inputs[0])[axis] <= 1 for axis in ins.params["axes"]) else None


def flip_of_flip(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """flip(flip(x, p), q) = flip(x, axes in one of p and q)"""
    inner = rw.producer(ins.inputs[0], "flip")
    if inner is None:
        return None
    axes = set(inner.params["axes"]) ^ set(ins.params["axes"])
    return rw.replace(ins, "flip", inner.inputs[0], axes=tuple(sorted(axes)))


# -- slices, windows, parts ----------------------------------------------------------------------------------


def slice_all(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """x[:, ..., :] = x; dropping an axis of extent 1 is a reshape"""
    if rw.specs[ins.inputs[0]].size != rw.specs[ins.outputs[0]].size or any(
        step != 1 for step in ins.params["step"]
    ):
        return None
    return _reshape(rw, ins, ins.inputs[0])


def pad_nothing(rw: Rewriter, ins: Instruction) -> int | None:
    """pad(x, widths of 0) = x"""
    return rw.same(ins, ins.inputs[0])


def many_parts(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """A join of many arrays joins some of them each, and then these

    A kernel looks, for each element, among all arrays for its own: 512 of them took 15 s to compile.
    """
    if len(ins.inputs) <= MOST_LEAVES or ins.origin.scope is None:
        return None
    some = [ins.inputs[k : k + MOST_LEAVES] for k in range(0, len(ins.inputs), MOST_LEAVES)]
    parts = [rw.emit(ins.origin, ins.op.name, *inputs, **ins.params) for inputs in some]
    return rw.replace(ins, "concatenate", *parts, axis=ins.params["axis"])


def single_part(rw: Rewriter, ins: Instruction) -> int | None:
    """concatenate(x) = x"""
    return rw.same(ins, ins.inputs[0]) if len(ins.inputs) == 1 else None


def window_of_known_shape(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """A window in zeros like y needs only the shape of y"""
    if len(ins.inputs) == 1:
        return None
    return rw.replace(ins, ins.op.name, ins.inputs[0], **{**ins.params, "shape": rw.shape(ins.outputs[0])})


def window_of_all(rw: Rewriter, ins: Instruction) -> int | Instruction | None:
    """A window in zeros that is all of them is what it shows"""
    if rw.specs[ins.inputs[0]].size != rw.specs[ins.outputs[0]].size or any(
        step != 1 for step in ins.params["step"]
    ):
        return None
    return _reshape(rw, ins, ins.inputs[0])


def windows_side_by_side(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """add_n(y[a:] in zeros, y[:a] behind it in zeros) = concatenate(y[a:], y[:a]) + 0.0: the gradient of roll"""
    addends: list[int] = []
    for v in ins.inputs:
        joined = _joined_windows(rw, addends[-1], v, ins) if addends else None
        if joined is None:
            addends.append(v)
        else:
            zero = rw.emit_splat(ins.origin, 0, rw.specs[v])
            addends[-1] = rw.emit(ins.origin, "add", joined, zero)
    return rw.replace(ins, "add_n", *addends) if len(addends) < len(ins.inputs) else None


def _joined_windows(rw: Rewriter, v: int, w: int, ins: Instruction) -> int | None:
    """The parts of one array that two values show in zeros side by side, with nothing beside them, as one array."""
    shown = [_part_in_zeros(rw, x) for x in (v, w)]
    if shown[0] is None or shown[1] is None or shown[0][0] != shown[1][0]:
        return None
    (first, part), (second, other) = sorted((bounds, part) for _, bounds, part in (shown[0], shown[1]))
    cut = [k for k, n in enumerate(rw.shape(v)) if first[k] != (0, n) or second[k] != (0, n)]
    if len(cut) != 1:
        return None
    axis, n = cut[0], rw.shape(v)[cut[0]]
    (low, middle), (begin, high) = first[axis], second[axis]
    is_whole = (low, high) == (0, n) and middle == begin
    return rw.emit(ins.origin, "concatenate", part, other, axis=axis) if is_whole else None


def _part_in_zeros(rw: Rewriter, v: int) -> tuple[int, list[tuple[int, int]], int] | None:
    """An array of the shape of a value that shows a part of it in zeros; where along each axis, and the part."""
    window = rw.producer(v, "unslice")
    part = None if window is None else rw.producer(window.inputs[0], "getslice")
    if window is None or part is None or rw.shape(part.inputs[0]) != rw.shape(v):
        return None
    params = window.params
    if params["drop"] or any(step != 1 for step in params["step"]):
        return None
    runs = zip(params["start"], params["stop"], rw.shape(v), strict=True)
    return part.inputs[0], [slice(start, stop).indices(n)[:2] for start, stop, n in runs], window.inputs[0]


def scatter_into_constant(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """A scatter into zeros like y needs only the shape of y"""
    like, *others = ins.inputs
    if like in rw.numbers:
        return None
    return rw.replace(ins, ins.op.name, rw.emit_splat(ins.origin, 0, rw.specs[like]), *others, **ins.params)


def update_of_update(rw: Rewriter, ins: Instruction) -> Instruction | None:
    """Of two values written at one place the later stays"""
    x, values, place = ins.inputs
    before = rw.producer(x, ins.op.name)
    if before is None or before.inputs[2] != place or before.params["axes"] != ins.params["axes"]:
        return None
    return rw.replace(ins, ins.op.name, before.inputs[0], values, place, **ins.params)


# -- shapes from operands ------------------------------------------------------------------------------------


def shape_made_explicit(rw: Rewriter, ins: Instruction) -> int | Instruction:
    """broadcast, sum or reshape to the shape of another value, or its size: all known here"""
    assert isinstance(ins.op.kind, Shaped)
    x, shape, form = ins.inputs[0], rw.shape(ins.outputs[0]), ins.op.kind.form
    if form == "size":
        number = ins.op.impl(*(splat(0, rw.shape(v), rw.dtype(v)) for v in ins.inputs), **ins.params)
        return rw.constant(ins, splat(number, shape, rw.dtype(ins.outputs[0])))
    if rw.shape(x) == shape:
        return x
    if form == "sum":
        return _sum_to(rw, ins, x, shape)
    return rw.replace(ins, "broadcast_to" if form == "broadcast" else "reshape", x, shape=shape)


def _sum_to(rw: Rewriter, ins: Instruction, x: int, shape: tuple[int, ...]) -> Instruction:
    """The sum over the axes along which ``shape`` was broadcast."""
    axes = broadcast_axes(shape, rw.shape(x))
    total = rw.emit(ins.origin, "sum", x, axis=axes, keepdims=False)
    if rw.dtype(total) != rw.dtype(x):
        total = rw.emit(ins.origin, "astype", total, dtype=rw.dtype(x))
    return rw.replace(ins, "reshape", total, shape=shape)


def broadcast_axes(inner: Sequence[int], outer: Sequence[int]) -> tuple[int, ...]:
    """The axes of ``outer`` along which a value of shape ``inner`` is repeated when it is broadcast."""
    grown = len(outer) - len(inner)
    return tuple(axis for axis, n in enumerate(outer) if axis < grown or inner[axis - grown] != n)
