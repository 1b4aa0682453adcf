"""jit_scope and the scopes of gradient ops: the only file that spells the names of the compilation attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jitgrad.graph import Graph, Operation, default_graph

COMPILE = "_XlaCompile"
SCOPE = "_XlaScope"
SEPARATE = "_XlaSeparateCompiledGradients"

CompileOps = bool | Callable[[Operation], bool]


@contextlib.contextmanager
def jit_scope(
    compile_ops: CompileOps = True, separate_compiled_gradients: bool | None = None, *, graph: Graph | None = None
) -> Iterator[None]:
    """Operations made inside are compiled, grouped by scope (SEMANTICS section 1).

    ``compile_ops`` is a bool, or a function of the operation that gives one, asked once per operation.
    ``separate_compiled_gradients``: gradients of these operations get a scope of their own; None means as the
    enclosing scope, else False. TypeError for an answer that is not a bool.
    """
    graph = default_graph() if graph is None else graph
    outer = graph.current_attr(SCOPE)
    scope = f"jit_scope_{next(graph.scope_counter)}" if outer is None else outer
    if separate_compiled_gradients is None:
        separate_compiled_gradients = bool(graph.current_attr(SEPARATE))
    attrs = {COMPILE: _checked(compile_ops), SCOPE: scope, SEPARATE: separate_compiled_gradients}
    with graph.attr_scope(**attrs):
        yield


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


def compile_attrs(op: Operation) -> dict[str, Any]:
    """The compilation attributes that an operation carries."""
    return {key: op.attrs[key] for key in (COMPILE, SCOPE, SEPARATE) if key in op.attrs}


def gradient_attrs(op: Operation, name: str) -> dict[str, Any]:
    """Compilation attributes of the gradient of ``op`` made by ``gradients(name=name)`` (SEMANTICS section 2)."""
    attrs = compile_attrs(op)
    if attrs.get(COMPILE) and attrs.get(SEPARATE) and SCOPE in attrs:
        attrs[SCOPE] = f"{attrs[SCOPE]}_grad_{name.replace('/', '_')}"
    return attrs


def sum_attrs(ops: list[Operation]) -> dict[str, Any]:
    """The compilation attributes of a sum of what ``ops`` make: those that they share.

    Where all are compiled but in different scopes, the sum goes with the last of them, whose scope runs last: in no
    scope it would run in the interpreter and cut the clusters around it.
    """
    first, *rest = [compile_attrs(op) for op in ops]
    if all(attrs == first for attrs in rest):
        return first
    if all(attrs.get(COMPILE) for attrs in (first, *rest)):
        return compile_attrs(max(ops, key=lambda op: op.id))
    return {}


def cluster_scope(attrs: Mapping[str, Any]) -> str | None:
    """The scope in which an operation with these attributes is compiled; None when it is not to be compiled."""
    return attrs.get(SCOPE, "") if attrs.get(COMPILE) else None
