"""OpDef: an op as one value, its kernel kind, and the registry; it knows specs and arrays, not graphs.

A kind tells the compiler all that it needs of an op. Fusion, lowering and clustering are written per kind and
never look at an op's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from jitgrad.errors import CompileError
from jitgrad.records import dataclass
from jitgrad.spec import TensorSpec

Params = Mapping[str, Any]
Specs = tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True)
class AxisIndex:
    """One index of an input: ``(scale * i + offset) // divisor`` where ``i`` runs along the output's ``axis``.

    Axis None: offset. With a divisor above 1 the scale is 1, and what is divided is negative only where a guard fails.
    """

    axis: int | None
    scale: int = 1
    offset: int = 0
    divisor: int = 1

    def __hash__(self) -> int:
        return hash((self.axis, self.scale, self.divisor))  # the offset may be a symbol, which only is compared


@dataclass(frozen=True, slots=True)
class Guard:
    """The input is read only where ``lo <= i < hi`` along the output's ``axis``."""

    axis: int
    lo: int
    hi: int

    def __hash__(self) -> int:
        return hash(self.axis)  # its bounds may be symbols


@dataclass(frozen=True, slots=True)
class IndexMap:
    """From an output index to an input index, one AxisIndex per input dimension, read where all guards hold."""

    dims: tuple[AxisIndex, ...]
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A scalar function of equal-shaped inputs; ``scalar`` is its name among the scalar ops of the loop IR."""

    scalar: str


@dataclass(frozen=True, slots=True)
class Fill:
    """No tensor inputs that matter: ``scalar`` is "constant" (params["value"]) or "iota" (index along
    params["axis"]).
    """

    scalar: str


@dataclass(frozen=True, slots=True)
class Reindex:
    """Moves elements without computing.

    ``maps(in_specs, params)`` gives, per output, one IndexMap (or None: not read) per input. Where no guard of
    any input holds, the output is ``params.get("fill", 0)``; guards of different inputs exclude one another.
    """

    maps: Callable[[Specs, Params], tuple[tuple[IndexMap | None, ...], ...]]


@dataclass(frozen=True, slots=True)
class View:
    """The first input's elements in row-major order, under another shape: reshape."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """The memory of complex numbers as pairs of real ones, which are a last axis, or the other way round."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Combines along params["axis"] (an int, a tuple or None for all), params["keepdims"].

    ``combine``: "add", "multiply", "maximum", "minimum", "logical_or", "logical_and", or "argmax" / "argmin"
    (the first index of the extreme; a NaN wins, as in NumPy). The accumulator has the output's dtype.
    """

    combine: str


@dataclass(frozen=True, slots=True)
class Scan:
    """Running results along params["axis"]: "add" (cumsum), "multiply" (cumprod), "maximum", "minimum", "logaddexp".

    "recurrence" has two inputs, terms and factors: the first result is the first term, each other one a term plus a
    factor times the result before.
    """

    combine: str


@dataclass(frozen=True, slots=True)
class Contract:
    """``a @ b`` on the last two axes, equal leading batch axes; params transpose_a, transpose_b."""


@dataclass(frozen=True, slots=True)
class Convolve:
    """Sums of products over windows, of images [n, c, y, x] with zeros around them (params padding, dilation).

    ``form``: "windows" (weights [o, c, i, j] times what windows see, [n, o, y, x]), or "filters" (summed over all
    windows, these seen times a second image [n, o, y, x] with an element for each: [o, c, i, j]).
    """

    form: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """For each element of the result a loop over a vector that lies in memory.

    ``form``: "slide" (inputs x [n] and w [k], not longer: the sum of products of w and the stretch of x from there on),
    or "search" (a sorted vector, and values: how many of its elements stand before each; params["side"]).
    """

    form: str


@dataclass(frozen=True, slots=True)
class Gather:
    """``out[..., k.., ...] = x[..., index[k..], ...]``: inputs (x, index, ...).

    ``form``: "take" (params["axis"]; index axes replace that axis), "take_along" (params["axis"]; index has x's
    rank), "index" (params["axes"]: adjacent axes of x, one equal-shaped index array each, the index axes stand
    in their place). Negative indices count from the end.
    """

    form: str


@dataclass(frozen=True, slots=True)
class Scatter:
    """The transpose of Gather: inputs (like, updates, index, ...), zeros of like's shape with updates added.

    Only the shape of ``like`` matters. Duplicate indices add up. ``form`` and params as Gather's.
    """

    form: str


@dataclass(frozen=True, slots=True)
class Update:
    """The first input but for one part: inputs (x, values, place), a 64-bit integer.

    Parts are counted along params["axes"], neighbours, in row-major order, and have the other axes of x; a place below
    0 is none. In loops the state is changed where it lies, where nothing reads it afterwards; see
    compiler/bodies/updates.py.
    """


@dataclass(frozen=True, slots=True)
class Shaped:
    """The first input, made to the shape of the others, whose values do not matter.

    ``form``: "broadcast" (NumPy's rule against the shapes of the other inputs), "sum" (summed down to the shape of
    the second input), "reshape" (to the shape of the second input). A Program replaces these by ops with params.
    """

    form: str


@dataclass(frozen=True, slots=True)
class Library:
    """A call into a library that may run inside a cluster's native call."""

    routine: str


@dataclass(frozen=True, slots=True)
class Control:
    """Runs sub-programs, params of the op: ``form`` is "cond", "while", "while_gradient", "scan" or "call"; or
    "function", of which programs that are compiled have none: see inlining.py.

    ``specialise(in_specs, params)`` gives the params with each subgraph as the Program for these specs.
    """

    form: str
    specialise: Callable[[Specs, Params], Params]


@dataclass(frozen=True, slots=True)
class Interpreted:
    """Runs in the interpreter; ``reason`` completes the sentence "not compiled: ..."."""

    reason: str
    is_elementwise: bool = False


Kind = (
    Elementwise | Fill | Reindex | View | Pairs | Reduce | Scan | Contract | Convolve | Sweep | Gather | Scatter
    | Update | Shaped | Library | Control | Interpreted
)

# Kinds whose ops infer the same from equal specs and params, whatever else has happened.
PURE_KINDS = frozenset((Elementwise, Reindex, View, Pairs, Reduce, Contract, Convolve, Shaped))

# vjp(g, out, *inputs, **params): g and out are tensors (tuples of them for several outputs); gives one cotangent or
# None per input, bare for a single input. That of a control op gets ``wanted`` as well: per input, whether its
# cotangent matters. It is written with ops, so that it can be traced and differentiated again.
Vjp = Callable[..., Any]
Infer = Callable[[Specs, Params], Specs]
Impl = Callable[..., Any]
# emit(name, *values, **params) adds an instruction and gives the number of its value.
Emit = Callable[..., int]
Expand = Callable[[Emit, Sequence[int], Params], int]


@dataclass(frozen=True, eq=False)
class OpDef:
    """An op: shape and dtype inference, meaning in NumPy, gradient rule, kernel kind.

    ``infer(in_specs, params)`` sees fully known shapes and gives the output specs; it raises ShapeError or DTypeError.
    ``impl(*arrays, **params)`` gives an array, or a tuple of them when there are several outputs.
    ``vjp`` is None where there is no rule; ``differentiable=False`` says that none is missing.
    ``stateful`` ops are neither merged nor dropped nor folded.
    ``expand(emit, inputs, params)``: an op that a program makes of other instructions; it gives its value.
    ``bound(params, in_specs)``: ``impl`` with its params, made for many calls on arrays of numbers of these specs.
    ``infers_partial`` says that ``infer`` also takes partly unknown shapes, for ops that need extents of several
    inputs to agree; the graph probes the others with made-up extents.
    """

    name: str
    infer: Infer
    impl: Impl
    vjp: Vjp | None
    kind: Kind
    differentiable: bool = True
    stateful: bool = False
    infers_partial: bool = False
    expand: Expand | None = None
    bound: Callable[[Params, Specs], Impl] | None = None

    def __repr__(self) -> str:
        return f"OpDef({self.name})"


_registry: dict[str, OpDef] = {}
_LATER = ("control.arrays", "control.ops", "custom", "ops.pseudoinverse", "preventing", "python_calls")
"""Modules that define ops and are not loaded with the package, but when somebody uses what is in them."""


def define(
    name: str,
    *,
    infer: Infer,
    impl: Impl,
    kind: Kind,
    vjp: Vjp | None = None,
    differentiable: bool = True,
    stateful: bool = False,
    infers_partial: bool = False,
    expand: Expand | None = None,
    bound: Callable[[Params, Specs], Impl] | None = None,
) -> OpDef:
    """Make an op and enter it in the registry; CompileError when the name is taken."""
    if name in _registry:
        raise CompileError(f"op {name!r} is defined twice")
    op = OpDef(name, infer, impl, vjp, kind, differentiable, stateful, infers_partial, expand, bound)
    _registry[name] = op
    return op


def find(name: str) -> OpDef:
    """The op of that name; KeyError when there is none."""
    if name not in _registry:
        _load_all()
    return _registry[name]


def definitions() -> Iterator[OpDef]:
    """All ops, in the order of definition."""
    _load_all()
    return iter(_registry.values())


def _load_all() -> None:
    for module in _LATER:
        import_module(f"jitgrad.{module}")
