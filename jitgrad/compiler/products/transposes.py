"""The transpose of a square of registers, as LLVM IR text: blocks of 1, 2, 4, ... lanes of pairs of rows change places.
"""

from __future__ import annotations

from collections.abc import Sequence

from jitgrad.compiler.products.registers import Numbers, at_ir, load_ir, loop_ir, mask_ir


def turn_ir(kind: Numbers) -> str:
    """The function

        void turn_<type>(ptr from, i64 ldf, i64 height, i64 first, i64 end, i64 further, ptr to, i64 ldt)

    A square of registers, up to `height` rows and columns `first` to `end` of it, transposed; zeros in the place of
    others. Of each row what lies `further` is asked for. Rows that are not there have the address of the first one:
    their own may be in pages that nobody has touched, where a load takes 60 ns, though it is masked.

    Rows side by side are turned by fours on their way to the first cache, and those four apart on their way from it: a
    quarter of the code of the whole square.
    """
    n, v = kind.lanes, kind.vector
    return f"""
define internal void @turn_{kind.type}(ptr %from, i64 %ldf, i64 %height, i64 %first, i64 %end, i64 %further, ptr %to,
      i64 %ldt) noinline #0 {{
  %square = alloca [{n} x {v}], align {kind.bytes}
{mask_ir("below", kind, "%end")}
{mask_ir("before", kind, "%first")}
  %mask = xor {kind.mask} %below, %before
  %ldt_four = mul i64 %ldt, 4
{loop_ir("r", str(n), "4", _four_rows(kind))}
{loop_ir("t", "4", "1", _rows_four_apart(kind))}
  ret void
}}"""


def _four_rows(kind: Numbers) -> str:
    fetch = [
        "  %left = sub i64 %height, %r",
        "  %down = mul i64 %r, %ldf",
        at_ir("row0", kind, "%from", "%down"),
        f"  %line = mul i64 %r, {kind.lanes}",
        at_ir("square0", kind, "%square", "%line"),
    ]
    lines, turned = turned_ir(kind, [f"%x{i}" for i in range(4)])
    put = []
    for i in range(4):
        if i:
            fetch.append(at_ir(f"row{i}", kind, f"%row{i - 1}", "%ldf"))
            put.append(at_ir(f"square{i}", kind, "%square0", str(i * kind.lanes)))
        fetch += [
            f"  %has{i} = icmp sgt i64 %left, {i}",
            f"  %mask{i} = select i1 %has{i}, {kind.mask} %mask, {kind.mask} zeroinitializer",
            f"  %given{i} = select i1 %has{i}, ptr %row{i}, ptr %from",
            load_ir(f"x{i}", kind, f"%given{i}", f"%mask{i}"),
            at_ir(f"ask{i}", kind, f"%row{i}", "%further"),
            f"  call void @llvm.prefetch.p0(ptr %ask{i}, i32 0, i32 3, i32 1)",
        ]
        put.append(f"  store {kind.vector} {turned[i]}, ptr %square{i}, align {kind.bytes}")
    return "\n".join((*fetch, *lines, *put))


def _rows_four_apart(kind: Numbers) -> str:
    count = kind.lanes // 4
    fetch = [f"  %four_line = mul i64 %t, {kind.lanes}", at_ir("four0", kind, "%square", "%four_line")]
    lines, turned = turned_ir(kind, [f"%y{i}" for i in range(count)], 4)
    put = ["  %to_down = mul i64 %t, %ldt", at_ir("to0", kind, "%to", "%to_down")]
    for i in range(count):
        if i:
            fetch.append(at_ir(f"four{i}", kind, "%four0", str(4 * i * kind.lanes)))
            put.append(at_ir(f"to{i}", kind, f"%to{i - 1}", "%ldt_four"))
        fetch.append(f"  %y{i} = load {kind.vector}, ptr %four{i}, align {kind.bytes}")
        put.append(f"  store {kind.vector} {turned[i]}, ptr %to{i}, align {kind.size}")
    return "\n".join((*fetch, *lines, *put))


def turned_ir(kind: Numbers, names: Sequence[str], apart: int = 1) -> tuple[list[str], list[str]]:
    """The transpose of a square of registers, by names: its code, and the names of the new ones. Of rows ``apart``, the
    rounds that bring them together: those of blocks of so many lanes and more.
    """
    n, step, lines, names = kind.lanes, 1, [], list(names)
    while step < len(names):
        made, half = list(names), step * apart
        for first in (r for r in range(len(names)) if not r & step):
            second = first | step
            for side, r in enumerate((first, second)):
                made[r] = f"%turned{half}_{r}"
                lines.append(
                    f"  {made[r]} = shufflevector {kind.vector} {names[first]}, {kind.vector} {names[second]}, "
                    f"<{n} x i32> <{_mask(n, half, side)}>"
                )
        names, step = made, 2 * step
    return lines, names


def _mask(n: int, half: int, side: int) -> str:
    """Which lanes of two rows make the upper (0) or the lower (1) one; those of the second count from n on."""
    if side == 0:
        lanes = [t if not t & half else n + (t ^ half) for t in range(n)]
    else:
        lanes = [t | half if not t & half else n + t for t in range(n)]
    return ", ".join(f"i32 {lane}" for lane in lanes)
