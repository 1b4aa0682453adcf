"""Non-finite results: which op of a program was the first to make a NaN or an infinity; it runs nothing compiled.

Only results are looked at: a NaN that none shows (behind a ``where``, say) is nobody's fault. When one holds a NaN, the
program is interpreted again, and from one such element the search goes back through the ops that made it. An input of
an op counts if the element would be sound with the input's bad elements made sound: so the side that a ``where`` did
not take, rows that a slice left out and the like do not count. The earliest op on this way that makes a NaN of inputs
without one is named; or, if it made it of infinities, the op behind them. Constants, Variables and arguments are what
the user wrote: they are named where the result holds just what they do, and infinities in them are no fault. Variables
hold what they held before the run while it is repeated, and afterwards what the run itself made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.errors import NonFiniteError, layout
from jitgrad.interpreter import interpret
from jitgrad.program import Instruction, Program, instruction_text
from jitgrad.records import NamedTuple
from jitgrad.restoring import Snapshot, snapshot_for
from jitgrad.sources import source_text

Test = Callable[[Any], Any]

TESTS: tuple[tuple[Test, str], ...] = ((np.isnan, "NaN"), (np.isinf, "infinity"))
"""What is looked for, in this order."""

_SOUND = (0.5, 1.5)  # numbers in place of bad ones: no op is undefined at both of them
_MOST_OPS = 6


def run_checked(run: Callable[[], list[Any]], program: Program, feeds: Sequence[Any]) -> list[Any]:
    """The results of a run; NonFiniteError naming the op that made the first NaN or infinity, if one holds any."""
    before = snapshot_for(program)
    results = run()
    for test, what in TESTS:
        if any(bad_elements(r, test).size for r in results):
            raise _searched(program, feeds, before, test, what)
    return results


def bad_elements(array: Any, test: Test) -> Any:
    """Places in the flattened array of the elements that the test finds; none in arrays of integers."""
    array = np.asarray(array)
    return np.flatnonzero(test(array)) if array.dtype.kind in "fc" else np.zeros(0, np.intp)


def range_text(array: Any) -> str:
    """Shape, smallest and largest value, and how many are not finite."""
    array = np.asarray(array)
    text = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    if not array.size or array.dtype.kind not in "fiub":
        return text
    finite = array[np.isfinite(array)]
    if not finite.size:
        return f"{text}, none of them finite"
    text += f" from {finite.min():.6g} to {finite.max():.6g}"
    return text + (f", {array.size - finite.size} not finite" if finite.size < array.size else "")


def _searched(program: Program, feeds: Sequence[Any], before: Snapshot, test: Test, what: str) -> NonFiniteError:
    after = before.now()
    before.restore()
    try:
        return search(program, feeds, test, what)
    finally:
        after.restore()


def search(program: Program, feeds: Sequence[Any], test: Test, what: str) -> NonFiniteError:
    """What to tell of a program that gives something bad for these arrays; it is interpreted."""
    with np.errstate(all="ignore"):
        return _Search(program, _all_values(program, feeds)).error(test, what)


def _all_values(program: Program, feeds: Sequence[Any]) -> dict[int, Any]:
    """Every value of a run, interpreted."""
    values: dict[int, Any] = dict(zip(program.inputs, feeds, strict=True))
    for ins in program.instructions:
        values |= zip(ins.outputs, _run(ins, [values[v] for v in ins.inputs]), strict=True)
    return values


def _run(ins: Instruction, arrays: Sequence[Any]) -> list[Any]:
    result = ins.op.impl(*arrays, **ins.params)
    return [result] if len(ins.outputs) == 1 else list(result)


class _Way(NamedTuple):
    """Where a search came to: the program's input that held the bad value, or the instruction that made it of sound
    ones, or the one that gives it, a constant or the read of a Variable; and the instructions between, in order.
    """

    fed: int | None
    number: int | None
    given: int | None
    through: tuple[int, ...]

    @property
    def is_made(self) -> bool:
        """Whether an op made it."""
        return self.fed is None and self.number is not None


class _Search:
    """The values of a run that gave a bad result, and the ways back from it."""

    def __init__(self, program: Program, values: Mapping[int, Any]) -> None:
        self._program = program
        self._values = values

    def error(self, test: Test, what: str) -> NonFiniteError:
        """What to tell the user."""
        program = self._program
        found = [(v, bad_elements(self._values[v], test)) for v in program.outputs]
        start = next(((v, int(places[0])) for v, places in found if places.size), None)
        if start is None:
            return NonFiniteError(f"{program.name} gave {what}, which op by op does not appear")
        way = self._back(dict([start]), len(program.instructions), test)
        maker = self._behind_infinities(way) if way.is_made and test is np.isnan else None
        return self._named(way, test, what) if maker is None else self._named(maker, np.isinf, "infinity")

    def _behind_infinities(self, way: _Way) -> _Way | None:
        """The way to the op behind the infinities of which an op made a NaN; None where it made it of finite numbers,
        or where the infinities are those of constants and arguments.
        """
        assert way.number is not None
        ins = self._program.instructions[way.number]
        made = _first_bad([self._values[v] for v in ins.outputs], np.isnan)
        infinite = dict(self._blamed(ins, made, np.isinf, np.isnan)) if made is not None else {}
        before = self._back(infinite, way.number, np.isinf)
        return before._replace(through=(*before.through, way.number, *way.through)) if before.is_made else None

    def _back(self, wanted: dict[int, int], before: int, test: Test) -> _Way:
        """From elements of values to the first op that made one of them, through instructions before that one."""
        first = given = None
        seen: list[int] = []
        for number in range(before - 1, -1, -1):
            ins = self._program.instructions[number]
            place = next(((k, wanted[v]) for k, v in enumerate(ins.outputs) if v in wanted), None)
            if place is None:
                continue
            blamed = dict(self._blamed(ins, place, test, test))
            if not ins.inputs:
                given = number
            elif not blamed:
                first = number
            seen.append(number)
            wanted |= {v: element for v, element in blamed.items() if v not in wanted}
        fed = next((k for k, v in enumerate(self._program.inputs) if v in wanted), None)
        start = -1 if fed is not None else given if first is None else first
        return _Way(fed, first, given, tuple(n for n in reversed(seen) if start is None or n > start))

    def _blamed(
        self, ins: Instruction, place: tuple[int, int], test: Test, out_test: Test
    ) -> Iterator[tuple[int, int]]:
        """The inputs of an op whose bad elements make one of its outputs bad at a place, and one such element each."""
        inputs = [self._values[v] for v in ins.inputs]
        bad = [bad_elements(array, test) for array in inputs]
        if not any(places.size for places in bad):
            return
        if ins.op.stateful:  # not to be run just to see
            yield from ((v, int(places[0])) for v, places in zip(ins.inputs, bad, strict=True) if places.size)
            return
        trial = _Trial(ins, inputs, bad, place, out_test)
        if not trial.is_sound_without_any():
            return
        for k, v in enumerate(ins.inputs):
            element = trial.element(k)
            if element is not None:
                yield v, element

    def _named(self, way: _Way, test: Test, what: str) -> NonFiniteError:
        program = self._program
        through = self._through(way)
        if way.fed is not None:
            array = range_text(self._values[program.inputs[way.fed]])
            return NonFiniteError(
                layout(f"argument {way.fed} of {program.name} holds {what}", input=array, through=through)
            )
        inside = None if way.number is None else self._inside(program.instructions[way.number], test, what)
        if inside is not None:
            return NonFiniteError("\n".join([inside, *([f"  through: {through}"] if through else [])]))
        number = way.given if way.number is None else way.number
        assert number is not None  # a bad element comes from somewhere
        ins = program.instructions[number]
        if way.number is None:
            text = f"{ins.op.name} {ins.origin.name!r} of {program.name} holds {what}"
            return NonFiniteError(layout(text, op=instruction_text(program, ins), through=through))
        made = [self._values[v] for v in ins.outputs]
        bad = sum(bad_elements(array, test).size for array in made)
        total = sum(np.size(array) for array in made)
        ranges = {f"input {k}": range_text(self._values[v]) for k, v in enumerate(ins.inputs)}
        return NonFiniteError(
            layout(
                f"op {ins.op.name!r} made {what} in {bad} of {total} values, "
                f"in the {'gradient' if ins.is_gradient else 'forward'} pass",
                op=instruction_text(program, ins),
                **ranges,
                through=through,
            )
        )

    def _inside(self, ins: Instruction, test: Test, what: str) -> str | None:
        """What is said of the op within a control op that made the first bad value, and in which run of its body; None
        for other ops, and where it does not show.
        """
        bodies: list[_Watched] = []
        params = {key: _watched(key, value, test, bodies) for key, value in ins.params.items()}
        if not bodies:
            return None
        ins.op.impl(*[self._values[v] for v in ins.inputs], **params)
        body = next((body for body in bodies if body.bad_run is not None), None)
        if body is None or body.bad_run is None:
            return None
        number, arrays = body.bad_run
        error = _Search(body.program, _all_values(body.program, arrays)).error(test, what)
        return f"{error}\n  inside: run {number} of {body.name} of {instruction_text(self._program, ins)}"

    def _through(self, way: _Way) -> str | None:
        """The ops by which it came to the result."""
        passed = [self._program.instructions[n] for n in way.through]
        texts = [f"{ins.op.name} ({source_text(ins.origin.source)})" for ins in passed[:_MOST_OPS]]
        rest = len(passed) - len(texts)
        return ", ".join([*texts, f"{rest} more"] if rest else texts) or None


class _Watched:
    """A program inside a control op, which notes the first of its runs that made something bad of sound arguments."""

    def __init__(self, name: str, program: Program, test: Test) -> None:
        self.name = name
        self.program = program
        self.bad_run: tuple[int, Sequence[Any]] | None = None
        self._test = test
        self._runs = 0

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Interpret it."""
        results = interpret(self.program, arrays)
        self._runs += 1
        if self.bad_run is None and _first_bad(results, self._test) and not _first_bad(arrays, self._test):
            self.bad_run = self._runs, arrays
        return results


def _watched(name: str, value: Any, test: Test, found: list[_Watched]) -> Any:
    """A param with its programs watched, which are added to ``found``."""
    if isinstance(value, tuple):
        return tuple(_watched(f"{name}[{k}]", item, test, found) for k, item in enumerate(value))
    if not isinstance(value, Program):
        return value
    found.append(_Watched(name, value, test))
    return found[-1]


def _first_bad(arrays: Sequence[Any], test: Test) -> tuple[int, int] | None:
    """The number of the first array with a bad element, and the element's place."""
    found = ((k, bad_elements(array, test)) for k, array in enumerate(arrays))
    return next(((k, int(places[0])) for k, places in found if places.size), None)


class _Trial:
    """An op run again on inputs some of whose bad elements are made sound: which of them does one element of its
    output owe being bad?
    """

    def __init__(
        self, ins: Instruction, inputs: Sequence[Any], bad: Sequence[Any], place: tuple[int, int], test: Test
    ) -> None:
        self._ins = ins
        self._inputs = [np.asarray(array) for array in inputs]
        self._bad = bad
        self._out, self._place = place
        self._test = test

    def is_sound_without_any(self) -> bool:
        """Whether the element is sound when no input holds a bad one."""
        return not all(self._is_bad(list(self._bad), sound) for sound in _SOUND)

    def element(self, number: int) -> int | None:
        """A bad element of an input by which alone the output's is bad; or without which it is not; None if that goes
        for none.
        """
        places = self._bad[number]
        if not places.size:
            return None
        alone = self._suffice if self._suffice(number, places) else self._matter
        if not alone(number, places):
            return None
        if (same := places[places == self._place]).size and alone(number, same):
            return self._place
        while places.size > 1:
            half = places[: places.size // 2]
            places = half if alone(number, half) else places[places.size // 2 :]
        return int(places[0])

    def _suffice(self, number: int, places: Any) -> bool:
        """Whether these bad elements of an input, with no others, make the output's element bad."""
        rest = [np.setdiff1d(bad, places) if k == number else bad for k, bad in enumerate(self._bad)]
        return all(self._is_bad(rest, sound) for sound in _SOUND)

    def _matter(self, number: int, places: Any) -> bool:
        """Whether the output's element is sound once these are."""
        mended = [places if k == number else bad[:0] for k, bad in enumerate(self._bad)]
        return not all(self._is_bad(mended, sound) for sound in _SOUND)

    def _is_bad(self, mended: Sequence[Any], sound: float) -> bool:
        """Whether the output's element is bad with these elements of the inputs made sound."""
        arrays = []
        for array, places in zip(self._inputs, mended, strict=True):
            if places.size:
                array = np.array(array, order="C")
                array.reshape(-1)[places] = sound
            arrays.append(array)
        made = np.asarray(_run(self._ins, arrays)[self._out])
        return bool(self._test(made.reshape(-1)[self._place]))
