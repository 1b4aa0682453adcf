"""postpone(): moves instructions to the later cluster that alone needs them, so that fewer values are kept.

Clusters are made as early as possible. When a scope has several, say the forward and the backward part
around something interpreted, the first would compute all that the second needs and that can be had early,
such as the derivatives of activations, each an array to be kept. What is read in one later cluster of the
scope only, and can be computed from values that are kept anyhow, is computed there instead. Sizes play no
part, so that programs with other extents are cut alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jitgrad.compiler.clustering.dependences import Dependences
from jitgrad.compiler.clustering.turns import Step

_ROUNDS = 10


def postpone(graph: Dependences, steps: Sequence[Step]) -> None:
    """Change the members of ``steps``, later ones first; the order of the steps stays good.

    An instruction moves behind nothing that needs it: all its readers are in the later step or move there
    too. What it needs itself runs before its old step, in it, or moves along.
    """
    step_of = {n: step for step in steps for n in step.members}
    turns = Counter(step.scope for step in steps if step.scope is not None)
    for step in reversed(steps):
        if step.scope is not None and turns[step.scope] > 1:
            _move(step, _Moves(graph, step, step_of).found(), step_of)


def _move(step: Step, moves: dict[int, Step], step_of: dict[int, Step]) -> None:
    step.members = [n for n in step.members if n not in moves]
    step_of.update(moves)
    for n, target in moves.items():
        target.members.append(n)
    for target in {target.number: target for target in moves.values()}.values():
        target.members.sort()


class _Moves:
    """Members of a step that can all move, each to a later step: the most that fit together."""

    def __init__(self, graph: Dependences, step: Step, step_of: dict[int, Step]) -> None:
        self.graph = graph
        self.step = step
        self.step_of = step_of
        self.moves: dict[int, Step] = {}

    def found(self) -> dict[int, Step]:
        """Instruction → step to which it moves; nothing when a few rounds do not settle it."""
        for n in reversed(self.step.members):
            target = self._target(n)
            if target is not None:
                self.moves[n] = target
        for _ in range(_ROUNDS):
            stuck = [n for n in self.moves if not self._can_move(n)]
            if not stuck:
                return self.moves
            for n in stuck:
                del self.moves[n]
        return {}

    def _target(self, n: int) -> Step | None:
        """The one later step of the same scope in which all readers of ``n`` are, or are to be."""
        readers = [self.moves.get(user, self.step_of[user]) for user in self.graph.users[n]]
        if not readers or n in self.graph.wanted or any(reader is not readers[0] for reader in readers):
            return None
        return readers[0] if readers[0] is not self.step and readers[0].scope == self.step.scope else None

    def _can_move(self, n: int) -> bool:
        return self._target(n) is self.moves[n] and all(map(self._is_at_hand, self.graph.needs[n]))

    def _is_at_hand(self, need: int) -> bool:
        """Whether what ``need`` makes comes from elsewhere, moves along, or is kept for another reader."""
        if self.step_of[need] is not self.step or need in self.moves or need in self.graph.wanted:
            return True
        return any(self.step_of[user] is not self.step for user in self.graph.users[need])
