"""jitgrad's public names, and nothing else: NumPy functions differentiated, their whole gradients fused."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jitgrad import nn as nn
from jitgrad import numpy as numpy
from jitgrad import scipy as scipy
from jitgrad.aggregation import AggregationMethod
from jitgrad.building import colocate_with, control_dependencies, device, name_scope
from jitgrad.config import config, get_num_threads, set_num_threads
from jitgrad.control.arrays import TensorArray
from jitgrad.control.folds import foldl, foldr, map
from jitgrad.control.functions import checkpoint, cond, fori_loop, scan, switch, while_loop
from jitgrad.control.graph_functions import RecursiveFunctionError, function
from jitgrad.control.ops import LoopLimitError
from jitgrad.custom import custom_gradient
from jitgrad.draws import random_normal, random_uniform, set_random_seed
from jitgrad.eager.functions import (
    gradients_function,
    implicit_grad,
    implicit_val_and_grad,
    make_vjp,
    val_and_grad_function,
)
from jitgrad.eager.tape import GradientTape
from jitgrad.eager.tensor import EagerTensor, asarray
from jitgrad.either import (
    accumulate_n,
    add_n,
    gather,
    identity,
    prevent_gradient,
    py_func,
    stop_gradient,
    unsorted_segment_sum,
)
from jitgrad.either import tie as tuple
from jitgrad.errors import (
    CompileError,
    DTypeError,
    GradientError,
    IndexingError,
    JitgradError,
    LeakedTracerError,
    NonFiniteError,
    ReadOnlyError,
    ShapeError,
    TracedValueError,
    UnsupportedOpError,
    UnwrittenError,
)
from jitgrad.graph import Graph, Operation, Tensor, default_graph
from jitgrad.hessians import hessian_vector_product, hessians
from jitgrad.ops.creation import constant, placeholder
from jitgrad.ops.slices import IndexedSlices
from jitgrad.ops.state import Variable, group
from jitgrad.registering import not_differentiable, register_gradient
from jitgrad.scopes import jit_scope
from jitgrad.session import Session
from jitgrad.sparse import gradients
from jitgrad.transforms import (
    compile,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    value_and_grad,
    vjp,
)

if TYPE_CHECKING:
    from jitgrad import optimize as optimize
    from jitgrad.profiler.comparing import compare
    from jitgrad.profiler.profile import Profile, profile

__version__ = "0.1.0"

__all__ = [
    "AggregationMethod",
    "CompileError",
    "DTypeError",
    "EagerTensor",
    "GradientError",
    "GradientTape",
    "Graph",
    "IndexedSlices",
    "IndexingError",
    "JitgradError",
    "LeakedTracerError",
    "LoopLimitError",
    "NonFiniteError",
    "Operation",
    "Profile",
    "ReadOnlyError",
    "RecursiveFunctionError",
    "Session",
    "ShapeError",
    "Tensor",
    "TensorArray",
    "TracedValueError",
    "UnsupportedOpError",
    "UnwrittenError",
    "Variable",
    "accumulate_n",
    "add_n",
    "asarray",
    "checkpoint",
    "colocate_with",
    "compare",
    "compile",
    "cond",
    "config",
    "constant",
    "control_dependencies",
    "custom_gradient",
    "default_graph",
    "device",
    "foldl",
    "foldr",
    "fori_loop",
    "function",
    "gather",
    "get_num_threads",
    "grad",
    "gradients",
    "gradients_function",
    "group",
    "hessian",
    "hessian_vector_product",
    "hessians",
    "hvp",
    "identity",
    "implicit_grad",
    "implicit_val_and_grad",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit_scope",
    "jvp",
    "make_vjp",
    "map",
    "name_scope",
    "nn",
    "not_differentiable",
    "numpy",
    "optimize",
    "placeholder",
    "prevent_gradient",
    "profile",
    "py_func",
    "random_normal",
    "random_uniform",
    "register_gradient",
    "scan",
    "scipy",
    "set_num_threads",
    "set_random_seed",
    "stop_gradient",
    "switch",
    "tuple",
    "unsorted_segment_sum",
    "val_and_grad_function",
    "value_and_grad",
    "vjp",
    "while_loop",
]

_LATER = dict.fromkeys(("profiler", "Profile", "compare", "profile"), "profiler") | {"optimize": "optimize"}


def __getattr__(name: str) -> Any:
    """What few scripts ask for is loaded when they do: it took an eighth of the import."""
    if name not in _LATER:
        raise AttributeError(f"module 'jitgrad' has no attribute {name!r}")
    module = import_module(f"jitgrad.{_LATER[name]}")
    globals()[name] = found = getattr(module, name, module)
    return found


def __dir__() -> list[str]:
    """The public names, which completion shows."""
    return __all__
