"""Functions of a module that are written once, and called for each register of lanes; it knows none of them.

A kernel writes each function of analysis several times: for whole vectors, for several at once, for masked ones, and in
each place where it is used. Where code is wanted quickly, that is most of the work of the code generator: for the
kernels of a chain of 30 sines and its gradient 190 ms, of which 20 are left. Kernels of a process share them, too: they
are modules of their own, so that each is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.vecmath.lanes import Lanes, declare, joined, part_of

Write = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]
_PLAIN = ("nounwind", "noinline")


def call_by_registers(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value], write: Write) -> ir.Value:
    """The function ``name`` of arguments of one type, lane by lane; ``write`` writes it for one register of lanes."""
    known = builder.module.functions.get(f"{name}.{args[0].type.suffix}")
    if known is not None:
        return builder.call(known, args)
    lanes = Lanes(builder, args[0].type)
    most = 8 * builder.module.shared_bytes // lanes.width
    if lanes.count <= most:
        type_ = ir.FunctionType(args[0].type, [args[0].type] * len(args))
        return builder.call(shared_function(builder.module, f"{name}.{lanes.suffix}", type_, write), args)
    half = lanes.count // 2
    low, high = (
        call_by_registers(builder, name, [part_of(builder, a, first, half) for a in args], write) for first in (0, half)
    )
    return joined(builder, [low, high])


def shared_function(
    module: ir.Module, name: str, type_: ir.FunctionType, write: Write, attributes: Iterable[str] = _PLAIN
) -> ir.Function:
    """The function of that name, which is written in the module once, or which is a module of its own."""
    function = declare(module, name, type_)
    if module.parts is not None:
        module.parts.setdefault(name, partial(_part, module, name, type_, write, attributes))
    elif not function.blocks:
        function.linkage = "internal"
        _define(function, write, attributes)
    return function


def _part(caller: ir.Module, name: str, type_: ir.FunctionType, write: Write, attributes: Iterable[str]) -> ir.Module:
    """A module that is the function alone; what that shares with others are modules in turn."""
    module = ir.Module(name, caller.has_fma, caller.shared_bytes, caller.has_avx512, True, caller.divides_slowly)
    _define(declare(module, name, type_), write, attributes)
    return module


def _define(function: ir.Function, write: Write, attributes: Iterable[str]) -> None:
    function.attributes.update(attributes)
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(write(builder, function.args))
