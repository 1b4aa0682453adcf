"""Verification of a fusion plan and of a kernel: whatever is read exists by then; it changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from jitgrad.compiler.fusing.groups import Group, Plan, Step
from jitgrad.compiler.loopir.nests import (
    ALONE,
    COLUMNS,
    LANES,
    PARALLEL,
    PARALLEL_VECTOR,
    Accumulator,
    Argument,
    Bound,
    Call,
    Check,
    Index,
    Keep,
    Kernel,
    Let,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
    Update,
    arguments,
    is_kept,
    kept_name,
    kept_turn,
    statements,
)
from jitgrad.errors import CompileError, layout


def verify_plan(plan: Plan, inputs: Iterable[int]) -> Plan:
    """The plan itself, when every value is in memory, or made earlier in the same kernel, where it is read.

    ``inputs`` are the values that come from outside the cluster. CompileError otherwise, naming step and value.
    """
    made = set(inputs)
    for number, step in enumerate(plan.steps):
        inside: set[int] = set()
        for reads, value in _reads(step):
            missing = [v for v in reads if v not in inside and plan.aliases.get(v, v) not in made]
            if missing:
                raise CompileError(
                    layout(
                        f"fusion: step {number} reads a value that nothing has made",
                        value=", ".join(f"%{v}" for v in missing),
                        reader=f"%{value}",
                    )
                )
            inside.add(value)
        made |= step.stored | set(step.partials.values()) if isinstance(step, Group) else set(step.values)
    return plan


def _reads(step: Step) -> Iterable[tuple[tuple[int, ...], int]]:
    if isinstance(step, Group):
        return [(p.node.reads, p.node.value) for p in step.nodes]
    return [(step.reads, step.values[0])]


def verify_kernel(kernel: Kernel) -> Kernel:
    """The kernel itself, when every name that a statement reads is a parameter or was made before it, in its loop or in
    one around it, no loop hides the variable of one around it, no input is written, and chunks divide all parallel
    loops alike. CompileError otherwise.
    """
    roles = {buffer.name: buffer.role for buffer in kernel.buffers}
    parameters = [*roles, *kernel.ints, *(constant.name for constant in kernel.constants)]
    if len({*parameters}) < len(parameters):
        raise CompileError(layout("kernel: two parameters have one name", kernel=kernel.text))
    kinds = {s.kind for s in statements(kernel.body) if isinstance(s, Loop)}
    if kinds & {LANES, ALONE} and kinds & {PARALLEL, PARALLEL_VECTOR, COLUMNS}:
        raise CompileError(
            layout("kernel: chunks would count elements in one loop, vectors in another", kernel=kernel.text)
        )
    _verify_names(kernel.body, {*parameters}, kernel)
    for statement in statements(kernel.body):
        if isinstance(statement, Repeat):  # its own statements follow, in which names stand for others
            first = [members[0] for members in statement.members]
            roles |= {name: roles.get(member, "") for name, member in zip(statement.names, first, strict=True)}
        written = {name for name in _written(statement) if roles[name] == "in"}
        if written:
            raise CompileError(layout(f"kernel: it writes its input {', '.join(written)}", kernel=kernel.text))
    return kernel


def _verify_names(body: Sequence[Statement], known: set[str], kernel: Kernel) -> None:
    for statement in body:
        missing = [name for name in names_read(statement) if name not in known]
        if missing:
            raise CompileError(
                layout(f"kernel: nothing has made {', '.join(missing)} where it is read", kernel=kernel.text)
            )
        match statement:
            case Loop(var, _, _, inner):
                if var in known:
                    raise CompileError(layout(f"kernel: {var} is made again inside its loop", kernel=kernel.text))
                _verify_names(inner, known | {var}, kernel)
            case Repeat(turns, names, members, carried, kept, inner):
                inside = known | {*names, *(name for name, _, _ in carried)}
                _verify_names(inner, inside, kernel)
                made = {s.name for s in inner if isinstance(s, Load | Let)}
                needed = {*kept, *(following for _, _, following in carried)}
                is_even = turns > 1 and all(len(m) == turns and _are_evenly_spaced(m, kernel) for m in members)
                if not is_even or not needed <= made:
                    raise CompileError(layout("kernel: turns of a repeat are not alike", kernel=kernel.text))
                known |= made | {kept_name(name, turn) for name in kept for turn in range(turns)}
            case Load(name) | Let(name):
                known.add(name)
            case Accumulator(name, _, combine):
                known.update((name, f"{name}_at") if combine.startswith("arg") else (name,))


def _are_evenly_spaced(listed: Sequence[str], kernel: Kernel) -> bool:
    """Whether parameters of one kind, or turns of one value that was kept, are as far apart as the first two."""
    found: list[tuple[object, int]] = []
    for name in listed:
        found.append(kept_turn(name) if is_kept(name) else (kernel.words[name][:2], kernel.words[name].number))
    (kind, first), (_, second) = found[:2]
    return found == [(kind, first + turn * (second - first)) for turn in range(len(found))]


def names_read(statement: Statement) -> Iterator[str]:
    """The names that a statement reads, buffers among them; of a loop, its limits."""
    match statement:
        case Load(_, _, buffer, index, bounds):
            yield from (buffer, *_of_index(index), *_of_bounds(bounds))
        case Let(_, _, _, args):
            yield from _of_arguments(args)
        case Update(acc, at=at, bounds=bounds):
            yield from (acc, *_of_arguments(arguments(statement)), *_of_bounds(bounds), *filter(None, (at,)))
        case Store(buffer, index, value, _, bounds):
            yield from (buffer, *_of_index(index), *_of_arguments((value,)), *_of_bounds(bounds))
        case Keep(count, buffers, values, bounds, slot, slots):
            yield from (count, *buffers, *values, *_of_bounds(bounds), slot, slots)
        case Check(buffer, bounds, code):
            yield from (buffer, *_of_bounds(bounds), code)
        case Call(_, buffers, args):
            yield from (*buffers, *_of_arguments(args))
        case Loop(_, extent, _, _, start):
            yield from filter(None, (extent, start))
        case Repeat(_, _, members, carried):
            yield from itertools.chain.from_iterable(members)
            yield from _of_arguments([first for _, first, _ in carried])


def _of_index(index: Index) -> Iterator[str]:
    for term in index.terms:
        yield term.var
        yield from (name for name in (term.stride, term.shift) if isinstance(name, str))
    if index.offset:
        yield index.offset


def _of_bounds(bounds: Sequence[Bound]) -> Iterator[str]:
    for bound in bounds:
        yield from filter(None, (bound.var, bound.lo, bound.hi))


def _of_arguments(args: Sequence[Argument]) -> Iterator[str]:
    return (argument for argument in args if isinstance(argument, str))


def _written(statement: Statement) -> Sequence[str]:
    """The buffers that a statement writes; a routine may write any of its own."""
    match statement:
        case Store(buffer) | Check(buffer):
            return (buffer,)
        case Keep(_, buffers):
            return buffers
    return ()
