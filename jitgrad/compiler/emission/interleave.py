"""How many registers of lanes a turn of a loop works on at once; it emits nothing.

An operation waits some four cycles for the one before it, a function of analysis is a chain of twenty such waits, and
the processor looks a few hundred instructions ahead: in a long body it does not see the next turn. Several registers
side by side fill the waiting, as long as what is alive of each has room in the registers. Value and gradient of
sin(x) * 1.01 + 0.1 repeated 1000 times take 0.53 of the time with four, Black-Scholes 0.75 with two (and 0.85 with
four), gelu 0.9 with four in place of two; one thread each. Rows of a nest may be short, and what four registers
leave over of them goes one by one: softmax cross-entropy with 1000 classes takes 1.1 of the time with four.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jitgrad.compiler import vecmath
from jitgrad.compiler.loopir.nests import PARALLEL_VECTOR, Let, Loop, Statement, Store, Update, statements

FEW, SOME = 8, 60  # statements of a loop body, in which a function of analysis counts as twelve
ANALYTIC = 12
FEW_ALIVE, SOME_ALIVE = 8, 16  # values of a body that are made and still to be read


def registers_at_once(loop: Loop) -> int:
    """How many registers of lanes a turn of a vector loop works on: more where the body waits, and little is alive."""
    weight = weight_of(loop)
    alive = most_alive(loop.body)
    is_sum = any(isinstance(s, Update) for s in loop.body)
    is_long = loop.kind == PARALLEL_VECTOR and weight > len(loop.body)
    if (is_long and alive <= FEW_ALIVE) or (weight <= FEW and is_sum):
        return 4
    return 2 if weight <= SOME or alive <= SOME_ALIVE else 1


def weight_of(loop: Loop) -> int:
    """How much a turn of a loop has to do."""
    return sum(map(_weight, loop.body))


def columns_at_once(loop: Loop) -> int:
    """How many registers of lanes a turn of a loop of columns works on.

    Each step waits for the one before it, so that several chains at once take hardly longer than one.
    """
    weight = sum(_weight(s) for s in statements(loop.body) if isinstance(s, Let))
    return 4 if weight <= SOME // 2 else 2


def most_alive(body: Sequence[Statement]) -> int:
    """The most values that are computed and still to be read, at any place of a body; what is loaded can wait there."""
    made = {s.name for s in body if isinstance(s, Let)}
    alive: set[str] = set()
    most = 0
    for s in reversed(body):
        if isinstance(s, Let):
            alive.discard(s.name)
        alive.update(name for name in _reads(s) if name in made)
        most = max(most, len(alive))
    return most


def _reads(s: Statement) -> Iterator[str]:
    arguments = s.args if isinstance(s, Let) else (s.value,) if isinstance(s, Store | Update) else ()
    return (a for a in arguments if isinstance(a, str))


def _weight(s: Statement) -> int:
    return ANALYTIC if isinstance(s, Let) and s.op in vecmath.NAMES else 1
