"""function(): Python functions of tensors as functions of a graph, called as one operation; what such a definition is
and how it is differentiated is in definitions.py.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from jitgrad import pytree
from jitgrad.compiled import Compiled, Options
from jitgrad.control import states
from jitgrad.control.definitions import Call, FunctionBody, GraphFunction, Rule, define_traced, operands, outermost
from jitgrad.control.tracing import as_operand, graph_for, trace_body
from jitgrad.custom import custom_gradient
from jitgrad.errors import JitgradError, layout
from jitgrad.given import check_function
from jitgrad.graph import Graph, Operation, Tensor, default_graph
from jitgrad.operators import call as call_op
from jitgrad.python_calls import py_func_op
from jitgrad.records import dataclass
from jitgrad.scopes import function_attrs, jit_scope
from jitgrad.sources import place
from jitgrad.trace import as_name, collects_names, describe, is_dynamic_leaf, static

Fn = Callable[..., Any]


class RecursiveFunctionError(JitgradError, RecursionError):
    """A graph function calls itself."""


@dataclass(frozen=True)
class FunctionOptions:
    """What ``function`` was told."""

    func_name: str | None = None
    compiled: bool | None = None
    separate_compiled_gradients: bool | None = None
    grad_func: Fn | None = None
    python_grad_func: Fn | None = None
    noinline: bool = False

    def __post_init__(self) -> None:
        """TypeError for an option that is none."""
        if not isinstance(self.func_name, str | None):
            raise TypeError(f"func_name must be a string or None, got {self.func_name!r}")
        for key in ("compiled", "separate_compiled_gradients"):
            if not isinstance(getattr(self, key), bool | None):
                raise TypeError(f"{key} must be a bool or None, got {getattr(self, key)!r}")
        if not isinstance(self.noinline, bool):
            raise TypeError(f"noinline must be a bool, got {self.noinline!r}")
        for key in ("grad_func", "python_grad_func"):
            if getattr(self, key) is not None and not callable(getattr(self, key)):
                raise TypeError(f"{key} must be a function or None, got {getattr(self, key)!r}")


def function(
    fn: Fn | None = None,
    *,
    func_name: str | None = None,
    compiled: bool | None = None,
    separate_compiled_gradients: bool | None = None,
    grad_func: Fn | None = None,
    python_grad_func: Fn | None = None,
    noinline: bool = False,
) -> Any:
    """Decorator, with or without arguments: ``fn(*tensors)`` as a function of the graph that a call is made in.

    The first call in a graph with tensors of some dtypes and known shapes traces it, and ``graph.functions`` has it by
    its name, ``func_name`` or that of ``fn``. Each call is one operation, of the type of that name. Arguments and
    results are pytrees; a function without results gives the operation. Outside of graphs ``fn`` runs as it is.

    ``compiled`` says whether it is compiled, wherever it is called; None: as what is around a call.
    ``separate_compiled_gradients`` as for ``jit_scope``. A call is compiled together with what is around it, unless
    ``noinline``. The gradient is derived from the body, unless ``python_grad_func(op, *grads)`` or
    ``grad_func(*inputs, *grads)``, tensors of the arguments and of the gradients of results, gives one gradient per
    input; ValueError when both are given, TypeError for an option that is none. RecursiveFunctionError for a function
    that calls itself.
    """
    options = FunctionOptions(func_name, compiled, separate_compiled_gradients, grad_func, python_grad_func, noinline)
    if fn is not None:
        check_function("function", fn)
    return functools.partial(Function, options=options) if fn is None else Function(fn, options)


class Function:
    """A Python function that is a function of each graph in which it is called."""

    def __init__(self, fn: Fn, options: FunctionOptions) -> None:
        self.__name__ = self.__qualname__ = type(fn).__name__
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.options = options
        self.name = as_name(options.func_name or self.__name__)
        if options.grad_func is not None and options.python_grad_func is not None:
            raise ValueError(
                layout(f"function {self.name!r} is given two gradients: grad_func and python_grad_func",
                       function=describe(fn), hint="give one of them")
            )  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        graph = graph_for(args, kwargs)
        if graph is None:
            return self._of_values(*args, **kwargs)
        with graph.as_default():
            if graph.is_trace:
                with self._scope(graph):
                    return self._with_rule(*args, **kwargs)
            found, given = self._defined(graph, args, kwargs)
            if graph.is_repeated and any(op.opdef is not py_func_op for op in found.body.effects):
                with self._scope(graph):  # in a body, what is drawn follows from the step
                    return self._with_rule(*args, **kwargs)
            return self._call(graph, found, given)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<graph function {describe(self.fn)}>"

    # -- in a graph ----------------------------------------------------------------------------------------------------

    def _defined(self, graph: Graph, args: Any, kwargs: Any) -> tuple[GraphFunction, list[Any]]:
        """The definition for a call's arguments, and these as tensors and statics."""
        leaves, structure = states.flatten((args, kwargs))
        given = [as_operand(leaf, graph) if is_dynamic_leaf(leaf) else static(leaf) for leaf in leaves]
        orders = pytree.call_orders(args, kwargs, collects_names(self.fn))
        return self._definition(graph, structure, orders, given), given

    def _call(self, graph: Graph, found: GraphFunction, given: Sequence[Any]) -> Any:
        tensors = [x for x in given if isinstance(x, Tensor)]
        with graph.attr_scope(**found.attrs):
            if not found.body.outputs:
                return self._operation(found, operands(found, tensors, graph))
            outputs = found.call(operands(found, tensors, graph))
        for t, inner in zip(outputs, found.body.outputs, strict=True):
            t.is_weak = inner.is_weak
        if not found.n_results:
            return outputs[0].op
        return pytree.unflatten(found.structure, list(outputs[: found.n_results]))

    def _operation(self, found: GraphFunction, inputs: tuple[Tensor, ...]) -> Operation:
        """A call that has no outputs at all."""
        return default_graph().add(found.opdef, inputs, {"body": found.body, "noinline": found.noinline}, ())

    def _definition(self, graph: Graph, structure: Any, orders: Any, given: Sequence[Any]) -> GraphFunction:
        """The definition for such arguments that holds in ``graph``, made where there is none."""
        leaves = [(x.dtype, x.shape, x.is_weak) if isinstance(x, Tensor) else x for x in given]
        key = (self, structure, orders, *leaves)
        around: Graph | None = graph
        while around is not None:
            if key in around.definitions:
                found: GraphFunction = around.definitions[key]
                return found
            around = around.outer
        made = self._define(graph, structure, given, key)
        home = graph if made.n_args < len(made.body.inputs) else outermost(graph)
        made.body.graph.outer = home
        home.definitions[key] = made
        return made

    def _define(self, graph: Graph, structure: Any, given: Sequence[Any], key: Any) -> GraphFunction:
        if key in _under_way.keys:
            raise self._recursion("calls itself, and would never end")

        @functools.wraps(self.fn)
        def body(tensors: list[Tensor]) -> Any:
            pending = iter(tensors)
            args, kwargs = pytree.unflatten(structure, [next(pending) if isinstance(x, Tensor) else x.value
                                                        for x in given])  # fmt: skip
            return self.fn(*args, **kwargs)

        likes = [x for x in given if isinstance(x, Tensor)]
        _under_way.keys = (*_under_way.keys, key)
        try:
            traced = trace_body(body, graph, [list(range(len(likes)))], likes, "x", FunctionBody)
        except RecursionError as error:
            depth = sum(under_way[0] is self for under_way in _under_way.keys)
            if depth < 2 or isinstance(error, RecursiveFunctionError):
                raise
            raise self._recursion("calls itself with ever other arguments") from None
        finally:
            _under_way.keys = _under_way.keys[:-1]
        options = self.options

        def attrs(name: str) -> dict[str, Any]:
            return function_attrs(graph, name, options.compiled, options.separate_compiled_gradients)

        return define_traced(traced, self.name, attrs, options.noinline, self._rule)

    def _recursion(self, does: str) -> RecursiveFunctionError:
        return RecursiveFunctionError(
            layout(f"function {self.name!r} {does}", function=describe(self.fn), needed=place(),
                   hint="write the repetition as while_loop, scan or fori_loop")
        )  # fmt: skip

    # -- the user's gradient -------------------------------------------------------------------------------------------

    @functools.cached_property
    def _rule(self) -> Rule | None:
        by_op, by_inputs = self.options.python_grad_func, self.options.grad_func
        if by_op is not None:
            return lambda call, inputs, gs: by_op(call, *gs)
        if by_inputs is None:
            return None
        inner = by_inputs
        if not isinstance(inner, Function):
            inner = Function(inner, FunctionOptions(func_name=f"{self.name}_grad", noinline=self.options.noinline))

        def rule(call: Any, inputs: Sequence[Any], gs: Sequence[Any]) -> Any:
            filled = [call_op("zeros_like", y) if g is None else g for g, y in zip(gs, call.outputs, strict=False)]
            return inner(*inputs, *filled)

        return rule

    # -- outside of graphs, and in the trace of a function -------------------------------------------------------------

    @functools.cached_property
    def _of_values(self) -> Fn:
        options = self.options
        if not options.compiled:
            return self._with_rule
        return Compiled(self._with_rule, Options(bool(options.separate_compiled_gradients), name=self.name))

    def _scope(self, graph: Graph) -> Any:
        compiled, separate = self.options.compiled, self.options.separate_compiled_gradients
        if compiled is not None:
            return jit_scope(compiled, separate, graph=graph)
        return graph.attr_scope(**function_attrs(graph, self.name, None, separate))

    @functools.cached_property
    def _with_rule(self) -> Fn:
        """``fn``, with the gradient that the user has given."""
        rule = self._rule
        if rule is None:
            return self.fn

        @custom_gradient
        @functools.wraps(self.fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            value = self.fn(*args, **kwargs)
            outputs = tuple(pytree.flatten(value)[0])
            inputs, structure = pytree.flatten(args)

            def gradient(*gs: Any) -> Any:
                found = rule(Call(self.name, tuple(inputs), outputs), inputs, pytree.flatten(gs)[0])
                grads = list(found) if isinstance(found, list | tuple) else [found]
                return pytree.unflatten(structure, grads)

            return value, gradient

        return call


class _UnderWay(threading.local):
    keys: tuple[Any, ...] = ()


_under_way = _UnderWay()
