"""How many registers of lanes a turn of a loop works on at once; it emits nothing.

An operation waits some four cycles for the one before it, a function of analysis is a chain of twenty such waits, and
the processor looks a few hundred instructions ahead, of which a hundred may wait: in a long body it does not see the
next turn. Several registers side by side fill the waiting. Value and gradient of sin(x) * 1.01 + 0.1 repeated 1000
times take 0.53 of the time with four, gelu 0.9 with four in place of two; one thread each. Rows of a nest may be short,
and what four registers leave over of them goes one by one: softmax cross-entropy with 1000 classes takes 1.1 of the
time with four. So it is with registers of 64 bytes. Four of 32 bytes leave over as much as two of these: cross-entropy
takes as long with four, value and gradient of an ELBO 0.94 (Zen 3).

Such a chain keeps much alive for its gradient, more than there are registers for, which costs less than waiting. With
registers of 64 bytes four are worked on whatever is alive, where a body has at most twice as much to do as its longest
chain: value and gradient of eight sines of one another take 0.77 of the time of two, of exp(-x * x) repeated five times
0.72, and repeated eight times, where it was one register, 0.42. What is less of a chain gains or loses by four: twelve
exponentials of one number take 1.04, two chains of five tanh 1.13. Up to five chains get two registers, not one: three
chains of four exp(-x * x) take 0.84 of the time so, of four log(1 + x * x) 0.77, four of three exp(-x * x) 0.95
(float64, one thread, Zen 4 with AVX-512; in float32 0.73, 0.81 and 0.94).

LLVM's scheduler puts a long body of several registers in an order that needs fewer registers: one chain after the
other, so that the processor sees fewer of them at a time. Where values of the body are kept in memory anyway, it is
told to leave the instructions in another order. With AVX-512 it is that of `order.py`, for two registers: Black-Scholes
takes 0.75 of the time of LLVM's order, in float32 0.86, the great circle between two points with its gradient 1.0,
twelve exponentials of one number 0.98. Four in the order in which they are written take 1.06 of that, and twice the
code. With registers of 32 bytes, of which there are 16, it is four in the written order: 0.85 of the time of two,
where four in LLVM's order take 0.99 (Black-Scholes, Zen 3), and the code of four is generated in 0.6 of the time so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler import vecmath
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    Keep,
    Let,
    Loop,
    Repeat,
    Statement,
    Update,
    arguments,
    statements,
)
from jitgrad.compiler.vecmath.lanes import declare

FEW, SOME = 8, 60  # statements of a loop body, in which a function of analysis counts as twelve
ANALYTIC = 12
FEW_ALIVE, SOME_ALIVE = 8, 16  # values of a body that are made and still to be read
_FEW_CHAINS, _SOME_CHAINS = 2, 5  # of a body
_TOGETHER = 8  # operations that LLVM may put in another order
_ANNOTATION = "llvm.codeview.annotation"


def registers_at_once(loop: Loop, is_short: bool = False) -> int:
    """How many registers of lanes a turn of a vector loop works on: more where the body waits, and little is alive.

    ``is_short``: registers have 32 bytes or fewer.
    """
    if any(isinstance(s, Keep) for s in loop.body):
        return 1
    weight = weight_of(loop)
    alive = most_alive(loop.body)
    is_sum = any(isinstance(s, Update) for s in loop.body)
    is_long = is_analytic(loop) and (is_short or loop.kind == PARALLEL_VECTOR)
    chains = chains_of(loop) if is_long and not is_short else inf
    has_room = alive <= (SOME_ALIVE if is_short else FEW_ALIVE)
    if (is_long and (has_room or chains <= _FEW_CHAINS)) or (weight <= FEW and is_sum):
        return 4
    return 2 if weight <= SOME or alive <= SOME_ALIVE or chains <= _SOME_CHAINS else 1


def is_analytic(loop: Loop) -> bool:
    """Whether a turn of a loop has functions of analysis."""
    return any(isinstance(s, Let) and s.op in vecmath.NAMES for s in statements(loop.body))


def keeps_order(loop: Loop, is_short: bool) -> bool:
    """Whether LLVM is to leave the instructions of a vector loop in the order in which it is given them."""
    alive = most_alive(loop.body)
    is_wide = is_short or (loop.kind == PARALLEL_VECTOR and alive <= SOME_ALIVE and chains_of(loop) > _FEW_CHAINS)
    is_repeated = is_short and any(isinstance(s, Repeat) for s in loop.body)
    return is_wide and is_analytic(loop) and (alive > FEW_ALIVE or is_repeated)


def keep_order(block: ir.Block, first: int = 0) -> None:
    """Keep LLVM from moving instructions of a block, from the line ``first`` on, far from their places: it moves none
    across an annotation, which is nothing to the processor.
    """
    module = block.function.module
    declare(module, _ANNOTATION, ir.FunctionType(ir.VoidType(), [ir.Type("metadata")]))
    node = module.add_node('!"order"')
    mark = f"  call void @{_ANNOTATION}(metadata {node})"
    lines = block.lines[first:]
    start = next((k for k, line in enumerate(lines) if isinstance(line, str)), 0)  # behind what must come first
    for place in reversed(range(start + _TOGETHER, len(lines), _TOGETHER)):
        block.lines.insert(first + place, mark)


def chains_of(loop: Loop) -> float:
    """How many chains a loop's body is made of: what it has to do, over what its longest chain has."""
    ends: dict[str, int] = {}
    lets = [s for s in statements(loop.body) if isinstance(s, Let)]
    for s in lets:
        ends[s.name] = _weight(s) + max((ends.get(a, 0) for a in s.args if isinstance(a, str)), default=0)
    return sum(map(_weight, lets)) / max(ends.values(), default=1)


def weight_of(loop: Loop) -> int:
    """How much a turn of a loop has to do; of what it repeats, one turn."""
    return sum(map(_weight, statements(loop.body)))


def columns_at_once(loop: Loop) -> int:
    """How many registers of lanes a turn of a loop of columns works on.

    Each step waits for the one before it, so that several chains at once take hardly longer than one.
    """
    weight = sum(_weight(s) for s in statements(loop.body) if isinstance(s, Let))
    return 4 if weight <= SOME // 2 else 2


def most_alive(body: Sequence[Statement]) -> int:
    """The most values that are computed and still to be read, at any place of a body; what is loaded can wait there."""
    body = list(statements(body))
    made = {s.name for s in body if isinstance(s, Let)}
    alive: set[str] = set()
    most = 0
    for s in reversed(body):
        if isinstance(s, Let):
            alive.discard(s.name)
        alive.update(name for name in arguments(s) if isinstance(name, str) and name in made)
        most = max(most, len(alive))
    return most


def _weight(s: Statement) -> int:
    return ANALYTIC if isinstance(s, Let) and s.op in vecmath.NAMES else 1
