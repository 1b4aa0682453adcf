"""Plans for other extents: what the stages made of a program, frozen anew for a program of the same pattern.

Simplification is always done, for it reads numbers and shapes in many ways. What follows it asks of extents only which
are equal, which are 1, and which are small. So two simplified programs have the same pattern when they agree in all but
extents above those of a pattern (likeness.py) and numbers that are no part of a kernel, and agree in which of these are
equal to one another. Then the stages would make the same kernels of both, and only numbers differ: the extent of each
class of dimensions, and the constants. Offsets and bounds that come from slices, pads and concatenations are numbers of
another kind: a program that has any along larger extents is planned again, see `can_plan_again`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad.compiler.bodies.updates import planned_regions
from jitgrad.compiler.constants import constant_value, is_splat, splat_number
from jitgrad.compiler.freezing.stored import UnkeptError, dump, encode, op_name
from jitgrad.compiler.fusing.accesses import move_maps
from jitgrad.compiler.fusing.factors import factors_in
from jitgrad.compiler.fusing.groups import Group
from jitgrad.compiler.likeness import EXACT, SHAPES, exact_in
from jitgrad.compiler.loopir.quantities import Quantity
from jitgrad.compiler.lowering.lower import CompiledCluster, Lowered, LoweredBodies
from jitgrad.compiler.lowering.signature import BAKED
from jitgrad.forking import wait_for_when_forking
from jitgrad.opdef import IndexMap, Reindex
from jitgrad.program import Instruction, Program

if TYPE_CHECKING:
    from jitgrad.compiler.stages import Compiled

_MOST_KNOWN = 128

Pattern = bytes


def pattern_of(program: Program) -> Pattern | None:
    """What a simplified program has in common with those that the stages treat alike; None when it has no such key."""
    writer = _PatternWriter(exact_in(program))
    try:
        return dump(writer.program(program))
    except UnkeptError:
        return None


class _PatternWriter:
    """Writes programs with extents and numbers by the order in which they are first met."""

    def __init__(self, exact: int) -> None:
        self._exact = exact
        self._extents: dict[int, int] = {}
        self._numbers: dict[Any, int] = {}

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        exact, known = self._exact, self._extents
        return tuple([n if n <= exact else -1 - known.setdefault(n, len(known)) for n in shape])

    def program(self, program: Program) -> Any:
        """A program, or a body; partial results are numbered from the number of its values on, used ones or not."""
        steps = map(self.step, program.instructions)
        sizes = len(program.specs), factors_in(program)
        return program.inputs, program.outputs, *sizes, *self.values(program), *steps

    def values(self, program: Program) -> list[Any]:
        """Shapes and dtypes of the values that a program has."""
        used = [*program.inputs, *(v for ins in program.instructions for v in ins.outputs)]
        return [(v, self._shape(program.specs[v].known_shape), program.specs[v].dtype.str) for v in used]

    def step(self, ins: Instruction) -> Any:
        """An instruction."""
        name = op_name(ins.op)
        if name is None:
            raise UnkeptError(f"op {ins.op.name}")
        return name, ins.inputs, ins.outputs, self._params(ins), ins.origin.scope, ins.after

    def _params(self, ins: Instruction) -> Any:
        value = constant_value(ins)
        if value is not None:
            return self._constant(value)
        return tuple([(name, self._param(name, value)) for name, value in ins.params.items()])

    def _param(self, name: str, value: Any) -> Any:
        if name in SHAPES and type(value) is tuple and None not in value:
            return self._shape(value)
        if name == "length":
            return self._shape((value,))
        if isinstance(value, Program):
            return self.program(value)
        if name == "branches":
            return tuple(map(self.program, value))
        return encode(value)

    def _constant(self, value: np.ndarray[Any, Any]) -> Any:
        """A constant array: its number where that is part of kernels, else which others are equal to it."""
        shape = self._shape(value.shape)
        if not is_splat(value):
            return value.dtype.str, shape, "array"
        number = splat_number(value)
        key = (value.dtype.str, number.tobytes())
        if value.dtype.kind not in "iuf" or not np.isfinite(number) or float(number) in BAKED:
            return *key, shape
        return value.dtype.str, shape, self._numbers.setdefault(key, len(self._numbers))


# -- what is known -----------------------------------------------------------------------------------------------------

_lock = threading.RLock()
wait_for_when_forking(_lock)
_known: OrderedDict[Pattern, Compiled] = OrderedDict()


def find_known(pattern: Pattern | None) -> Compiled | None:
    """The program that was entered for a pattern; None when there is none."""
    with _lock:
        found = _known.get(pattern) if pattern is not None else None
        if found is not None and pattern is not None:
            _known.move_to_end(pattern)
        return found


def enter_known(pattern: Pattern | None, compiled: Compiled) -> None:
    """Keep what the stages made of a program with this pattern, if it serves for others; the oldest is forgotten."""
    if pattern is None or not can_reuse(compiled):
        return
    with _lock:
        _known[pattern] = compiled
        while len(_known) > _MOST_KNOWN:
            _known.popitem(last=False)


def can_reuse(compiled: Compiled) -> bool:
    """Whether all numbers of the kernels follow from the extents of classes, and these from the values' shapes."""
    program = compiled.program
    exact = exact_in(program)
    return all(isinstance(step, int) or can_refreeze(program, step, exact) for step in compiled.steps)


def can_plan_again(compiled: Compiled) -> bool:
    """Whether that holds of all clusters that have loops; the others may be planned again for other extents."""
    program = compiled.program
    exact = exact_in(program)
    return all(
        isinstance(step, int) or can_refreeze(program, step, exact)
        or not any(isinstance(item, LoweredBodies) for item in step.lowered)
        for step in compiled.steps
    )  # fmt: skip


def can_refreeze(program: Program, step: CompiledCluster, exact: int) -> bool:
    """Whether all numbers of the kernels of a cluster, or a body, follow from the extents of its values; extents up to
    ``exact`` are part of the pattern.
    """
    of_values = {c for v, classes in step.plan.classes.items() if v < len(program.specs) for c in classes}
    of_chunks = {step.plan.classes[partial][0] for partial in step.plan.chunked}
    if not all(_keeps_large(program, program.instructions[number], exact) for number in step.cluster.instructions):
        return False
    groups = [group for group in step.plan.steps if isinstance(group, Group)]
    sizes = {c: n for group in groups for c, n in zip(group.axes, group.extents, strict=True)}
    if any(n > exact for c, n in sizes.items() if c not in of_values and c not in of_chunks):
        return False
    kernels = [item for item in step.lowered if isinstance(item, Lowered)]
    if any(item.moves or not all(map(_follows, item.ints)) for item in kernels):
        return False
    loops = [item for item in step.lowered if isinstance(item, LoweredBodies)]
    return all(
        can_refreeze(body, region, exact)
        for item in loops
        for body, region in zip(planned_regions(program.instructions[item.step.number]), item.regions, strict=True)
    )


def _keeps_large(program: Program, ins: Instruction, exact: int) -> bool:
    """Whether an instruction moves nothing along extents that are part of no pattern.

    Where a slice of a constant place falls on padding for one extent, it may fall on the array for another.
    """
    if not isinstance(ins.op.kind, Reindex):
        return True
    for v, maps in zip(ins.outputs, move_maps(program, ins), strict=True):
        outer = program.specs[v].known_shape
        for x, index_map in zip(ins.inputs, maps, strict=True):
            if index_map is not None and not _is_plain(index_map, program.specs[x].known_shape, outer, exact):
                return False
    return True


def _is_plain(index_map: IndexMap, inner: tuple[int, ...], outer: tuple[int, ...], exact: int) -> bool:
    for index, n in zip(index_map.dims, inner, strict=True):
        along = 0 if index.axis is None else outer[index.axis]
        if index.offset and max(n, along) > exact:
            return False
    for guard in index_map.guards:
        n = outer[guard.axis]
        read = {m for index, m in zip(index_map.dims, inner, strict=True) if index.axis == guard.axis}
        is_whole = guard.lo <= 0 and guard.hi >= n and read <= {n}
        if max({n} | read) > exact and not is_whole:
            return False
    return True


def _follows(quantity: Quantity) -> bool:
    """Whether a number is made of extents; a factor in it is the step of a slice, which is part of the pattern."""
    return not quantity.classes or abs(quantity.number) <= EXACT
