"""The transforms inside a graph: functions of tensors differentiated by adding operations; nothing is
traced or run here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.batching import batch
from jitgrad.batching_rules import Lead, repeat
from jitgrad.constant_values import standing_in
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.gradients import gradients
from jitgrad.graph import Operation, Tensor, apply_one
from jitgrad.opdef import find
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor
from jitgrad.records import dataclass
from jitgrad.sources import function_name, operation_text, place, source_text, user_source
from jitgrad.spec import is_inexact, shape_text
from jitgrad.tangents import along, curvature_along, dense_gradients
from jitgrad.trace import Static, detach, is_dynamic_leaf, leaf_names, parameter_names, same, static, weak_types

Fn = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Point:
    """Where a function is differentiated: its arguments, the chosen ones replaced by tensors of their own.

    The tensors are fresh identities, so that the derivative of an outer transform with respect to the same
    value is not mistaken for this one. They are kept as operations, because an assignment in the function
    (``x[0] = 1``) gives the tensor it was handed another value. What is no array (the name of a layer) stays
    as it is.
    """

    args: tuple[Any, ...]
    argnums: int | tuple[int, ...]
    structures: tuple[Any, ...]
    operations: tuple[tuple[Operation | Static, ...], ...]

    @property
    def tensors(self) -> list[Tensor]:
        """All differentiated tensors, argument by argument."""
        return [op.outputs[0] for ops in self.operations for op in ops if isinstance(op, Operation)]

    def differentiated(self, leaves: Sequence[Any]) -> list[Any]:
        """Of one value per leaf of the arguments, those that stand for a differentiated tensor."""
        ops = [op for ops in self.operations for op in ops]
        return [leaf for leaf, op in zip(leaves, ops, strict=True) if isinstance(op, Operation)]

    def arrange(self, leaves: Sequence[Any]) -> Any:
        """One value per differentiated tensor, in the structure of the arguments; bare when argnums is an
        int.
        """
        pending = iter(leaves)
        trees = tuple(
            pytree.unflatten(structure, [op.value if isinstance(op, Static) else next(pending) for op in ops])
            for structure, ops in zip(self.structures, self.operations, strict=True)
        )
        return trees[0] if isinstance(self.argnums, int) else trees


def point_of(fn: Fn, args: tuple[Any, ...], argnums: int | Sequence[int]) -> Point:
    """The point at ``args``. ValueError for argnums out of range, DTypeError for an argument that has no
    derivative.
    """
    chosen = _checked_argnums(fn, len(args), argnums)
    numbers = (chosen,) if isinstance(chosen, int) else chosen
    fresh = [detach(arg) if index not in numbers else arg for index, arg in enumerate(args)]
    structures, operations = [], []
    for number in numbers:
        leaves, structure = pytree.flatten(args[number])
        sources = [_source(leaf, index, fn, args, number) for index, leaf in enumerate(leaves)]
        if leaves and all(isinstance(source, Static) for source in sources):
            raise DTypeError(
                layout(
                    f"argument {_path(fn, args, number, 0)} of {signature_text(fn)} is {leaves[0]!r}, which has no "
                    "derivative",
                    needed=place(),
                    hint="pass floats and arrays (in lists, tuples, dicts, dataclasses), or choose others with argnums",
                )
            )
        structures.append(structure)
        operations.append(tuple(x.op if isinstance(x, Tensor) else x for x in sources))
        fresh[number] = pytree.unflatten(
            structure, [x if isinstance(x, Tensor) else x.value for x in sources]
        )
    return Point(tuple(fresh), chosen, tuple(structures), tuple(operations))


def _checked_argnums(fn: Fn, count: int, argnums: int | Sequence[int]) -> int | tuple[int, ...]:
    numbers = [argnums] if isinstance(argnums, int | np.integer) else list(argnums)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise TypeError(f"argnums must be an int or a tuple of ints, got {argnums!r}")
        if not -count <= number < count:
            raise ValueError(
                layout(
                    f"argnums={argnums!r} is out of range: {signature_text(fn)} was called with "
                    f"{count} positional argument{'s' * (count != 1)}",
                    needed=f"at {source_text(user_source())}",
                    hint="pass the argument that is differentiated by position, and count from 0",
                )
            )
    normal = tuple(int(number) % count for number in numbers)
    if len(set(normal)) != len(normal):
        raise ValueError(f"argnums={argnums!r} names an argument twice")
    return normal[0] if isinstance(argnums, int | np.integer) else normal


def signature_text(fn: Fn) -> str:
    """``loss(params, x)``."""
    name = function_name(fn)
    try:
        return f"{name}{inspect.signature(fn)}"
    except (TypeError, ValueError):
        return f"{name}(...)"


def _source(leaf: Any, index: int, fn: Fn, args: tuple[Any, ...], number: int) -> Tensor | Static:
    if not is_dynamic_leaf(leaf):
        return static(leaf)
    tensor = same(as_tensor(leaf))
    tensor.is_weak = leaf.is_weak if isinstance(leaf, Tensor) else type(leaf) in weak_types
    if not is_inexact(tensor.dtype):
        raise DTypeError(
            layout(
                f"argument {_path(fn, args, number, index)} of {signature_text(fn)} is of dtype "
                f"{tensor.dtype.name}, which has no derivative",
                needed=f"at {source_text(user_source())}",
                hint="pass a float (2.0 in place of 2, x.astype(float)), or choose others with argnums",
            )
        )
    return tensor


def _path(fn: Fn, args: tuple[Any, ...], number: int, index: int) -> str:
    before = sum(len(pytree.flatten(arg)[0]) for arg in args[:number])
    return leaf_names(parameter_names(fn), args, {})[before + index]


# -- reverse -------------------------------------------------------------------------------------------------


def value_and_gradients(
    fn: Fn, argnums: int | Sequence[int], has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Any, Any]:
    """``(value, aux, gradients)`` of a scalar function at ``args``; aux is None without ``has_aux``."""
    point = point_of(fn, args, argnums)
    result = fn(*point.args, **detach(kwargs))
    value, aux = _value_and_aux(fn, result) if has_aux else (result, None)
    return value, aux, point.arrange(dense_gradients([_loss(fn, value)], point.tensors))


def _value_and_aux(fn: Fn, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(
            f"with has_aux=True, {signature_text(fn)} must return (value, aux), got {type(result).__name__}"
        )
    return result


def _loss(fn: Fn, value: Any) -> Tensor:
    leaves, _ = pytree.flatten(value)
    if len(leaves) != 1 or leaves[0] is not value or not (isinstance(value, Tensor) or is_dynamic_leaf(value)):
        raise TypeError(
            layout(
                f"{signature_text(fn)} must return one scalar to have a gradient, got {type(value).__name__}",
                needed=f"at {source_text(user_source())}",
                hint="return (value, aux) and say has_aux=True, or use jg.jacobian"
                if value is not None
                else "return the loss",
            )
        )
    loss = as_tensor(value)
    if loss.shape != ():
        raise ShapeError(
            layout(
                f"{signature_text(fn)} must return a scalar to have a gradient, got shape "
                f"{shape_text(loss.spec.shape)}",
                op=operation_text(loss.op),
                hint="sum it (np.sum), or use jg.jacobian(fn)",
            )
        )
    if loss.dtype.kind != "f":
        raise DTypeError(
            layout(
                f"{signature_text(fn)} must return a float to have a gradient, got {loss.dtype.name}",
                op=operation_text(loss.op),
                hint="take .real or np.abs of it"
                if loss.dtype.kind == "c"
                else "convert it with astype(float)",
            )
        )
    return loss


def pull_back(fn: Fn, primals: tuple[Any, ...]) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """The value of ``fn`` at ``primals``, and the function from a cotangent of the value to those of the
    primals.
    """
    point = point_of(fn, primals, tuple(range(len(primals))))
    out = fn(*point.args)
    leaves, structure = pytree.flatten(out)
    ys = [as_tensor(leaf) for leaf in leaves]

    def pull(cotangent: Any) -> tuple[Any, ...]:
        given, given_structure = pytree.flatten(cotangent)
        if given_structure != structure:
            hint = "one array for each array of the value, in the same lists, tuples and dicts; np.asarray of a list"
            raise _other_structure("cotangent", "its value", fn, structure, given_structure, hint)

        def whose(number: int) -> str:
            path = pytree.paths(cotangent)[number]
            return f"the cotangent {path and path + ' '}of {signature_text(fn)}"

        each = enumerate(zip(ys, given, strict=True))
        pairs = [(y, _fitting(partial(whose, k), g, y)) for k, (y, g) in each if is_inexact(y.dtype)]
        grads = dense_gradients([y for y, _ in pairs], point.tensors, [g for _, g in pairs])
        return point.arrange(grads)  # type: ignore[no-any-return]

    return out, pull


def _fitting(what: Callable[[], str], value: Any, like: Tensor) -> Tensor:
    """``value`` in the dtype of ``like``; ``what`` says whose derivative it is."""
    tensor = as_tensor(value)
    if tensor.shape != like.shape:
        hint = None if tensor.shape else "np.full_like(x, value) has one number for each element"
        raise ShapeError(_misfit(what, "shape", tensor, like, hint))
    if tensor.dtype.kind == "c" and like.dtype.kind != "c":
        hint = "take .real of it: nothing real depends on its imaginary part"
        raise DTypeError(_misfit(what, "dtype", tensor, like, hint))
    return as_tensor(tensor, like.dtype)


def _misfit(what: Callable[[], str], of: str, tensor: Tensor, like: Tensor, hint: str | None) -> str:
    needed = f"at {source_text(user_source())}"
    return layout(f"{what()} has the wrong {of}", expected=like.spec, got=tensor.spec, needed=needed, hint=hint)


def _other_structure(what: str, whose: str, fn: Fn, expected: Any, got: Any, hint: str) -> TypeError:
    expected, got = (str(structure).removeprefix("PyTreeSpec(").removesuffix(")") for structure in (expected, got))
    return TypeError(
        layout(f"the {what} of {signature_text(fn)} must have the structure of {whose}", expected=expected, got=got,
               needed=f"at {source_text(user_source())}", hint=hint)
    )  # fmt: skip


# -- forward -------------------------------------------------------------------------------------------------


def push_forward(fn: Fn, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """Value and directional derivative: the transpose of the transpose.

    The gradient of ``sum(u * y)`` is linear in the stand-in u, so its own gradient with respect to u,
    weighted with the tangents, is the derivative along them. Nothing of u's value is left in it.
    """
    point = point_of(fn, primals, tuple(range(len(primals))))
    out = fn(*point.args)
    leaves, structure = pytree.flatten(out)
    moving = _tangents(fn, point, tangents)
    ys = [as_tensor(leaf) for leaf in leaves]
    return out, pytree.unflatten(structure, along(ys, point.tensors, moving))


def _tangents(fn: Fn, point: Point, tangents: tuple[Any, ...]) -> list[Tensor]:
    given, structure = pytree.flatten(tuple(tangents))
    expected = pytree.flatten(point.arrange(point.tensors))[1]
    if structure != expected:
        hint = "a tuple with one entry per argument, (v,) for one: arrays, in lists and dicts as the argument has them"
        raise _other_structure("tangents", "the primals", fn, expected, structure, hint)

    def whose(number: int) -> str:
        path = leaf_names(parameter_names(fn), tangents, {})[number]
        return f"the tangent of {path} of {signature_text(fn)}"

    numbered = point.differentiated(list(enumerate(given)))
    return [_fitting(partial(whose, k), t, x) for (k, t), x in zip(numbered, point.tensors, strict=True)]


def hessian_times(fn: Fn, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The Hessian of a scalar function times the tangents."""
    point = point_of(fn, primals, tuple(range(len(primals))))
    loss = _loss(fn, fn(*point.args))
    moving = _tangents(fn, point, tangents)
    slopes = gradients([loss], point.tensors)
    return point.arrange(curvature_along(slopes, point.tensors, moving))  # type: ignore[no-any-return]


# -- Jacobians -----------------------------------------------------------------------------------------------


def jacobian_of(
    fn: Fn, argnums: int | Sequence[int], forward: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Derivatives of every output with respect to every element of the chosen arguments.

    In the structure of the value, per leaf in that of the arguments, arrays of shape ``y.shape + x.shape``.
    """
    point = point_of(fn, args, argnums)
    leaves, structure = pytree.flatten(fn(*point.args, **detach(kwargs)))
    ys = [as_tensor(leaf) for leaf in leaves]
    for y in ys:
        if not is_inexact(y.dtype):
            raise DTypeError(
                layout(
                    f"{signature_text(fn)} returns {y.dtype.name}, which has no derivative",
                    op=operation_text(y.op),
                )
            )
        if not y.spec.is_known:
            raise ShapeError(
                layout(
                    f"{signature_text(fn)} returns {y.spec}: how many rows its Jacobian has is known only when it runs",
                    op=operation_text(y.op),
                    hint="reduce the value to a known shape, or take one direction at a time with jg.jvp or jg.vjp",
                )
            )
    blocks = (_columns if forward else _rows)(ys, point.tensors)
    return pytree.unflatten(structure, [point.arrange(row) for row in blocks])


def _rows(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Per y and x the block of derivatives: a gradient with a stand-in for the seed, batched over all unit
    seeds.
    """
    return [[_block(rows, y, x) for rows, x in zip(_row_gradients(y, xs), xs, strict=True)] for y in ys]


def _row_gradients(y: Tensor, xs: Sequence[Tensor]) -> list[Tensor]:
    if y.size == 0:
        return [as_tensor(np.zeros((0, *x.spec.known_shape), x.dtype)) for x in xs]
    if y.size == 1:
        return dense_gradients([y], xs, [call("ones_like", y)])
    seed, lead = standing_in(same(call("zeros_like", y))), Lead(y.size)
    return batch(dense_gradients([y], xs, [seed]), {seed: units(y, lead)}, lead)


def _block(rows: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return call("reshape", rows, (*y.spec.known_shape, *x.spec.known_shape))  # type: ignore[no-any-return]


def units(x: Tensor, lead: Lead) -> Tensor:
    """All unit tensors of the shape of ``x``, one per element, along a new leading axis."""
    number = lead.numbers(x)
    is_one = call("astype", call("equal", call("expand_dims", number, 1), number), x.dtype)
    lead.units.add(is_one)
    if x.spec.is_known:
        return lead.viewed(is_one, call("reshape", is_one, (x.size, *x.spec.known_shape)))
    return lead.viewed(is_one, apply_one(find("reshape_like"), is_one, repeat(x, lead)))


def _columns(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> list[list[Tensor]]:
    """Per y and x the block of derivatives: a derivative along a stand-in, batched over all unit tangents."""
    table: list[list[Tensor]] = [[] for _ in ys]
    for x in xs:
        for row, y, columns in zip(table, ys, _column_tangents(ys, x), strict=True):
            last = (*range(1, columns.ndim), 0)
            row.append(_block(call("transpose", columns, last), y, x))
    return table


def _column_tangents(ys: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    if x.size == 0:
        return [as_tensor(np.zeros((0, *y.spec.known_shape), y.dtype)) for y in ys]
    tangent, lead = standing_in(same(call("zeros_like", x))), Lead(x.size)
    return batch(along(ys, [x], [tangent]), {tangent: units(x, lead)}, lead)
