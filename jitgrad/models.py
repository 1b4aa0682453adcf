"""Models: the traces of a function that calls with other shapes follow, one per kind of call; it traces nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

from jitgrad.call_reading import Call
from jitgrad.compiler.likeness import PLAIN_EXACT
from jitgrad.following import Follower
from jitgrad.foreseeing import Foreseen, Foreseer
from jitgrad.records import NamedTuple
from jitgrad.run_stages import Followed
from jitgrad.running import Runner

max_models = 8  # kinds of calls that differ in shapes only, of which one trace is kept for others to follow


class Model(NamedTuple):
    """A trace that others follow, what runs it, and what foresees others."""

    follower: Follower
    runner: Runner
    foreseer: Foreseer

    def followed(self, trace: Followed, call: Call) -> Runner | None:
        """What runs the trace of a call that is like this one; None where that does not follow from this."""
        return self.runner.followed_by(trace, partial(self.foreseer.outlook, call.leaves))

    def foreseen(self, foreseen: Foreseen, call: Call) -> Runner | None:
        """The same for a call that was not traced."""
        if foreseen.bound is None:
            return self.followed(foreseen, call)
        return self.runner.foretold_by(foreseen, foreseen.bound, foreseen.specs)


class Models:
    """The models of one function. Changed under its lock."""

    def __init__(self) -> None:
        self._of_kinds: dict[Any, Model] = {}
        self._exact = PLAIN_EXACT  # extents up to this are part of the pattern of all traces

    def find(self, call: Call) -> Model | None:
        """The trace that a call may follow: the first of its kind, or one that did not follow, while calls are not
        foreseen.
        """
        kind = self._kind_of(call)
        model = self._of_kinds.pop(kind, None)
        if model is not None:
            self._of_kinds[kind] = model  # the latest: others are forgotten before it
        return model

    def enter(self, call: Call, model: Model) -> None:
        """Let calls like this one follow a model, in place of another one."""
        self._exact = max(self._exact, model.follower.exact)
        kind = self._kind_of(call)
        self._of_kinds.pop(kind, None)
        self._of_kinds[kind] = model
        while len(self._of_kinds) > max_models:
            del self._of_kinds[next(iter(self._of_kinds))]

    def _kind_of(self, call: Call) -> Any:
        """What calls have in common of which one may follow the other: all but extents that are no part of a pattern,
        and of these which are equal.
        """
        numbers: dict[int, int] = {}

        def place(n: int) -> int:
            return n if n <= self._exact else -1 - numbers.setdefault(n, len(numbers))

        leaves = [(key[0], *map(place, key[1])) if type(key) is tuple else key for key in call.leaves]
        return call.structure, tuple(leaves), *call.key[2:]
