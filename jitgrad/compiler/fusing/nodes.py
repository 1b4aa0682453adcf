"""The nodes of a cluster: its computing instructions in one common form, ready to be fused; data, which
node_building.py makes.
"""

from __future__ import annotations

import functools

from jitgrad.compiler.fusing.accesses import Operand
from jitgrad.compiler.loopir.nests import Literal
from jitgrad.opdef import AxisIndex
from jitgrad.records import dataclass
from jitgrad.spec import DType

MAP, REDUCE, SCAN, GATHER, SCATTER, ROUTINE = "map", "reduce", "scan", "gather", "scatter", "routine"
SWEEP, SLIDE, DOTS = "sweep", "slide", "dots"
PACK = "pack"  # an op of some operands at each place along the dimensions that only the value has, see packing.py
PLACE = "place"  # with a dimension: the first operand where the loop along it stands at the second one, else zero


@dataclass(frozen=True)
class Node:
    """``value[out_dims] = form(op(operands))`` over an iteration domain.

    ``shape`` and ``classes`` describe the domain, ``out_dims`` gives the domain's dimension of each output dimension
    (None for an extent of 1, and for those along which a pack has its operands). ``along`` are the domain dimensions
    that a reduction combines or a scan runs along.
    A gather reads ``table`` at ``table_dims``: per dimension an AxisIndex, or the position of an index operand.
    A scatter adds its first operand to its value at ``table_dims``, or as many as there are places along those of them
    with a scale of 0 (packing.py); one of ``turns`` adds as many, each with positions of its own: updates come first
    among its operands, then the positions turn by turn. ``batch`` leading dimensions count the matrices of a small
    product, of a routine, or of an elementwise node before them, in a kernel with a matrix per lane; None for all other
    nodes. The operands of a routine are a matrix over the next two dimensions, and right sides over the first and the
    third of the next three.
    """

    value: int
    form: str
    op: str
    operands: tuple[Operand, ...]
    shape: tuple[int, ...]
    classes: tuple[int, ...]
    out_dims: tuple[int | None, ...]
    dtype: DType
    along: tuple[int, ...] = ()
    combine: str = ""
    table: int | None = None
    table_dims: tuple[AxisIndex | int, ...] = ()
    is_serial: bool = False
    batch: int | None = None
    turns: int = 1

    @functools.cached_property
    def reads(self) -> tuple[int, ...]:
        """All values that it reads, each once."""
        table = () if self.table is None or self.form == SCATTER else (self.table,)
        return tuple(dict.fromkeys([v for operand in self.operands for v in operand.values] + list(table)))

    @property
    def values(self) -> tuple[int, ...]:
        """What it makes."""
        return (self.value,)

    @functools.cached_property
    def moved(self) -> frozenset[int | Literal]:
        """What it reads elsewhere than at the place of an axis of its domain, somewhere."""
        return frozenset([leaf.source for o in self.operands for leaf in o.leaves if not leaf.is_selection])


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product left to BLAS."""

    value: int
    a: int
    b: int
    transpose_a: bool
    transpose_b: bool

    @property
    def reads(self) -> tuple[int, ...]:
        """Its two operands."""
        return (self.a, self.b)

    @property
    def values(self) -> tuple[int, ...]:
        """What it makes."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution ("windows") of an image and weights, or the sums for weights ("filters") of two images.

    ``before`` is the padding in front of rows and of columns, ``gaps`` are the distances of taps.
    """

    value: int
    form: str
    a: int
    b: int
    before: tuple[int, int]
    gaps: tuple[int, int]

    @property
    def reads(self) -> tuple[int, ...]:
        """Its two operands."""
        return (self.a, self.b)

    @property
    def values(self) -> tuple[int, ...]:
        """What it makes."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a positive definite matrix, the gradient of one (of the factor and its cotangent), both factors of
    another matrix, of which the ``others`` are the rows exchanged, or the solution of a system with one right side and
    a triangle, ``lower`` or not, or both factors, ``transposed`` or not.
    """

    value: int
    routine: str
    reads: tuple[int, ...]
    lower: bool = True
    transposed: bool = False
    others: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[int, ...]:
        """What it makes."""
        return (self.value, *self.others)


@dataclass(frozen=True, slots=True)
class Transform:
    """A Fourier transform along the last axis, of pairs or of real numbers; ``is_divided``: by the number of points. Of
    pairs that is the inverse one.
    """

    value: int
    routine: str
    reads: tuple[int, ...]
    is_divided: bool

    @property
    def values(self) -> tuple[int, ...]:
        """What it makes."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Nested:
    """A control op, by the number of its instruction: it runs the programs of its bodies."""

    number: int
    form: str
    reads: tuple[int, ...]
    values: tuple[int, ...]


Item = Node | Product | Convolution | Factor | Transform | Nested


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """Nodes, products, factors and control ops in order; ``aliases`` are values that share the storage of another;
    ``kept`` must be in memory.
    """

    items: tuple[Item, ...]
    aliases: dict[int, int]
    kept: frozenset[int]
