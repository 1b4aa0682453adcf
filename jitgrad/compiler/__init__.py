"""The compiler: a Program becomes something that runs; by a plan that is on disk already, else through all stages."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence

from jitgrad import recording
from jitgrad.compiler.calling.entrance import begin_entrance
from jitgrad.compiler.calling.unbox import unbox_modules
from jitgrad.compiler.constants import Array
from jitgrad.compiler.driver.pools import LARGE_BYTES
from jitgrad.compiler.driver.runtime import runtime_modules
from jitgrad.compiler.freezing.alike import Likeness, Taken, frozen_like
from jitgrad.compiler.freezing.beside import Bound, frozen_beside
from jitgrad.compiler.freezing.foretelling import Foretold
from jitgrad.compiler.freezing.keeping import keep_later
from jitgrad.compiler.freezing.plankey import exact_key, plan_key
from jitgrad.compiler.freezing.plans import (
    BoundProgram,
    Frozen,
    bind_frozen,
    bind_numbers,
    find_plan,
    keep_plan,
    kernel_keys,
)
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.freezing.stored import dump
from jitgrad.compiler.likeness import Extents, UnlikeError
from jitgrad.compiler.machine.cache import kernel_cache
from jitgrad.compiler.machine.early import early
from jitgrad.compiler.machine.firsts import first_calls
from jitgrad.compiler.machine.kernels import find_kernels
from jitgrad.compiler.products.product_code import begin_modules
from jitgrad.config import config
from jitgrad.errors import CompileError
from jitgrad.opdef import Pairs, View
from jitgrad.program import Program


def bind_program(program: Program) -> BoundProgram:
    """What a run of the program takes. Where its plan is on disk, no stage of the compiler is loaded."""
    if not config.verify:
        like = frozen_like(program)
        if like is not None:
            return _bind_taken(lambda: program, like)
    if first_calls.are_under_way:
        _begin_outputs(program)
    key = plan_key(program) if config.cache else None
    facts: dict[str, bool] = {}
    with recording.span("cache", f"plan of {program.name}", facts):
        found = find_plan(key) if key is not None else None
        exact = exact_key(program, key) if key is not None and found is None else None
        found = find_plan(exact) if exact is not None else found
        facts["hit"] = found is not None
    if found is not None and not config.verify:
        return bind_frozen(lambda: program, *found)
    begin_modules(runtime_modules() | unbox_modules())  # before much is imported
    from jitgrad.compiler import stages

    frozen, holds, likeness = stages.make_plan(program)
    begin_entrance()
    if found is not None and dump(found[0]) != dump(frozen):
        raise CompileError(f"the plan on disk is not the one that the stages make for\n{program.text}")
    kept_under = key if holds else exact
    if kept_under is not None and found is None:
        keep_plan(kept_under, frozen, kernel_cache())
    return _bind(lambda: program, frozen)._replace(likeness=likeness)


def has_stages() -> bool:
    """Whether the stages of the compiler are loaded, which takes longer than many plans from disk."""
    return "jitgrad.compiler.stages" in sys.modules


def likeness_of(program: Program) -> Likeness | None:
    """What plans of programs like one follow from, whose own plan came from disk; None where none does."""
    from jitgrad.compiler import stages

    like = frozen_like(program)
    return like.likeness if like is not None else stages.make_plan(program)[2]


def _begin_outputs(program: Program) -> None:
    """Have memory for the outputs of a program while its plan is read or made. Which outputs get memory of their own is
    the plan's to say: one that is a view of an input gets none, others nearly always.
    """
    producers, inputs = program.producers(), set(program.inputs)
    roots = dict.fromkeys([_viewed(program, v) for v in program.outputs])
    made = [v for v in roots if v not in inputs and program.instructions[producers[v]].origin.scope is not None]
    begin_outputs([math.prod(program.specs[v].known_shape) * program.specs[v].dtype.itemsize for v in made])


def begin_outputs(sizes: Sequence[int]) -> None:
    """Have the pages of large outputs of so many bytes asked for by a thread, if that need not be compiled first."""
    large = [size for size in sizes if size >= LARGE_BYTES]
    if large and early() is not None:
        from jitgrad.compiler.driver import pages

        pages.begin_outputs(large)


def _viewed(program: Program, v: int) -> int:
    """The value of which another is a view, itself else."""
    producers = program.producers()
    while v in producers and isinstance((ins := program.instructions[producers[v]]).op.kind, View | Pairs):
        v = ins.inputs[0]
    return v


def bind_beside(
    before: Likeness, extents: Extents, numbers: Mapping[int, Array], source: Callable[[], Program],
    foretold: Foretold | None = None,
) -> BoundProgram | None:  # fmt: skip
    """The same for a program like one that is bound, see freezing/beside.py; None where its plan does not follow.

    ``source`` gives the program itself, for which there is no need yet.
    """
    try:
        taken = frozen_beside(before, extents, numbers, foretold)
    except UnlikeError:
        return None
    bound = _bind_taken(source, taken)
    if config.verify:
        from jitgrad.compiler import stages

        stages.compare_plans(stages.make_plan(source())[0], taken.frozen(), source())
        stages.compare_bound(bound.steps, taken, _addresses(kernel_keys(taken.frozen())), source())
    return bound


def bind_foretold(bound: Bound, source: Callable[[], Program], frozen: Callable[[], Frozen]) -> BoundProgram:
    """The same by a formula of extents, see freezing/foretelling.py; ``frozen`` gives the plan, which is kept."""
    keep_later(source, frozen)
    family, numbers = bound
    return bind_numbers(family, numbers, _addresses(family.kernels))


def _bind_taken(source: Callable[[], Program], taken: Taken) -> BoundProgram:
    """A plan that was taken over, which will be on disk before long."""
    if taken.holds:
        keep_later(source, taken.frozen)
    if taken.bound is None:
        return _bind(source, taken.frozen())._replace(likeness=taken.likeness)
    family, numbers = taken.bound
    return bind_numbers(family, numbers, _addresses(family.kernels))._replace(likeness=taken.likeness)


def _bind(source: Callable[[], Program], frozen: Frozen) -> BoundProgram:
    """The plan of a program whose kernels are in memory."""
    return bind_frozen(source, frozen, _addresses(kernel_keys(frozen)))


def _addresses(keys: Sequence[str]) -> Addresses:
    """Those of kernels that are in memory."""
    addresses = find_kernels(keys)
    assert addresses is not None
    return dict(zip(keys, addresses, strict=True))
