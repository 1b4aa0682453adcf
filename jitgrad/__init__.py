"""jitgrad's public names, and nothing else: NumPy functions differentiated, their whole gradients fused."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jitgrad.collecting import collection_paused

with collection_paused(are_kept=True):  # modules are no garbage, and looking for some took a seventh of the import
    from jitgrad.aggregation import AggregationMethod
    from jitgrad.building import colocate_with, control_dependencies, device, name_scope
    from jitgrad.config import config, get_num_threads, set_num_threads
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
    from jitgrad.ops.creation import constant, placeholder
    from jitgrad.ops.slices import IndexedSlices
    from jitgrad.ops.state import Variable, group
    from jitgrad.registering import not_differentiable, register_gradient
    from jitgrad.scopes import jit_scope
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
    from jitgrad import nn as nn
    from jitgrad import numpy as numpy
    from jitgrad import optimize as optimize
    from jitgrad import scipy as scipy
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
    from jitgrad.graph_hessians import hessian_vector_product, hessians
    from jitgrad.profiler.comparing import compare
    from jitgrad.profiler.profile import Profile, profile
    from jitgrad.session import Session

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

# Where the names are that not every script asks for: they took 0.3 of the import.
_LATER = {
    "control.arrays": ("TensorArray",),
    "control.folds": ("foldl", "foldr", "map"),
    "control.functions": ("checkpoint", "cond", "fori_loop", "scan", "switch", "while_loop"),
    "control.graph_functions": ("RecursiveFunctionError", "function"),
    "control.ops": ("LoopLimitError",),
    "custom": ("custom_gradient",),
    "draws": ("random_normal", "random_uniform", "set_random_seed"),
    "eager.functions": (
        "gradients_function",
        "implicit_grad",
        "implicit_val_and_grad",
        "make_vjp",
        "val_and_grad_function",
    ),
    "eager.tape": ("GradientTape",),
    "eager.tensor": ("EagerTensor", "asarray"),
    "either": (
        "accumulate_n",
        "add_n",
        "gather",
        "identity",
        "prevent_gradient",
        "py_func",
        "stop_gradient",
        "tie",
        "unsorted_segment_sum",
    ),
    "graph_hessians": ("hessian_vector_product", "hessians"),
    "profiler": ("Profile", "compare", "profile"),
    "session": ("Session",),
}
_MODULES = ("nn", "numpy", "optimize", "profiler", "scipy")
_OTHER_NAMES = {"tuple": "tie"}
_MODULE_OF = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> Any:
    """What few scripts ask for is loaded when they do."""
    if name in _MODULES:
        return import_module(f"jitgrad.{name}")
    there = _OTHER_NAMES.get(name, name)
    if name not in __all__ or there not in _MODULE_OF:
        raise AttributeError(f"module 'jitgrad' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(f"jitgrad.{_MODULE_OF[there]}"), there)
    return found


def __dir__() -> list[str]:
    """The public names, which completion shows."""
    return __all__
