"""The compiler: a Program becomes something that runs; by a plan that is on disk already, else through all stages."""

from __future__ import annotations

from jitgrad import recording
from jitgrad.compiler.alike import frozen_like
from jitgrad.compiler.keeping import keep_later
from jitgrad.compiler.kernels import find_kernels
from jitgrad.compiler.plankey import plan_key
from jitgrad.compiler.plans import BoundProgram, Frozen, bind_frozen, find_plan, keep_plan, kernel_keys
from jitgrad.compiler.stored import dump
from jitgrad.config import config
from jitgrad.errors import CompileError
from jitgrad.program import Program


def bind_program(program: Program) -> BoundProgram:
    """What a run of the program takes. Where its plan is on disk, no stage of the compiler is loaded."""
    if not config.verify:
        like = frozen_like(program)
        if like is not None:
            frozen, holds = like
            if holds:
                keep_later(program, frozen)
            return _bind(program, frozen)
    key = plan_key(program) if config.cache else None
    facts: dict[str, bool] = {}
    with recording.span("cache", f"plan of {program.name}", facts):
        found = find_plan(key) if key is not None else None
        facts["hit"] = found is not None
    if found is not None and not config.verify:
        return bind_frozen(program, *found)
    from jitgrad.compiler import stages

    frozen, holds = stages.make_plan(program)
    if found is not None and dump(found[0]) != dump(frozen):
        raise CompileError(f"the plan on disk is not the one that the stages make for\n{program.text}")
    if key is not None and found is None and holds:
        keep_plan(key, frozen)
    return _bind(program, frozen)


def _bind(program: Program, frozen: Frozen) -> BoundProgram:
    """The plan of a program whose kernels are in memory."""
    keys = kernel_keys(frozen)
    addresses = find_kernels(keys)
    assert addresses is not None
    return bind_frozen(program, frozen, dict(zip(keys, addresses, strict=True)))
