"""Arithmetic in a run of an executable, counted in the loops of its kernels; products left to BLAS are not part of it.

An operation is one arithmetic instruction for one element: a multiply-add is one, a tanh as many as it is made of, on
the path that arguments of ordinary size take. Loads, stores and address arithmetic are not counted.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.scalar_emit import emit_op
from jitgrad.compiler.emission.scalar_values import element_type
from jitgrad.compiler.freezing.bind import BoundCluster
from jitgrad.compiler.loopir.nests import (
    Accumulator,
    Keep,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Repeat,
    Statement,
    Update,
    kept_name,
)
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered
from jitgrad.compiler.machine.compilation import has_avx512
from jitgrad.executable import Executable
from jitgrad.records import dataclass
from jitgrad.spec import DType

_REGISTER, _LEAST = 64, np.dtype(np.float32)  # a whole register, for which vector code is written best
_INSTRUCTION = re.compile(r'^\s*%\S+ = (?:tail )?(call|[a-z]+)\b(?:.*?@"?([\w.]+))?', re.MULTILINE)
_OF_NUMBERS = ("scale_of", "reciprocal_of")  # of a turn's constant, for all elements
_FREE = {"bitcast", "phi", "load", "getelementptr", "insertelement", "shufflevector", "extractelement", "alloca"}


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations on elements of one size: multiplications (multiply-adds too), divisions and roots, and all others."""

    products: float = 0.0
    divisions: float = 0.0
    others: float = 0.0

    def __add__(self, other: Operations) -> Operations:
        return Operations(self.products + other.products, self.divisions + other.divisions, self.others + other.others)

    def times(self, number: float) -> Operations:
        """So many of each."""
        return Operations(self.products * number, self.divisions * number, self.others * number)


def operations(executable: Executable) -> dict[int, Operations]:
    """Operations of one run, by the size of their elements in bytes."""
    total: dict[int, Operations] = {}
    for step, bound in zip(executable.compiled.steps, executable.bound.steps, strict=True):
        if isinstance(step, CompiledCluster) and isinstance(bound, BoundCluster):
            for item, numbers in _kernels(step, bound):
                for size, found in _count(item.kernel, numbers).items():
                    total[size] = total.get(size, Operations()) + found
    return total


def _kernels(step: CompiledCluster, bound: BoundCluster) -> Iterator[tuple[Lowered, dict[str, int]]]:
    """The kernels of a cluster with the values of their ints."""
    for name, numbers, record in zip(bound.names, bound.origins, bound.steps, strict=True):
        addresses = [int(record[1])]
        if name.startswith("region"):
            count, sequence = bound.words_at(addresses[0])[:2].tolist()
            addresses = bound.words_at(sequence)[1 : 2 * count : 2].tolist()
        for number, address in zip(numbers, addresses, strict=False):
            item = step.lowered[number]
            if isinstance(item, Lowered):
                words = bound.words_at(address)[len(item.kernel.buffers) :]
                yield item, dict(zip(item.kernel.ints, map(int, words), strict=False))


def _count(kernel: Kernel, numbers: Mapping[str, int]) -> dict[int, Operations]:
    dtypes: dict[str, DType] = {constant.name: constant.dtype for constant in kernel.constants}
    dtypes |= dict.fromkeys(kernel.ints, np.dtype(np.int64))
    total: dict[int, Operations] = {}
    lists = {b.name: numbers[b.extent] for b in kernel.buffers if b.role == "kept" and b.extent}
    for statement, times in _repeated(kernel.body, dict(numbers), 1, dtypes, lists):
        for size, found in _operations_of(statement, dtypes).items():
            total[size] = total.get(size, Operations()) + found.times(times)
    return total


def _repeated(
    body: Sequence[Statement], numbers: dict[str, int], times: int, dtypes: dict[str, DType], lists: dict[str, int]
) -> Iterator[tuple[Statement, int]]:
    """All statements and how often they run; dtypes of names are noted on the way, numbers that loops run to, and of
    what comes out of ``lists`` how long these are.
    """
    for statement in body:
        if isinstance(statement, Loop):
            dtypes[statement.var] = np.dtype(np.int64)
            turns = _turns(statement, numbers, times, lists)
            yield from _repeated(statement.body, numbers, turns, dtypes, lists)
        elif isinstance(statement, Repeat):
            dtypes |= _dtypes_of_turns(statement, dtypes)
            factors = [s for s in statement.body if isinstance(s, Let) and s.op in _OF_NUMBERS]
            rest = [s for s in statement.body if s not in factors]
            yield from _repeated(factors, numbers, statement.turns, dtypes, lists)
            yield from _repeated(rest, numbers, times * statement.turns, dtypes, lists)
            dtypes |= {kept_name(k, turn): dtypes[k] for k in statement.kept for turn in range(statement.turns)}
        else:
            if isinstance(statement, Load | Let | Accumulator):
                dtypes[statement.name] = statement.dtype
            if isinstance(statement, Load | Let) and (source := _source(statement)) in lists:
                lists[statement.name] = lists[source]
            if isinstance(statement, Let) and (number := _number(statement, numbers)) is not None:
                numbers[statement.name] = number
            if isinstance(statement, Keep):
                numbers[statement.count] = times  # each is kept by one chunk
            yield statement, times


def _dtypes_of_turns(repeat: Repeat, dtypes: Mapping[str, DType]) -> dict[str, DType]:
    """The dtypes of what the turns of a repeat are given: of constants, values that were kept, and those of the turn
    before.
    """
    given = dict(zip(repeat.names, [members[0] for members in repeat.members], strict=True))
    found = {name: dtypes[first] for name, first in given.items() if first in dtypes}
    for name, first, _ in repeat.carried:
        found[name] = first.dtype if isinstance(first, Literal) else dtypes[first]
    return found


def _source(statement: Statement) -> str:
    """Where a number comes from, as it is; nothing for all else."""
    match statement:
        case Load(buffer=buffer):
            return buffer
        case Let(op="cast", args=(str(name),)):
            return name
    return ""


def _turns(loop: Loop, numbers: Mapping[str, int], times: int, lists: Mapping[str, int]) -> int:
    """How often a loop turns that is begun so many ``times``. One that goes through a list in parts turns as often as
    that is long: they are given by how many there are at most, or by a list of their ends.
    """
    length = next((lists[s.buffer] for s in loop.body if isinstance(s, Load) and s.buffer in lists), None)
    if not loop.start:
        turns = times * numbers[loop.extent]
        return turns if length is None else min(turns, length)
    return times if length is None else times * length // lists[loop.extent]  # of a ring, one row more


def _number(made: Let, numbers: Mapping[str, int]) -> int | None:
    """The number that a kernel computes for the extent of a loop, or the most that it can be; None for all else."""
    if made.dtype not in (np.int64, np.bool_):
        return None
    given = [int(arg.value) if isinstance(arg, Literal) else numbers.get(arg) for arg in made.args]
    known = [number for number in given if number is not None]
    match made.op:
        case "minimum" if known:
            return min(known)
        case "add" | "subtract" | "multiply" | "right_shift" | "less" | "where" if len(known) == len(given):
            return int(getattr(np, made.op)(*known))
    return None


def _operations_of(statement: Statement, dtypes: Mapping[str, DType]) -> dict[int, Operations]:
    match statement:
        case Let(_, dtype, op, args):
            given = tuple(arg.dtype if isinstance(arg, Literal) else dtypes[arg] for arg in args)
            return {max(d.itemsize for d in (dtype, *given)): _operations_of_op(op, given, dtype)}
        case Update(_, dtype, combine, factor=factor):
            return {dtype.itemsize: _update(combine if factor is None else "multiply")}
    return {}


def _update(combine: str) -> Operations:
    match combine:
        case "add":
            return Operations(others=1)
        case "multiply":
            return Operations(products=1)
    return Operations(others=2)  # a comparison and a choice


@functools.cache
def _operations_of_op(op: str, given: tuple[DType, ...], out: DType) -> Operations:
    """What the emitter makes of a scalar op for one element."""
    lanes = _REGISTER // max(d.itemsize for d in (out, *given, _LEAST))
    types = [ir.VectorType(element_type(dtype), lanes) for dtype in given]
    function = ir.Function(ir.Module("op", has_avx512=has_avx512()), ir.FunctionType(ir.VoidType(), types), "op")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit_op(builder, op, function.args, given, out, lanes)
    found = Counter(_kind(*match) for match in _INSTRUCTION.findall(function.definition()))
    return Operations(found["product"], found["division"], found["other"])


def _kind(instruction: str, called: str) -> str:
    if instruction in _FREE or (instruction == "call" and not called.startswith("llvm.")):
        return "free"
    if instruction == "fmul" or called.startswith("llvm.fma."):
        return "product"
    return "division" if instruction == "fdiv" or called.startswith("llvm.sqrt.") else "other"
