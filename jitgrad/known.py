"""Known calls: what a function does with arrays of some dtypes and shapes, kept on disk, so that a new process runs it
without tracing it. A function that might do something else each time is traced.

A trace with its gradient takes a third of a small warm start, and loads what it is made of. What is kept of one is how
its results are put together, and its plan. The trace itself is made when somebody looks at it: to explain, to
interpret, to name the user's line in an error. Then the function is called, if it is still what it was.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from operator import is_
from typing import TYPE_CHECKING, Any

from jitgrad import pytree, recording
from jitgrad.compiler.freezing.keeping import when_idle
from jitgrad.compiler.freezing.plankey import plan_key
from jitgrad.compiler.freezing.plans import Frozen, find_with_plan
from jitgrad.compiler.freezing.records import Addresses
from jitgrad.compiler.freezing.stored import UnkeptError, decode, dump, encode, load
from jitgrad.compiler.machine.cache import KernelCache, kernel_cache
from jitgrad.compiler.machine.stamp import digest, stamp
from jitgrad.config import config
from jitgrad.copying import Place
from jitgrad.eagerness import local
from jitgrad.errors import CompileError, JitgradError, layout
from jitgrad.following import PromisedTensors
from jitgrad.foreseeing import Foreseen
from jitgrad.forking import wait_for_when_forking
from jitgrad.gradient_rules import registered_rules
from jitgrad.graph import Operation
from jitgrad.program import Program, sub_programs
from jitgrad.records import NamedTuple
from jitgrad.run_stages import Stage
from jitgrad.running import Runner, places_of
from jitgrad.sources import user_source
from jitgrad.statics import Options, Statics
from jitgrad.streams import Streams
from jitgrad.trace import LeafKey, Results, Static, Traced, describe, specs_of_leaves

if TYPE_CHECKING:
    from jitgrad.constancy import Constancy


class Asked(NamedTuple):
    """A call of a function that is constant: what gives the key of what is kept of it, and what must be as it is for
    that.
    """

    fn: Callable[..., Any]
    key: Callable[[], str]
    constancy: Constancy
    leaves: Sequence[LeafKey]


class _Kept(NamedTuple):
    """What is kept of a call: the key of its program's plan, the values that are its inputs, places of the graph,
    results, the plan.
    """

    key: str
    inputs: tuple[int, ...]
    feeds: tuple[Place, ...]
    outputs: tuple[Place, ...]
    results: Any
    frozen: Frozen


class _Contents(NamedTuple):
    """All that decides what a function does with some static values, by its hash, as long as it is constant."""

    values: tuple[Any, ...]
    constancy: Constancy
    text: bytes

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether it is what it was, for the same objects."""
        are_same = len(values) == len(self.values) and all(map(is_, values, self.values))
        return are_same and self.constancy.would_be_read_again()


class Asker:
    """Asks for calls of one function, whose contents are read once and again when they have changed. Used under the
    lock of its calls.
    """

    def __init__(self, fn: Callable[..., Any], options: Options) -> None:
        self._fn = fn
        self._options = options
        self._contents: _Contents | None = None

    def ask(
        self, structure: Any, leaves: Sequence[LeafKey], statics: Statics, is_first: bool = True
    ) -> Asked | None:  # fmt: skip
        """What a call is known by in other processes; None where calls are not kept here, or the function may do
        something else each time. One that did so before is read again for a call that is the ``first`` of its kind.
        """
        is_watched = config.debug_nans or recording.sinks or local.tapes
        if not config.cache or is_watched or registered_rules or not pytree.is_plain(structure):
            return None
        values = (*[key.value for key in leaves if isinstance(key, Static)], *statics.values())
        if (self._contents is None and is_first) or (self._contents is not None and not self._contents.holds(values)):
            self._contents = self._read(values)
        if self._contents is None:
            return None
        key = functools.partial(_key_of, self._contents.text, structure, leaves, tuple(statics))
        return Asked(self._fn, key, self._contents.constancy, leaves)

    def _read(self, values: tuple[Any, ...]) -> _Contents | None:
        from jitgrad.constancy import InconstantError, constancy_of
        from jitgrad.contents import contents_of

        given = (self._fn, *values)
        try:
            constancy = constancy_of(*given)
            text = dump((contents_of(constancy, given), repr(self._options)))
        except (InconstantError, UnkeptError):
            return None
        return _Contents(values, constancy, digest(text))


def _key_of(contents: bytes, structure: Any, leaves: Sequence[LeafKey], names: tuple[int | str, ...]) -> str:
    tree = encode(pytree.unflatten(structure, range(len(leaves))))
    text = contents, tree, tuple(map(_leaf_text, leaves)), names
    return digest(b"call" + stamp().encode() + dump(text)).hex()


def _leaf_text(key: LeafKey) -> Any:
    """A leaf as plain tuples; the values of static ones are told apart."""
    if isinstance(key, Static):
        return "static"
    return key.__name__ if isinstance(key, type) else (key[0].str, key[1])


# -- what is found -----------------------------------------------------------------------------------------------------


def find_run(
    asked: Asked, name: str, streams: Streams, trace: Callable[[], Traced]
) -> tuple[Runner, Results] | None:  # fmt: skip
    """What runs a call and how its results are put together, from disk; ``trace`` traces it when somebody looks."""
    if config.verify:
        return None
    found = find_with_plan(asked.key(), _plan_in)
    if found is None:
        return None
    contents, addresses = found
    kept = _Kept(*contents)
    return _run_of(kept, addresses, asked, name, streams, trace), _results_of(kept.results)


def _plan_in(contents: Any) -> Frozen:
    return _Kept(*contents).frozen


def _run_of(
    kept: _Kept, addresses: Addresses, asked: Asked, name: str, streams: Streams, trace: Callable[[], Traced]
) -> Runner:  # fmt: skip
    operations = _Operations(asked, trace).all
    outputs, feeds = PromisedTensors(operations, kept.outputs), PromisedTensors(operations, kept.feeds)
    stage = Stage(outputs, feeds, name=name)
    stage.hold(kept.frozen, addresses, kept.inputs, functools.partial(specs_of_leaves, asked.leaves))
    return Runner(outputs, feeds, (), name, streams, stage)


_looking = threading.RLock()  # held while a trace is made that somebody looks at
wait_for_when_forking(_looking)


class _Operations:
    """Those of a trace, which is made when somebody looks; the line that called is the one that ran."""

    def __init__(self, asked: Asked, trace: Callable[[], Traced]) -> None:
        self._asked = asked
        self._trace = trace
        self._line = user_source()

    def all(self) -> Sequence[Operation]:
        """All operations of the graph. JitgradError where the function would not do any more what it did."""
        with _looking:
            return self._traced.outputs[0].graph.operations

    @functools.cached_property
    def _traced(self) -> Traced:
        if not self._asked.constancy.holds():
            raise JitgradError(
                layout(f"something that {describe(self._asked.fn)} reads is not what it was at its first call, which "
                       "ran without a trace: there is none to look at now",
                       hint="compile the function again, or make what changes an argument")
            )  # fmt: skip
        looks = user_source()
        traced = self._trace()
        for op in traced.outputs[0].graph.operations:
            op.source = self._line if op.source == looks else op.source
        return traced


# -- what is kept ------------------------------------------------------------------------------------------------------


def keep_later(asked: Asked, runner: Runner, did: Traced | Foreseen) -> None:
    """Keep on disk before long what a call did, if its program, which has run by then, is all of it. With ``verify``,
    CompileError if something else is kept there.
    """
    if config.verify:
        _check(asked, runner)
    is_whole = not isinstance(did, Traced) or _is_plain(did)  # only such calls are foreseen
    if is_whole and not runner.is_cut and pytree.is_plain(did.results.structure):
        kept = _Kept("", (), places_of(did.feeds), places_of(did.outputs), did.results, ())
        when_idle(functools.partial(_keep, asked.key, kept, runner.program_later(), kernel_cache()))


def _is_plain(traced: Traced) -> bool:
    """Whether a run of the results is all that a call does."""
    graph = traced.inputs[0].graph if traced.inputs else None
    is_free = graph is not None and not graph.variables and not graph.closed_over
    return is_free and bool(traced.outputs) and not traced.effects


def _check(asked: Asked, runner: Runner) -> None:
    found = find_with_plan(asked.key(), _plan_in)
    if found is None:
        return
    program = runner.only_program
    if program is None or plan_key(program) != _Kept(*found[0]).key:
        text = "several programs" if program is None else program.text
        raise CompileError(f"what is kept on disk of {describe(asked.fn)} is not what it does:\n{text}")


def _keep(place: Callable[[], str], kept: _Kept, program: Callable[[], Program | None], cache: KernelCache) -> None:
    """Write what is kept of a call, once the plan of its program is there, under a key of its own."""
    made = program()
    key = None if made is None or _draws(made) else plan_key(made)
    plan = None if key is None else cache.get_plan(key)
    if made is None or key is None or plan is None:
        return
    from jitgrad.compiler.freezing.freeze_ops import without_source

    with contextlib.suppress(UnkeptError, ValueError):
        results, frozen = _results_text(kept.results), without_source(load(plan), made)
        whole = kept._replace(key=key, inputs=made.inputs, results=results, frozen=frozen)
        cache.put_plan(place(), dump(tuple(whole)))


def _draws(program: Program) -> bool:
    """Whether a run of a program changes something: numbers that are drawn are others each time."""
    return any(ins.op.stateful or any(map(_draws, sub_programs(ins))) for ins in program.instructions)


def _results_text(results: Results) -> Any:
    """How results are put together, as plain tuples; UnkeptError where a part that is no tensor cannot be written. A
    thread does it, so each tuple is made of a list: no other thread can then hold one that grows, which Python refuses.
    """
    tree = pytree.unflatten(results.structure, range(len(results.slots)))
    return encode(tree), results.slots, tuple([encode(part) for part in results.fixed]), results.is_bare


def _results_of(text: Any) -> Results:
    tree, slots, fixed, is_bare = text
    return Results(pytree.flatten(decode(tree))[1], slots, tuple(map(decode, fixed)), is_bare)
