"""The limit of arithmetic: how many multiply-adds, divisions, and multiply-adds beside additions the processors do in a
second, on registers alone; the workload plays no part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.native import CHUNKS, KERNEL, NativeCall, compiled
from benchmarks.workload import Array, Loss, Workload
from jitgrad.compiler.machine.compilation import vector_bytes

_REPEATS = 10_000  # of the loop, in each chunk: beside them, waking a thread is nothing
_CHAINS = 14  # that do not depend on one another; with the number that they share they fill 16 registers nearly
_KINDS = ("products", "divisions", "issued")


class Arithmetic:
    """Loops of independent chains of one operation on whole vectors, on all processors."""

    loss_of = "numpy"
    version = np.__version__

    def prepare(self, loss: Loss, workload: Workload, arrays: Sequence[Array]) -> Callable[[], Any]:
        names = {(kind, size): f"{kind}_{size}" for kind in _KINDS for size in (4, 8)}
        text = "\n".join([*map(_declaration, (4, 8)), *(_kernel(name, *key) for key, name in names.items())])
        code = compiled(text, list(names.values()))
        ones = {size: np.ones((_CHAINS + 1) * vector_bytes() // size, f"f{size}") for size in (4, 8)}
        sink = np.zeros(CHUNKS * vector_bytes(), np.uint8)
        calls = {
            (kind, size): NativeCall([(code[name], CHUNKS * _REPEATS)], [ones[size], sink])
            for (kind, size), name in names.items()
        }
        self._seconds = dict.fromkeys(calls, math.inf)

        def run() -> None:
            for key, call in calls.items():
                self._seconds[key] = min(self._seconds[key], call.shortest(1))

        return run

    def arrays_of(self, result: Any, has_aux: bool) -> list[Array]:
        return []

    def describe(self) -> dict[str, Any]:
        """Operations per second by kind, on elements of four and of eight bytes; at their best."""
        done = CHUNKS * _REPEATS * _CHAINS
        lanes = {size: vector_bytes() // size for size in (4, 8)}
        return {kind: {str(size): done * lanes[size] / self._seconds[kind, size] for size in (4, 8)} for kind in _KINDS}


def multiply_adds() -> NativeCall:
    """A loop of multiply-adds alone."""
    name = "multiply_adds"
    code = compiled(f"{_declaration(4)}\n{_kernel(name, 'products', 4)}", [name])
    ones = np.ones((_CHAINS + 1) * vector_bytes() // 4, np.float32)
    return NativeCall([(code[name], CHUNKS * _REPEATS)], [ones, np.zeros(CHUNKS * vector_bytes(), np.uint8)])


def _names(size: int) -> tuple[str, str]:
    """The type of a whole vector, and the intrinsic that multiplies and adds."""
    lanes = vector_bytes() // size
    return f"<{lanes} x {'float' if size == 4 else 'double'}>", f"llvm.fma.v{lanes}f{8 * size}"


def _declaration(size: int) -> str:
    vector, fma = _names(size)
    return f"declare {vector} @{fma}({vector}, {vector}, {vector})"


def _kernel(name: str, kind: str, size: int) -> str:
    """A loop over chains: multiply-adds, divisions, or every other chain multiply-adds and additions.

    They begin with loaded numbers, so that the compiler takes none for the same as another.
    """
    vector, fma = _names(size)
    operations = {
        "products": [f"call {vector} @{fma}({vector} %s{{k}}, {vector} %x, {vector} %x)"] * _CHAINS,
        "divisions": [f"fdiv {vector} %s{{k}}, %x"] * _CHAINS,
        "issued": [
            f"call {vector} @{fma}({vector} %s{{k}}, {vector} %x, {vector} %x)",
            f"fadd {vector} %s{{k}}, %x",
        ] * (_CHAINS // 2),
    }[kind]  # fmt: skip
    chains = range(_CHAINS)
    starts = "\n".join(
        f"  %p{k} = getelementptr {vector}, ptr %one, i64 {k + 1}\n  %x{k} = load {vector}, ptr %p{k}, align 4"
        for k in chains
    )
    phis = "\n".join(f"  %s{k} = phi {vector} [ %x{k}, %entry ], [ %t{k}, %body ]" for k in chains)
    body = "\n".join(f"  %t{k} = {operations[k].format(k=k)}" for k in chains)
    sums = "\n".join(f"  %u{k + 1} = fadd {vector} %{f'u{k}' if k else 's0'}, %s{k}" for k in chains)
    return f"""
define void @{name}({KERNEL}) nounwind {{
entry:
  %one = load ptr, ptr %table
  %x = load {vector}, ptr %one, align 4
{starts}
  %next = getelementptr ptr, ptr %table, i64 1
  %sink = load ptr, ptr %next
  %place = getelementptr {vector}, ptr %sink, i64 %chunk
  br label %head
head:
  %i = phi i64 [ %lo, %entry ], [ %i1, %body ]
{phis}
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %done
body:
{body}
  %i1 = add i64 %i, 1
  br label %head
done:
{sums}
  store {vector} %u{_CHAINS}, ptr %place, align 1
  ret void
}}
"""


def framework() -> Arithmetic:
    return Arithmetic()
