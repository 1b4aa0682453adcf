"""Non-finite results: which op of a program was the first to make a NaN or an infinity; it runs nothing compiled.

A NaN that no result shows (behind a ``where``, say) is nobody's fault, so only results are looked at. When one holds a
NaN, the program is interpreted again and the first op that makes a NaN of inputs without one is named; when there are
only infinities, the first op that makes one of finite inputs. Constants are what the user wrote, and never named.
Variables hold what they held before the run while it is repeated, and afterwards what the run itself made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad.errors import NonFiniteError, layout
from jitgrad.program import Instruction, Program, instruction_text
from jitgrad.restoring import Snapshot, snapshot_for

_Test = Callable[[Any], Any]


def run_checked(run: Callable[[], list[Any]], program: Program, feeds: Sequence[Any]) -> list[Any]:
    """The results of a run; NonFiniteError naming the op that made the first NaN or infinity, if one holds any."""
    before = snapshot_for(program)
    results = run()
    for test, what in ((np.isnan, "NaN"), (np.isinf, "infinity")):
        if any(_count(r, test) for r in results):
            raise _searched(program, feeds, before, test, what)
    return results


def _searched(program: Program, feeds: Sequence[Any], before: Snapshot, test: _Test, what: str) -> NonFiniteError:
    after = before.now()
    before.restore()
    try:
        return _found(program, feeds, test, what)
    finally:
        after.restore()


def _count(array: Any, test: _Test) -> int:
    array = np.asarray(array)
    return int(np.count_nonzero(test(array))) if array.dtype.kind in "fc" else 0


def _found(program: Program, feeds: Sequence[Any], test: _Test, what: str) -> NonFiniteError:
    values: dict[int, Any] = dict(zip(program.inputs, feeds, strict=True))
    for position, v in enumerate(program.inputs):
        if _count(values[v], test):
            return NonFiniteError(
                layout(f"argument {position} of {program.name} holds {what}", input=_range(values[v]))
            )
    with np.errstate(all="ignore"):
        for ins in program.instructions:
            result = ins.op.impl(*[values[v] for v in ins.inputs], **ins.params)
            made = [result] if len(ins.outputs) == 1 else list(result)
            bad = sum(_count(array, test) for array in made)
            if bad and ins.inputs and not any(_count(values[v], test) for v in ins.inputs):
                return _named(program, ins, [values[v] for v in ins.inputs], made, bad, what)
            values |= zip(ins.outputs, made, strict=True)
    return NonFiniteError(f"{program.name} gave {what}, which op by op does not appear")


def _named(
    program: Program, ins: Instruction, inputs: Sequence[Any], made: Sequence[Any], bad: int, what: str
) -> NonFiniteError:
    where = "gradient" if ins.is_gradient else "forward"
    ranges = {f"input {k}": _range(array) for k, array in enumerate(inputs)}
    total = sum(np.size(array) for array in made)
    return NonFiniteError(
        layout(
            f"op {ins.op.name!r} made {what} in {bad} of {total} values, in the {where} pass",
            op=instruction_text(program, ins),
            **ranges,
        )
    )


def _range(array: Any) -> str:
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
