"""Pieces of LLVM IR text for products: modules, number types and their registers, words of blocks, masks, loops, loads
and stores. They multiply nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from jitgrad.records import dataclass


@dataclass(frozen=True)
class Numbers:
    """A number type of LLVM on a kind of machine: its name, its suffix in intrinsics, its bytes, how many fill a
    register, how much of a sum is done at a time, how many registers there are, and whether they are multiplied in
    halves: then one multiply-add begins in a cycle, and other instructions take no time beside it. Where tiles read A
    where it lies, how much of a sum is done at a time for a transposed one; where they read packed panels, 0.
    """

    type: str
    suffix: str
    size: int
    lanes: int
    depth: int
    registers: int
    halves: bool = False
    turned_depth: int = 0

    @property
    def bytes(self) -> int:
        """Of a register."""
        return self.size * self.lanes

    @property
    def line(self) -> int:
        """How many fill a line of the caches."""
        return LINE // self.size

    @property
    def vector(self) -> str:
        """The type of a register."""
        return f"<{self.lanes} x {self.type}>"

    @property
    def mask(self) -> str:
        """The type of one bit per lane."""
        return f"<{self.lanes} x i1>"

    @functools.cached_property
    def columns(self) -> int:
        """The columns of a panel of B."""
        return self.wide * self.lanes

    @functools.cached_property
    def wide(self) -> int:
        """The registers of a row of a panel of B: six of them hold sums in three quarters of all."""
        return self.registers // 8

    @functools.cached_property
    def in_place(self) -> bool:
        """Whether tiles read A where it lies."""
        return self.turned_depth > 0

    def deepest(self, is_turned: bool) -> int:
        """How much of a sum is done at a time, for A transposed or not."""
        return self.turned_depth if is_turned and self.in_place else self.depth

    @property
    def row(self) -> int:
        """The distance of the rows in a packed panel of A, off the powers of two."""
        return self.depth + self.lanes


LINE = 64
"""Bytes in a line of the caches."""
SMALLER = "declare i64 @llvm.smin.i64(i64, i64) #0"
"""The smaller of two numbers, as an intrinsic."""
KERNEL = "ptr %table, ptr %block, i64 %lo, i64 %hi, i64 %chunk, i64 %worker"
"""The parameters of a step: the table of addresses, the step's own words, its part of the indices, and who runs it."""

_KINDS = {
    64: {
        "float32": Numbers("float", "f32", 4, 16, 512, 32, turned_depth=256),
        "float64": Numbers("double", "f64", 8, 8, 256, 32, turned_depth=128),
    },
    32: {"float32": Numbers("float", "f32", 4, 8, 320, 16), "float64": Numbers("double", "f64", 8, 4, 192, 16)},
}

_HALVES = {
    "float32": Numbers("float", "f32", 4, 16, 256, 32, halves=True),
    "float64": Numbers("double", "f64", 8, 8, 192, 32, halves=True),
}
"""Where registers of 64 bytes are multiplied in halves."""


def kinds() -> Mapping[str, Numbers]:
    """The number types by the names of their dtypes; none where registers are shorter, or a product is not added with
    one rounding.
    """
    from jitgrad.compiler.machine.compilation import has_fma, multiplies_halves, vector_bytes

    if not has_fma():
        return {}
    return _HALVES if vector_bytes() == 64 and multiplies_halves() else _KINDS.get(vector_bytes(), {})


def numbers_of(stub: str, *stubs: Mapping[str, str]) -> Numbers:
    """The number type of a function, by its name; ``stubs`` are names of functions by the dtypes that they are for."""
    return kinds()[next(dtype for names in stubs for dtype, name in names.items() if name == stub)]


def module_ir(*parts: str) -> str:
    """A module of declarations and functions."""
    return "\n".join((*parts, "attributes #0 = { nounwind }\n"))


def declarations_ir(kind: Numbers) -> str:
    """The intrinsics in use."""
    v, m, name = kind.vector, kind.mask, f"v{kind.lanes}{kind.suffix}"
    return f"""
declare {v} @llvm.fma.{name}({v}, {v}, {v}) #0
declare {v} @llvm.masked.load.{name}.p0(ptr, i32, {m}, {v}) #0
declare void @llvm.masked.store.{name}.p0({v}, ptr, i32, {m}) #0
declare void @llvm.prefetch.p0(ptr, i32, i32, i32) #0
"""


def spread_ir(name: str, kind: Numbers, scalar: str) -> str:
    """A number in all lanes."""
    v = kind.vector
    return f"""  %{name}_one = insertelement {v} poison, {kind.type} {scalar}, i64 0
  %{name} = shufflevector {v} %{name}_one, {v} poison, <{kind.lanes} x i32> zeroinitializer"""


def fma_ir(name: str, kind: Numbers, x: str, y: str, z: str) -> str:
    """x y + z in each lane, rounded once."""
    v = kind.vector
    return f"  %{name} = call {v} @llvm.fma.v{kind.lanes}{kind.suffix}({v} {x}, {v} {y}, {v} {z})"


def word_ir(name: str, names: Sequence[str]) -> str:
    """The word of a block under its name; ``names`` are those of all words, in order."""
    return f"""  %{name}_at = getelementptr i64, ptr %block, i64 {names.index(name)}
  %{name} = load i64, ptr %{name}_at"""


def block_ir(names: Sequence[str]) -> str:
    """All words of a block."""
    return "\n".join(word_ir(name, names) for name in names)


def array_ir(name: str) -> str:
    """The address in a slot of the table, `%<name>_slot`."""
    return f"""  %{name}_entry = getelementptr ptr, ptr %table, i64 %{name}_slot
  %{name} = load ptr, ptr %{name}_entry"""


def arrays_ir(*names: str) -> str:
    """The addresses in several slots."""
    return "\n".join(map(array_ir, names))


def mask_ir(name: str, kind: Numbers, count: str) -> str:
    """The lanes below `count`; where a mask is a register, they are compared as numbers of an element's size."""
    word = "i64" if kind.bytes == 64 else f"i{8 * kind.size}"
    many, numbers = f"<{kind.lanes} x {word}>", ", ".join(f"{word} {k}" for k in range(kind.lanes))
    few, lines = (count, "") if word == "i64" else (f"%{name}_word", _few_ir(name, kind, count))
    return f"""{lines}  %{name}_one = insertelement {many} poison, {word} {few}, i64 0
  %{name}_all = shufflevector {many} %{name}_one, {many} poison, <{kind.lanes} x i32> zeroinitializer
  %{name} = icmp slt {many} <{numbers}>, %{name}_all"""


def _few_ir(name: str, kind: Numbers, count: str) -> str:
    """The count as a short word: none in place of fewer, all lanes in place of more."""
    return f"""  %{name}_some = icmp sgt i64 {count}, 0
  %{name}_least = select i1 %{name}_some, i64 {count}, i64 0
{min_ir(f"{name}_few", f"%{name}_least", str(kind.lanes))}
  %{name}_word = trunc i64 %{name}_few to i{8 * kind.size}
"""


def loop_ir(i: str, limit: str, step: str, body: str, first: str = "0") -> str:
    """A loop of `%i` from `first` below `limit`; `body` may define `step`."""
    return f"""
  br label %{i}_before
{i}_before:
  br label %{i}_head
{i}_head:
  %{i} = phi i64 [ {first}, %{i}_before ], [ %{i}_next, %{i}_latch ]
  %{i}_more = icmp slt i64 %{i}, {limit}
  br i1 %{i}_more, label %{i}_body, label %{i}_done
{i}_body:
{body}
  br label %{i}_latch
{i}_latch:
  %{i}_next = add i64 %{i}, {step}
  br label %{i}_head
{i}_done:"""


def places_ir(kind: Numbers, steps: Mapping[str, str], sums: str, body: str, together: int = 1) -> str:
    """A loop over the places %p of a sum, %k >= 1 of them, so many in a turn, behind the block `entry`: for each of
    ``steps`` a pointer `%<name>_at` moves from `%<name>` on, by so many elements a turn. It ends in the block `end`.
    """
    pointers = [f"  %{name}_at = phi ptr [ %{name}, %entry ], [ %{name}_next, %loop ]" for name in steps]
    moves = [at_ir(f"{name}_next", kind, f"%{name}_at", step) for name, step in steps.items()]
    newline = "\n"
    return f"""  br label %loop
loop:
  %p = phi i64 [ 0, %entry ], [ %p1, %loop ]
{newline.join(pointers)}
{sums}
{body}
{newline.join(moves)}
  %p1 = add i64 %p, {together}
  %again = icmp slt i64 %p1, %k
  br i1 %again, label %loop, label %end
end:"""


def min_ir(name: str, a: str, b: str) -> str:
    """The smaller of two numbers."""
    return f"""  %{name}_less = icmp slt i64 {a}, {b}
  %{name} = select i1 %{name}_less, i64 {a}, i64 {b}"""


def at_ir(name: str, kind: Numbers, base: str, offset: str) -> str:
    """The address of an element."""
    return f"  %{name} = getelementptr {kind.type}, ptr {base}, i64 {offset}"


def load_ir(name: str, kind: Numbers, pointer: str, mask: str) -> str:
    """A register from memory, zero where the mask is."""
    return (
        f"  %{name} = call {kind.vector} @llvm.masked.load.v{kind.lanes}{kind.suffix}.p0(ptr {pointer}, "
        f"i32 {kind.size}, {kind.mask} {mask}, {kind.vector} zeroinitializer)"
    )


def store_ir(kind: Numbers, value: str, pointer: str, mask: str) -> str:
    """A register to memory where the mask allows."""
    return (
        f"  call void @llvm.masked.store.v{kind.lanes}{kind.suffix}.p0({kind.vector} {value}, ptr {pointer}, "
        f"i32 {kind.size}, {kind.mask} {mask})"
    )
