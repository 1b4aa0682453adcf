"""Functions of a module that are written once, and called for each register of lanes; it knows none of them.

A kernel writes each function of analysis several times: for whole vectors, for several at once, for masked ones, and in
each place where it is used. Where code is wanted quickly, that is most of the work of the code generator: for the
kernels of a chain of 30 sines and its gradient 190 ms, of which 20 are left. Kernels of a process share them, too: they
are modules of their own, so that each is compiled once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.vecmath.lanes import Lanes, declare, joined, part_of

Write = Callable[[ir.IRBuilder, Sequence[ir.Value]], ir.Value]


def call_by_registers(builder: ir.IRBuilder, name: str, args: Sequence[ir.Value], write: Write) -> ir.Value:
    """The function ``name`` of arguments of one type, lane by lane; ``write`` writes it for one register of lanes."""
    lanes = Lanes(builder, args[0].type)
    most = 8 * builder.module.shared_bytes // lanes.width
    if lanes.count <= most:
        return builder.call(_function(builder.module, f"{name}.{lanes.suffix}", args, write), args)
    half = lanes.count // 2
    low, high = (
        call_by_registers(builder, name, [part_of(builder, a, first, half) for a in args], write)
        for first in (0, half)
    )
    return joined(builder, [low, high])


def _function(module: ir.Module, name: str, args: Sequence[ir.Value], write: Write) -> ir.Function:
    type_ = args[0].type
    function = declare(module, name, ir.FunctionType(type_, [type_] * len(args)))
    if module.parts is not None:
        part = ir.Module(name, module.has_fma, module.shared_bytes, module.has_avx512)
        module.parts.setdefault(name, partial(_part, part, name, args, write))
    elif not function.blocks:
        function.linkage = "internal"
        _define(function, write)
    return function


def _part(module: ir.Module, name: str, args: Sequence[ir.Value], write: Write) -> str:
    """The text of a module that is the function alone, and what that calls."""
    type_ = args[0].type
    _define(declare(module, name, ir.FunctionType(type_, [type_] * len(args))), write)
    return str(module)


def _define(function: ir.Function, write: Write) -> None:
    function.attributes |= {"nounwind", "noinline"}
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(write(builder, function.args))
