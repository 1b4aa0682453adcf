"""What is done about the bodies of a program's loops and branches around a sweep of rules; loaded where there are such.
"""

from __future__ import annotations

from collections import Counter

from jitgrad.compiler.bodies.joining import join_instructions
from jitgrad.compiler.bodies.saving import save_less
from jitgrad.compiler.bodies.unread import drop_unread
from jitgrad.program import Program


def before_sweep(program: Program, fired: Counter[str]) -> Program:
    """Without what nobody reads, and loops side by side as one."""
    return join_instructions(drop_unread(program, fired), fired)


def after_sweeps(program: Program, fired: Counter[str]) -> Program:
    """When rules find nothing more: loops one behind the other as one, and less kept for gradients."""
    return save_less(join_instructions(program, fired, chained=True), fired)
