"""The calls of one compiled function: found in the cache of traces, run; and described for machine code, which takes
those that it has seen. How they are read, and what runs them, is not decided here.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakMethod

import numpy as np

from jitgrad import conditions, pytree, recording
from jitgrad.call_reading import Call, CallReader, key_of_arrays, restoring
from jitgrad.collecting import collection_paused
from jitgrad.compiler import begin_outputs
from jitgrad.compiler.calling.entrance import is_coming
from jitgrad.compiler.driver import pools
from jitgrad.compiler.machine.firsts import first_calls
from jitgrad.compiler.machine.stamp import begin_stamp, forget_look
from jitgrad.config import config, log
from jitgrad.eagerness import is_eager, local, settled
from jitgrad.executable import Stats
from jitgrad.following import Follower
from jitgrad.foreseeing import Foreseer
from jitgrad.forking import renew_when_forked, wait_for_when_forking
from jitgrad.frozen_draws import Watch
from jitgrad.graph import default_graph
from jitgrad.known import Asked, Asker, find_run, keep_later
from jitgrad.models import Model, Models
from jitgrad.records import dataclass
from jitgrad.running import Runner
from jitgrad.scopes import jit_scope
from jitgrad.seen import Form
from jitgrad.sources import function_name, source_text, user_source
from jitgrad.statics import Options
from jitgrad.streams import Streams
from jitgrad.trace import LeafKey, Results, Static, Traced, as_name, describe, detach, graph_in, is_tracing, trace

if TYPE_CHECKING:
    from jitgrad.steady import Steady

max_traces = 64
"""Those that are kept of one function."""
_importing = threading.RLock()  # a child forked beside an import would wait for its end forever
wait_for_when_forking(_importing)


@dataclass(eq=False)
class Entry:
    """A traced call: what runs it, how its results are put together, and its two parts once a tape wants them; and how
    it is kept on disk, as long as it has not run.
    """

    runner: Runner
    results: Results
    split: Any = None
    keep: Callable[[], None] | None = None


class Calls:
    """Takes the calls of a function, in Python; the first of each kind is traced."""

    def __init__(
        self, fn: Callable[..., Any], options: Options, is_transform: bool, gradients_of: Sequence[int] = ()
    ) -> None:
        """``gradients_of``: the positions of the arguments whose gradients the function gives, where that is known."""
        self.fn = fn
        self._gradients_of = gradients_of
        self.options = options
        self.name = function_name(fn)
        self._reader = CallReader(fn, options, is_transform)
        self.traces = 0
        self._stats_of_dropped = Stats()
        self.streams = Streams()
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._used: dict[tuple[Any, ...], int] = {}
        self._plain: dict[tuple[Any, ...] | None, Entry] = {}  # entries of calls with arrays only, by dtypes and shapes
        self._listed: dict[tuple[Any, ...] | None, tuple[Callable[[Sequence[Any]], list[Any]], Results]] = {}
        self._models = Models()
        self._asker = Asker(fn, options)
        self._clock = 0
        self._latest: Call | None = None
        self._once: set[Form] = set()
        self._steady: Steady | None = None
        self._told_of_draws = False
        self._lock = threading.RLock()
        renew_when_forked(self)

    def take(self, *args: Any, **kwargs: Any) -> Any:
        """A call of the function, from Python or from machine code that does not know its kind."""
        if is_tracing():
            return self._inline(args, kwargs)
        with recording.span("call", self.name):
            call = self._reader.read(args, kwargs)
            if call is None:
                return self._inline(args, kwargs)
            if call.key in self._entries:
                return self._run(call, args, kwargs)
            with collection_paused(are_kept=True), first_calls.one():  # once for trace, plan and run
                try:
                    if not self._entries:
                        begin_stamp()
                        begin_outputs(_bytes_of(args, self._gradients_of))
                    return self._run(call, args, kwargs)
                finally:
                    forget_look()
                    pools.outputs.forget_prepared()

    def _run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that was read."""
        entry = self._entry(call, is_run=True)
        if is_eager((args, kwargs)) or (local.tapes and entry.runner.reads_watched):
            return self._eagerly(call, entry, args, kwargs)
        results = entry.results.build(entry.runner.run(call.arrays))
        keep, entry.keep = entry.keep, None
        if keep is not None:
            keep()
        self._note(call, args, kwargs, entry)
        return results

    def entries(self) -> list[Entry]:
        """All traced calls that are kept."""
        with self._lock:
            return list(self._entries.values())

    def stats(self) -> Stats:
        """Kernels of the traced calls that are kept; how many were compiled, and read from disk, for all calls."""
        with self._lock:
            made = [executable for entry in self.entries() for executable in entry.runner.executables()]
            return self._stats_of_dropped.with_those_of(made)

    # -- with eager tensors --------------------------------------------------------------------------------------

    def _eagerly(self, call: Call, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with eager tensors, or one that a tape may want to know of: the results are eager tensors."""
        from jitgrad.eager.compiled_calls import Traceable, build_eager, call_split, make_split
        from jitgrad.eager.tensor import wrap

        if not local.tapes:
            return build_eager(entry.results, [wrap(array) for array in entry.runner.run(call.arrays)])
        if entry.split is None or entry.split.lacks_one():
            restore, outputs = restoring(call.statics), entry.runner.fetches
            made = Traceable(
                self.fn, call.structure, call.leaves, restore, self._scope, entry.results, outputs, self.streams
            )
            entry.split = make_split(made, () if entry.split is None else entry.split.variables)
        arguments = self._reader.arguments
        if arguments.any_static:
            args, kwargs = arguments.without_statics(*arguments.bind(args, kwargs))
        leaves = zip(pytree.flatten((args, kwargs))[0], call.leaves, strict=True)
        dynamic = [settled(x) for x, key in leaves if not isinstance(key, Static)]
        return call_split(entry.split, call.arrays, dynamic)

    # -- inside another trace --------------------------------------------------------------------------------

    def _inline(self, args: Any, kwargs: Any) -> Any:
        graph = graph_in((args, kwargs))
        with (default_graph() if graph is None else graph).as_default(), self._scope():
            args, kwargs = detach((args, kwargs))
            return self.fn(*args, **kwargs)

    def _scope(self) -> Any:
        if not self.options.scoped:
            return default_graph().attr_scope()
        return jit_scope(separate_compiled_gradients=self.options.separate_compiled_gradients or None)

    # -- the cache of traces ---------------------------------------------------------------------------------

    def interpret(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call op by op in NumPy. From the time that its program is one function, little is done around it."""
        key = None if kwargs else key_of_arrays(args)
        listed = self._listed.get(key)
        if listed is not None and not recording.sinks and not conditions.words[conditions.OBSERVERS]:
            return listed[1].build(listed[0](args))
        with recording.span("call", self.name):
            entry, arrays = self.concrete_call(args, kwargs)
            result = entry.results.build(entry.runner.interpret(arrays))
        if key in self._plain:
            run = entry.runner.listed()
            if run is not None:
                self._listed[key] = run, entry.results
        return result

    def concrete_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        """What runs a call, and its arrays. TypeError for traced values."""
        key = None if kwargs else key_of_arrays(args)
        known = self._plain.get(key)
        if known is not None:
            return known, list(args)
        call = self._reader.read(args, kwargs)
        if call is None:
            raise TypeError(f"{self.name}: interpret and explain take arrays, not traced values")
        entry = self._entry(call)
        if key is not None and not self._reader.arguments.any_static and all(map(operator.is_, args, call.arrays)):
            self._plain[key] = entry
        return entry, call.arrays

    def _entry(self, call: Call, is_run: bool = False) -> Entry:
        entry = self._entries.get(call.key)
        if entry is None:
            entry = self._traced_entry(call, is_run)
        self._used[call.key] = self._tick()
        return entry

    def _traced_entry(self, call: Call, is_run: bool) -> Entry:
        with self._lock:
            if call.key not in self._entries:
                counted = nullcontext() if is_run else first_calls.one()  # a run is counted as a whole
                with counted, recording.span("trace", self.name, self._facts(call)):
                    made = self._made(call, is_run)
                if len(self._entries) >= max_traces:
                    self._make_room()
                self._entries[call.key] = made
                self._latest = call._replace(arrays=[])
                self.traces += 1
            return self._entries[call.key]

    def _tick(self) -> int:
        self._clock = self._steady.tick() if self._steady is not None else self._clock + 1
        return self._clock

    def _make_room(self) -> None:
        """Forget a quarter of the traces, those whose calls were taken longest ago: to look for one among all takes as
        long as a trace.
        """
        by_machine = self._steady.last_uses() if self._steady is not None else {}
        keys = sorted(self._entries, key=lambda key: max(self._used.get(key, 0), by_machine.get(key, 0)))
        for key in keys[: max_traces // 4]:
            self._drop(key)
        for key in list(self._used):
            if key not in self._entries:  # noted by another thread while it was dropped
                self._used.pop(key, None)

    def _drop(self, key: Any) -> None:
        """Forget a trace, and what machine code knows of it."""
        if self._steady is not None:
            self._steady.forget(key)
        self._used.pop(key, None)
        self._plain.clear()
        self._listed.clear()
        stats = self._stats_of_dropped.with_those_of(self._entries.pop(key).runner.executables())
        self._stats_of_dropped = stats._replace(kernels=frozenset())

    def _made(self, call: Call, is_run: bool) -> Entry:
        """What runs a call: as the trace of one that differs from it in shapes says, if there was one; ``is_run`` is
        False for calls that are only looked at.
        """
        model = self._models.find(call)
        if model is None:
            return self._first_of_kind(call, is_run)
        foreseen = None if config.verify else model.foreseer.trace(call.leaves)
        asked = self._ask(call, is_first=False) if is_run else None
        found = self._found(asked, call) if foreseen is None or foreseen.bound is None else None
        if found is not None:
            return found
        runner = None if foreseen is None else model.foreseen(foreseen, call)
        if foreseen is None or runner is None:
            return self._traced_beside(call, model, asked)
        return Entry(runner, foreseen.results, keep=asked and partial(keep_later, asked, runner, foreseen))

    def _first_of_kind(self, call: Call, is_run: bool) -> Entry:
        """What runs a call that follows no other: found on disk or traced, and kept there once it has run."""
        asked = self._ask(call) if is_run else None
        found = self._found(asked, call)
        if found is not None:
            return found
        traced = self._trace(call, call.leaves, None)
        runner = self._runner_of(traced)
        self._models.enter(call, self._as_model(traced, runner))
        return Entry(runner, traced.results, keep=asked and partial(keep_later, asked, runner, traced))

    def _ask(self, call: Call, is_first: bool = True) -> Asked | None:
        return self._asker.ask(call.structure, call.leaves, call.statics, is_first)

    def _found(self, asked: Asked | None, call: Call) -> Entry | None:
        """What runs a call, from disk."""
        if asked is None:
            return None
        trace_later = partial(_traced_later, WeakMethod(self._trace), call._replace(arrays=[]))
        found = find_run(asked, self._program_name, self.streams, trace_later)
        return Entry(*found) if found is not None else None

    def _traced_beside(self, call: Call, model: Model, asked: Asked | None) -> Entry:
        """What runs a call that is traced, and follows the model if it does the same; kept once it has run."""
        traced = self._trace(call, call.leaves, model.follower)
        probed = call.leaves, tuple(call.statics.values()), partial(self._trace, call)
        is_plain = pytree.is_plain(call.structure)
        if is_plain and config.verify:
            model.foreseer.check(*probed, traced)
        runner = model.followed(traced, call) if traced.follower.is_whole else None
        if runner is None:
            runner = self._runner_of(traced)
            if not model.foreseer.is_of_use:
                self._models.enter(call, self._as_model(traced, runner))
        elif is_plain and not config.verify:
            model.foreseer.note_followed(*probed)
        return Entry(runner, traced.results, keep=asked and partial(keep_later, asked, runner, traced))

    def _runner_of(self, traced: Traced) -> Runner:
        return Runner(traced.outputs, traced.feeds, traced.effects, self._program_name, self.streams)

    def _as_model(self, traced: Traced, runner: Runner) -> Model:
        return Model(traced.follower, runner, Foreseer(self.fn, traced))

    @property
    def _program_name(self) -> str:
        return as_name(self.options.name or self.name)

    def _trace(self, call: Call, leaves: Sequence[LeafKey], model: Follower | None) -> Traced:
        """The trace of a call whose leaves are these."""
        names, restore = self._reader.names(call), restoring(call.statics)
        watch = None if self._told_of_draws or self.options.keeps_numbers else Watch(self.fn)
        with conditions.counted(conditions.OBSERVERS):
            traced = trace(self.fn, call.structure, leaves, names, restore, self._scope, model)
        if watch is not None:
            self._told_of_draws = watch.tell()
        return traced

    # -- why a call was traced again -------------------------------------------------------------------------

    def _facts(self, call: Call) -> dict[str, str]:
        """What a profile tells of a trace: the function, the user's line that called it, and why."""
        why = self._why(call)
        return {"of": describe(self.fn), "line": source_text(user_source()), "why": why} if recording.sinks else {}

    def _why(self, call: Call) -> str:
        """Why a call is traced though others were, logged too; empty for the first one, and where nobody asks."""
        is_logged = bool({"recompile", "all"} & set(config.settings.log))
        if self._latest is None or not (is_logged or recording.sinks):
            return ""
        why = self._reader.difference(self._latest, call) or f"its trace was dropped (at most {max_traces} are kept)"
        if is_logged:
            log("recompile", f"{describe(self.fn)}: {why}")
        return why

    # -- machine code ----------------------------------------------------------------------------------------

    def entrance(self) -> Callable[..., Any] | None:
        """A builtin that takes calls in place of ``take``; None while no call has come twice."""
        return self._steady.entrance(self.take) if self._steady is not None else None

    def _note(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry) -> None:
        """Describe a call that has come for the second time, so that machine code takes the third."""
        form = (call.key, len(args), tuple(kwargs))
        if form not in self._once:
            if len(self._once) >= 4 * max_traces:
                self._once.clear()
            self._once.add(form)
        elif not is_coming() and (self._steady is None or not self._steady.knows(form)):
            with self._lock:
                if self._steady is None:
                    with _importing:
                        from jitgrad.steady import Steady

                    self._steady = Steady(self.name, self._clock)
                if call.key in self._entries:
                    seen = self._reader.written(call, args, kwargs)
                    self._steady.describe(form, seen, entry.runner, call.arrays, entry.results)


def _traced_later(trace: WeakMethod[Callable[..., Traced]], call: Call) -> Traced:
    """The trace of a call, by its function's calls, which hold what asks for it."""
    made = trace()
    assert made is not None
    return made(call, call.leaves, None)


def _bytes_of(args: tuple[Any, ...], positions: Sequence[int]) -> list[int]:
    """Of the arrays in the arguments at these positions."""
    found = [args[k] for k in positions if -len(args) <= k < len(args)]
    return [leaf.nbytes for leaf in pytree.flatten(found)[0] if type(leaf) is np.ndarray]
