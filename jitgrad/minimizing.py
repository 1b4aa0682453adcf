"""SciPy's minimisers of functions of pytrees, with compiled gradients; they are not reimplemented here."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jitgrad import pytree
from jitgrad.errors import DTypeError, ShapeError
from jitgrad.given import check_function
from jitgrad.records import dataclass
from jitgrad.transforms import compile, hvp, value_and_grad

# Methods of SciPy that want products with the Hessian.
_NEED_PRODUCTS = frozenset(("newton-cg", "trust-ncg", "trust-krylov", "trust-constr"))


@dataclass(frozen=True)
class _Packing:
    """The leaves of a pytree of float arrays as one float64 vector."""

    arrays: Sequence[Any]
    structure: Any

    @classmethod
    def of(cls, tree: Any) -> _Packing:
        """That of a tree; integers count as float64. DTypeError for leaves that are no real numbers."""
        leaves, structure = pytree.flatten(tree)
        return cls([_as_float(leaf) for leaf in leaves], structure)

    @property
    def start(self) -> Any:
        """The vector of the tree itself."""
        return self.pack(self.arrays)

    def pack(self, tree: Any) -> Any:
        """The vector of a tree. ShapeError where a leaf has another size than that of ``x0``."""
        leaves = pytree.flatten(tree)[0]
        for leaf, a in zip(leaves, self.arrays, strict=True):
            if np.shape(leaf) != a.shape:
                raise ShapeError(f"expected an array of shape {a.shape}, as in x0, got {np.shape(leaf)}")
        return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in leaves] or [np.zeros(0)])

    def unpack(self, vector: Any) -> Any:
        """The tree of a vector."""
        ends = np.cumsum([a.size for a in self.arrays])[:-1]
        parts = zip(np.split(np.asarray(vector), ends), self.arrays, strict=True)
        return pytree.unflatten(self.structure, [part.reshape(a.shape).astype(a.dtype) for part, a in parts])


def _as_float(leaf: Any) -> Any:
    array = np.array(leaf)
    if array.dtype.kind not in "fiu":
        raise DTypeError(f"x0 must hold real numbers, got {array.dtype}")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _as_array(tree: Any) -> Any:
    """A list of Python's numbers, also of lists of them, as the array that SciPy takes it for; any other tree as it is.
    """
    is_list = isinstance(tree, list | tuple) and not hasattr(tree, "_fields")
    return np.array(tree) if is_list and all(type(x) in (int, float) for x in pytree.flatten(tree)[0]) else tree


def minimize(
    fn: Callable[..., Any],
    x0: Any,
    args: Any = (),
    method: str = "L-BFGS-B",
    jac: Callable[..., Any] | str | bool | None = None,
    **options: Any,
) -> Any:
    """``scipy.optimize.minimize`` of ``fn(x, *args)``, a scalar, with its gradient compiled.

    ``x0`` is an array, a list of numbers, or a pytree of arrays of real numbers; the result is SciPy's, an
    OptimizeResult, its ``x`` in the structure of ``x0`` and its ``jac`` a vector. ``jac`` is for a gradient of one's
    own: True where ``fn`` gives (value, gradient), a function of the same arguments, or the name of SciPy's finite
    differences; then functions are called as they are. ``options`` are those of SciPy's function: ``tol``, ``options``,
    ``constraints`` (their functions too get x in x0's structure), and ``bounds``, a sequence of (low, high) per element
    of x0's leaves in their order, or SciPy's Bounds. ``callback`` is called with the present x in x0's structure, or,
    if its parameter is ``intermediate_result``, with SciPy's result so far, whose x has that structure. Methods that
    want products with the Hessian get them compiled, unless ``hess`` or ``hessp`` is given. DTypeError for an x0 of
    other numbers; ShapeError and TypeError where ``fn`` gives no scalar; ValueError from SciPy, for unknown methods and
    for bounds that do not fit.
    """
    import scipy.optimize

    check_function("minimize", fn)
    packing = _Packing.of(_as_array(x0))
    args = args if isinstance(args, tuple) else (args,)
    if options.get("constraints"):
        options["constraints"] = _constraints(options["constraints"], packing)
    name = getattr(fn, "__name__", "minimize")
    both = fn if jac is True else _value_and_gradient(fn, jac, name)

    def value_and_vector(vector: Any) -> Any:
        value, gradient = both(packing.unpack(vector), *args)
        return float(value), None if gradient is None else packing.pack(gradient)

    if callable(options.get("callback")):
        options["callback"] = _structured(options["callback"], packing)
    if method.lower() in _NEED_PRODUCTS and not {"hess", "hessp"} & options.keys():
        products = compile(_products(fn, args, jac is True), name=name)
        options["hessp"] = lambda x, v: packing.pack(products(packing.unpack(x), packing.unpack(v)))
    minimizer: Any = scipy.optimize.minimize
    if isinstance(jac, str):
        result = minimizer(lambda x: value_and_vector(x)[0], packing.start, method=method, jac=jac, **options)
    else:
        result = minimizer(value_and_vector, packing.start, method=method, jac=True, **options)
    result.x = packing.unpack(result.x)
    return result


def _value_and_gradient(fn: Callable[..., Any], jac: Any, name: str) -> Callable[..., Any]:
    """``fn`` with its gradient, compiled, or with that which the user gives; None for that which SciPy finds."""
    if jac is None or jac is False:
        return compile(value_and_grad(fn), name=name)
    of_jac = jac if callable(jac) else lambda *args: None
    return lambda *args: (fn(*args), of_jac(*args))


def _products(fn: Callable[..., Any], args: tuple[Any, ...], has_gradient: bool) -> Callable[..., Any]:
    """Products with the Hessian; of the value alone, where ``fn`` gives its gradient too."""

    def value(x: Any) -> Any:
        found = fn(x, *args)
        return found[0] if has_gradient else found

    return lambda x, v: hvp(value, (x,), (v,))


def _constraints(given: Any, packing: _Packing) -> Any:
    """SciPy's constraints, their functions called with x in the structure of ``x0``."""

    def of_structure(fn: Any) -> Any:
        return (lambda x, *args: fn(packing.unpack(x), *args)) if callable(fn) else fn

    if isinstance(given, list | tuple):
        return [_constraints(one, packing) for one in given]
    if isinstance(given, dict):
        return {name: of_structure(x) if name in ("fun", "jac") else x for name, x in given.items()}
    if hasattr(given, "fun"):
        given = copy.copy(given)
        given.fun, given.jac = of_structure(given.fun), of_structure(given.jac)
    return given


def _structured(callback: Callable[..., Any], packing: _Packing) -> Callable[..., Any]:
    """The callback as SciPy calls it, with vectors."""
    if list(inspect.signature(callback).parameters) != ["intermediate_result"]:
        return lambda x, *rest: callback(packing.unpack(x), *rest)

    def with_result(intermediate_result: Any) -> Any:
        structured = type(intermediate_result)(intermediate_result)
        structured.x = packing.unpack(intermediate_result.x)
        return callback(intermediate_result=structured)

    return with_result
