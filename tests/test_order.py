"""The order of a block's instructions: what it keeps, and what it is for."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

import jitgrad as jg
from jitgrad.compiler.emission.order import Line, order_of_need

EIGHT = "<8 x double>"


def _sum(name: str, x: str, y: str) -> str:
    return f"  %{name} = fadd {EIGHT} %{x}, %{y}"


def _ordered(lines: Sequence[Line], room: int = 30) -> list[str]:
    return [line if isinstance(line, str) else line() for line in order_of_need(lines, room, 8)]


def _names(lines: Sequence[str]) -> list[str]:
    return [line.split()[0].lstrip("%") for line in lines]


@pytest.mark.quick
def test_chains_that_stand_one_behind_another_take_turns() -> None:
    chains = [_sum(f"{c}{k}", f"{c}{k - 1}" if k else "x", "x") for c in "ab" for k in range(3)]
    assert _names(_ordered(chains)) == ["a0", "b0", "a1", "b1", "a2", "b2"]


@pytest.mark.quick
def test_what_the_longest_chain_waits_for_comes_first() -> None:
    quotient = f"  %q = fdiv {EIGHT} %x, %y"
    assert _names(_ordered([_sum("a", "x", "x"), _sum("b", "a", "x"), quotient])) == ["q", "a", "b"]


@pytest.mark.quick
@pytest.mark.parametrize("room", [2, 30])
def test_no_value_is_read_before_it_is_made(room: int) -> None:
    rng = np.random.default_rng(3)
    lines = [f"  %a = load {EIGHT}, ptr %p"]
    for k in range(300):
        first, second = rng.integers(max(0, k - 40), k + 1, 2)
        opcode = ("fadd", "fmul", "fdiv", "bitcast")[int(rng.integers(4))]
        lines.append(f"  %v{k + 1} = {opcode} {EIGHT} %v{first}, %v{second}".replace("%v0", "%a"))
    ordered = _ordered(lines, room)
    assert sorted(ordered) == sorted(lines)
    known = {"p"}
    for line in ordered:
        made, *read = re.findall(r"%(\w+)", line)
        assert known.issuperset(read)
        known.add(made)


@pytest.mark.quick
def test_memory_is_read_and_written_in_turn() -> None:
    lines: list[Line] = [
        "  %old = load double, ptr %cell",
        _sum("a", "x", "x"),
        "  %new = fadd double %old, %y",
        lambda: "  store double %new, ptr %cell",
        "  %again = load double, ptr %cell",
        _sum("b", "a", "x"),
    ]
    ordered = _ordered(lines)
    places = [next(k for k, line in enumerate(ordered) if part in line) for part in ("%old =", "store", "%again =")]
    assert places == sorted(places)


@pytest.mark.quick
def test_masked_reads_stay_behind_what_is_written_before_them() -> None:
    write: Line = lambda: "  store double %x, ptr %cell"  # noqa: E731
    read = f'  %a = call {EIGHT} @"llvm.masked.load.v8f64"(ptr %cell, i32 8, <8 x i1> %m, {EIGHT} undef)'
    names = _names(_ordered([_sum("b", "x", "y"), write, read, _sum("c", "a", "y")]))
    assert names.index("store") < names.index("a") < names.index("c")


@pytest.mark.quick
def test_where_registers_are_full_what_is_written_first_is_done() -> None:
    lines: list[str] = []
    for k in range(20):
        lines += [f"  %{name}{k} = fmul {EIGHT} %x, %y" for name in "ab"]
        lines.append(_sum(f"c{k}", f"a{k}", f"b{k}"))
    assert _most_alive(_ordered(lines, 4)) < 16 < 36 < _most_alive(_ordered(lines, 1000))


def _most_alive(lines: Sequence[str]) -> int:
    last = {name: k for k, line in enumerate(lines) for name in re.findall(r"%(\w+)", line)}
    made = {name: k for k, name in enumerate(_names(lines))}
    return max(sum(made[name] <= k < last[name] for name in made) for k in range(len(lines)))


def test_a_long_body_in_another_order_computes_the_same() -> None:
    def f(x: np.ndarray) -> np.ndarray:
        parts = [np.exp(x * (0.1 * k)) for k in range(1, 13)]
        total = parts[0]
        for part in parts[1:]:
            total = total / 2 + np.sin(part)
        return total / sum(part * part for part in parts)

    x = np.linspace(-1.0, 1.0, 1003)
    assert np.allclose(jg.compile(f)(x), f(x), rtol=1e-13)
