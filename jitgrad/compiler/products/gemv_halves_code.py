"""Products of a matrix of short rows and a vector by halves of registers of 64 bytes, as LLVM IR text: the part of
`dots` of gemv_code.py for rows of up to eight halves; not which products these are for (gemv.py).

A row of 10 numbers of float64 is two and a half halves, but fills two registers to 0.6. Most loads of 64 bytes from
rows that begin anywhere take two lines, of 32 bytes every third or fourth. And the sums over the lanes of four halves
take five shuffles of 32 bytes, those of eight registers 14 of 64. Cycles for as many rows as a register has lanes,
`dots` and `combine`, in the second cache, before and after (one Zen 4 core, in turns):

    float64   3 columns   27  42    13  11        float32  10 columns   55  60    42  33
             10           43  41    27  23                 20           82  59    56  55
             20           61  66    47  44                 40          150 155   102 101
             32           98 105    70  69                 64          187 241   151 136
           1000         2736 4032  2506 2892             1000         2602 4216  2556 2854

The last lines are of whole registers: there four rows in a turn in place of two are what `combine` gains by.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from jitgrad.compiler.products.gemv_pieces import ask, suffixed, sums
from jitgrad.compiler.products.registers import Numbers, at_ir, fma_ir, load_ir, loop_ir, mask_ir, min_ir, store_ir

WIDEST = 8
"""Halves of a row."""
_ROWS = 8  # at once: lines are asked for once


def half_of(kind: Numbers) -> Numbers:
    """Half of a register."""
    return replace(kind, lanes=kind.lanes // 2)


def short_dots(kind: Numbers, wide: int) -> str:
    """The sums of all rows of so many halves, eight rows at once, the last ones of a chunk together with some before
    them, for the second time; where a chunk has fewer, the last one again. The last half has a mask.
    """
    n, groups = kind.lanes, range(_ROWS // kind.lanes)
    masked = (wide - 1,)
    start = (
        f"  %left = sub i64 %columns, {(wide - 1) * n}\n{mask_ir(f'mask{wide - 1}', kind, '%left')}",
        *(at_ir(f"x_at{c}", kind, "%x", str(c * n)) for c in range(wide)),
        *(load_some(f"xs{c}", kind, f"%x_at{c}", c, masked) for c in range(wide)),
        *(f"  %span{g} = sub i64 %span, {g * n}\n{mask_ir(f'inside{g}', kind, f'%span{g}')}" for g in groups),
        f"  %is_full = icmp sge i64 %span, {_ROWS}\n  %last_full = sub i64 %hi, {_ROWS}",
        "  %last_first = select i1 %is_full, i64 %last_full, i64 %lo\n  %last = sub i64 %span, 1",
        *(f"{min_ir(f'row{r}', str(r), '%last')}\n  %offset{r} = mul i64 %row{r}, %lda" for r in range(_ROWS)),
    )
    body = (
        min_ir("first", "%i", "%last_first"),
        "  %down = mul i64 %first, %lda",
        at_ir("rows_at", kind, "%a", "%down"),
        at_ir("y_at", kind, "%y", "%first"),
        ask(kind, wide, _ROWS, "0"),
        *(suffixed(_group(kind, wide, g, masked), f"group{g}") for g in groups),
    )
    return _lines((*start, loop_ir("i", "%hi", str(_ROWS), _lines(body), first="%lo")))


def _group(kind: Numbers, wide: int, g: int, masked: Container[int]) -> str:
    """The sums of as many rows as a half has lanes, stored."""
    lines = list[str]()
    for r in range(kind.lanes):
        lines.append(at_ir(f"row_at{r}", kind, "%rows_at", f"%offset{g * kind.lanes + r}"))
        for c in range(wide):
            so_far = f"%s{r}_{c}" if c else "zeroinitializer"
            lines.append(at_ir(f"from{r}_{c}", kind, f"%row_at{r}", str(c * kind.lanes)))
            lines.append(load_some(f"e{r}_{c}", kind, f"%from{r}_{c}", c, masked))
            lines.append(fma_ir(f"s{r}_{c + 1}", kind, f"%e{r}_{c}", f"%xs{c}", so_far))
    adding, total = sums(kind, [f"%s{r}_{wide}" for r in range(kind.lanes)])
    to = at_ir("to", kind, "%y_at", str(g * kind.lanes))
    return _lines((*lines, *adding, to, store_ir(kind, total, "%to", f"%inside{g}")))


def load_some(name: str, kind: Numbers, pointer: str, c: int, masked: Container[int]) -> str:
    """Register ``c`` of a row, whole unless it is ``masked``."""
    if c in masked:
        return load_ir(name, kind, pointer, f"%mask{c}")
    return f"  %{name} = load {kind.vector}, ptr {pointer}, align {kind.size}"


def _lines(parts: Iterable[str]) -> str:
    return "\n".join(parts)
