"""Bodies of element-wise loops that do the same again and again become repeats: a loop that stands in a program as so
many ops, like the steps of an integrator, is written once.

Turns are found by what they do, and are alike where what they read follows from their number: values of the same turn
or of the one before, buffers, places in one and constants that are as far apart from turn to turn, and what an earlier
repeat made, as far apart. Loads, which stand in front of all else, and factors that stand for a division by a constant,
which stand in front of the loop, are made in the turns that read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jitgrad.compiler import vecmath
from jitgrad.compiler.fusing.drafts import ANALYTIC_WEIGHT, CHEAP, MOST_WEIGHT
from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    Argument,
    Index,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Repeat,
    Statement,
    Store,
    Term,
    Update,
    arguments,
    kept_name,
    statements,
)
from jitgrad.compiler.verifying import names_read
from jitgrad.program import Program
from jitgrad.records import NamedTuple
from jitgrad.spec import DType

_LEAST_TURNS = 4
_LEAST, _LONGEST = 16, 64
"""Statements of a body in which turns are looked for, and of a turn."""
_FEW_INSTRUCTIONS, _MOST_OF_ALL = 40, 0.75
"""How many fit in a kernel anyway, and the part of more that has to repeat itself."""

_MOST_KEPT = 256
"""Values of turns, of 256 bytes each, which lie on the stack. Twenty turns that keep eight take 0.53 of the time of
seven kernels with arrays between them (1e6 float64, Zen 4).
"""

Step = Let | Store | Update
Column = Sequence[Argument | None]
"""What stands in one place in each turn."""


def repeat_bodies(kernel: Kernel) -> Kernel:
    """The kernel with repeats for what is alike in its outermost element-wise loops, where a turn has a function of
    analysis: beside one what a turn costs does not show. The same object where there are none.
    """
    body = tuple([_repeated(s, kernel) if isinstance(s, Loop) else s for s in kernel.body])
    return kernel if body == kernel.body else replace(kernel, body=_without_unread(body))


def repeats_itself(program: Program, numbers: Sequence[int]) -> bool:
    """Whether most of some instructions of a program do the same again and again, with a function of analysis each
    time, so that kernels of them may hold many.
    """
    if len(numbers) < _FEW_INSTRUCTIONS:
        return False
    instructions = [program.instructions[number] for number in numbers]
    kinds = _numbered([(ins.op.name, program.specs[ins.outputs[0]].dtype) for ins in instructions])
    following = _next_alike(kinds)
    ends: dict[int, int] = {}
    covered = at = 0
    while at < len(kinds):
        turns, step = _turns_alike(kinds, at, following[at], ends), 1
        if turns >= 2 * _LEAST_TURNS and any(
            ins.op.name in vecmath.NAMES for ins in instructions[at : at + following[at]]
        ):
            step = turns * following[at]
            covered += step
        at += step
    return covered >= _MOST_OF_ALL * len(kinds)


def is_small(kernel: Kernel) -> bool:
    """Whether a kernel that does much writes little, and its turns keep little."""
    kept = sum([len(s.kept) * s.turns for s in statements(kernel.body) if isinstance(s, Repeat)])
    return written_weight(kernel) <= MOST_WEIGHT and kept <= _MOST_KEPT


def written_weight(kernel: Kernel) -> int:
    """What the ops of a kernel weigh that are written, those of a repeat once."""
    lets = [s for s in statements(kernel.body) if isinstance(s, Let)]
    return sum([ANALYTIC_WEIGHT if let.op in vecmath.NAMES else CHEAP.get(let.op, 1) for let in lets])


def _without_unread(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """A kernel's statements without what is computed in front of loops, and read by turns no more."""
    read = {name for s in statements(body) for name in names_read(s)}
    return tuple([s for s in body if not isinstance(s, Let) or s.name in read])


def _repeated(loop: Loop, kernel: Kernel) -> Loop:
    if loop.kind != PARALLEL_VECTOR or len(loop.body) < _LEAST:
        return loop
    if not all(_is_plain(s, loop.var) for s in loop.body):
        return loop
    body = _Rewriting(loop, kernel).body()
    return loop if body is None else loop.with_body(body)


def _is_plain(s: Statement, var: str) -> bool:
    """Whether a statement works on elements that lie side by side, all of them."""
    if isinstance(s, Load | Store):
        return not s.bounds and s.index == Index((Term(var),), s.index.offset)
    return isinstance(s, Let) or (isinstance(s, Update) and not s.bounds)


Place = tuple[object, int]
"""What a name stands for, and which of those it is that may follow one another from turn to turn."""
_NOWHERE: Place = (None, 0)


class _Turn(NamedTuple):
    """What makes a value: the number of a repeat, the name that the value has in its body, and which turn it is of."""

    repeat: int
    name: str
    number: int


class _Rewriting:
    """A loop's body while it is written anew."""

    def __init__(self, loop: Loop, kernel: Kernel) -> None:
        self._var = loop.var
        self.loads = {s.name: s for s in loop.body if isinstance(s, Load)}
        self._steps: list[Step] = [s for s in loop.body if isinstance(s, Step)]
        self.ahead = {s.name: s for s in kernel.body if isinstance(s, Let)}
        made = [s for s in (*kernel.body, *loop.body) if isinstance(s, Load | Let)]
        self._dtypes: dict[str | None, DType] = {s.name: s.dtype for s in (*kernel.constants, *made)}
        self.numbers: dict[Argument | None, int] = {s.name: k for k, s in enumerate(self._steps) if isinstance(s, Let)}
        self._places: dict[Argument | None, Place] = {name: (w[:2], w.number) for name, w in kernel.words.items()}
        for load in self.loads.values():
            kind, number = self._places[load.buffer]
            self._places[load.name] = ("load", kind), number
            if load.index.offset:
                self._places[load.name] = ("load at", load.buffer), self._places[load.index.offset][1]
        for let in self.ahead.values():
            if len(let.args) == 1 and let.args[0] in self._places:
                kind, number = self._places[let.args[0]]
                self._places[let.name] = (let.op, let.dtype, kind), number
        self.turns: dict[str, _Turn] = {}
        self._repeats: list[Repeat] = []
        self._kept: list[dict[str, None]] = []
        self._names = 0

    def body(self) -> list[Statement] | None:
        """The body, with the loads that still stand in front of all else; None where nothing repeats itself."""
        kinds = _kinds(self._steps, self._var)
        following = _next_alike(kinds)
        ends: dict[int, int] = {}
        result: list[Statement | int] = []
        at = 0
        while at < len(kinds):
            turns = self._repeat(at, following[at], _turns_alike(kinds, at, following[at], ends))
            result.append(len(self._repeats) - 1 if turns else self._as_now(self._steps[at]))
            at += turns * following[at] if turns else 1
        if not self._repeats:
            return None
        repeats = [replace(r, kept=tuple(names)) for r, names in zip(self._repeats, self._kept, strict=True)]
        body = [repeats[s] if isinstance(s, int) else s for s in result]
        used = {a for s in statements(body) for a in arguments(s)}
        used.update(first for repeat in repeats for _, first, _ in repeat.carried)
        return [*(load for load in self.loads.values() if load.name in used), *body]

    def _as_now(self, s: Step) -> Step:
        """A statement with the names that values have behind the repeats that were made."""
        if isinstance(s, Let):
            args = tuple([self.known_as(a) for a in s.args])
            return s if args == s.args else replace(s, args=args)
        if isinstance(s, Update) and s.factor is not None:
            return replace(s, value=self.known_as(s.value), factor=self.known_as(s.factor))
        return replace(s, value=self.known_as(s.value))

    def known_as(self, argument: Argument) -> Argument:
        """The name of a value behind the repeats that were made; kept by one, where it is not of the last turn."""
        turn = self.turns.get(argument) if isinstance(argument, str) else None
        if turn is None:
            return argument
        if turn.number == self._repeats[turn.repeat].turns - 1:
            return turn.name
        return self.kept_as(turn)

    def kept_as(self, turn: _Turn) -> str:
        """The name of a value that a repeat keeps from now on."""
        self._kept[turn.repeat][turn.name] = None
        return kept_name(turn.name, turn.number)

    def _repeat(self, at: int, size: int, turns: int) -> int:
        """Make a repeat of turns of so many steps, from a step on; how many turns it has, 0 where they are too few."""
        if turns < _LEAST_TURNS or not any(map(_is_analytic, self._steps[at : at + size])):
            return 0
        found, alike = 0, turns
        while found != alike:
            found = alike
            for k in range(size):
                for column in _columns(self._steps[at + k : at + size * found : size]):
                    alike = min(alike, self._alike(column, at, size))
                    if alike < _LEAST_TURNS:
                        return 0
        self._write([self._steps[at + k : at + size * found : size] for k in range(size)], at)
        return found

    def _alike(self, column: Column, at: int, size: int) -> int:
        """In how many turns, from the first one on, what stands in a place follows from the number of the turn."""
        first, second = column[:2]
        made = self.numbers.get(second, -1)
        if made >= at:
            follows = [self.numbers.get(a) == made + (n - 1) * size for n, a in enumerate(column)]
            if made < at + size:  # what the first turn is given comes from elsewhere
                is_before = self.numbers.get(first, -1) < at
                follows[0] = is_before and self._dtype(first) == self._dtype(second)
        elif first == second:
            follows = [a == first for a in column]
        else:
            kind, start = self._places.get(first, _NOWHERE)
            step = self._places.get(second, _NOWHERE)[1] - start
            follows = [self._places.get(a) == (kind, start + n * step) for n, a in enumerate(column)]
        return follows.index(False) if False in follows else len(follows)

    def _dtype(self, argument: Argument | None) -> DType | None:
        """The dtype of what is no int."""
        return argument.dtype if isinstance(argument, Literal) else self._dtypes.get(argument)

    def _write(self, rows: Sequence[Sequence[Step]], at: int) -> None:
        """Note the repeat of turns whose steps stand in rows, and from a step on in the body."""
        repeat = _Writer(self, rows, at).repeat()
        for row in rows:
            for number, s in enumerate(row):
                if isinstance(s, Let):
                    turn = self.turns[s.name] = _Turn(len(self._repeats), _name_of(row[0]), number)
                    self._places[s.name] = turn[:2], number
        self._repeats.append(repeat)
        self._kept.append({})

    def new_name(self, stem: str) -> str:
        """A name that the loop does not have."""
        self._names += 1
        return f"{stem}{self._names - 1}"


class _Writer:
    """A repeat while it is written: what its names stand for, and what its turns are given."""

    def __init__(self, around: _Rewriting, rows: Sequence[Sequence[Step]], at: int) -> None:
        self._around = around
        self._rows = rows
        self._at = at
        self._members: dict[tuple[str, ...], str] = {}
        self._carried: dict[tuple[Argument, str], str] = {}
        self._here: dict[str, Load | Let] = {}

    def repeat(self) -> Repeat:
        """The repeat, but for what it keeps."""
        steps = [self._step(row) for row in self._rows]
        carried = tuple([(name, first, following) for (first, following), name in self._carried.items()])
        names, members = tuple(self._members.values()), tuple(self._members)
        return Repeat(len(self._rows[0]), names, members, carried, (), (*self._here.values(), *steps))

    def _step(self, row: Sequence[Step]) -> Step:
        first, given = row[0], [self._given(column) for column in _columns(row)]
        if isinstance(first, Let):
            return replace(first, args=tuple([a for a in given if a is not None]))
        value, buffer, offset = given
        assert isinstance(first, Store) and value is not None and not isinstance(offset, Literal)
        return replace(first, value=value, buffer=str(buffer), index=replace(first.index, offset=offset))

    def _given(self, column: Column) -> Argument | None:
        """What stands in a place of the body, where that stands there in each turn."""
        first, second = column[:2]
        made = self._around.numbers.get(second, -1) - self._at  # by the second turn or the first; below 0 by none
        if made >= len(self._rows):
            return _name_of(self._rows[made - len(self._rows)][0])
        if made >= 0:
            return self._last(first, _name_of(self._rows[made][0]))
        if first is None:
            return None
        if first == second or not isinstance(first, str):
            return self._around.known_as(first)
        return self._each([a for a in column if isinstance(a, str)])

    def _last(self, first: Argument | None, following: str) -> str:
        """What the turn before gives."""
        assert first is not None
        key = self._around.known_as(first), following
        if key not in self._carried:
            self._carried[key] = self._around.new_name("last")
        return self._carried[key]

    def _each(self, names: Sequence[str]) -> str:
        """What is another thing in each turn: a value that was kept, a parameter, or what is made of one here."""
        around, first = self._around, names[0]
        if first in around.turns:
            return self._member([around.kept_as(around.turns[name]) for name in names])
        if first in around.loads:
            made: Load | Let = self._load([around.loads[name] for name in names])
        elif first in around.ahead:
            number = self._member([str(around.ahead[name].args[0]) for name in names])
            made = replace(around.ahead[first], name=f"{number}_{around.ahead[first].op}", args=(number,))
        else:
            return self._member(names)
        self._here[made.name] = made
        return made.name

    def _load(self, loads: Sequence[Load]) -> Load:
        """What reads an array of each turn, or a place of one array in each."""
        first, offsets = loads[0], [load.index.offset for load in loads if load.index.offset]
        if offsets:
            offset = self._member(offsets)
            return replace(first, name=f"{first.buffer}_{offset}", index=replace(first.index, offset=offset))
        buffer = self._member([load.buffer for load in loads])
        return replace(first, name=f"{buffer}_here", buffer=buffer)

    def _member(self, listed: Sequence[str]) -> str:
        names = tuple(listed)
        if names not in self._members:
            self._members[names] = self._around.new_name("each")
        return self._members[names]


def _is_analytic(s: Step) -> bool:
    return isinstance(s, Let) and s.op in vecmath.NAMES


def _name_of(s: Step) -> str:
    assert isinstance(s, Let)
    return s.name


def _columns(row: Sequence[Step]) -> list[Column]:
    """What stands in each place of a step in each turn: its arguments; of a store its value, buffer and offset."""
    if isinstance(row[0], Let):
        return list(zip(*(s.args for s in row if isinstance(s, Let)), strict=True))
    stores = [s for s in row if isinstance(s, Store)]
    return [[s.value for s in stores], [s.buffer for s in stores], [s.index.offset for s in stores]]


def _kinds(steps: Sequence[Step], var: str) -> list[int]:
    """Numbers of statements, the same for those that do the same with something else. Alone are updates, and what asks
    for the element's number: a loop is cut where such comparisons turn, which looks into no repeat.
    """
    keys: list[object] = []
    for k, s in enumerate(steps):
        if isinstance(s, Let) and var not in s.args:
            keys.append((s.op, s.dtype, len(s.args)))
        else:
            keys.append(("store", s.dtype) if isinstance(s, Store) else k)
    return _numbered(keys)


def _numbered(keys: Iterable[object]) -> list[int]:
    """A number for each key, the same for equal ones."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _next_alike(kinds: Sequence[int]) -> list[int]:
    """How far behind each statement the next one of its kind is; 0 where that is too far or there is none."""
    found, last = [0] * len(kinds), dict[int, int]()
    for k in reversed(range(len(kinds))):
        distance = last.get(kinds[k], k) - k
        found[k] = distance if distance <= _LONGEST else 0
        last[kinds[k]] = k
    return found


def _turns_alike(kinds: Sequence[int], at: int, size: int, ends: dict[int, int]) -> int:
    """How many turns of so many statements are of the same kinds, from one on. ``ends`` keeps where such turns ended
    that were looked at before, from statements further in front: a long row of them is gone through once.
    """
    if not size:
        return 0
    end = max(at + size, ends.get(size, 0))
    while end < len(kinds) and kinds[end] == kinds[end - size]:
        end += 1
    ends[size] = end
    return (end - at) // size
