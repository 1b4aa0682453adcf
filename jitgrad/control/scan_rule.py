"""The gradient rule of scan: the other rules are in rules.py.

The forward scan is made once more with what the gradient reads of each step as further ys (the compiler joins the two),
and a scan in the other direction carries the cotangents of the state. How gradients of constants are added up over the
steps, there or afterwards, is told in sums.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jitgrad.control.derivatives import (
    Gradients,
    Tensors,
    backward_state,
    complete,
    derivative_of,
    outputs_of,
    reach,
    residuals,
    smooth_of,
    spread,
    zeros_or,
)
from jitgrad.control.ops import add_control, scan_op
from jitgrad.control.subgraph import Subgraph
from jitgrad.control.sums import Outside, Sum, carried_in, plan_sums, sources_of
from jitgrad.graph import Tensor
from jitgrad.operators import call
from jitgrad.ops.common import as_tensor, filled
from jitgrad.program import needed_operations
from jitgrad.spec import is_inexact


def scan_rule(
    g: Any, out: Any, *inputs: Tensor, body: Subgraph, n_consts: int, n_carry: int, length: int | None, reverse: bool,
    wanted: tuple[bool, ...],
) -> Gradients:  # fmt: skip
    """Cotangents of the constants, the state before the first step, and the items."""
    body, late = complete(body, n_consts)
    consts = (*inputs[:n_consts], *late)
    rest = inputs[n_consts:]
    scan = _Scan(body, consts, rest[:n_carry], rest[n_carry:], length, reverse)
    flags = (*wanted[:n_consts], *(False,) * len(late)), wanted[n_consts + n_carry :]
    of_consts, of_init, of_items = scan.pull_back(outputs_of(g), outputs_of(out), *flags)
    return [*of_consts[:n_consts], *of_init, *of_items]


class _Scan:
    """A scan whose gradient is built."""

    def __init__(
        self, body: Subgraph, consts: Tensors, init: Tensors, xs: Tensors, length: int | None, reverse: bool
    ) -> None:
        self.body = body
        self.consts, self.init, self.xs = consts, init, xs
        self.length, self.reverse = length, reverse
        self.derivative = derivative_of(body)
        last = len(consts) + len(init)
        self.fixed = body.inputs[: len(consts)]
        self.items = body.inputs[last:]

    def add(self, body: Subgraph, operands: Sequence[Tensor], n_carry: int, reverse: bool) -> Tensors:
        """A scan with the same constants and as many steps; nothing, where nothing comes out of it."""
        if not body.outputs:
            return ()
        how: dict[str, Any] = {"n_consts": len(self.consts), "n_carry": n_carry, "length": self.length}
        return add_control(scan_op, *self.consts, *operands, body=body, reverse=reverse, **how)

    def pull_back(
        self, gs: Tensors, out: Tensors, wanted: Sequence[bool], items_wanted: Sequence[bool]
    ) -> tuple[Gradients, Gradients, Gradients]:
        """Cotangents of the constants, the state before the first step, and the items."""
        d, body, n_carry = self.derivative, self.body, len(self.init)
        sums = self._sums(wanted)
        shares = list(dict.fromkeys(share for one in sums.values() for share in carried_in(one)))
        sources = dict.fromkeys(source for one in sums.values() for source in sources_of(one))
        chosen = [k for k, x in enumerate(self.xs) if items_wanted[k] and is_inexact(x.dtype)]
        with body.graph.reopened():
            before, after = backward_state(d, len(self.consts), n_carry, shares)
            of_items = tuple(zeros_or(d.gradients[len(body.inputs) - len(self.xs) + k], self.items[k]) for k in chosen)
        into = tuple(c for c in d.cotangents[n_carry:] if c is not None)
        saved, stacks = self._saved((*after, *of_items, *sources), (*before, *into), out)
        emitted = tuple(source for source in sources if source not in stacks)
        inputs = (*self.fixed, *before, *into, *saved)
        back = Subgraph(body.graph, inputs, (*after, *of_items, *emitted), f"{body.name}_gradient")
        ys = tuple(y for y, c in zip(gs[n_carry:], d.cotangents[n_carry:], strict=True) if c is not None)
        first = (*smooth_of(gs[:n_carry], self.init), *map(self._nothing, shares))
        found = self.add(back, (*first, *ys, *(stacks[t] for t in saved)), len(before), not self.reverse)
        n_smooth, last = len(before) - len(shares), len(before) + len(of_items)
        outside = Outside(
            dict(zip(shares, found[n_smooth : len(before)], strict=True)),
            {**stacks, **dict(zip(emitted, found[last:], strict=True))},
        )
        return (
            self._of_constants(sums, outside, wanted),
            spread(self.init, (True,) * n_carry, found[:n_smooth]),
            spread(self.xs, items_wanted, found[len(before) : last]),
        )

    def _sums(self, wanted: Sequence[bool]) -> dict[int, Sum]:
        """How the gradients of those constants are added up that are wanted and depend on something."""
        shares = {k: g for k, (g, w) in enumerate(zip(self.derivative.gradients, wanted, strict=False)) if w}
        present = {k: share for k, share in shares.items() if share is not None}
        given = {c for c in self.derivative.cotangents if c is not None}
        behind, free = reach(needed_operations(list(present.values()), (), given), given, self.fixed)
        sums = plan_sums(list(present.values()), lambda x: x.op in behind or x in given, free)
        return dict(zip(present, sums, strict=True))

    def _saved(self, wanted: Tensors, given: Tensors, out: Tensors) -> tuple[Tensors, dict[Tensor, Tensor]]:
        """What the steps back read of those forward, and all that is at hand of these, stacked: saved for this, made by
        the scan anyway, or given to it.
        """
        n_carry = len(self.init)
        made = dict(zip(self.body.outputs[n_carry:], out[n_carry:], strict=True))
        stacks = {**made, **dict(zip(self.items, self.xs, strict=True))}
        read = residuals(wanted, given, self.fixed, tuple(stacks))
        kept = tuple(t for t in read if t not in stacks)
        if kept:
            forward = Subgraph(
                self.body.graph, self.body.inputs, (*self.body.outputs, *kept), f"{self.body.name}_saving"
            )
            found = self.add(forward, (*self.init, *self.xs), n_carry, self.reverse)
            stacks |= dict(zip(kept, found[len(self.body.outputs) :], strict=True))
        if self.length is None and set(read).isdisjoint(self.items):
            read = (*read, self.items[0])  # which tells the number of steps
        return read, stacks

    def _of_constants(self, sums: dict[int, Sum], outside: Outside, wanted: Sequence[bool]) -> Gradients:
        """Per constant its gradient: a sum, or zeros where nothing depends on it."""
        found: Gradients = []
        for k, x in enumerate(self.consts):
            is_wanted = wanted[k] and is_inexact(x.dtype)
            found.append(None if not is_wanted else outside.sum(sums[k], x) if k in sums else call("zeros_like", x))
        return found

    def _nothing(self, share: Tensor) -> Tensor:
        """Zeros like a share of the gradient of a constant."""
        if share.spec.is_known:
            return as_tensor(filled(share.spec.known_shape, 0, share.dtype))
        pairs = zip(self.consts, self.derivative.gradients, strict=False)
        made: Tensor = call("zeros_like", next(x for x, g in pairs if g is share))
        return made
