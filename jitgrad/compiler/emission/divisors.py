"""Which divisors the quotients of a loop have in common; what that saves is in `vecmath/division.py`."""

from __future__ import annotations

from collections import Counter

from jitgrad.compiler.emission.rows import SECOND
from jitgrad.compiler.loopir.nests import Argument, Let, Loop, statements


def shared_divisors(loop: Loop) -> frozenset[Argument]:
    """What the body of a loop divides by more than once; the same for a row alone and for two rows at once, so that
    both give the same bits.
    """
    divisions = [s for s in statements(loop.body) if isinstance(s, Let) and s.op == "divide"]
    quotients = {(s.name.removesuffix(SECOND), s.args[1]) for s in divisions}
    times = Counter(divisor for _, divisor in quotients)
    return frozenset(divisor for divisor in times if times[divisor] > 1)
