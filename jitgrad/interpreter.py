"""interpret(): the meaning of a program, op by op in NumPy; the oracle that all compiled code is held against."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from jitgrad import recording
from jitgrad.errors import IndexingError, JitgradError, layout, unwritten_error
from jitgrad.listing import Listing, list_program, list_scan
from jitgrad.opdef import Elementwise, Fill, Gather, Library, Scatter, Update
from jitgrad.program import Instruction, Program, instruction_text
from jitgrad.records import NamedTuple
from jitgrad.sources import operation_text, source_text

if TYPE_CHECKING:
    from jitgrad.graph import Operation

_REUSED_BYTES = 256 * 1024  # from here on, memory that is at hand is worth more than looking for it costs; as in NumPy
LISTED_FROM = 30  # a program's first runs go step by step: writing its listing takes as long as so many runs save


class InterpretedRun(NamedTuple):
    """What a profile keeps of an instruction's run in an interpreted program: the instruction by its number."""

    program: Program
    number: int


class _Step(NamedTuple):
    """An instruction made ready: what takes its arguments from the table of values, and where its result goes.

    ``dead`` are values that nothing reads afterwards, ``reusable`` those in whose memory the result may be made.
    """

    number: int
    impl: Callable[..., Any]
    arguments: Callable[[list[Any]], Sequence[Any]]
    params: Mapping[str, Any]
    outputs: tuple[int, ...]
    dead: tuple[int, ...]
    reusable: tuple[int, ...]


def interpret(program: Program, feeds: Sequence[Any]) -> list[Any]:
    """Values of the program's outputs for arrays of its inputs, each value dropped after its last use."""
    constants, steps = _prepared(program)
    if not recording.sinks:
        listing = _listing(program, steps)
        if listing is not None:
            return _run_listing(program, listing, listing.run, feeds)
    else:
        steps = [_recorded(program, step) for step in steps]
    values = constants.copy()
    for v, array in zip(program.inputs, feeds, strict=True):
        values[v] = array
    with np.errstate(all="ignore"):
        for step in steps:
            number, impl, arguments, params, outputs, dead, reusable = step
            try:
                if reusable:
                    memory = _free_memory(values, reusable)
                    result = impl(*arguments(values), **params, out=memory)
                    del memory
                else:
                    result = impl(*arguments(values), **params)
            except (IndexError, np.linalg.LinAlgError, JitgradError) as error:
                raise located(program, program.instructions[number], error) from error
            if len(outputs) == 1:
                values[outputs[0]] = result
            else:
                for v, array in zip(outputs, result, strict=True):
                    values[v] = array
            del result  # only the table is to hold it
            for v in dead:
                values[v] = None
    return [values[v] for v in program.outputs]


def listed(program: Program) -> Callable[[Sequence[Any]], list[Any]] | None:
    """`interpret` of a program that has been run so often that it is one function, for runs that nobody records; None
    of others.
    """
    listing = program._cache.get("listing")
    return partial(_run_listing, program, listing, listing.run) if listing is not None else None


def repeated(program: Program) -> Callable[[Sequence[Any]], list[Any]]:
    """`interpret` of a program, for a loop that has NumPy's warnings off: turning them off takes as long as some ten
    operations on numbers.
    """
    listing = None if recording.sinks else program._cache.get("listing")
    return partial(interpret, program) if listing is None else partial(_run_listing, program, listing, listing.bare)


def _listing(program: Program, steps: Sequence[_Step]) -> Listing | None:
    """The listing of a program that is run again and again, kept with it; None for the first runs."""
    cache = program._cache
    found: Listing | None = cache.get("listing")
    if found is None:
        runs = cache["interpreted_runs"] = cache.get("interpreted_runs", 0) + 1
        if runs >= LISTED_FROM:
            reusable = {step.number: step.reusable for step in steps}
            found = cache["listing"] = list_program(program, reusable)
    return found


def _run_listing(
    program: Program, listing: Listing, run: Callable[..., list[Any]], feeds: Sequence[Any]
) -> list[Any]:
    try:
        return run(*feeds)
    except (IndexError, np.linalg.LinAlgError, JitgradError) as error:
        number = listing.numbers.get(line_of(listing.code, error))
        if number is None:
            raise
        raise located(program, program.instructions[number], error) from error


def line_of(code: CodeType, error: BaseException) -> int:
    """The line of a function that an error went through, 0 for none."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace.tb_lineno if trace is not None else 0


def scan_steps(
    program: Program, n_consts: int, n_carry: int, steps: int
) -> Callable[[Sequence[Any]], list[Any]] | None:
    """The steps of a scan with this body as one function, as `list_scan` has it; None for the first ones, where
    somebody records them, for none, and where a shape is not known.
    """
    cache, key = program._cache, f"scan {n_consts} {n_carry}"
    found: Listing | None = cache.get(key)
    if recording.sinks or not steps:
        return None
    if found is None:
        if not all(program.specs[v].is_known for v in program.outputs):
            return None
        cache["scan_steps"] = cache.get("scan_steps", 0) + steps
        if cache["scan_steps"] < LISTED_FROM:
            return None
        reusable = {step.number: step.reusable for step in _prepared(program)[1]}
        found = cache[key] = list_scan(program, reusable, n_consts, n_carry)
    return partial(_run_listing, program, found, found.run)


def _recorded(program: Program, step: _Step) -> _Step:
    """The step with an impl that tells the profiles of each run."""

    def impl(*arrays: Any, **params: Any) -> Any:
        with recording.span("numpy", program.instructions[step.number].op.name, source):
            return step.impl(*arrays, **params)

    source = InterpretedRun(program, step.number)
    return step._replace(impl=impl)


def _free_memory(values: list[Any], reusable: tuple[int, ...]) -> Any:
    """The first of these arrays that nothing else refers to, no view either; None when there is none."""
    for v in reusable:
        array = values[v]
        if type(array) is np.ndarray and array.flags.owndata and sys.getrefcount(array) == _OWN_REFERENCES:
            return array
    return None


def _references(values: list[Any], v: int) -> int:
    array = values[v]
    return sys.getrefcount(array)


_OWN_REFERENCES = _references([np.empty(0)], 0)
"""Of an array that only the table of values holds, seen from `_free_memory`: Python 3.14 counts no call's argument."""


def _prepared(program: Program) -> tuple[list[Any], list[_Step]]:
    """The table of values with the constants entered, and the other instructions made ready; kept with the program."""
    found = program._cache.get("interpreted")
    if found is None:
        dead = last_uses(program)
        constants: list[Any] = [None] * len(program.specs)
        steps = []
        for number, ins in enumerate(program.instructions):
            if ins.op.kind == _CONSTANT:
                constants[ins.outputs[0]] = ins.op.impl(**ins.params)
            else:
                steps.append(_step(program, number, ins, tuple(dead.get(number, ()))))
        found = program._cache["interpreted"] = constants, steps
    return found


_CONSTANT = Fill("constant")


def _step(program: Program, number: int, ins: Instruction, dead: tuple[int, ...]) -> _Step:
    first = ins.inputs[0] if ins.inputs else 0
    # A tuple of several values, a list of one or none.
    arguments = itemgetter(*ins.inputs) if len(ins.inputs) > 1 else itemgetter(slice(first, first + len(ins.inputs)))
    reusable = _reusable(program, ins, dead)
    return _Step(number, ins.op.impl, arguments, ins.params, ins.outputs, dead, reusable)


def _reusable(program: Program, ins: Instruction, dead: tuple[int, ...]) -> tuple[int, ...]:
    """Inputs that end with an instruction and are arrays like its result: large ones of a ufunc, and what an update
    changes, a loop's state too.
    """
    if isinstance(ins.op.kind, Update):
        return tuple([v for v in ins.inputs[:1] if v in dead])
    if not isinstance(ins.op.impl, np.ufunc) or not isinstance(ins.op.kind, Elementwise) or len(ins.outputs) != 1:
        return ()
    spec = program.specs[ins.outputs[0]]
    if ins.params or spec.nbytes < _REUSED_BYTES:
        return ()
    return tuple([v for v in ins.inputs if v in dead and program.specs[v] == spec and v in program.producers()])


def located(program: Program, ins: Instruction, error: Exception) -> Exception:
    """The error itself, or one that names the instruction, for a position out of bounds and a matrix without a result.

    What a program within an instruction says is left as it is.
    """
    if isinstance(error, JitgradError) and error.args and not _is_placed(error):
        error.args = (layout(str(error), needed=f"at {source_text(ins.origin.source)}"), *error.args[1:])
    if "\n" in str(error):
        return error
    if isinstance(error, np.linalg.LinAlgError):
        return matrix_error(program, ins, str(error))
    return position_error(program, ins) if isinstance(ins.op.kind, Gather | Scatter) else error


def run_operation(op: Operation, arrays: Sequence[Any]) -> Any:
    """What an operation that is in no program makes of arrays. An error names it and the user's line: one of ours in
    its message, any other in a note, so that what a Python function raises arrives as it is.
    """
    try:
        return op.opdef.impl(*arrays, **op.params)
    except JitgradError as error:
        if not _is_placed(error) and error.args:
            what, *fields = str(error).split("\n")
            error.args = ("\n".join([layout(what, op=operation_text(op)), *fields]), *error.args[1:])
        raise
    except Exception as error:
        if not getattr(error, "__notes__", None):
            error.add_note(f"  op: {operation_text(op)}")
        raise


def _is_placed(error: Exception) -> bool:
    """Whether a message names an operation or a line."""
    return any(f"\n  {field}:" in str(error) for field in ("op", "needed"))


def run_error(program: Program, ins: Instruction) -> Exception:
    """The error for an instruction that found its arguments wanting while it ran."""
    match ins.op.kind:
        case Library("cholesky"):
            return matrix_error(program, ins, "Matrix is not positive definite")
        case Library("eigh" | "eigvalsh"):
            return matrix_error(program, ins, "Eigenvalues did not converge")
        case Library("svd" | "svdvals"):
            return matrix_error(program, ins, "SVD did not converge")
        case Library():
            return matrix_error(program, ins, "Singular matrix")
    return position_error(program, ins)


_WRITTEN = {"lu_solve": "solve", "lu_inv": "inv", "solve_turned": "solve_triangular"}
"""What users wrote of which the compiler made other operations (compiler/rules/matrices.py)."""


def matrix_error(program: Program, ins: Instruction, what: str) -> np.linalg.LinAlgError:
    """The error of a matrix for which a routine has no result, with what NumPy says of it."""
    written = _WRITTEN.get(ins.op.name)
    return np.linalg.LinAlgError(
        layout(
            what,
            call=None if written is None else f"{written}, for which the compiler wrote what is next",
            op=instruction_text(program, ins),
            hint="add a multiple of the identity to the matrix, a small one to a covariance",
        )
    )


def position_error(program: Program, ins: Instruction) -> IndexingError:
    """The error for a gather or a scatter that was given a position out of bounds."""
    if ins.op.name == "read_element":
        return unwritten_error(ins.params.get("number"), f"at {source_text(ins.origin.source)}")
    return IndexingError(
        layout(
            f"op {ins.op.name!r}: a position is out of bounds",
            op=instruction_text(program, ins),
            hint="positions count from 0, or from the end when negative; clip them, or use np.where"
            + "; minlength= of np.bincount is more than the largest" * (ins.op.name == "scatter_take"),
        )
    )


def last_uses(program: Program) -> dict[int, list[int]]:
    """Instruction number → the values that nothing reads after it."""
    found: dict[str, Any] = program._cache
    if "last_uses" not in found:
        last: dict[int, int] = {}
        for number, ins in enumerate(program.instructions):
            last.update(dict.fromkeys(ins.outputs, number))
            last.update(dict.fromkeys(ins.inputs, number))
        for v in program.outputs:
            last.pop(v, None)
        table: dict[int, list[int]] = {}
        for v, number in last.items():
            table.setdefault(number, []).append(v)
        found["last_uses"] = table
    return found["last_uses"]  # type: ignore[no-any-return]
