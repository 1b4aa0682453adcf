"""Arena plans as formulas of sizes: for other sizes they are right, or not given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jitgrad.compiler.freezing.arranging import arrange
from jitgrad.compiler.fusing.buffers import NEAR, Lifetime, aligned, most_alive, plan_memory
from jitgrad.compiler.symbols import Notes

pytestmark = pytest.mark.quick


def _lives(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    firsts = rng.integers(0, 2 * count, count)
    return [(int(first), int(first + rng.integers(0, count))) for first in firsts]


def _items(sizes: Sequence[int], lives: Sequence[tuple[int, int]], first: int = 0) -> list[Lifetime]:
    return [Lifetime(k, n, *life) for k, (n, life) in enumerate(zip(sizes, lives, strict=True), first)]


def _check(temporaries: list[Lifetime], outputs: list[Lifetime], offsets: dict[int, int], nbytes: int, bound: int,
           lent: dict[int, int], limit: float) -> None:  # fmt: skip
    assert offsets.keys() | lent.keys() == {item.key for item in temporaries}
    rooms = {output.key: output for output in outputs}
    for k, a in enumerate(temporaries):
        if a.key in lent:
            assert a.nbytes <= rooms[lent[a.key]].nbytes and a.last < rooms[lent[a.key]].first
            continue
        start, end = offsets[a.key], offsets[a.key] + a.nbytes
        assert start % 64 == 0 and end <= nbytes
        for b in temporaries[:k]:
            if b.key not in lent and a.first <= b.last and b.first <= a.last:
                assert end <= offsets[b.key] or offsets[b.key] + b.nbytes <= start
    assert bound == most_alive(temporaries) and nbytes <= bound * limit


@pytest.mark.parametrize("seed", range(40))
def test_arranged_arenas_hold_what_lives_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 14))
    lives, hosts = _lives(rng, count), _lives(rng, 3)
    kinds = rng.integers(0, 4, count + 3).tolist()

    def sizes(given: Sequence[int]) -> list[int]:
        return [given[kind] if kind < 3 else 40_000 for kind in kinds]

    def plan(given: Sequence[int]) -> tuple[list[Lifetime], list[Lifetime]]:
        made = sizes(given)
        return _items(made[:count], lives), _items(made[count:], hosts, count)

    notes = Notes((50_000, 70_000, 9_000))
    known = 0
    temporaries, outputs = plan(notes.symbols())  # type: ignore[arg-type]
    arena = arrange(temporaries, outputs)
    at_hand = plan_memory(*plan((50_000, 70_000, 9_000)))
    limit = max(NEAR, at_hand.ratio + 0.01)
    assert arena.lent == at_hand.lent and list(arena.offsets) == list(at_hand.offsets)
    formula = notes.formula((tuple(arena.offsets.values()), arena.nbytes, arena.bound))
    assert formula.value((50_000, 70_000, 9_000)) == (tuple(at_hand.offsets.values()), at_hand.nbytes, at_hand.bound)
    for _ in range(60):
        given = [int(n * scale) for n, scale in zip((50_000, 70_000, 9_000), rng.uniform(0.3, 2.0, 3), strict=True)]
        given = given if rng.integers(2) else [0, 1, 100_000] if rng.integers(2) else [5 * n for n in given]
        found = formula.value(given)
        if found is not None:
            offsets, nbytes, bound = found
            _check(*plan(given), dict(zip(arena.offsets, offsets, strict=True)), nbytes, bound, dict(arena.lent), limit)
            known += 1
    assert known or count > 3


def test_an_arena_grows_with_its_sizes() -> None:
    """All sizes times a number is the same arrangement."""
    lives = [(0, 5), (1, 2), (2, 4), (3, 6), (5, 8), (6, 7)]
    notes = Notes((1000,))
    [n] = notes.symbols()
    arena = arrange(_items([n * 3, n, n * 2, n, n * 4, n], lives), ())  # type: ignore[list-item]
    formula = notes.formula((*arena.offsets.values(), arena.nbytes))
    for count in (80, 999, 64_000):
        made = formula.value((count,))
        bound = most_alive(_items([count * 3, count, count * 2, count, count * 4, count], lives))
        assert made is not None and made[-1] <= 1.1 * bound and made[-1] % aligned(1) == 0


def test_what_does_not_fit_is_not_arranged() -> None:
    notes = Notes((1000,))
    [n] = notes.symbols()
    arena = arrange([Lifetime(0, n, 0, 1)], [Lifetime(1, 2000, 2, 3)])
    assert arena.lent == {0: 1}
    formula = notes.formula((arena.nbytes, n))
    assert formula.value((2000,)) == (0, 2000) and formula.value((2001,)) is None
