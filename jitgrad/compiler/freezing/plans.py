"""Plans: frozen programs found by key on disk, bound for this process; it makes none (stages.py does)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from jitgrad.compiler.freezing.alike import Likeness
from jitgrad.compiler.freezing.bind import BoundCluster, bind_cluster
from jitgrad.compiler.freezing.bind_loops import control_op_of
from jitgrad.compiler.freezing.blueprints import Family, bind_blueprint
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.freezing.stored import decode_params, dump, load
from jitgrad.compiler.machine.cache import KernelCache, kernel_cache
from jitgrad.compiler.machine.kernels import find_kernels
from jitgrad.opdef import Control, OpDef, find
from jitgrad.program import Program
from jitgrad.records import NamedTuple

Frozen = tuple[Any, ...]


class BoundOp(NamedTuple):
    """An instruction that the interpreter runs."""

    op: OpDef
    params: Mapping[str, Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class BoundProgram(NamedTuple):
    """What a run of a program takes: steps in order over ``nvalues`` values, and the keys of the kernels in them; and
    what plans for other shapes may follow from.
    """

    nvalues: int
    outputs: tuple[int, ...]
    steps: tuple[BoundCluster | BoundOp, ...]
    kernels: frozenset[str]
    likeness: Likeness | None = None


def find_plan(key: str) -> tuple[Frozen, Addresses] | None:
    """The frozen program kept under a key, with the addresses of its kernels; None when any of it is missing."""
    return find_with_plan(key, lambda frozen: frozen)


def find_with_plan(key: str, plan_in: Callable[[Any], Frozen]) -> tuple[Any, Addresses] | None:
    """What is kept under a key, in which there is a frozen program, with the addresses of its kernels; None when any of
    it is missing.
    """
    cache = kernel_cache()
    data = cache.get_plan(key)
    if data is None:
        return None
    kept = load(data)
    keys = kernel_keys(plan_in(kept))
    addresses = find_kernels(keys)
    if addresses is None:
        cache.drop_plan(key)
        return None
    return kept, dict(zip(keys, addresses, strict=True))


def keep_plan(key: str, frozen: Frozen, cache: KernelCache) -> None:
    """Keep a frozen program on disk, if all of it can be written."""
    with suppress(ValueError):
        cache.put_plan(key, dump(frozen))


def kernel_keys(frozen: Frozen) -> list[str]:
    """The keys of the kernels of a frozen program, each once."""
    return list(dict.fromkeys(task[2] for task in _tasks_of(frozen) if task[0] in ("kernel", "loop kernel")))


def has_regions(frozen: Frozen) -> bool:
    """Whether steps of a frozen program run together, chunk by chunk."""
    return any(task[0] == "region" for task in _tasks_of(frozen))


def control_ops_in(frozen: Frozen) -> set[str]:
    """The names of the code of its loops and branches."""
    return {control_op_of(task) for task in _tasks_of(frozen) if task[0] == "loop"}


def _tasks_of(frozen: Frozen) -> Iterator[Any]:
    """All tasks of a frozen program, also those in others."""
    for step in frozen[2:]:
        if step[0] == "cluster":
            yield from _with_inner(step[6:])


def _with_inner(tasks: Sequence[Any]) -> Iterator[Any]:
    for task in tasks:
        yield task
        if task[0] == "region":
            yield from _with_inner(task[5:])
        elif task[0] == "loop":
            for cluster, *_ in task[5]:
                yield from _with_inner(cluster[6:])


def bind_frozen(source: Callable[[], Program], frozen: Frozen, addresses: Addresses) -> BoundProgram:
    """A frozen program in this process; ``source`` gives the program whose plan it is, if it is asked."""
    nvalues, outputs, *steps = frozen
    bound = tuple([_bind_step(source, step, addresses) for step in steps])
    return BoundProgram(nvalues, outputs, bound, frozenset(addresses))


def bind_numbers(family: Family, numbers: Sequence[Any], addresses: Addresses) -> BoundProgram:
    """The program of a family in this process for the numbers that its formula gives."""
    bound = tuple([bind_blueprint(b, given, addresses) for b, given in zip(family.blueprints, numbers, strict=True)])
    return BoundProgram(family.nvalues, family.outputs, bound, frozenset(addresses))


def _bind_step(source: Callable[[], Program], step: Sequence[Any], addresses: Addresses) -> BoundCluster | BoundOp:
    if step[0] == "cluster":
        return bind_cluster(tuple(step), addresses)
    _, number, name, params, inputs, outputs = step
    if not isinstance(name, str):
        ins = source().instructions[number] if name is None else name
        return BoundOp(ins.op, ins.params, inputs, outputs)
    op = find(name)
    if isinstance(op.kind, Control):
        from jitgrad.compiler.freezing import stored_programs

        return BoundOp(op, stored_programs.decode_params(params, stored_programs.origins_of(source())), inputs, outputs)
    return BoundOp(op, decode_params(params), inputs, outputs)
