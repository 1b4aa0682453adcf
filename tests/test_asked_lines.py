"""Which lines of rows to come kernels ask for while they run: requests leave marks, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.processors import needs_registers

_SCRIPT = """
import sys
import numpy as np
import jitgrad as jg
from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.asking import TO_READ, AskingEmitter
from jitgrad.compiler.machine import compilation

FAR, ROWS, BYTE = 4 << 20, 24, ir.IntType(8)


def mark(emitter, address, use, cache):
    if use == TO_READ:
        b = emitter.builder
        b.store(ir.Constant(BYTE, 1), b.gep(address, [ir.Constant(ir.IntType(64), FAR)], source_etype=BYTE))


def ring(x):
    return np.sum(np.diff(x, axis=0)[:, 1:] ** 2 * np.diff(x, axis=1)[1:] ** 2)


def softmax(x):
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return np.sum((e / np.sum(e, axis=1, keepdims=True)) ** 3)


def log_softmax(x):
    z = x - np.max(x, axis=1, keepdims=True)
    return np.sum((z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))) ** 3)


AskingEmitter._ask_for = mark
compilation.has_few_buffers = lambda: True
memory = np.zeros(3 * FAR, np.uint8)
memory = memory[-memory.ctypes.data % 64 :]
f = jg.compile(jg.value_and_grad(locals()[sys.argv[1]]))
for columns in map(int, sys.argv[2:]):
    x = memory[FAR // 2 :][: ROWS * columns * 4].view(np.float32).reshape(ROWS, columns)
    x[:] = np.random.default_rng(0).standard_normal(x.shape)
    memory[FAR:] = 0
    f(x)
    lines = memory[FAR + FAR // 2 :][8 * columns * 4 :][: (ROWS - 9) * columns * 4 // 64 * 64].reshape(-1, 64)
    print(columns, np.mean(lines.any(axis=1)))
"""


@needs_registers
@pytest.mark.parametrize("function", ["ring", "softmax", "log_softmax"])
def test_all_lines_of_rows_to_come_are_asked_for(function: str) -> None:
    columns = ("1024", "2048", "2000", "777", "1500")
    script = "import jitgrad as jg\njg.config(cache=False, quick_start=False, num_threads=1)\n" + _SCRIPT
    command = [sys.executable, "-c", script, function, *columns]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert told.stdout.split() == [word for n in columns for word in (n, "1.0")]
