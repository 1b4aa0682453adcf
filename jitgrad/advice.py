"""What a refused call is told beside the reason: the call, the user's line and what to do next. It refuses nothing
itself, and is asked only after an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitgrad.eagerness import Valued
from jitgrad.errors import JitgradError, extended, layout
from jitgrad.sources import raised_at, source_text, user_source
from jitgrad.spec import TensorSpec

named: dict[Any, str] = {}
"""Functions of this package that stand for operators and methods of NumPy's arrays, or for functions of graphs."""

_MOST = 12  # arguments are shown
_PLAIN = (ValueError, TypeError, IndexError, OverflowError)

# What the first line of an error says, in words of this package's and of NumPy's, and what to do then. The first that
# matches is taken: what one call says stands before what several say.
_HINTS = {
    r"axis:? -?\d+ is out of bounds for (?:an )?array of dimension 0": "an array without axes has one element: "
    "x[None] adds an axis",
    r"axis:? -?\d+ is out of bounds for (?:an )?array of dimension (?P<n>\d+)": "axes count from 0 to {last}, or from "
    "the end from -1 to -{n}",
    r"repeated axis|duplicate value in 'axis'|not a permutation|axes don't match": "name each axis once",
    r"different axes|must be different|cannot be the same": "give two axes that differ",
    r"cannot move axes|must have the same number of elements": "give as many new places as axes",
    r"remapped shapes": "axes of one letter have one extent: use another letter, or transpose or slice an operand",
    r"objects cannot be broadcast|indexing arrays could not": "give index arrays whose shapes broadcast: np.ix_(rows, "
    "columns) makes them for all pairs",
    r"could not be broadcast|could not broadcast": "extents are equal or 1, counted from the last axis; x[:, None] "
    "makes an axis of extent 1",
    r"cannot multiply matrices|mismatch in its core dimension": "the last axis of the first operand meets the last but "
    "one of the second: transpose an operand, as in x @ y.T",
    r"not aligned|mismatch for sum": "axes that are summed together have one extent: np.tensordot takes any pairs by "
    "axes=, np.einsum by letters",
    r"does not take scalars": "x * y multiplies by a number",
    r"does not take .*complex": "np.abs(x) is the modulus, x.real and x.imag are the parts",
    r"cannot solve": "the right side has as many rows as the matrix: transpose it, or give vectors as b[..., None]",
    r"square matri.* got \w+\[\]": "a number is no matrix: x[None, None] makes one of it",
    r"square matri.* got \w+\[\d+\]": "a vector is no matrix: np.diag(x) has it on the diagonal, np.outer(x, x) all "
    "products",
    r"square matri.* got \w+\[\d+,\d+,": "x.mT @ x is square for each matrix; np.linalg.pinv and np.linalg.svd take "
    "any",
    r"square matri|must be square|expected square": "x.T @ x is square; np.linalg.pinv and np.linalg.svd take any "
    "matrix",
    r"(two|2) dimensions|two-dimensional|at least 2(?! elements)": "x[None] makes a row of a vector, x[:, None] "
    "a column",
    r"cannot reshape": "keep the number of elements; one extent may be left open with -1",
    r"extents? open|one unknown dimension": "give all extents but one",
    r"cannot (?:select an axis to )?squeeze": "drop such an axis by an index, x[0], or by a sum",
    r"einsum label|einsum: operands do not": "axes of one letter have one extent: use another letter, or transpose or "
    "slice an operand",
    r"einsum subscripts .* do not fit|too many subscripts|not contain enough": "write one letter for each axis; ... "
    "stands for all others",
    r"einsum subscripts .* name|more operands|fewer operands": "separate the letters of operands by commas, as in "
    "'ij,jk->ik'",
    r"einsum output|string included output": "sum over letters by leaving them out; all others are "
    "of the inputs, each once",
    r"einsum|einstein": "write letters, commas, ... and one ->, as in 'ij,jk->ik'",
    r"must agree in all axes|must match exactly": "np.pad or a slice makes the other extents equal; np.stack joins "
    "along a new axis",
    r"same number of dimensions|different numbers of dimensions|of different rank": "x[None] adds an axis",
    r"must have the same shape": "np.concatenate joins arrays that differ along one axis; np.broadcast_arrays makes "
    "shapes equal",
    r"inputs of different shapes": "np.broadcast_arrays makes shapes equal",
    r"zero-dimensional": "np.stack joins numbers",
    r"equal division": "np.array_split cuts into parts of unequal extent",
    r"number of parts|number sections": "give a number from 1 on, or the positions of the cuts",
    r"counts for \d+ elements": "give one count, or one for each element along the axis",
    r"not fully known": "give the placeholder a shape, as far as it is known",
    r"Python integer .* out of bounds for": "an array of a wider dtype has room for it: astype(np.int64)",
    r"numpy boolean subtract": "x ^ y tells where they differ; astype(int) makes numbers",
    r"not supported for the input types|did not contain a loop": "convert an operand with astype; bits are of "
    "integers and booleans only",
    r"could not convert string|Cannot cast scalar": "give numbers",
    r"branch gives": "return one shape from all branches, as by padding",
    r"changes a part of its state": "return the state in the shape and dtype of init",
    r"a scan of \d+ steps": "slice xs to one number of steps: xs[:length]",
    r"tuple index out of range": "the array has fewer axes than that: x[None] adds one",
    r"shapes of a and weights differ|[Ss]hape of weights": "give weights of the array's shape, or a vector and axis=",
    r"vectors of extent 3|3-dimensional vectors|incompatible dimensions for cross": "vectors have extent 3 along the "
    "last axis, or along axis=",
    r"[Ii]ncompatible dimensions": "both have one number of rows",
    r"too small to calculate": "give a longer axis, or another one by axis=",
    r"too deep": "x.ravel() makes a vector; jg.scan takes rows one by one",
    r"(?<!non-)negative": "give a number from 0 on",
    r"non-negative": "give a number from 0 on",
    r"is out of bounds for axis \d+ with size 0": "the axis is empty",
    r"is out of bounds for axis \d+ with size (?P<n>\d+)": "positions go from 0 to {last}, or from the end from -1 to "
    "-{n}; np.take(x, i, mode='clip') takes the nearest",
    r"too many indices": "one index for each axis; None adds an axis",
    r"are indices|are valid indices|positions must be integers|Cannot cast array data": "convert positions with "
    "astype(int)",
    r"boolean index did not match": "a mask has the extents of the axes that it stands for",
    r"(?:argmax|argmin|quantile|cond) of no|of no points|empty sequence|empty arrays|non-empty": "test x.size first",
    r"no elements|zero-size array": "give initial=, the result for no elements, or test x.size first",
    r"cannot be interpreted as an integer|integral type": "give an integer, as int(n) or n // m",
    r"cannot hold values of dtype|unsupported operand|not understood": "give numbers, and dtypes of numbers",
    r"[Qq]uantiles": "quantiles are from 0 to 1; np.percentile takes them from 0 to 100",
    r"[Pp]ercentiles": "percentiles are from 0 to 100; np.quantile takes them from 0 to 1",
    r"norm order": "orders of matrices are 'fro', 'nuc', 1, -1, 2, -2 and the infinities, of vectors all numbers",
    r"norm takes|[Ii]mproper number of dimensions to norm": "give one axis or a pair, or x.ravel()",
    r"transforms real numbers": "np.fft.fft transforms complex numbers; np.real(x) has the real parts",
    r"Fourier transform|Invalid number of FFT": "give a number of points from 1 on by n= (s= where there are several "
    "axes), or an axis that is not empty: test x.size first",
    r"pad has no mode": "give one of these names; mode='constant' is what there is without mode",
    r"norm must be": "leave norm out: the inverse divides by n, and nothing else does",
    r"lstsq needs one row": "give a vector on the right, or a matrix, with as many rows as the one on the left",
    r"as many unknowns as equations|tensorinv needs": "the axes that become rows have as many elements together as "
    "those that become columns: np.moveaxis puts them first",
    r"tensorinv takes ind|Invalid ind": "leave ind out for 2: the first two axes become rows, the others columns",
    r"bins: a number|bins. must be positive": "leave bins out for 10, or give the edges, as in [0, 1, 2]",
    r"edges of bins rise|bins. must increase": "np.sort puts edges in order",
    r"edges of bins are|bins. must be 1d": "x.ravel() makes a vector",
    r"range of bins|range of .* is not finite|in range parameter": "np.nanmin and np.nanmax find ends; "
    "edges, given as bins, may be infinite",
    r"size of the window|must provide window_shape|matching length window_shape": "say by axis= which axes the "
    "window moves along, with one size for each",
    r"a window of|window shape cannot be": "give a smaller window, or pad the axis by np.pad",
    r"reduceat takes indices from": "each index is where a part begins, the end of the last is that of the axis: leave "
    "out what begins there",
    r"reduceat takes indices as": "np.ravel makes a vector, astype(int) integers",
    r"insert takes positions": "np.append adds behind the last, np.pad leaves places between",
    r"updates .* do not have the shape": "give one update, or weight, for each position",
    r"one shift for each": "name as many axes as there are shifts",
    r"one weight for each|weights should have the same": "np.broadcast_to gives weights the shape that they belong to",
    r"polyder takes|polyint takes an order|polyfit takes a degree|deg >= 0|Order of (?:derivative|integral)": "give a "
    "number from 0 on",
    r"polyint takes one constant": "give one number for all, or a list of one for each integration",
    r"no end that is 0|cannot include zero": "np.linspace begins at 0, np.logspace takes exponents",
    r"'raise', 'wrap' or 'clip'|order is 'C' or 'F'|method must be|not a valid method": "give one of these names",
    r"must be 'left' or 'right'": "'left' is in front of equal elements, 'right' behind them",
    r"coordinates, one for each": "leave coordinates out and give dx=, if all are as far apart",
    r"unexpected keyword|positional argument": "see help(fn) for its arguments",
    r"indexing must be|for `indexing`": "give indexing='xy' or indexing='ij'",
    r"select needs|same length": "give as many of the one as of the other",
    r"kth\(?=": "kth counts elements from 0",
    r"must begin with the shape of": "give one position for each row: data.shape[:ids.ndim] == ids.shape",
    r"at least (?P<n>\d+) elements? along": "give a longer axis, or another one by axis=",
    r"needs? (?:a|two) vector|one-dimensional|1-[dD]|1- or 2-d": "x.ravel() makes a vector; jg.scan takes rows one by "
    "one",
    r"needs a vector or matrices|tri\(\) missing|at most two dimensions": "reshape to a matrix first",
}  # fmt: skip


def advise(error: Exception, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Add to the message of an error of a call what it lacks of the call with the user's line, and of a hint.

    Errors that come from code of the user's stay as they are.
    """
    if not (isinstance(error, JitgradError) or type(error) in _PLAIN) or raised_at(error) is not None:
        return
    text = str(error)
    if error.args and "\n  " not in text:
        text = layout(text, op=call_text(name, args, kwargs))
    error.args = (advised(text), *error.args[1:])


def advised(text: str) -> str:
    """The message with a hint, where it has none and there is one for what it says."""
    return text if "\n  hint:" in text else extended(text, hint=hint_for(text.partition("\n")[0]))


def hint_for(what: str) -> str | None:
    """What to do after a refusal that says so; None where nothing is known."""
    for pattern, hint in _HINTS.items():
        found = re.search(pattern, what)
        if found is not None:
            n = found.groupdict().get("n")
            return hint if n is None else hint.format(n=n, last=int(n) - 1)
    return None


# -- calls -----------------------------------------------------------------------------------------------------


def call_text(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """``sum(f64[3,4], axis=2)    at model.py:12``: a call that the user's line makes."""
    return f"{name}({arguments_text(args, kwargs)})    at {source_text(user_source())}"


def arguments_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a call, arrays by their specs; not more than a line of them."""
    named = [f"{name}={_argument(x)}" for name, x in kwargs.items()]
    return ", ".join([*map(_argument, args[:_MOST]), *["..."] * (len(args) > _MOST), *named])


def _argument(x: Any) -> str:
    if isinstance(x, Valued):
        x = np.asarray(x)
    if isinstance(x, np.ndarray | np.generic):
        return str(TensorSpec(x.shape, x.dtype))
    if isinstance(x, list | tuple) and any(isinstance(item, np.ndarray | Valued) for item in x[:_MOST]):
        return f"[{arguments_text(x, {})}]"
    if isinstance(x, list | tuple):
        return f"({arguments_text(x, {})})"
    if isinstance(x, float | slice) or (isinstance(x, int) and x.bit_length() <= 64):
        return repr(x)
    if isinstance(x, str):
        return repr(x[:40])
    if isinstance(getattr(x, "spec", None), TensorSpec):
        return f"{x.op.name}: {x.spec}" if hasattr(x, "op") else str(x.spec)
    return "None" if x is None else x.__name__ if isinstance(x, type) else type(x).__name__
