"""Simplification of programs with loops, branches and calls: what passes make of it, and equal values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import Builder, effect
from random_bodies import RandomFunction
from traced import check_text, simplified, traced

import jitgrad as jg
from jitgrad.compiler.simplify import simplify
from jitgrad.interpreter import interpret
from jitgrad.opdef import find

pytestmark = pytest.mark.quick

Fn = Callable[..., Any]
A, B = np.float64(0.5), np.float64(-0.25)
V, X = np.linspace(0.5, 1.5, 3), np.linspace(-1.0, 1.0, 4)


def test_numbers_are_part_of_bodies() -> None:
    def fn(xs: Any) -> Any:
        return jg.scan(lambda c, x: (c * np.sin(0.5 * np.ones_like(c)) + x, None), 1.0, xs)[0]

    check_text(fn, (X,), """
program main(%0: f64[4]) {
  %1 = constant(value=1.0) : f64[]
  %2 = scan(%1, %0, body=<f>, length=4) : f64[]
    program f(%0: f64[], %1: f64[]) {
      %2 = constant(value=0.479425538604203) : f64[]
      %3 = multiply(%0, %2) : f64[]
      %4 = add(%3, %1) : f64[]
      return %4
    }
  return %2
}
""")  # fmt: skip


def test_what_nobody_reads_goes() -> None:
    def fn(xs: Any, ys: Any, a: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            return (c[0] + x[0], c[1] * a + x[1]), (c[1], x[0])

        return jg.scan(step, (0.0, 1.0), (xs, ys))[0][0]

    check_text(fn, (X, X, A), """
program main(%0: f64[4], %1: f64[4], %2: f64[]) {
  %3 = constant(value=0.0) : f64[]
  %5 = scan(%3, %0, body=<step>, length=4) : f64[]
    program step(%0: f64[], %1: f64[]) {
      %2 = add(%0, %1) : f64[]
      return %2
    }
  return %5
}
""")  # fmt: skip


def test_what_no_gradient_needs_goes() -> None:
    def fn(a: Any, b: Any) -> Any:
        def last(a: Any) -> Any:
            return jg.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * a, s[2] + s[1]), (0, 1.0, b))[1]

        return jg.grad(last)(a)

    check_text(fn, (A, A), """
program main(%0: f64[], %1: f64[]) {
  %3 = constant(value=0) : i64[]
  %4 = constant(value=1.0) : f64[]
  %6 = constant(value=0.0) : f64[]
  %11, %12 = while_gradient(%0, %3, %4, %4, %6, cond=<f>, body=<f_saving>, back=<f_gradient>) : f64[], f64[]
    program f(%0: f64[], %1: i64[], %2: f64[]) {
      %3 = constant(value=3) : i64[]
      %4 = less(%1, %3) : bool[]
      return %4
    }
    program f_saving(%0: f64[], %1: i64[], %2: f64[]) {
      %3 = constant(value=1) : i64[]
      %4 = add(%1, %3) : i64[]
      %5 = multiply(%2, %0) : f64[]
      return %4, %5, %2
    }
    program f_gradient(%0: f64[], %1: f64[], %2: f64[], %3: f64[]) {
      %4 = constant(value=0.0) : f64[]
      %5 = multiply(%2, %0) : f64[]
      %6 = multiply(%2, %1) : f64[]
      %7 = add(%5, %4) : f64[]
      %8 = add(%3, %6) : f64[]
      return %7, %8
    }
  return %12
}
""")  # fmt: skip


def test_states_that_stay_or_repeat() -> None:
    def fn(a: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            p, q, r, s = c
            return (p * x + q, q, r * x + q, s), None

        return jg.scan(step, (a, a, a, 2.0), xs)[0]

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[4]) {
  %2 = constant(value=2.0) : f64[]
  %7 = scan(%0, %0, %1, body=<step>, length=4) : f64[]
    program step(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = multiply(%1, %2) : f64[]
      %4 = add(%3, %0) : f64[]
      return %4
    }
  return %7, %0, %7, %2
}
""")  # fmt: skip


def test_stacks_that_are_known() -> None:
    def fn(a: Any, xs: Any) -> Any:
        return jg.scan(lambda c, x: (c + x, (x, a, 3.0, c, c)), a, xs)[1]

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[4]) {
  %8 = broadcast_to(%0, shape=(4,)) : f64[4]
  %9 = constant(value=3.0) : f64[4]
  %10, %11 = scan(%0, %1, body=<f>, length=4) : f64[], f64[4]
    program f(%0: f64[], %1: f64[]) {
      %2 = add(%0, %1) : f64[]
      return %2, %0
    }
  return %1, %8, %9, %11, %11
}
""")  # fmt: skip


def test_no_step_and_one_step() -> None:
    def fn(a: Any, xs: Any) -> Any:
        return jg.scan(lambda c, x: (c * a, c), a, None, 0), jg.scan(lambda c, x: (c * a + x, c), a, xs[:1])

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[4]) {
  %7 = constant(value=<array [0]>) : f64[0]
  %4 = getslice(%1, start=(0,), stop=(1,), step=(1,), drop=()) : f64[1]
  %8 = reshape(%4, shape=()) : f64[]
  %9 = multiply(%0, %0) : f64[]
  %10 = add(%9, %8) : f64[]
  %11 = reshape(%0, shape=(1,)) : f64[1]
  return %0, %7, %10, %11
}
""")  # fmt: skip


def test_a_condition_that_is_false() -> None:
    def fn(a: Any) -> Any:
        return jg.while_loop(lambda s: np.less(1, 0), lambda s: s * a, a)

    check_text(fn, (A,), """
program main(%0: f64[]) {
  return %0
}
""")  # fmt: skip


def test_what_branches_give_alike() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jg.cond(a > 0, lambda a, b: (a * b, a, 1.0, a + b), lambda b, a: (b * a, a * 1.0, 1.0, a - b), a, b)

    check_text(fn, (A, B), """
program main(%0: f64[], %1: f64[]) {
  %2 = constant(value=0.0) : f64[]
  %3 = greater(%0, %2) : bool[]
  %8, %9, %10 = cond(%3, %0, %1, branches=(<f>, <f>)) : f64[], f64[], f64[]
    program f(%0: f64[], %1: f64[]) {
      %2 = multiply(%0, %1) : f64[]
      %3 = subtract(%1, %0) : f64[]
      return %2, %1, %3
    }
    program f(%0: f64[], %1: f64[]) {
      %2 = multiply(%0, %1) : f64[]
      %3 = add(%0, %1) : f64[]
      return %2, %0, %3
    }
  %11 = constant(value=1.0) : f64[]
  return %8, %9, %11, %10
}
""")  # fmt: skip


def test_equal_branches() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jg.cond(a > 0, lambda: np.sin(a) * b, lambda: np.sin(a) * b)

    check_text(fn, (A, B), """
program main(%0: f64[], %1: f64[]) {
  %5 = sin(%0) : f64[]
  %6 = multiply(%5, %1) : f64[]
  return %6
}
""")  # fmt: skip


def test_a_branch_that_is_known() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jg.switch(1, [lambda: np.sin(a) * b, lambda: np.cos(a) * b])

    check_text(fn, (A, B), """
program main(%0: f64[], %1: f64[]) {
  %4 = cos(%0) : f64[]
  %5 = multiply(%4, %1) : f64[]
  return %5
}
""")  # fmt: skip


def test_calls_stay() -> None:
    def fn(a: Any, b: Any) -> Any:
        return jg.checkpoint(lambda a, b, c: (np.sin(a) * c, a, b))(a, b, 2.0)[:2]

    check_text(fn, (A, B), """
program main(%0: f64[], %1: f64[]) {
  %6 = call(%0, body=<f>) : f64[]
    program f(%0: f64[]) {
      %1 = constant(value=2.0) : f64[]
      %2 = sin(%0) : f64[]
      %3 = multiply(%2, %1) : f64[]
      return %3
    }
  return %6, %0
}
""")  # fmt: skip


def test_invariants_come_first() -> None:
    def fn(a: Any, v: Any, xs: Any) -> Any:
        return jg.scan(lambda c, x: (c * np.exp(a) + x * np.sum(v * a), None), a, xs)[0]

    check_text(fn, (A, V, X), """
program main(%0: f64[], %1: f64[3], %2: f64[4]) {
  %4 = exp(%0) : f64[]
  %5 = broadcast_to(%0, shape=(3,)) : f64[3]
  %6 = multiply(%1, %5) : f64[3]
  %7 = sum(%6, axis=(0,), keepdims=False) : f64[]
  %8 = scan(%4, %7, %0, %2, body=<f>, length=4) : f64[]
    program f(%0: f64[], %1: f64[], %2: f64[], %3: f64[]) {
      %4 = multiply(%2, %0) : f64[]
      %5 = multiply(%3, %1) : f64[]
      %6 = add(%4, %5) : f64[]
      return %6
    }
  return %8
}
""")  # fmt: skip


def test_what_may_fail_stays_in_a_while_loop() -> None:
    def fn(a: Any, v: Any, k: Any) -> Any:
        return jg.while_loop(lambda s: s < np.exp(a), lambda s: s * np.exp(a) + v[k], a)

    check_text(fn, (A, V, np.int64(1)), """
program main(%0: f64[], %1: f64[3], %2: i64[]) {
  %4 = exp(%0) : f64[]
  %6 = while_loop(%1, %2, %4, %0, cond=<f>, body=<f>) : f64[]
    program f(%0: f64[3], %1: i64[], %2: f64[], %3: f64[]) {
      %4 = less(%3, %2) : bool[]
      return %4
    }
    program f(%0: f64[3], %1: i64[], %2: f64[], %3: f64[]) {
      %4 = multiply(%3, %2) : f64[]
      %5 = take(%0, %1, axis=0) : f64[]
      %6 = add(%4, %5) : f64[]
      return %6
    }
  return %6
}
""")  # fmt: skip


def test_a_scan_is_part_of_the_one_for_its_gradient() -> None:
    def fn(a: Any, xs: Any) -> Any:
        return jg.value_and_grad(lambda a: jg.scan(lambda c, x: (np.tanh(c * a + x), None), 0.5, xs)[0])(a)

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[4]) {
  %3 = constant(value=0.5) : f64[]
  %12, %13 = scan(%0, %3, %1, body=<f>, length=4) : f64[], f64[4]
    program f(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = multiply(%1, %0) : f64[]
      %4 = add(%3, %2) : f64[]
      %5 = tanh(%4) : f64[]
      return %5, %1
    }
  %5 = constant(value=1.0) : f64[]
  %9 = constant(value=0.0) : f64[]
  %10, %11, %15 = scan(%0, %5, %9, %12, %13, body=<f_gradient>, reverse=True, length=4) : f64[], f64[], f64[]
    program f_gradient(%0: f64[], %1: f64[], %2: f64[], %3: f64[], %4: f64[]) {
      %5 = multiply(%3, %3) : f64[]
      %6 = constant(value=1.0) : f64[]
      %7 = subtract(%6, %5) : f64[]
      %8 = multiply(%1, %7) : f64[]
      %9 = multiply(%8, %0) : f64[]
      %10 = multiply(%8, %4) : f64[]
      %11 = add(%2, %10) : f64[]
      return %9, %11, %4
    }
  return %12, %11
}
""")  # fmt: skip


def test_a_loop_is_part_of_the_one_with_tangents() -> None:
    def fn(a: Any) -> Any:
        return jg.jvp(lambda a: jg.while_loop(lambda s: s < 9, lambda s: s * a, 1.0), (a,), (a,))

    check_text(fn, (np.float64(1.5),), """
program main(%0: f64[]) {
  %2 = constant(value=1.0) : f64[]
  %4 = constant(value=0.0) : f64[]
  %7, %8 = while_loop(%0, %2, %4, cond=<f>, body=<f>) : f64[], f64[]
    program f(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = constant(value=9.0) : f64[]
      %4 = less(%1, %3) : bool[]
      return %4
    }
    program f(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = multiply(%1, %0) : f64[]
      %4 = multiply(%2, %0) : f64[]
      %5 = add(%4, %3) : f64[]
      return %3, %5
    }
  return %7, %8
}
""")  # fmt: skip


def test_choices_by_one_index() -> None:
    def fn(a: Any, b: Any) -> Any:
        p = a > 0
        return jg.cond(p, lambda: np.sin(b), lambda: b), jg.cond(p, lambda: np.sin(b) * a, lambda: b * a)

    check_text(fn, (A, B), """
program main(%0: f64[], %1: f64[]) {
  %2 = constant(value=0.0) : f64[]
  %3 = greater(%0, %2) : bool[]
  %4, %5 = cond(%3, %1, %0, branches=(<f>, <f>)) : f64[], f64[]
    program f(%0: f64[], %1: f64[]) {
      %2 = multiply(%0, %1) : f64[]
      return %0, %2
    }
    program f(%0: f64[], %1: f64[]) {
      %2 = sin(%0) : f64[]
      %3 = multiply(%2, %1) : f64[]
      return %2, %3
    }
  return %4, %5
}
""")  # fmt: skip


def test_equal_loops_are_one() -> None:
    def fn(a: Any, xs: Any) -> Any:
        first, second = (jg.scan(lambda c, x: (c * a + x, c), 0.5, xs) for _ in range(2))
        return first[0] + second[0], np.sum(first[1])

    check_text(fn, (A, X), """
program main(%0: f64[], %1: f64[4]) {
  %2 = constant(value=0.5) : f64[]
  %10, %11 = scan(%0, %2, %1, body=<f>, length=4) : f64[], f64[4]
    program f(%0: f64[], %1: f64[], %2: f64[]) {
      %3 = multiply(%1, %0) : f64[]
      %4 = add(%3, %2) : f64[]
      return %4, %1
    }
  %8 = add(%10, %10) : f64[]
  %9 = sum(%11, axis=(0,), keepdims=False) : f64[]
  return %8, %9
}
""")  # fmt: skip


def test_instructions_that_write_keep_their_place() -> None:
    inner = Builder()
    x = inner.input()
    inner.op(effect, x)
    body = inner.program(x)
    b = Builder()
    v = b.input()
    b.op(find("call"), v, body=body)
    b.op(find("cond"), b.constant(True), v, branches=(body, body))
    program = b.program(v)
    assert simplify(program) is program


def test_limits_are_kept() -> None:
    program = traced(lambda a: jg.while_loop(lambda s: s < 1, lambda s: s, a, maximum_iterations=5), A)
    with pytest.raises(jg.LoopLimitError):
        interpret(simplify(program), [A])


@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int) -> None:
    fn = RandomFunction(seed)
    args = fn.arguments(4 if seed % 5 else 1)
    for derived in (fn, jg.value_and_grad(fn, (0, 1, 2, 3)), lambda *x: jg.hvp(fn, x, x)):
        simplified(derived, *args, exact=False)
