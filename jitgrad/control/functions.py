"""cond, switch, while_loop, fori_loop, scan and checkpoint as users call them; the ops are in ops.py.

In a graph, and while a function is traced, they add an op. Called on arrays and eager tensors they are the Python loops
and branches that they stand for.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.compiled import run_once
from jitgrad.control import states
from jitgrad.control.arrays import filled_like, has_empty
from jitgrad.control.checks import (
    check_branches,
    check_choice,
    check_condition,
    check_count,
    check_items,
    check_state,
    check_takes,
    refuse_empty,
    settle_state,
    value_of_choice,
    value_of_condition,
)
from jitgrad.control.ops import (
    LoopLimitError,
    add_control,
    branch_number,
    call_op,
    cond_op,
    item_spec,
    loop_limit_text,
    scan_op,
    while_op,
)
from jitgrad.control.tracing import (
    as_operand,
    close_over,
    counted,
    first_step,
    graph_for,
    numbered,
    standing_for,
    trace_body,
    with_equal_room,
)
from jitgrad.errors import DTypeError, ShapeError, layout
from jitgrad.given import check_function
from jitgrad.graph import Graph, Tensor
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, filled
from jitgrad.sources import place
from jitgrad.trace import graph_in

Fn = Callable[..., Any]
_LEARNING_STEPS = 4  # until the elements of empty arrays are known that enter a loop


def _tensors(leaves: Sequence[Any], graph: Graph) -> list[Tensor]:
    return [_tensor(leaf, graph) for leaf in leaves]


def _tensor(leaf: Any, graph: Graph) -> Tensor:
    return as_operand(_as_number(leaf), graph)


def _as_number(leaf: Any) -> Any:
    """An array whose elements are all one number (``np.zeros(n)``) in the memory of that number; others as they are."""
    if not isinstance(leaf, np.ndarray) or not leaf.size or leaf.dtype.kind not in "fiub":
        return leaf
    first = leaf.flat[0]
    is_one = bool(np.all(leaf == first)) and (first != 0 or leaf.dtype.kind != "f" or not np.signbit(leaf).any())
    return filled(leaf.shape, first, leaf.dtype) if is_one else leaf


# -- branches ----------------------------------------------------------------------------------------------------------


def cond(pred: Any, true_fn: Fn, false_fn: Fn, *operands: Any) -> Any:
    """``true_fn(*operands)`` where ``pred`` (one bool) is true, else ``false_fn(*operands)``; only that one runs.

    The functions may read tensors from around. They give the same structure, dtypes and shapes: ShapeError, DTypeError
    with both otherwise. A gradient goes through the branch that ran.
    """
    for branch in (true_fn, false_fn):
        check_function("cond", branch, "two functions", "write lambda: x for a branch that gives x")
        _check_branch("cond", branch, operands)
    graph = graph_for(pred, operands)
    if graph is None:
        return (true_fn if value_of_choice("cond", pred) else false_fn)(*operands)
    with graph.as_default():
        holds = check_choice("cond", _tensor(pred, graph))
        holds = holds if holds.dtype.kind == "b" else call("astype", holds, np.dtype(bool))
    return _choose("cond", holds, (false_fn, true_fn), operands, graph)


def switch(index: Any, branches: Sequence[Fn], *operands: Any) -> Any:
    """``branches[index](*operands)``; an index out of range takes the nearest branch. Otherwise as ``cond``."""
    if not branches:
        raise ValueError("switch needs at least one branch")
    for branch in branches:
        check_function("switch", branch, "functions", "write lambda: x for a branch that gives x")
        _check_branch("switch", branch, operands)
    graph = graph_for(index, operands)
    if graph is None:
        return branches[branch_number(value_of_choice("switch", index), len(branches))](*operands)
    with graph.as_default():
        number = check_choice("switch", _tensor(index, graph))
        if number.dtype == np.uint64:
            number = call("astype", call("minimum", number, len(branches) - 1), np.dtype(np.int64))
    return _choose("switch", number, tuple(branches), operands, graph)


def _check_branch(name: str, branch: Fn, operands: tuple[Any, ...]) -> None:
    given = [f"operand {k + 1}" for k in range(len(operands))]
    check_takes(name, branch, given, f"the operands stand behind the functions, {name}(..., x): a branch takes each")


def _choose(name: str, number: Tensor, fns: tuple[Fn, ...], operands: tuple[Any, ...], graph: Graph) -> Any:
    with graph.as_default():
        leaves, trees = numbered(operands)
        tensors = _tensors(leaves, graph)
        bodies = with_equal_room([trace_body(fn, graph, trees, tensors, name) for fn in fns])
        bodies = check_branches(name, fns, bodies)
        step = first_step(bodies)
        outside, branches = close_over(counted(bodies, len(tensors), [False] * len(bodies)))
        operands = (*outside, *tensors, *step)
        made = add_control(cond_op, number, *operands, branches=branches) if bodies[0].outputs else ()
        _weaken(made, [all(t.is_weak for t in column) for column in zip(*(b.outputs for b in bodies), strict=True)])
        return pytree.unflatten(bodies[0].structure, list(made))


def _weaken(made: Sequence[Tensor], are_weak: Sequence[bool]) -> None:
    """Let outputs give way to other dtypes as Python numbers do, where nothing but Python numbers made them."""
    for t, is_weak in zip(made, are_weak, strict=False):
        t.is_weak = is_weak


def checkpoint(fn: Fn) -> Fn:
    """``fn``, of whose values a gradient keeps nothing but the arguments: the rest is computed again when it is needed.

    Memory for time: a gradient runs ``fn`` once more. Arguments are pytrees of arrays, keyword arguments too.
    """
    check_function("checkpoint", fn)
    called = standing_for(fn, lambda args, kwargs: fn(*args, **kwargs))

    @functools.wraps(fn)
    def call_again(*args: Any, **kwargs: Any) -> Any:
        graph = graph_for(args, kwargs)
        if graph is None:
            return fn(*args, **kwargs)
        with graph.as_default():
            leaves, trees = numbered([args, kwargs])
            tensors = _tensors(leaves, graph)
            body = trace_body(called, graph, trees, tensors, "checkpoint")
            step = first_step([body])
            outside, (sub,) = close_over(counted([body], len(tensors), [False]))
            made = add_control(call_op, *outside, *tensors, *step, body=sub) if body.outputs else ()
            return pytree.unflatten(body.structure, list(made))

    return call_again


# -- loops -------------------------------------------------------------------------------------------------------------


def while_loop(
    cond_fn: Fn, body_fn: Fn, init: Any, *, maximum_iterations: int | None = None, shape_invariants: Any = None
) -> Any:
    """``state = init; while cond_fn(state): state = body_fn(state)``, the state any pytree; gives the last state.

    The body keeps structure, dtypes and shapes; a part whose shape changes is declared in ``shape_invariants``, a tree
    like ``init`` of shapes with None for an extent that changes (such a loop is interpreted). Gradients need no bound
    on the steps. A loop that would go on after ``maximum_iterations`` raises LoopLimitError.
    """
    for fn in (cond_fn, body_fn):
        check_function("while_loop", fn, "two functions")
        check_takes("while_loop", fn, ["the state"], "the state is one value: take a tuple apart inside, a, b = state")
    maximum_iterations = check_count("maximum_iterations", maximum_iterations)
    refuse_empty("while_loop", body_fn, init)
    graph = graph_for(init)
    if graph is None:
        return _python_while(cond_fn, body_fn, init, maximum_iterations, shape_invariants)
    with graph.as_default():
        init = _with_room("while_loop", body_fn, graph, init, [])
        leaves, (tree,) = numbered([init])
        state = _tensors(leaves, graph)
        shapes = _invariants(init, shape_invariants)

        def trace_step(likes: Sequence[Any]) -> Any:
            return trace_body(body_fn, graph, [tree], likes, "state")

        state, body = settle_state("while_loop", body_fn, init, state, trace_step, shapes=shapes)
        test = trace_body(cond_fn, graph, [tree], list(body.inputs), "state")
        test = check_condition(cond_fn, test)
        step = first_step([test, body])
        outside, (test_sub, body_sub) = close_over(counted([test, body], len(state), [False, True]))
        made = add_control(
            while_op, *outside, *state, *step, cond=test_sub, body=body_sub, n_consts=len(outside),
            maximum_iterations=maximum_iterations, shapes=None if shapes is None else (*shapes, *[()] * len(step)),
        )[: len(state)]  # fmt: skip
        _weaken(made, [x.is_weak and y.is_weak for x, y in zip(state, body.outputs, strict=True)])
        return pytree.unflatten(body.structure, list(made))


def _invariants(init: Any, given: Any) -> tuple[Any, ...] | None:
    """The declared shapes of the state's leaves; None where none of them leaves an extent open."""
    if given is None:
        return None
    shapes = tuple(None if shape is None else tuple(shape) for shape in states.flatten_up_to(init, given))
    return shapes if any(shape is None or None in shape for shape in shapes) else None


def _with_room(
    name: str, fn: Fn, graph: Graph, init: Any, xs: Sequence[Any], is_pair: bool = False
) -> Any:
    """The state with room in its empty TensorArrays, whose elements are learnt from a step that is traced for it."""
    for _ in range(_LEARNING_STEPS):
        if not has_empty(init):
            break
        leaves, trees = numbered([init, *xs])
        n_carry = len(states.flatten(init)[0])
        tensors = _tensors(leaves, graph)
        likes = [*tensors[:n_carry], *(item_spec(x.spec) for x in tensors[n_carry:])]
        body = trace_body(fn, graph, trees, likes, name)
        result = pytree.unflatten(body.structure, list(body.outputs))
        init = filled_like(init, [result[0] if is_pair and isinstance(result, tuple | list) else result])
    return init


def _own(tree: Any) -> Any:
    """The tree with copies of its arrays: what a body assigns to is its own."""
    return states.tree_map(lambda leaf: leaf.copy() if type(leaf) is np.ndarray else leaf, tree)


def _python_while(cond_fn: Fn, body_fn: Fn, init: Any, most: int | None, shapes: Any) -> Any:
    count, state = 0, _own(init)
    while True:
        goes_on = cond_fn(state)
        if isinstance(goes_on, Tensor):
            with goes_on.graph.as_default():
                return while_loop(cond_fn, body_fn, init, maximum_iterations=most, shape_invariants=shapes)
        if not (goes_on if type(goes_on) is bool else value_of_condition(cond_fn, goes_on)):
            return state
        if most is not None and count >= most:
            raise LoopLimitError(loop_limit_text(most))
        after = body_fn(state)
        if shapes is None:
            check_state("while_loop", body_fn, state, after)
        state, count = after, count + 1


def fori_loop(lower: Any, upper: Any, body_fn: Fn, init: Any) -> Any:
    """``state = init; for i in range(lower, upper): state = body_fn(i, state)``; gives the last state.

    The bounds are Python integers, or tensors: then the number of steps is only known when it runs.
    """
    check_function("fori_loop", body_fn)
    check_takes("fori_loop", body_fn, ["the number of the step", "the state"], "write lambda i, state: ...")
    if _is_integer(lower) and _is_integer(upper):
        first, steps = operator.index(lower), max(operator.index(upper) - operator.index(lower), 0)
        if not steps and graph_for(init) is None:
            return init
        counted = standing_for(body_fn, lambda state, i: (body_fn(_as_number_of_step(i), state), None))
        return _scan("fori_loop", counted, init, np.arange(first, first + steps), steps, False)[0]

    def goes_on(state: Any) -> Any:
        return np.less(state[0], upper)

    def step(state: Any) -> Any:
        i, inner = state
        return i + 1, body_fn(_as_number_of_step(i), inner)

    for bound in (lower, upper):
        if np.asarray(bound).dtype.kind not in "iu" if not hasattr(bound, "dtype") else bound.dtype.kind not in "iu":
            raise DTypeError(layout(f"fori_loop counts in integers, got {bound!r} as a bound", needed=place()))
    standing_for(body_fn, step)
    start = lower if not _is_integer(lower) else np.asarray(lower)
    graph = graph_for(lower, upper, init)
    if graph is None:
        return while_loop(goes_on, step, (start, init))[1]
    with graph.as_default():
        return while_loop(goes_on, step, (as_tensor(start, np.dtype(np.int64), graph=graph), init))[1]


def _as_number_of_step(i: Any) -> Any:
    """A counter as the Python integer that ``range`` would give: it gives way to other dtypes."""
    if isinstance(i, Tensor):
        i.is_weak = True
        return i
    return int(i) if isinstance(i, np.integer) else i


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def scan(
    fn: Fn, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False, *,
    checkpoint_every: int | None = None,
) -> Any:  # fmt: skip
    """``fn(carry, x) -> (carry, y)`` for each item of ``xs`` along its first axis; gives (carry, ys), the ys stacked.

    ``carry``, ``xs`` and ``y`` are pytrees; ``xs`` may be None, with a ``length``. ``reverse`` takes the last item
    first; ys keep the places of their items. A gradient keeps what it reads of every step; with ``checkpoint_every=k``
    it keeps the carry of every k-th step and computes the rest again: k near the square root of the length needs least
    memory. ShapeError for xs of different lengths, and for a carry that changes its shape.
    """
    check_function("scan", fn)
    check_takes("scan", fn, ["the carry", "an item"], "write lambda carry, x: (carry, y); x is None without xs")
    count = check_items(xs, check_count("length", length))
    if checkpoint_every is not None:
        return _scan_in_parts(fn, init, xs, count, reverse, checkpoint_every)
    return _scan("scan", fn, init, xs, count, bool(reverse))


def _scan(name: str, fn: Fn, init: Any, xs: Any, count: int | None, reverse: bool) -> Any:
    """A scan on behalf of a function of that name."""
    graph = graph_for(init, xs)
    if graph is None:
        assert count is not None
        return _python_scan(name, fn, init, xs, count, reverse)
    with graph.as_default():
        init = _with_room(name, fn, graph, init, [xs], is_pair=True)
        leaves, trees = numbered([init, xs])
        n_carry = len(states.flatten(init)[0])
        state, items = _tensors(leaves[:n_carry], graph), _tensors(leaves[n_carry:], graph)
        likes = [item_spec(x.spec) for x in items]

        def trace_step(carried: Sequence[Any]) -> Any:
            return trace_body(fn, graph, trees, [*carried, *likes], name)

        state, body = settle_state(name, fn, init, state, trace_step, is_pair=True)
        if not body.outputs:
            return pytree.unflatten(body.structure, [])
        step = first_step([body])
        outside, (sub,) = close_over(counted([body], n_carry, [True]))
        made = add_control(
            scan_op, *outside, *state, *step, *items, body=sub, n_consts=len(outside), n_carry=n_carry + len(step),
            length=count, reverse=reverse,
        )  # fmt: skip
        made = (*made[:n_carry], *made[n_carry + len(step) :])
        _weaken(made, [x.is_weak and y.is_weak for x, y in zip(state, body.outputs, strict=False)])
        carry, ys = pytree.unflatten(body.structure, list(made))
        return carry, ys


def _python_scan(name: str, fn: Fn, init: Any, xs: Any, count: int, reverse: bool) -> Any:
    leaves, structure = states.flatten(xs)
    carry: Any = _own(init)
    rows: list[Any] = [None] * count
    for t in reversed(range(count)) if reverse else range(count):
        result = fn(carry, pytree.unflatten(structure, [x[t] for x in leaves]))
        if any(isinstance(leaf, Tensor) for leaf in states.flatten(result)[0]):
            with graph_in(result).as_default():  # type: ignore[union-attr]
                return _scan(name, fn, init, xs, count, reverse)
        check_state(name, fn, carry, result, is_pair=True)
        carry, rows[t] = result[0], _own(result[1])
    if not count:  # of which only a trace tells what ys would be
        return run_once(lambda init, xs: _scan(name, fn, init, xs, 0, reverse), init, xs)
    return carry, _mapped(lambda *parts: np.stack(parts), *rows)


def _mapped(fn: Fn, *trees: Any) -> Any:
    """``fn`` of the leaves of several trees of one structure."""
    columns = [states.flatten(tree)[0] for tree in trees]
    return pytree.unflatten(states.flatten(trees[0])[1], [fn(*leaves) for leaves in zip(*columns, strict=True)])


def _scan_in_parts(fn: Fn, init: Any, xs: Any, count: int | None, reverse: bool, size: int) -> Any:
    """The same scan as a scan over parts, each of which a gradient computes again; what is left over is one more."""
    if count is None:
        raise ShapeError(layout("checkpoint_every needs a length that is known", needed=place()))
    if size < 1:
        raise ValueError(f"checkpoint_every={size}: at least one step lies between two checkpoints")
    parts = count // size
    rest = count - parts * size
    if not parts:
        return checkpoint(lambda c, items: scan(fn, c, items, count, reverse))(init, xs)

    def piece(carry: Any, items: Any, n: int) -> Any:
        return checkpoint(lambda c, part: scan(fn, c, part, n, reverse))(carry, items)

    def split(x: Any) -> tuple[Any, Any]:
        ends = (x[:rest], x[rest:]) if reverse else (x[parts * size :], x[: parts * size])
        return ends[0], np.reshape(ends[1], (parts, size, *x.shape[1:]))

    left = states.tree_map(lambda x: split(x)[0], xs)
    grouped = states.tree_map(lambda x: split(x)[1], xs)
    carry, ys = scan(lambda c, part: piece(c, part, size), init, grouped, parts, reverse)
    ys = states.tree_map(lambda y: np.reshape(y, (parts * size, *y.shape[2:])), ys)
    if not rest:
        return carry, ys
    carry, last = piece(carry, left, rest)
    pairs = (last, ys) if reverse else (ys, last)
    return carry, _mapped(lambda a, b: np.concatenate([a, b]), *pairs)
