"""The table of rules for instructions that run programs: form → rules, tried in order; the rules are in bodies/."""

from __future__ import annotations

from jitgrad.compiler.bodies import branches, hoisting, numbers, products, settled, trips, windows
from jitgrad.compiler.rewriter import Rule

_LOOP_RULES = (settled.settled_loop, hoisting.invariants_first, windows.windows_behind)

BY_FORM: dict[str, tuple[Rule, ...]] = {
    "scan": (
        settled.simplified_bodies,
        trips.short_scan,
        *_LOOP_RULES,
        products.products_first,
        products.products_behind,
        numbers.numbers_first,
        numbers.numbers_behind,
    ),
    "while": (settled.simplified_bodies, trips.while_false, *_LOOP_RULES),
    "while_gradient": (settled.simplified_bodies, trips.while_false, *_LOOP_RULES),
    "cond": (branches.chosen_branch, settled.simplified_bodies, branches.settled_cond),
    "call": (settled.simplified_bodies, branches.settled_call),
}
