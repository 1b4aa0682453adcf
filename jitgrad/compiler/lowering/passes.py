"""Loop passes: kernels to kernels that do the same with less work inside the innermost loops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from jitgrad.compiler.loopir.nests import (
    PARALLEL_VECTOR,
    VECTOR,
    Accumulator,
    Argument,
    Check,
    Keep,
    Kernel,
    Let,
    Literal,
    Load,
    Loop,
    Statement,
    Update,
    statements,
)
from jitgrad.compiler.lowering.added_products import add_products
from jitgrad.compiler.lowering.remake import remake_cheap_values


def optimise_loops(kernel: Kernel) -> Kernel:
    """All loop passes, in order."""
    kernel = _named_divisions(multiply_by_reciprocals(kernel))
    kernel = remake_cheap_values(kernel)
    kernel = hoist_invariants(kernel)
    return add_products(kernel)


def hoist_invariants(kernel: Kernel) -> Kernel:
    """Scalar ops on values from outside a loop, and checks of such positions, stand in front of it."""
    return _with_body(kernel, _hoisted(kernel.body))


def _hoisted(body: Sequence[Statement]) -> list[Statement]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            inner = _hoisted(statement.body)
            variant = {statement.var, *_defined(inner)}
            before: list[Statement] = []
            inside: list[Statement] = []
            for s in inner:
                if isinstance(s, Let) and not variant & set(s.args):
                    before.append(s)
                    variant.discard(s.name)
                elif isinstance(s, Check) and not variant & {b.var for b in s.bounds}:
                    before.append(s)
                else:
                    inside.append(s)
            result += before
            statement = statement.with_body(inside)
        result.append(statement)
    return result


def multiply_by_reciprocals(kernel: Kernel) -> Kernel:
    """In vector loops, x / s with the same s for all x becomes x * scale * reciprocal: some ten times faster.

    Both factors are made once, in front of the loop. The scale is 1 unless s is so small or so large that 1 / s is
    not a normal number; then it is a power of two that brings s into range. Zeros, infinities and NaN come out as of
    a division, other results within 1.5 units in the last place.
    """
    return _with_body(kernel, _reciprocal(kernel.body))


def _reciprocal(body: Sequence[Statement]) -> list[Statement]:
    result: list[Statement] = []
    for statement in body:
        if isinstance(statement, Loop):
            if statement.kind in (VECTOR, PARALLEL_VECTOR):
                factors, inner = _rewritten(statement)
                result += factors
            else:
                inner = _reciprocal(statement.body)
            statement = statement.with_body(inner)
        result.append(statement)
    return result


def _named_divisions(kernel: Kernel) -> Kernel:
    """Quotients that must not be multiplied by reciprocals are divisions from here on."""

    def renamed(body: Sequence[Statement]) -> list[Statement]:
        return [
            s.with_body(renamed(s.body)) if isinstance(s, Loop)
            else replace(s, op="divide") if isinstance(s, Let) and s.op == "quotient" else s
            for s in body
        ]  # fmt: skip

    return _with_body(kernel, renamed(kernel.body))


def _rewritten(loop: Loop) -> tuple[list[Statement], Sequence[Statement]]:
    if not any(isinstance(s, Let) and s.op == "divide" for s in loop.body):
        return [], loop.body
    variant = {loop.var, *_defined(loop.body)}
    factors: dict[Argument, list[Let]] = {}
    inner: list[Statement] = []
    for s in loop.body:
        if not _divides_by_invariant(s, variant):
            inner.append(s)
            continue
        assert isinstance(s, Let)
        x, divisor = s.args
        if divisor not in factors:
            names = (f"{s.name}_scale", f"{s.name}_reciprocal")
            factors[divisor] = [Let(name, s.dtype, name[len(s.name) + 1 :] + "_of", (divisor,)) for name in names]
        scale, reciprocal = (factor.name for factor in factors[divisor])
        inner.append(Let(f"{s.name}_scaled", s.dtype, "multiply", (x, scale)))
        inner.append(replace(s, op="multiply", args=(f"{s.name}_scaled", reciprocal)))
    return [factor for pair in factors.values() for factor in pair], inner


def _divides_by_invariant(s: Statement, variant: set[str]) -> bool:
    if not isinstance(s, Let) or s.op != "divide" or s.dtype.kind != "f":
        return False
    x, divisor = s.args
    return isinstance(x, str) and x in variant and not isinstance(divisor, Literal) and divisor not in variant


def _defined(body: Sequence[Statement]) -> Iterator[str]:
    """Names that change while a body runs."""
    for s in statements(body):
        match s:
            case Load(name=name) | Let(name=name) | Accumulator(name=name):
                yield name
                yield f"{name}_at"
            case Keep(count=acc):
                yield acc
            case Update(acc=acc):
                yield acc
                yield f"{acc}_at"
            case Loop(var=var):
                yield var


def _with_body(kernel: Kernel, body: Sequence[Statement]) -> Kernel:
    changed = tuple(body)
    return kernel if changed == kernel.body else replace(kernel, body=changed)
