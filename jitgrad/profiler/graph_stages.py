"""Graphs to be compared: the programs behind fetches, with gradients in the scopes of their ops or in others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jitgrad import pytree
from jitgrad.program import Instruction, Program, is_dynamic
from jitgrad.session import Session
from jitgrad.sources import source_text
from jitgrad.spec import spec_of


def graph_program(fetches: Any, feed_dict: Mapping[Any, Any]) -> tuple[Program, list[Any]]:
    """The program that a session would run for these fetches, and its arrays.

    TypeError when the fetches are no graph elements; ValueError when the run is cut at a py_func; the session's own
    errors for feeds that do not fit.
    """
    graph = next((x.graph for x in pytree.flatten(fetches)[0] if hasattr(x, "graph")), None)
    if graph is None:
        raise TypeError(f"compare takes a function, or tensors of a graph and their feeds, got {fetches!r}")
    runner, arrays = Session(graph).prepared(fetches, feed_dict)
    if runner.is_cut:
        op = next(op for op in runner.operations if is_dynamic(op))
        raise ValueError(
            f"compare cannot run {op.type} {op.name!r} ({source_text(op.source)}): its shapes are known only once it "
            "has run; fetch what it reads, and feed what it gives"
        )
    [(stage, values)] = runner.stages(arrays)
    return stage.program(list(map(spec_of, values))), values


def rescoped(program: Program, is_separate: bool) -> Program:
    """The program with all gradients of compiled scopes in scopes of their own, or in those of their ops."""
    return program.with_instructions(_rescoped(ins, is_separate) for ins in program.instructions)


def _rescoped(ins: Instruction, is_separate: bool) -> Instruction:
    scope = ins.origin.scope
    if scope is None or not ins.is_gradient:
        return ins
    forward = scope.split("_grad_")[0]
    wanted = f"{forward}_grad_gradients" if is_separate else forward
    return replace(ins, origin=replace(ins.origin, scope=wanted))
