"""jit_scope and the scopes of gradient ops: the only file that spells the names of the compilation attributes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from jitgrad.config import config
from jitgrad.eagerness import no_collecting
from jitgrad.graph import Graph, Operation, default_graph, in_graph

COMPILE = "_XlaCompile"
SCOPE = "_XlaScope"
SEPARATE = "_XlaSeparateCompiledGradients"

Attrs = MappingProxyType[str, Any]
CompileOps = bool | Callable[[Operation], bool]


@contextlib.contextmanager
def jit_scope(
    compile_ops: CompileOps = True, separate_compiled_gradients: bool | None = None, *, graph: Graph | None = None
) -> Iterator[None]:
    """Operations made inside are compiled, grouped by scope (SEMANTICS section 1).

    ``compile_ops`` is a bool, or a function of the operation that gives one, asked once per operation.
    ``separate_compiled_gradients``: gradients of these operations get a scope of their own; None means as the
    enclosing scope, else False. TypeError for an answer that is not a bool. Inside a graph function it does nothing:
    the options of the function say whether it is compiled.
    """
    graph = default_graph() if graph is None else graph
    if graph.is_function:
        yield
        return
    outer = graph.current_attr(SCOPE)
    scope = f"jit_scope_{next(graph.scope_counter)}" if outer is None else outer
    if separate_compiled_gradients is None:
        separate_compiled_gradients = bool(graph.current_attr(SEPARATE))
    elif not isinstance(separate_compiled_gradients, bool):
        raise TypeError(f"separate_compiled_gradients must be a bool or None, got {separate_compiled_gradients!r}")
    attrs = {COMPILE: _checked(compile_ops), SCOPE: scope, SEPARATE: separate_compiled_gradients}
    with graph.attr_scope(**attrs), _eager_scope(compile_ops, bool(separate_compiled_gradients)):
        yield


def _eager_scope(compile_ops: CompileOps, is_separate: bool) -> contextlib.AbstractContextManager[None]:
    """Outside of graphs the scope collects eager operations, and one that does not compile lets them run at once."""
    if in_graph():
        return contextlib.nullcontext()
    if compile_ops is False:
        return no_collecting(config.debug_nans)
    from jitgrad.eager.pending import collecting

    return collecting(compile_ops, is_separate)


def _checked(compile_ops: CompileOps) -> CompileOps:
    if isinstance(compile_ops, bool):
        return compile_ops
    if not callable(compile_ops):
        raise TypeError(f"compile_ops must be a bool or a function of the operation, got {compile_ops!r}")

    def ask(op: Operation) -> bool:
        answer = compile_ops(op)
        if not isinstance(answer, bool):
            raise TypeError(f"compile_ops gave {answer!r} for operation {op.name!r}: expected a bool")
        return answer

    return ask


def compile_attrs(op: Operation) -> Attrs:
    """The compilation attributes that an operation carries."""
    attrs = op._attrs
    return MappingProxyType({key: attrs[key] for key in (COMPILE, SCOPE, SEPARATE) if key in attrs})


def gradient_attrs(op: Operation, name: str) -> Attrs:
    """Compilation attributes of the gradient of ``op`` made by ``gradients(name=name)`` (SEMANTICS section 2)."""
    get = op._attrs.get
    return _gradient_attrs((get(COMPILE), get(SCOPE), get(SEPARATE)), name)


@functools.lru_cache(maxsize=256)
def _gradient_attrs(values: tuple[Any, ...], name: str) -> Attrs:
    attrs = {key: value for key, value in zip((COMPILE, SCOPE, SEPARATE), values, strict=True) if value is not None}
    if attrs.get(COMPILE) and attrs.get(SEPARATE) and SCOPE in attrs:
        attrs[SCOPE] = f"{attrs[SCOPE]}_grad_{name.replace('/', '_')}"
    return MappingProxyType(attrs)


def sum_attrs(ops: list[Operation]) -> Attrs:
    """The compilation attributes of a sum of what ``ops`` make: those that they share.

    Where all are compiled but in different scopes, the sum goes with the last of them, whose scope runs last: in no
    scope it would run in the interpreter and cut the clusters around it.
    """
    if all(op._attrs is ops[0]._attrs for op in ops):
        return compile_attrs(ops[0])
    first, *rest = [compile_attrs(op) for op in ops]
    if all(attrs == first for attrs in rest):
        return first
    if all(attrs.get(COMPILE) for attrs in (first, *rest)):
        return compile_attrs(max(ops, key=lambda op: op.id))
    return MappingProxyType({})


def function_attrs(graph: Graph, name: str, is_compiled: bool | None, is_separate: bool | None) -> dict[str, Any]:
    """Compilation attributes of a graph function that is called first in the active scope (SEMANTICS section 1).

    None for what its definition does not say: then the scope of each call does.
    """
    attrs: dict[str, Any] = {}
    if is_compiled is not None:
        outer = graph.current_attr(SCOPE)
        attrs = {COMPILE: is_compiled, SCOPE: f"function_{name}" if outer is None else outer}
        attrs[SEPARATE] = bool(graph.current_attr(SEPARATE))
    return attrs if is_separate is None else {**attrs, SEPARATE: is_separate}


def is_refused(attrs: Mapping[str, Any]) -> bool:
    """Whether these attributes say that an operation is not to be compiled."""
    return attrs.get(COMPILE) is False


def cluster_scope(attrs: Mapping[str, Any]) -> str | None:
    """The scope in which an operation with these attributes is compiled; None when it is not to be compiled."""
    return attrs.get(SCOPE, "") if attrs.get(COMPILE) else None
