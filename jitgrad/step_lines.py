"""Steps of a program that NumPy's functions divide, written as one Python function with a line per step, for a program
that runs again and again; what a step does is not decided here (executable.py, cluster_calls.py).

Between two clusters Python took 5 to 10 microseconds, as long as NumPy takes for a Fourier transform of 1000 points: to
take arrays from a table of values, to turn warnings off for one step, and to fill the slots of a cluster's table. Each
cluster is a builtin here, by a description of the arrays that it is given, as a call of a compiled function is
(compiler/calling/): 0.3 microseconds. What does not fit its description is left to Python, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType
from typing import Any

from jitgrad.cluster_calls import ClusterCall
from jitgrad.compiler.calling.entrance import entrance, is_available
from jitgrad.compiler.calling.entries import Assembly, Description, Table
from jitgrad.compiler.calling.patterns import Array
from jitgrad.compiler.freezing.plans import BoundOp
from jitgrad.error_states import quiet
from jitgrad.opdef import Specs
from jitgrad.records import NamedTuple

FIRST_LINE = 2
"""The number of the line of the first step."""


class Line(NamedTuple):
    """A step: the values that it reads and makes, what it is, and the values that nothing reads after it; of what NumPy
    does, the specs of what it reads, where they are known.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    work: ClusterCall | BoundOp
    dead: Sequence[int]
    specs: Specs | None = None


class Lines(NamedTuple):
    """``run(*arrays)`` gives the values of the outputs, numbers of no dimension as arrays or NumPy's scalars, with
    NumPy's warnings off. The lines of ``code`` are those of the steps, from FIRST_LINE on; ``tables`` hold what machine
    code reads of clusters.
    """

    run: Callable[..., list[Any]]
    code: CodeType
    tables: tuple[Table, ...]


def write_lines(
    lines: Sequence[Line], inputs: Sequence[int], outputs: Sequence[int], constants: Mapping[int, Any]
) -> Lines:
    """The function of a program with these inputs and outputs."""
    names: dict[str, Any] = {f"v{v}": array for v, array in constants.items()}
    tables = tuple([_table(line.work) for line in lines if isinstance(line.work, ClusterCall)])
    described = iter(tables)
    for k, (*_, work, _, specs) in enumerate(lines):
        names[f"f{k}"] = _cluster(work, next(described)) if isinstance(work, ClusterCall) else _ready(work, specs)
    text = [f"def run({_values(inputs)}):"]
    text += [_line(k, line, constants) for k, line in enumerate(lines)]
    exec(compile("\n".join([*text, f" return [{_values(outputs)}]"]), "<steps>", "exec"), names)
    run = names["run"]
    return Lines(quiet(run), run.__code__, tables)


def _values(numbers: Sequence[int]) -> str:
    return ", ".join([f"v{v}" for v in numbers])


def _line(k: int, line: Line, constants: Collection[int]) -> str:
    """The call, and what is dropped after it."""
    made = f"{_values(line.outputs)} = " if line.outputs else ""
    dead = [v for v in line.dead if v not in constants]
    return f" {made}f{k}({_values(line.inputs)})" + (f"; del {_values(dead)}" if dead else "")


def _ready(step: BoundOp, specs: Specs | None) -> Callable[..., Any]:
    """What NumPy does, in the form that is made for many calls where there is one."""
    if step.op.bound is not None and specs is not None:
        return step.op.bound(step.params, specs)
    return partial(step.op.impl, **step.params) if step.params else step.op.impl


def _cluster(call: ClusterCall, table: Table) -> Callable[..., Any]:
    """A builtin that takes arrays and gives new ones, a single one bare; a Python function where machine code takes no
    calls.
    """
    is_single = len(call.outputs) == 1

    def by_python(*arrays: Any) -> Any:
        made = call(arrays)
        return made[0] if is_single else tuple(made)

    return entrance(table, by_python) if is_available() else by_python


def _table(call: ClusterCall) -> Table:
    """The description of a cluster's arrays, in a table of its own, which stays empty where there is none."""
    table, specs = Table(0), dict(zip(call.bound.inputs, call.bound.in_specs, strict=True))
    run = call.as_run([(v, specs[v]) for v in call.inputs], call.outputs)
    if run is not None:
        patterns = [Array(slot, *specs[v]) for slot, v in zip(run.slots, call.inputs, strict=True)]
        with suppress(ValueError):  # of a dtype that machine code does not take
            table.add(Description(patterns, {}, run, _results(len(call.outputs))))
    return table


def _results(n: int) -> Assembly:
    assembly = Assembly()
    for number in range(n):
        assembly.leaf(number)
    if n != 1:
        assembly.sequence(tuple, n)
    return assembly
