"""Constants of a loop over a row in registers, which are loaded in front of it; nothing is computed here.

LLVM loads constants where they are used, and then in front of the outermost loop as many as it believes there are
registers for, those of what a row computes once among them: for the twelve of an exponential, which each turn of the
loop needs, there may be no room left. A value that passes through an empty piece of assembly is no constant to LLVM,
and stays in its register for as long as the loop runs. Softmax cross-entropy of rows of 1000 floats takes 0.96 of the
time so (AVX-512).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from jitgrad.compiler import llvmir as ir
from jitgrad.compiler.emission.interleave import is_analytic
from jitgrad.compiler.loopir.nests import VECTOR, Loop

_FEW = 4  # constants, for which LLVM has room
_CONSTANT = re.compile(r"splat \((float|double) 0x([0-9a-f]+)\)")
_VECTOR = re.compile(r"<(\d+) x (?:float|double)>")


def pins_constants(loop: Loop, module: ir.Module) -> bool:
    """Whether a loop keeps its constants in registers: one over a row, with functions of analysis, and 32 registers."""
    return module.has_avx512 and loop.kind == VECTOR and is_analytic(loop)


def pin_constants(before: ir.Block, blocks: Sequence[ir.Block], lanes: int) -> None:
    """Load the constants of ``blocks``, a loop over some registers of ``lanes`` lanes, at the end of ``before``."""
    found = sorted({text for block in blocks for _, _, text in _constants(block)})
    if len(found) <= _FEW:
        return
    pinned = {text: before.function.new_name() for text in found}
    for text, name in pinned.items():
        vector = f"<{lanes} x {_kind(text)}>"
        before.lines.insert(-1, f'  {name} = call {vector} asm "", "=v,0"({vector} {text})')
    for block in blocks:
        _replace(block, pinned, lanes)


def _constants(block: ir.Block) -> Iterator[tuple[int, int, str]]:
    """The line of each constant but 0.0 that all lanes of a vector have, how many they are, and its text."""
    for k, line in enumerate(block.lines):
        counts = set(_VECTOR.findall(line)) if isinstance(line, str) else set()
        if isinstance(line, str) and len(counts) == 1:
            yield from ((k, int(*counts), m.group()) for m in _CONSTANT.finditer(line) if int(m.group(2), 16))


def _kind(text: str) -> str:
    return "float" if "float" in text else "double"


def _replace(block: ir.Block, pinned: Mapping[str, str], lanes: int) -> None:
    """Registers in place of constants; side by side, at the start of the block, where lanes are more than one has."""
    wide: dict[tuple[int, str], str] = {}
    made: list[str] = []
    for k, count, text in list(_constants(block)):
        if count != lanes and (count, text) not in wide:
            name = wide[count, text] = block.function.new_name()
            part = f"<{lanes} x {_kind(text)}> {pinned[text]}"
            picks = ", ".join(f"i32 {lane % lanes}" for lane in range(count))
            made.append(f"  {name} = shufflevector {part}, {part}, <{count} x i32> <{picks}>")
        block.lines[k] = str(block.lines[k]).replace(text, wide.get((count, text), pinned[text]))
    start = next((k for k, line in enumerate(block.lines) if isinstance(line, str)), 0)  # behind what must come first
    block.lines[start:start] = made
